"""HTTP endpoints of the process: /healthz and /readyz, and /metrics.

They run on the controllers' event loop on purpose: a loop that hangs does not answer, which is what a
liveness probe must detect.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from controller import clock
from controller.serving.listening import serve_http
from controller.serving.metrics_access import MetricsAccess

PERIOD_SECONDS = 1.0
MOST_FORMATS = 8
"""Maximum cached renderings, each in another format."""


MOST_METRICS_REQUESTS = 64
EVERYWHERE = "::"
"""All addresses of the machine, IPv4 included; only IPv4 if there is no IPv6."""


class ServeError(Exception):
    """A port is not available."""


@dataclass(frozen=True)
class Listen:
    """Address and ports to listen on. Port 0 takes a free one; None disables the server."""

    address: str = EVERYWHERE
    health_port: int | None = 8081
    metrics_port: int | None = 8080


@dataclass(frozen=True)
class Ports:
    """Ports that the servers listen on."""

    health: int | None
    metrics: int | None


@dataclass
class Readiness:
    """Whether this process is ready."""

    not_ready: str | None = "starting"
    """Reason why it is not; None if it is."""


@asynccontextmanager
async def serve(
    listen: Listen, state: Readiness, registry: CollectorRegistry, access: MetricsAccess | None = None
) -> AsyncIterator[Ports]:
    """Run all servers until the block ends; raise ServeError if a port is not available.

    Args:
        access: access check for the metrics; None allows everybody.
    """
    address = listen.address
    if address == EVERYWHERE and not socket.has_dualstack_ipv6():
        address = "0.0.0.0"
    async with AsyncExitStack() as stack:

        async def http(app: web.Application, port: int | None) -> int | None:
            return None if port is None else await stack.enter_async_context(_http(app, address, port))

        yield Ports(
            health=await http(_health_app(state), listen.health_port),
            metrics=await http(_metrics_app(registry, access), listen.metrics_port),
        )


@asynccontextmanager
async def _http(app: web.Application, address: str, port: int) -> AsyncIterator[int]:
    async with AsyncExitStack() as stack:
        try:
            # asyncio's own socket for `::` would accept only IPv6.
            found = _everywhere(port) if address == EVERYWHERE else address
            served = serve_http(app, found, port, shutdown_seconds=1.0)
            bound = await stack.enter_async_context(served)
        except OSError as error:
            raise _cannot_listen(address, port, error) from error
        yield bound


def _everywhere(port: int) -> socket.socket:
    return socket.create_server((EVERYWHERE, port), family=socket.AF_INET6, dualstack_ipv6=True)


def _health_app(state: Readiness) -> web.Application:
    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if state.not_ready is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"not ready: {state.not_ready}\n")

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    return app


def _metrics_app(registry: CollectorRegistry, access: MetricsAccess | None) -> web.Application:
    renderer, in_work = Renderer(registry), 0

    async def metrics(request: web.Request) -> web.Response:
        nonlocal in_work
        if in_work >= MOST_METRICS_REQUESTS:
            return web.Response(status=503, text="too many requests at once\n")
        in_work += 1
        try:
            return await answer(request)
        finally:
            in_work -= 1

    async def answer(request: web.Request) -> web.Response:
        if access is not None:
            refusal = await access.refusal(request.headers.get("Authorization", ""))
            if refusal is not None:
                headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
                return web.Response(status=refusal.status, text=f"{refusal.reason}\n", headers=headers)
        rendering = await renderer.of(request.headers.get("Accept", ""))
        return web.Response(body=rendering.body, headers={"Content-Type": rendering.content_type})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


def _cannot_listen(address: str, port: int, error: OSError) -> ServeError:
    if error.errno == errno.EADDRINUSE:
        return ServeError(
            f"port {port} on {address} is in use by another process: stop that or choose another port"
        )
    return ServeError(f"cannot listen on {address} port {port}: {error.strerror or error}")


@dataclass(frozen=True)
class Rendering:
    body: bytes
    content_type: str
    rendered_at: float


class Renderer:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._last: dict[str, Rendering] = {}
        """Renderings by format, oldest first."""
        self._lock = asyncio.Lock()

    async def of(self, accept: str) -> Rendering:
        """Return the metrics in the format that a request accepts, at most a second old.

        A thread renders them: 10,000 workers take a second, and block the loop for milliseconds each time.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # it compares a version such as `x` with numbers
            encode, content_type = choose_encoder("")
        async with self._lock:
            last = self._last.get(content_type)
            newest = max((each.rendered_at for each in self._last.values()), default=None)
            if last is not None and clock.monotonic() - last.rendered_at < PERIOD_SECONDS:
                return last
            if newest is not None and (left := newest + PERIOD_SECONDS - clock.monotonic()) > 0:
                await asyncio.sleep(left)
            body = await asyncio.to_thread(encode, self._registry)
            self._last.pop(content_type, None)
            self._last[content_type] = Rendering(body, content_type, clock.monotonic())
            while len(self._last) > MOST_FORMATS:
                del self._last[next(iter(self._last))]
            return self._last[content_type]
