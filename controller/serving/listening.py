"""An HTTP server on a port that anybody may reach: it costs a bounded amount of memory, and says nothing of
requests that are none.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MOST_CONNECTIONS = 128
"""With one more, the oldest is closed: whoever only holds connections keeps nobody out."""
MOST_HEADERS = 32
"""Headers of a request, of 8 KB each: a connection keeps what it was sent until its request is whole."""
HTTP_LOG = logging.getLogger(__name__)
"""The logger of aiohttp's servers: it has the tracebacks of defects alone."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record is of a defect, and not of what a client sent."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


HTTP_LOG.addFilter(_is_ours)


@asynccontextmanager
async def serve_http(
    app: web.Application, address: str | socket.socket, port: int = 0, *, shutdown_seconds: float
) -> AsyncIterator[int]:
    """Serve while the block runs; the value is the port.

    Args:
        address: to listen on, or a socket that listens.

    Raises:
        OSError: the port cannot be listened on.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=shutdown_seconds,
        logger=HTTP_LOG,
        max_headers=MOST_HEADERS,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        make, loop = _bounded(runner.server), asyncio.get_running_loop()
        if isinstance(address, str):
            listening = await loop.create_server(make, address, port)
        else:
            listening = await loop.create_server(make, sock=address)
        try:
            yield listening.sockets[0].getsockname()[1]
        finally:
            listening.close()
    finally:
        await runner.cleanup()


def _bounded(server: web.Server) -> Callable[[], asyncio.Protocol]:
    """Return what makes the protocol of each new connection."""

    def make() -> asyncio.Protocol:
        connections = server.connections
        for oldest in connections[: max(0, len(connections) + 1 - MOST_CONNECTIONS)]:
            if oldest.transport is not None:
                oldest.transport.abort()  # what its client does not read is given up, too
        return server()

    return make
