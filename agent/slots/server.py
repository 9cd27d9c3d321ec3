"""Serves an agent's slots to its peers' agents, and to processes that start with another world size.

`agent.slots.wire` has the protocol. Connections come from the agent's listener, so that the peers are of the
same job (`agent.connection`).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

from agent.connection.listener import Listener
from agent.slots.format import Mark
from agent.slots.pool import Pool
from agent.slots.wire import MAX_LINE_BYTES, SERVICE, TIMEOUT_SECONDS, SlotRequest, SlotVerb, encode_line

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Connections served at a time; others wait for their turn."""


class SlotServer:
    """Serves until `close`.

    Args:
        take_replica: fetches an offered slot from the peer at an address; returns whether it is here.
        copies: returns the marks of the replicas here of a round.
    """

    def __init__(
        self,
        pool: Pool,
        listener: Listener,
        take_replica: Callable[[Mark, str], bool],
        copies: Callable[[int], Sequence[Mark]],
    ) -> None:
        self._pool = pool
        self._copies = copies
        self._take_replica = take_replica
        self._listener = listener
        self._lock = threading.Lock()
        """Lock of the fields below."""
        self._waiting: deque[socket.socket] = deque()
        self._threads = 0
        self._closed = False
        listener.offer(SERVICE, self._take)

    @property
    def address(self) -> str:
        """`host:port`, as peers connect to it."""
        return self._listener.address

    def close(self) -> None:
        """Serve no more; transfers in progress go on."""
        self._listener.withdraw(SERVICE)
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().close()

    def _take(self, connection: socket.socket) -> None:
        """Take over a connection from the listener's thread."""
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._waiting.append(connection)
            if self._threads == MAX_CONNECTIONS:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name="dlr-slot", daemon=True).start()
        except RuntimeError as error:  # no thread for now; the existing ones serve what waits
            with self._lock:
                self._threads -= 1
                if self._waiting and not self._threads:
                    self._waiting.pop().close()
            logger.warning("a request for a slot waits: %s", error)

    def _run(self) -> None:
        """Serve one connection after the other, until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                connection = self._waiting.popleft()
            try:
                self._serve(connection)
            except Exception:  # an error of one peer must not affect the others
                logger.exception("a request for a slot was not answered")

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(TIMEOUT_SECONDS)
                with connection.makefile("rb") as lines:
                    self._answer(connection, SlotRequest.decode(lines.readline(MAX_LINE_BYTES)))
        except (OSError, ValueError) as error:
            logger.debug("a request for a slot was not answered: %s", error)

    def _answer(self, connection: socket.socket, request: SlotRequest) -> None:
        if request.verb is SlotVerb.SEND:
            self._send_slot(connection, request)
            return
        answer: dict[str, object]
        if request.verb is SlotVerb.OFFER:
            answer = {"held": self._take_replica(request.mark, request.sender)}
        elif request.verb is SlotVerb.CHECK:
            answer = {"damaged": self._pool.is_damaged(request.mark)}
        else:
            answer = {"copies": [astuple(mark) for mark in self._copies(request.mark.round)]}
        connection.sendall(encode_line(answer))

    def _send_slot(self, connection: socket.socket, request: SlotRequest) -> None:
        if (slot := self._pool.find_summed(request.mark)) is None:
            connection.sendall(encode_line({"error": "it is not here"}))
            return
        used = slot.header().slot_bytes
        start, stop = request.start, used if request.stop is None else request.stop
        if not 0 <= start < stop <= used:
            connection.sendall(encode_line({"error": f"it has {used} bytes"}))
            return
        connection.sendall(encode_line({"bytes": stop - start}))
        with Path(slot.path).open("rb") as file:  # for sendfile(2)
            connection.sendfile(file, start, stop - start)
