"""The dashboard's HTTP server, on loopback: a page, its files, and its content as server-sent events.

    /TOKEN/                                 the page
    /TOKEN/static/NAME                      a file of the page
    /TOKEN/events?view=fleet                all jobs
    /TOKEN/events?view=job&namespace=&name= one job
    /TOKEN/log?namespace=&name=&rank=       the end of the log of one rank

It only reads. Other programs of this machine, and web pages in its browser, can reach a port on loopback: so
requests need the token in the address; a `Host` other than loopback is refused as DNS rebinding, and an
`Origin` other than this server as a cross-site request.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from controller.serving.listening import serve_http
from dlr.dashboard.feed import Feed, in_thread
from dlr.dashboard.reading import FleetView, JobView
from dlr.job import tones
from dlr.job.timeline import drawing
from dlr.kube.api import NAME_LENGTH_MAX, OBJECT_NAME, Api
from dlr.kube.errors import ApiError, UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ADDRESS = "127.0.0.1"
STATIC = Path(__file__).parent / "static"
FILES = {
    "app.js": "text/javascript",
    "charts.js": "text/javascript",
    "style.css": "text/css",
    "uplot.js": "text/javascript",
    "uplot.css": "text/css",
    "icon.svg": "image/svg+xml",
}
BASE_STYLE = "base.css"
"""Style that timelines have, too."""
MOST_STREAMS = 64
TOKEN_BYTES = 24
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer. They keep the token, a part of the address, out of referrers and caches."""


class Dashboard:
    def __init__(self, api: Api, *, all_namespaces: bool = False) -> None:
        self._api = api
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._fleet = Feed(FleetView(api, all_namespaces=all_namespaces))
        self._jobs: dict[tuple[str, str], tuple[JobView, Feed]] = {}
        self._streams = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._index)
        app.router.add_get("/{token}/static/{name}", self._file)
        app.router.add_get("/{token}/events", self._events)
        app.router.add_get("/{token}/log", self._log)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.path.partition("/")[2].partition("/")[0]  # empty for `OPTIONS *`
        refused = why_refused(request.headers.get("Host"), request.headers.get("Origin"), given, self.token)
        if refused:
            return web.Response(status=403, text=f"{refused}\n", headers=HEADERS)
        try:
            return await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return _file(STATIC / "index.html", "text/html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name == BASE_STYLE:
            text = tones.STYLE + drawing.STYLE
            return web.Response(text=text, content_type="text/css", headers=HEADERS)
        if name not in FILES:
            raise web.HTTPNotFound(text=f"There is no file {name!r}.\n")
        return _file(STATIC / name, FILES[name])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        feed = self._fleet if request.query.get("view") == "fleet" else self._job(request)[1]
        if self._streams >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="Too many pages of this dashboard are open; close some.\n")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            await response.prepare(request)
            async with aclosing(feed.updates()) as updates:
                async for update in updates:
                    await response.write(b"data: " + update.body + b"\n\n")
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._streams -= 1
        return response

    async def _log(self, request: web.Request) -> web.StreamResponse:
        job, _ = self._job(request)
        rank = request.query.get("rank", "")
        if not (rank.isascii() and rank.isdigit() and len(rank) <= 6):
            raise web.HTTPBadRequest(text="rank must be a number.\n")
        try:
            log = await in_thread(lambda: job.log(int(rank)))
        except ApiError as error:
            log = {"pod": None, "lines": [], "note": f"{error}"}
        return web.json_response(log, headers=HEADERS)

    def _job(self, request: web.Request) -> tuple[JobView, Feed]:
        """Return the view and feed of the requested job, which its pages share."""
        key = (request.query.get("namespace", ""), request.query.get("name", ""))
        if not all(len(part) <= NAME_LENGTH_MAX and OBJECT_NAME.fullmatch(part) for part in key):
            raise web.HTTPBadRequest(text="namespace and name must be names in Kubernetes.\n")
        if key not in self._jobs:
            job = JobView(self._api.within(key[0]), key[1])
            self._jobs[key] = (job, Feed(job))
        return self._jobs[key]


def _file(path: Path, content_type: str) -> web.Response:
    return web.Response(body=path.read_bytes(), content_type=content_type, charset="utf-8", headers=HEADERS)


@asynccontextmanager
async def serve(dashboard: Dashboard, port: int) -> AsyncIterator[str]:
    """Serve while the block runs; yield the page's address.

    Raises:
        UsageError: the port is taken, or may not be used.
    """
    async with AsyncExitStack() as stack:
        try:
            served = serve_http(dashboard.app(), ADDRESS, port, shutdown_seconds=0.1)
            bound = await stack.enter_async_context(served)
        except OSError as error:
            raise UsageError(
                f"{ADDRESS}:{port} cannot be listened on: {os.strerror(error.errno or 0)}."
            ) from error
        yield f"http://{ADDRESS}:{bound}/{dashboard.token}/"


def why_refused(host: str | None, origin: str | None, given: str, token: str) -> str | None:
    """Return the reason to refuse a request; None for a valid one.

    Args:
        host: header `Host`, with any port, since ssh may forward another one.
        origin: header `Origin`, which browsers omit in same-site requests.
    """
    name = _hostname(f"//{host}") if host else None
    if name not in LOOPBACK_NAMES:
        return "This server answers only under a name of the machine that it runs on: localhost or 127.0.0.1."
    if origin is not None and origin != f"http://{host}":
        return "This server answers only pages of its own."
    if not hmac.compare_digest(given.encode(), token.encode()):
        return (
            "The token in this address is not this server's: open the address that `dlr dashboard` printed."
        )
    return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
