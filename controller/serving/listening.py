"""HTTP server on a publicly reachable port: its memory is bounded, and malformed requests are not logged."""

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
"""Maximum connections. One more closes the oldest of the address with the most, so that a flood locks nobody
else out."""
MOST_HEADERS = 32
"""Maximum headers of a request, of 8 KB each, which a connection keeps until its request is complete."""
HTTP_LOG = logging.getLogger(__name__)
"""Logger of aiohttp's servers, with only the tracebacks of defects."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record is about a defect, and not about a client's input."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


HTTP_LOG.addFilter(_is_ours)


@asynccontextmanager
async def serve_http(
    app: web.Application, address: str | socket.socket, port: int = 0, *, shutdown_seconds: float
) -> AsyncIterator[int]:
    """Serve while the block runs; yield the port.

    Args:
        address: address to listen on, or a listening socket.

    Raises:
        OSError: the port is not available.
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
    """Return the protocol factory, which bounds the number of connections."""

    def make() -> asyncio.Protocol:
        found = (each.transport for each in server.connections)
        transports = [each for each in found if each is not None and not each.is_closing()]
        if len(transports) >= MOST_CONNECTIONS:
            peers = [transport.get_extra_info("peername") or ("",) for transport in transports]
            # unread answers are dropped, too
            transports[oldest_of_most([peer[0] for peer in peers])].abort()
        return server()

    return make


def oldest_of_most(addresses: Sequence[str]) -> int:
    """Return the position of the first connection of the address with the most.

    Args:
        addresses: addresses of the connections, oldest first.
    """
    counts = Counter(addresses)
    most = max(counts.values())
    return next(place for place, address in enumerate(addresses) if counts[address] == most)
