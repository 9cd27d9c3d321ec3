"""A ballot on the wire and in the progress records of the training processes.

All agents keep a connection to rank 0's agent during the round (`agent.connection`), so that an agent's one
`poll` waits for votes too, and a lost agent is noticed at once. A call of the store would block.
"""

from __future__ import annotations

import logging
import mmap
import select
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from agent.connection import handshake
from agent.connection.listener import Inbox
from agent.facts.world import AgentWorld
from agent.supervision.ballot import Ballot, Traffic
from agent.supervision.vote import LocalProcesses, Message, MessageKind
from crds.checkpoint_files import KeptIn
from crds.progress_record import BOUNDARY, GO_ON, KEEPS_IN, ORDER, SPEAKS, TAKES_PART

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 4_096
RETRY_SECONDS = 2.0
"""Time for further attempts after the first refusal. An agent that gets many connections at once closes some
before they have proved the key, and a round without votes loses work at each planned change."""
RETRY_PAUSE_SECONDS = 0.1
MAX_STEP = 1 << 60
"""Highest step that fits into ORDER; a record that its script has overwritten may have a higher one."""

_FRAME = struct.Struct("!4q")


class BadMessageError(ValueError):
    """The received data is no message."""


def service(round_: int) -> str:
    """Return the name of the service by which rank 0's agent takes the votes of a round."""
    return f"votes/{round_}"


def connect(world: AgentWorld, rank: int, key: bytes) -> socket.socket | None:
    """Connect to rank 0's agent; return None if it cannot be reached."""
    deadline: float | None = None
    while True:
        try:
            line = handshake.connect(world.master_address, world.master_port, key, service(world.round))
            line.sendall(pack(Message(MessageKind.JOIN, rank)))
            line.setblocking(False)
            return line
        except OSError as error:
            is_busy = isinstance(error, handshake.RefusedError)
            if deadline is None:
                deadline = time.monotonic() + RETRY_SECONDS
            if not is_busy or time.monotonic() + RETRY_PAUSE_SECONDS >= deadline:
                logger.warning("no votes in this round: rank 0's agent cannot be reached: %s", error)
                return None
        time.sleep(RETRY_PAUSE_SECONDS)


class Frames:
    """Splits the data of one connection into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete.

        Raises:
            BadMessageError: the data is no message.
        """
        data = self._rest + data
        whole = len(data) - len(data) % _FRAME.size
        self._rest = data[whole:]
        return [_unpack(frame) for frame in _FRAME.iter_unpack(data[:whole])]


def pack(message: Message) -> bytes:
    """Encode a message."""
    return _FRAME.pack(*message)


def _unpack(frame: tuple[int, int, int, int]) -> Message:
    kind, number, step, tier = frame
    try:
        message = Message(MessageKind(kind), number, step, tier)
        if message.kind in (MessageKind.ASK, MessageKind.ENDED, MessageKind.LEAVE):
            KeptIn(tier)
    except ValueError as error:
        raise BadMessageError from error
    return message


def _within(word: int, least: int, most: int) -> int:
    """Return the word, limited to a range: scripts can overwrite it."""
    return min(max(word, least), most)


