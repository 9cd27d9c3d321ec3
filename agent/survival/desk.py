"""The agent's side of the socket: messages from and to its training processes.

It has no thread: its descriptors are polled with the agent's others, and `look` receives messages. The kernel
identifies the process of a connection (unix(7), SO_PEERCRED).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.environment import bound
from agent.facts.place import Place
from agent.survival.messages import (
    MAX_FROM_PROCESS,
    Enters,
    FromProcess,
    Leave,
    Left,
    Lost,
    NextRound,
    Unable,
    encode,
    read_from_process,
)
from crds.progress_record import ENV_ROUND

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Largest number of connections that wait, and that one look accepts."""
MAX_MESSAGES = 64
"""Messages that a process may send in one round; it needs two."""
NO_ROUND = -1
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group id from SO_PEERCRED."""


@dataclass(frozen=True)
class ProcessStatements:
    """State of one process by its own messages."""

    entered: bool = False
    """Its loop has begun, so it can live on."""
    bound_to: Place | None = None
    """The only place that it can go on in; None if it goes on in any."""
    unable: bool = False
    """It cannot live on, or its connection has ended."""
    left: int = NO_ROUND
    """The newest round that it has left."""
    lost: Lost | None = None
    """Its loss of the current round without a request to leave."""

    @property
    def lives_on(self) -> bool:
        """Whether the next round can be handed over to it."""
        return self.entered and not self.unable

    def goes_into(self, rank: int, world_size: int) -> bool:
        """Return whether it can take that place in the next round."""
        return self.lives_on and self.bound_to in (None, (rank, world_size))

    def after(self, message: FromProcess, newest_round: int) -> ProcessStatements:
        """Return the state after one more message.

        Args:
            newest_round: the round of the process, which cannot leave a later one.
        """
        match message:
            case Enters(bound_to):
                return replace(self, entered=True, bound_to=bound_to)
            case Left(round_):
                return replace(self, left=max(self.left, min(round_, newest_round)))
            case Lost(round_):
                lost = replace(message, round=min(round_, newest_round))
                return replace(self, left=max(self.left, lost.round), lost=lost)
            case Unable():
                return replace(self, unable=True)


NO_STATEMENTS = ProcessStatements()


@dataclass
class _Seat:
    """The place of one process at the desk."""

    round: int
    """The round that the process is in; NO_ROUND before its first."""
    words: ProcessStatements = NO_STATEMENTS
    connection: socket.socket | None = None
    messages: int = 0
    """Number of messages in this round."""
    waiting: tuple[NextRound, list[int]] | None = None
    """The round that it gets when it enters, and duplicates of its descriptors."""

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.waiting is not None:
            for descriptor in self.waiting[1]:
                os.close(descriptor)
        self.connection = self.waiting = None


class WorldDesk:
    """Talks with the training processes of one agent. Not thread-safe.

    Raises:
        OSError: there is no place for a socket.
    """

    def __init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.path = bound(self._server, "world")
        """Path of the socket, in a folder that only this user can enter."""
        self._server.listen(MAX_CONNECTIONS)
        self._accepts = True
        """Whether connections can be accepted. If not, each look tries again, and waiting ones do not wake
        it."""
        self._seats: dict[int, _Seat] = {}
        """Seats by process id."""

    def close(self) -> None:
        """End all connections, and take no more."""
        self._server.close()
        self.expect(())
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def expect(self, pids: Collection[int], round_: int = NO_ROUND) -> None:
        """Talk with these processes, and with no other any more.

        Args:
            round_: the round of processes that are new here.
        """
        for pid in self._seats.keys() - set(pids):
            self._seats.pop(pid).close()
        for pid in pids:
            self._seats.setdefault(pid, _Seat(round_))

    def pids(self) -> list[int]:
        """Return the ids of the processes that it talks with."""
        return list(self._seats)

    def words(self, pid: int) -> ProcessStatements:
        """Return the statements of a process by the last look."""
        seat = self._seats.get(pid)
        return NO_STATEMENTS if seat is None else seat.words

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when there is something to look at."""
        connections = (seat.connection for seat in self._seats.values())
        server = [self._server.fileno()] if self._accepts else []
        return [*server, *(it.fileno() for it in connections if it is not None)]

    def look(self) -> None:
        """Accept connections and receive messages, without waiting."""
        self._accept()
        for pid, seat in self._seats.items():
            while seat.connection is not None and self._receive(pid, seat):
                pass

    def leave(self, pid: int, round_: int) -> bool:
        """Ask a process to leave a round; False if it cannot be reached."""
        seat = self._seats.get(pid)
        if seat is None or seat.connection is None:
            return False
        return self._send(pid, seat, encode(Leave(round_)), ())

    def hand_over(self, pid: int, env: Mapping[str, str], redirects: Mapping[int, int]) -> bool:
        """Hand a process its next round, at once or when its loop begins; return False if it cannot live on.

        Args:
            redirects: our descriptors for its stdout (1) and stderr (2).
        """
        seat = self._seats.get(pid)
        if seat is None or seat.words.unable:
            return False
        message = NextRound(env, tuple(sorted(redirects)))
        descriptors = [redirects[number] for number in message.redirects]
        seat.round = int(env[ENV_ROUND])
        seat.words = replace(seat.words, lost=None)
        seat.messages = 0
        if seat.connection is not None and seat.words.entered:
            return self._send(pid, seat, encode(message), descriptors)
        seat.waiting = message, [os.dup(descriptor) for descriptor in descriptors]
        return True

    def _accept(self) -> None:
        for _ in range(MAX_CONNECTIONS):
            try:
                connection, _ = self._server.accept()
            except BlockingIOError:
                self._accepts = True
                return
            except OSError as error:
                if self._accepts:
                    logger.warning("no training process can connect for a moment to live on: %s", error)
                self._accepts = False
                return
            self._accepts = True
            connection.setblocking(False)
            pid = _peer(connection)
            seat = self._seats.get(pid)
            if seat is None or seat.connection is not None or seat.words.unable:
                logger.warning("a connection of process %d is refused: it is no training process", pid)
                connection.close()
            else:
                seat.connection = connection

    def _receive(self, pid: int, seat: _Seat) -> bool:
        """Take one message; False if there is none."""
        assert seat.connection is not None
        try:
            data, _, flags, _ = seat.connection.recvmsg(MAX_FROM_PROCESS)
            if not data:
                raise ConnectionResetError("it has ended")
            seat.messages += 1
            if flags & socket.MSG_TRUNC or seat.messages > MAX_MESSAGES:
                raise ValueError("a message is too long" if flags & socket.MSG_TRUNC else "it says too much")
            message = read_from_process(data)
        except BlockingIOError:
            return False
        except OSError:  # as with each process that ends
            self._end(seat)
            return False
        except ValueError as error:
            logger.warning("process %d cannot live on any more: its message is malformed: %s", pid, error)
            self._end(seat)
            return False
        if isinstance(message, Unable):
            logger.warning("process %d does not live on when a peer dies: %s", pid, message.reason)
        seat.words = seat.words.after(message, seat.round)
        if isinstance(message, Enters) and seat.waiting is not None:
            (next_round, descriptors), seat.waiting = seat.waiting, None  # if it is gone, its seat is closed
            self._send(pid, seat, encode(next_round), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _send(self, pid: int, seat: _Seat, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send without waiting; a process that is gone or does not read cannot live on any more."""
        assert seat.connection is not None
        try:
            socket.send_fds(seat.connection, [data], list(descriptors))
        except OSError as error:
            logger.warning("process %d cannot be reached, and so cannot live on: %s", pid, error)
            self._end(seat)
            return False
        return True

    @staticmethod
    def _end(seat: _Seat) -> None:
        seat.close()
        seat.words = replace(seat.words, unable=True)


def _peer(connection: socket.socket) -> int:
    """Return the process id of the peer in this process's namespace; 0 if it is in another."""
    with contextlib.suppress(OSError):
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(data)[0])
    return 0
