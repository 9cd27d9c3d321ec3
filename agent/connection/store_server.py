"""Serves an agent's store to its peers: the connections of a `StoreState`, in a thread."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from dataclasses import dataclass, field

from agent.connection.listener import Inbox, Listener, start_vital
from agent.connection.store_state import StoreState, Values

logger = logging.getLogger(__name__)

SERVICE = "store"
RECEIVE_BYTES = 64 << 10


@dataclass
class _Client:
    """A connection."""

    connection: socket.socket
    unsent: bytearray = field(default_factory=bytearray)


class StoreServer:
    """Serves `values` to the peers that a listener hands over, until `close`."""

    def __init__(self, listener: Listener) -> None:
        self.values = Values()
        self._state = StoreState(self.values)
        self._clients: dict[int, _Client] = {}
        self._inbox = Inbox()
        self._closed = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._inbox, select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread = start_vital("dlr-store", self._run)
        self._listener = listener
        listener.offer(SERVICE, self._inbox.put)

    def close(self) -> None:
        """Close all connections, and end the thread. May be called again."""
        if not self._closed:
            self._closed = True
            self._listener.withdraw(SERVICE)
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()
            self._inbox.close()
            self._epoll.close()
            os.close(self._wake_fd)

    def _run(self) -> None:
        while not self._closed:
            for fd, _ in self._epoll.poll(self._wait_seconds()):
                if fd == self._inbox.fileno():
                    self._take_in()
                elif fd in self._clients:
                    self._attend(fd)
                    self._deliver()  # before a new connection reuses the number of a dropped one
            self._state.expire(time.monotonic())
            self._deliver()
        for fd in list(self._clients):
            self._drop(fd)

    def _wait_seconds(self) -> float | None:
        deadline = self._state.deadline
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def _take_in(self) -> None:
        for connection in self._inbox.take():
            connection.setblocking(False)
            try:
                self._epoll.register(connection, select.EPOLLIN)
            except OSError as error:  # the limit fs.epoll.max_user_watches is reached
                logger.warning("a connection to the store was given up: %s", error)
                connection.close()
                continue
            self._clients[connection.fileno()] = _Client(connection)
            self._state.add(connection.fileno())

    def _attend(self, fd: int) -> None:
        """Receive from a client; an error drops it, and does not affect the others."""
        try:
            self._send(fd, b"")
            if not (data := self._clients[fd].connection.recv(RECEIVE_BYTES)):
                self._drop(fd)
                return
            self._state.receive(fd, data, time.monotonic())
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            logger.debug("a connection to the store was dropped: %s", error)
            self._drop(fd)
        except Exception:
            logger.exception("a connection to the store was dropped")
            self._drop(fd)

    def _deliver(self) -> None:
        outgoing, self._state.outgoing = self._state.outgoing, []
        for fd, data in outgoing:
            if fd in self._clients:
                try:
                    self._send(fd, data)
                except OSError:
                    self._drop(fd)

    def _send(self, fd: int, data: bytes) -> None:
        """Send data; what does not fit follows once the socket has room."""
        client = self._clients[fd]
        had_unsent = bool(client.unsent)
        client.unsent += data
        if not client.unsent:
            return
        try:
            sent = client.connection.send(client.unsent)
        except BlockingIOError:
            sent = 0
        del client.unsent[:sent]
        if bool(client.unsent) != had_unsent:
            events = select.EPOLLIN | select.EPOLLOUT if client.unsent else select.EPOLLIN
            self._epoll.modify(client.connection, events)

    def _drop(self, fd: int) -> None:
        self._state.drop(fd)
        client = self._clients.pop(fd)
        self._epoll.unregister(fd)
        client.connection.close()