class ProcessWords:
    """Words of the progress records that the votes read and write, for the processes of one start."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._maps: list[mmap.mmap] = []
        self._words: list[memoryview[int]] = []
        try:
            for path in files:
                with path.open("r+b") as file:
                    self._maps.append(mmap.mmap(file.fileno(), 0))
                self._words.append(memoryview(self._maps[-1]).cast("q"))
        except BaseException:
            self.close()
            raise
        self._order = GO_ON

    def read(self, *, all_live: bool, stay: bool) -> LocalProcesses:
        """Return the state of the processes."""
        return LocalProcesses(
            all_live,
            all(words[SPEAKS] == TAKES_PART for words in self._words),
            self.ended(),
            KeptIn(max(_within(words[KEEPS_IN], KeptIn.MEMORY, KeptIn.STORAGE) for words in self._words)),
            stay,
        )

    def ended(self) -> tuple[int, ...]:
        """Return the last step that each process has ended; -1 before its first."""
        return tuple(_within(words[BOUNDARY], -1, MAX_STEP) for words in self._words)

    def set_order(self, order: int) -> None:
        """Set ORDER in all records."""
        if order == self._order:
            return
        for words in self._words:
            words[ORDER] = order
        self._order = order

    def close(self) -> None:
        for words in self._words:
            words.release()
        for record in self._maps:
            record.close()


class LiveBallot:
    """Carries out a ballot. Only for the main thread.

    Args:
        size: number of agents of the round.
        line: at rank 0 the inbox of the others' connections, else the connection to rank 0; `close` closes
        it. words: words of the processes here; `close` closes them.
    """

    def __init__(self, size: int, line: Inbox | socket.socket, words: ProcessWords) -> None:
        self._line = line
        self._words = words
        self._peers: dict[int, socket.socket] = {}
        """Connections by file descriptor."""
        self._frames: dict[int, Frames] = {}
        self._epoll = select.epoll()
        chair_line = None
        if isinstance(line, socket.socket):
            chair_line = line.fileno()
            self._add(line)
        else:
            self._epoll.register(line.fileno(), select.EPOLLIN)
        self.ballot = Ballot(size, chair_line)
        """State machine of the votes; its times are of CLOCK_MONOTONIC."""
        self.stay = False
        """The processes here will live on into the next round if they leave now."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `look` has something to do."""
        return self._epoll.fileno()

    def read(self, *, all_live: bool) -> LocalProcesses:
        """Return the state of the processes here."""
        return self._words.read(all_live=all_live, stay=self.stay)

    def ended(self) -> tuple[int, ...]:
        """Return the last step that each process here has ended; -1 before its first."""
        return self._words.ended()

    def ask(self, tier: KeptIn, *, all_live: bool) -> None:
        """Ask for a vote; requires that the processes here take part."""
        now = time.monotonic()
        self._carry_out(self.ballot.ask(tier, now, self.read(all_live=all_live)), all_live=all_live)

    def note_left(self) -> None:
        """Note that the processes here have left as agreed."""
        now = time.monotonic()
        self._carry_out(self.ballot.note_left(now, self.read(all_live=False)), all_live=False)

    def look(self, *, all_live: bool) -> None:
        """Receive and answer messages, and set the processes' order.

        Args:
            all_live: no process here has ended.
        """
        came = [item for fd, _ in self._epoll.poll(0) for item in self._take(fd)]
        now = time.monotonic()
        self._carry_out(self.ballot.look(now, self.read(all_live=all_live), came), all_live=all_live)

    def close(self) -> None:
        """Take part in no further vote. Held processes go on; an agreed step stays their order."""
        self.ballot.close()
        self._words.set_order(self.ballot.order)
        self._words.close()
        for peer in self._peers.values():
            peer.close()
        self._line.close()
        self._epoll.close()

    def _carry_out(self, traffic: Traffic, *, all_live: bool) -> None:
        """Set the processes' order, and send messages."""
        while True:
            self._words.set_order(self.ballot.order)
            self.ballot.note_order(time.monotonic())  # ORDER is equal for two holds within a millisecond
            broken: Traffic = []
            for fd, message in traffic:
                if fd in self._peers and (message is None or not self._send(fd, message)):
                    self._remove(fd)
                    broken.append((fd, None))
            if not broken:
                return
            now = time.monotonic()
            traffic = self.ballot.look(now, self.read(all_live=all_live), broken)

    def _take(self, fd: int) -> Traffic:
        """Receive from a connection; from the listener, accept connections and receive from them."""
        if isinstance(self._line, Inbox) and fd == self._line.fileno():
            added = [self._add_or_close(peer) for peer in self._line.take()]
            # Their first messages may have come.
            return [item for peer in added if peer is not None for item in self._take(peer)]
        try:
            data = self._peers[fd].recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError
            return [(fd, message) for message in self._frames[fd].feed(data)]
        except BlockingIOError:
            return []
        except (OSError, BadMessageError):
            self._remove(fd)
            return [(fd, None)]

    def _add_or_close(self, peer: socket.socket) -> int | None:
        """Add a connection; close it if the node cannot watch one more: its agent then votes no more, and
        without it nobody does."""
        try:
            return self._add(peer)
        except OSError as error:
            logger.warning(
                "no votes in this round: the connection of another agent cannot be watched: %s. The limit is "
                "the node's sysctl fs.epoll.max_user_watches",
                error,
            )
            peer.close()
            return None

    def _add(self, peer: socket.socket) -> int:
        peer.setblocking(False)
        self._epoll.register(peer.fileno(), select.EPOLLIN)
        self._peers[peer.fileno()], self._frames[peer.fileno()] = peer, Frames()
        return peer.fileno()

    def _remove(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._frames[fd]
        self._peers.pop(fd).close()

    def _send(self, fd: int, message: Message) -> bool:
        """Send 32 bytes, for which a working connection always has room; return False if it broke."""
        try:
            return self._peers[fd].send(pack(message)) == _FRAME.size
        except OSError:
            return False
