"""The one port of an agent: accepts connections of agents of the same job, and closes all others.

A connection that has not proved the job's key within a second is closed (`handshake`), or earlier if there
are many of them (`admission`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from agent.connection.admission import Admission
from agent.connection.handshake import RefusedError, packed_address
from crds.names import with_port

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before the existing ones have their turn."""
BACKLOG = 4_096
"""Connections that may wait in the kernel, which has a limit of its own (net.core.somaxconn)."""
PAUSE_SECONDS = 0.1
"""Pause after a connection could not be accepted, for example since too many files are open."""

Service = Callable[[socket.socket], None]
"""Takes over a proven connection, a blocking socket without time limit, before the peer learns that it is
accepted. It must not block, nor be the first to send."""


class Listener:
    """Listens on one address until `close`.

    Args:
        host: the address to listen on, this Pod's.

    Raises:
        OSError: there is no such address here.
    """

    def __init__(self, host: str, key: bytes) -> None:
        self._key = key
        self._services: dict[str, Service] = {}
        self._connections: dict[int, socket.socket] = {}
        """Connections that have not proved the key yet, by descriptor."""
        self._resumes_at: float | None = None
        """End of a pause in accepting connections."""
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._admission = Admission(key, packed_address(self._socket.getsockname()))
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._socket, select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread = start_vital("dlr-listener", self._run)

    @property
    def address(self) -> str:
        """`host:port`, as peers connect to it."""
        return with_port(self.host, self.port)

    @property
    def key(self) -> bytes:
        return self._key

    def offer(self, name: str, service: Service) -> None:
        """Offer a service under a name of at most SERVICE_BYTES, replacing any other of that name."""
        self._services[name] = service

    def withdraw(self, name: str) -> None:
        """Stop offering a service. It keeps the connections that it has taken over."""
        self._services.pop(name, None)

    def close(self) -> None:
        """Close the port and the connections without proof, and end the thread. May be called again."""
        if not self._closed:
            self._closed = True
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()
            self._epoll.close()
            os.close(self._wake_fd)

    def _run(self) -> None:
        while not self._closed:
            looked_at = time.monotonic()
            ready = [fd for fd, _ in self._epoll.poll(self._wait_seconds())]
            # Responses go before new connections: each of those may cause another to be closed.
            for fd in sorted(ready, key=lambda fd: fd == self._socket.fileno()):
                try:
                    if fd == self._socket.fileno():
                        self._accept()
                    elif fd in self._admission:
                        self._receive(fd)
                except Exception:  # an error of one connection must not affect the others
                    logger.exception("a connection was given up")
                    self._give_up(fd)
            self._expire(looked_at)
        for fd in list(self._connections):
            self._give_up(fd)
        self._socket.close()

    def _wait_seconds(self) -> float | None:
        """Time until something expires; None if nothing does."""
        ends = [end for end in (self._admission.deadline, self._resumes_at) if end is not None]
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def _accept(self) -> None:
        """Accept some of the waiting connections: existing ones have their turn before there are too many."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, (source, *_) = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            fd = connection.fileno()
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except OSError as error:  # the limit fs.epoll.max_user_watches is reached
                connection.close()
                self._pause(error)
                return
            self._connections[fd] = connection
            nonce, excess = self._admission.accept(fd, source, time.monotonic())
            with contextlib.suppress(OSError):  # it broke, which its next event shows
                connection.send(nonce, socket.MSG_DONTWAIT)
            if excess is not None:
                self._give_up(excess)

    def _pause(self, error: OSError) -> None:
        logger.warning("no connection can be accepted for a moment: %s", error)
        self._epoll.modify(self._socket, 0)
        self._resumes_at = time.monotonic() + PAUSE_SECONDS

    def _receive(self, fd: int) -> None:
        """Receive a part of a response; once it is complete, hand the connection over to its service."""
        connection = self._connections[fd]
        try:
            data = connection.recv(self._admission.wanted(fd), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            accepted = self._admission.receive(fd, data)
        except RefusedError:
            self._give_up(fd)
            return
        if accepted is None:
            return
        name, proof = accepted
        if (service := self._services.get(name)) is None:
            self._give_up(fd)
            return
        self._forget(fd)
        with contextlib.suppress(OSError):  # it broke, which its service notices
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        service(connection)
        with contextlib.suppress(OSError):
            connection.send(proof)

    def _expire(self, now: float) -> None:
        """Close expired connections, and end a pause that is over.

        Args:
            now: time before the last poll. A response that has arrived by the deadline counts, however late
            it
                is read.
        """
        for fd in self._admission.expire(now):
            self._give_up(fd)
        if self._resumes_at is not None and self._resumes_at <= now:
            self._resumes_at = None
            self._epoll.modify(self._socket, select.EPOLLIN)

    def _give_up(self, fd: int) -> None:
        if (connection := self._forget(fd)) is not None:
            connection.close()

    def _forget(self, fd: int) -> socket.socket | None:
        self._admission.forget(fd)
        if (connection := self._connections.pop(fd, None)) is not None:
            self._epoll.unregister(fd)
        return connection


def start_vital(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread without which no round can meet: if it dies, the agent ends."""
    thread = threading.Thread(target=run_vital, args=(name, run), name=name, daemon=True)
    thread.start()
    return thread


def run_vital(name: str, run: Callable[[], None]) -> None:
    """Run the function of a vital thread; end the agent by SIGTERM if it raises anything."""
    try:
        run()
    except BaseException:
        logger.exception(
            "the agent ends, since its thread %s has died, without which no round can meet", name
        )
        os.kill(os.getpid(), signal.SIGTERM)


class Inbox:
    """Connections that a listener hands over to another thread, which polls for them."""

    def __init__(self) -> None:
        self._waiting: deque[socket.socket] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        """Guards `_fd`, which no thread may write to once it is closed."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is a connection to take."""
        return self._fd

    def put(self, connection: socket.socket) -> None:
        """Add a connection; close it if the inbox is closed."""
        with self._lock:
            if self._fd < 0:
                connection.close()
                return
            self._waiting.append(connection)
            os.eventfd_write(self._fd, 1)

    def take(self) -> list[socket.socket]:
        """Return the connections that have arrived since the last call."""
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._fd)
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def close(self) -> None:
        """Close it, with the connections that were not taken. May be called again."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        for connection in self.take():
            connection.close()
