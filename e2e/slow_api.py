"""A proxy to an API server, which refuses in bursts."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from itertools import count
from pathlib import Path
from types import TracebackType

import aiohttp
import yaml
from aiohttp import web

from controller.connection import Connection
from controller.kubeconfig import load_connection

_START_SECONDS = 120.0
_MOST_BYTES = 64 * 2**20
_PASSED_ON = ("Accept", "Content-Type")
_BURST_SECONDS = 3.0
"""Length of a burst of refusals, and of the time between two."""
_LOOK_SECONDS = 0.2
_READS = (429, 500, 410)
_WRITES = (429, 500)
_EXPIRED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}


class SlowApi:
    """A proxy in a thread of its own, between `with` and its end, with the rights of a kubeconfig.

    Args:
        kubeconfig: of the API server.
        folder: for the kubeconfig of the proxy.
        certificate: the API server's own certificate and key, for Pods, which talk TLS with their own tokens.
    """

    def __init__(self, kubeconfig: Path, folder: Path, certificate: tuple[Path, Path]) -> None:
        self.kubeconfig = folder / "slow-kubeconfig"
        self.port = 0
        self.refuses = False
        """Whether it refuses what is asked in every other stretch of three seconds, and ends watches then."""
        self.refused: dict[int, int] = {}
        """Number of refusals by status, and of watches that were ended under 0."""
        self._upstream = kubeconfig
        self._certificate = certificate
        self._numbers = count()
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
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*self._certificate)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                return self._refusal(request) or await self._forward(request, connection, session)

            app = web.Application(client_max_size=_MOST_BYTES)
            app.router.add_route("*", "/{path:.*}", forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            self.port = runner.addresses[0][1]
            self._write_kubeconfig()
            self._is_serving.set()
            await self._stop.wait()
            await runner.cleanup()

    def _is_in_burst(self) -> bool:
        return self.refuses and time.monotonic() % (2 * _BURST_SECONDS) < _BURST_SECONDS

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Return one of the refusals in turn; None where the request is passed on."""
        if not self._is_in_burst():
            return None
        of = _READS if request.method == "GET" else _WRITES
        status = of[next(self._numbers) % len(of)]
        self.refused[status] = self.refused.get(status, 0) + 1
        told = {**_EXPIRED, "code": status, "reason": "", "message": f"refused with {status}"}
        headers = {"Retry-After": "1"} if status == 429 else {}
        return web.json_response(told, status=status, headers=headers)

    async def _forward(
        self, request: web.Request, connection: Connection, session: aiohttp.ClientSession
    ) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers |= connection.authorization()
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        async with session.request(
            request.method,
            connection.server + request.raw_path,
            data=await request.read(),
            headers=headers,
        ) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            while not upstream.content.at_eof():
                try:
                    chunk = await asyncio.wait_for(upstream.content.readany(), _LOOK_SECONDS)
                except TimeoutError:
                    if "watch" in request.query and self._is_in_burst():  # between two events
                        self.refused[0] = self.refused.get(0, 0) + 1
                        event = {"type": "ERROR", "object": _EXPIRED}
                        await response.write(json.dumps(event).encode() + b"\n")
                        break
                    continue
                await response.write(chunk)
            await response.write_eof()
            return response

    def _write_kubeconfig(self) -> None:
        config = yaml.safe_load(self._upstream.read_text())
        for each in config["clusters"]:
            each["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        self.kubeconfig.write_text(yaml.safe_dump(config))
