"""An HTTP server on a port that anybody may reach: it costs a bounded amount of memory, and says nothing of
requests that are none.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MOST_CONNECTIONS = 128
"""With one more, the oldest of the address that has the most is closed, so a flood keeps nobody else out."""
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
        found = (each.transport for each in server.connections)
        transports = [each for each in found if each is not None and not each.is_closing()]
        if len(transports) >= MOST_CONNECTIONS:
            peers = [transport.get_extra_info("peername") or ("",) for transport in transports]
            # what its client does not read is given up, too
            transports[oldest_of_most([peer[0] for peer in peers])].abort()
        return server()

    return make


def oldest_of_most(addresses: Sequence[str]) -> int:
    """Return the place of the first connection of the address that has the most.

    Args:
        addresses: of the connections, from the oldest on.
    """
    counts = Counter(addresses)
    most = max(counts.values())
    return next(place for place, address in enumerate(addresses) if counts[address] == most)
