"""Serves an agent's slots to its peers' agents, and to processes that start with another world size.

`agent.memory.wire` has the protocol. Without a store of the round's, nobody knows the port; there is no other
authentication, as with torch's stores in the Pod network.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path

from agent.memory.pool import Pool
from agent.memory.slot import Mark
from agent.memory.wire import MAX_LINE_BYTES, TIMEOUT_SECONDS, Request, Verb, encode_answer

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
"""After a connection that could not be taken."""
MAX_CONNECTIONS = 64
"""Served at once; others wait in the kernel."""


class SlotServer:
    """Serves until `close`.

    Args:
        pool: whose slots are served.
        host: the address to listen on.
        copies: what is here of another agent's, of a round.
        take_replica: fetches what a peer offers, given the peer's address; tells whether it is here.
    """

    def __init__(
        self,
        pool: Pool,
        host: str,
        take_replica: Callable[[Mark, str], bool],
        copies: Callable[[int], Sequence[Mark]],
    ) -> None:
        self._pool = pool
        self._copies = copies
        self._take_replica = take_replica
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=MAX_CONNECTIONS)
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        threading.Thread(target=self._accept, name="dlr-slots", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept(2)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                with ExitStack() as unless_served:  # else its peer would wait for its time-out
                    connection = unless_served.enter_context(self._socket.accept()[0])
                    thread = threading.Thread(
                        target=self._serve, args=(connection,), name="dlr-slot", daemon=True
                    )
                    thread.start()
                    unless_served.pop_all()
            except (OSError, RuntimeError) as error:  # closed; or out of descriptors or threads for a while
                self._places.release()
                if self._closed.wait(RETRY_SECONDS):
                    return
                logger.debug("a connection was not taken: %s", error)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(TIMEOUT_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection.makefile("rb") as lines:
                    self._answer(connection, Request.decode(lines.readline(MAX_LINE_BYTES)))
        except (OSError, ValueError) as error:
            logger.debug("a request for a slot was not answered: %s", error)
        finally:
            self._places.release()

    def _answer(self, connection: socket.socket, request: Request) -> None:
        if request.verb is Verb.OFFER:
            held = self._take_replica(request.mark, request.sender)
            connection.sendall(encode_answer({"held": held}))
        elif request.verb is Verb.CHECK:
            damaged = self._pool.is_damaged(request.mark)
            connection.sendall(encode_answer({"damaged": damaged}))
        elif request.verb is Verb.COPIES:
            marks = [astuple(mark) for mark in self._copies(request.mark.round)]
            connection.sendall(encode_answer({"copies": marks}))
        else:
            self._send_slot(connection, request)

    def _send_slot(self, connection: socket.socket, request: Request) -> None:
        if (slot := self._pool.summed(request.mark)) is None:
            connection.sendall(encode_answer({"error": "it is not here"}))
            return
        used = slot.used_bytes()
        start, stop = request.start, used if request.stop is None else request.stop
        if not 0 <= start < stop <= used:
            connection.sendall(encode_answer({"error": f"it has {used} bytes"}))
            return
        connection.sendall(encode_answer({"bytes": stop - start}))
        with Path(slot.path).open("rb") as file:  # for sendfile(2)
            connection.sendfile(file, start, stop - start)
