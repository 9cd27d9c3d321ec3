"""A way to an API server that answers late: what is asked is done at once, and the answer is kept back.

So it is with a server that is overloaded, and it is the worst for a client that gives up: what it asked for
has been done.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType

import aiohttp
import yaml
from aiohttp import web

from controller.connection import Connection
from controller.kubeconfig import load_connection

_START_SECONDS = 30.0
_MOST_BYTES = 64 * 2**20
_PASSED_ON = ("Accept", "Content-Type")


class SlowApi:
    """A proxy in a thread of its own, between `with` and its end, with the rights of a kubeconfig.

    Args:
        kubeconfig: of the API server.
        folder: for the kubeconfig of the proxy.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = folder / "slow-kubeconfig"
        """For those whose answers come late."""
        self.delay_seconds = 0.0
        """Time for which each answer is kept back; of a watch, its beginning."""
        self._upstream = kubeconfig
        self._thread = threading.Thread(target=self._run, name="slow API", daemon=True)
        self._is_serving = threading.Event()

    def __enter__(self) -> SlowApi:
        self._thread.start()
        if not self._is_serving.wait(_START_SECONDS):
            raise AssertionError("the proxy to the API server did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connection = load_connection(self._upstream)
        connector = aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context() or True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                return await self._forward(request, connection, session)

            app = web.Application(client_max_size=_MOST_BYTES)
            app.router.add_route("*", "/{path:.*}", forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._write_kubeconfig(runner.addresses[0][1])
            self._is_serving.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(
        self, request: web.Request, connection: Connection, session: aiohttp.ClientSession
    ) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers |= connection.authorization()
        async with session.request(
            request.method,
            connection.server + request.raw_path,
            data=await request.read(),
            headers=headers,
        ) as upstream:
            await asyncio.sleep(self.delay_seconds)
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    def _write_kubeconfig(self, port: int) -> None:
        cluster = {"name": "slow", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "slow", "context": {"cluster": "slow", "user": "slow"}}
        config = {"clusters": [cluster], "contexts": [context], "users": [{"name": "slow", "user": {}}]}
        self.kubeconfig.write_text(
            yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "slow", **config})
        )
