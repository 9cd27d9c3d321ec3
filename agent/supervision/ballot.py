"""The votes of one round, on the wire and in the records of the training processes.

The agents of the others keep a connection to that of rank 0 for the round (`agent.connection`). So an agent's
one `poll` waits for votes too, and a lost agent is noticed at once. A call of the store would block.
"""

from __future__ import annotations

import logging
import mmap
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from agent.connection import handshake
from agent.connection.listener import Inbox
from agent.facts.world import World
from agent.supervision.vote import SETTLE_SECONDS, Agreed, Chair, Kind, Message, Stage, Voter
from crds.checkpoint_files import KeptIn
from crds.progress_record import BOUNDARY, GO_ON, KEEPS_IN, ORDER, SPEAKS

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 4_096
RETRY_SECONDS = 2.0
"""Time for further attempts to connect to an agent that closes the connection, from the first refusal. One
that gets many at once closes some before they have proved the key, and a round without votes loses work at
each planned change."""
RETRY_PAUSE_SECONDS = 0.1

_FRAME = struct.Struct("!4q")


class BadFrameError(ValueError):
    """What came is no message."""


def service(round_: int) -> str:
    """Return the name under which rank 0's agent takes the votes of a round."""
    return f"votes/{round_}"


def connect(world: World, rank: int, key: bytes) -> socket.socket | None:
    """Connect to rank 0's agent; None if that is not possible."""
    deadline: float | None = None
    while True:
        try:
            line = handshake.connect(world.master_address, world.master_port, key, service(world.round))
            line.sendall(_pack(Message(Kind.JOIN, rank)))
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


class ProcessWords:
    """What the training processes of one start and their agent tell each other in the progress records."""

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

    def all_take_part(self) -> bool:
        return all(words[SPEAKS] for words in self._words)

    def ended(self) -> list[int]:
        """The step that each process has ended last; -1 before its first."""
        return [words[BOUNDARY] for words in self._words]

    def keep_in(self) -> KeptIn:
        """The tier in which all of them can keep their last step."""
        return KeptIn(max(KeptIn.MEMORY, *(words[KEEPS_IN] for words in self._words)))

    def set_order(self, order: int) -> None:
        if order != self._order:
            for words in self._words:
                words[ORDER] = order
            self._order = order

    def close(self) -> None:
        for words in self._words:
            words.release()
        for record in self._maps:
            record.close()


class Ballot:
    """One agent's part in the votes of a round; for the main thread.

    Args:
        size: how many agents the round has.
        line: the connections that come to rank 0, or the connection to it. The ballot closes it.
        words: of the processes here. The ballot closes them.
    """

    def __init__(self, rank: int, size: int, line: Inbox | socket.socket, words: ProcessWords) -> None:
        self._rank = rank
        self._size = size
        self._line = line
        self._words = words
        self._voter = Voter()
        self._chair = Chair(size) if rank == 0 else None
        if self._chair is not None:
            self._chair.join(0)
        self._outbox: deque[tuple[int, Message]] = deque()
        """Messages of the chair that are still to be delivered."""
        self._read_at = 0.0
        """When the processes have had the time to see that they are held."""
        self._peers: dict[int, socket.socket] = {}
        """By file descriptor: the connections."""
        if isinstance(line, socket.socket):
            self._peers[line.fileno()] = line
        self._ranks: dict[int, int] = {}
        """Whose connection it is, at rank 0, by file descriptor."""
        self._fds: dict[int, int] = {}
        """The reverse."""
        self._received: dict[int, bytes] = {}
        self._epoll = select.epoll()
        self._epoll.register(line.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that becomes readable when `look` has something to do."""
        return self._epoll.fileno()

    @property
    def agreed(self) -> Agreed | None:
        return self._voter.agreed

    @property
    def is_open(self) -> bool:
        """Whether there is a vote that is not over, or one that was decided."""
        return self._voter.stage not in (Stage.NONE, Stage.CLOSED)

    def wait_seconds(self) -> float | None:
        """Longest time until the next call of `look`."""
        deadlines = [self._voter.deadline, self._chair.deadline if self._chair else None]
        if self._voter.stage is Stage.HELD:
            deadlines.append(self._read_at)
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(min(known) - time.monotonic(), 0.0) if known else None

    def takes_part(self) -> bool:
        """Whether the processes here do."""
        return self._words.all_take_part()

    def has_arrived(self, local_rank: int) -> bool:
        """Whether that process has ended the step after which it is to leave, and only saves it now."""
        return self.agreed is not None and self._words.ended()[local_rank] >= self.agreed.step

    def ask(self, tier: KeptIn) -> None:
        """Ask for a vote. To be called if the processes here take part."""
        self._to_chair(self._voter.ask(tier, time.monotonic()))

    @property
    def lost_at(self) -> float | None:
        """Time at which an agent was lost whose processes had not left (CLOCK_MONOTONIC)."""
        return self._voter.lost_at

    def say_left(self) -> None:
        """The processes here have left as it was agreed."""
        self._to_chair(self._voter.leave())
        self._deliver(all_live=False)

    def look(self, *, all_live: bool) -> None:
        """Take in what has come, answer it, and tell the processes.

        Args:
            all_live: no process here has ended.
        """
        now = time.monotonic()
        self._voter.look(now)
        if self._chair is not None:
            self._outbox.extend(self._chair.look(now))
        for fd, _ in self._epoll.poll(0):
            self._take(fd, all_live=all_live)
        if not all_live:
            self._to_chair(self._voter.lose_process())
        elif self._voter.stage is Stage.HELD and now >= self._read_at:
            self._to_chair(self._voter.answer(self._words.ended(), self._words.keep_in()))
        self._deliver(all_live=all_live)
        self._words.set_order(self._voter.order)

    def close(self) -> None:
        """Take part in nothing more. Processes that are held go on; what was agreed stays their order."""
        self._voter.close()
        self._words.set_order(self._voter.order)
        self._words.close()
        for peer in self._peers.values():
            peer.close()
        self._line.close()
        self._epoll.close()

    # What comes in.

    def _take(self, fd: int, *, all_live: bool) -> None:
        if isinstance(self._line, Inbox) and fd == self._line.fileno():
            for peer in self._accept(self._line):
                self._take(peer, all_live=all_live)  # its first message may have come
            return
        try:
            data = self._peers[fd].recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError
            for message in self._parse(fd, data):
                self._receive(fd, message, all_live=all_live)
        except BlockingIOError:
            return
        except (OSError, BadFrameError):
            self._lose(fd)

    def _accept(self, inbox: Inbox) -> list[int]:
        """Take the connections that have come, and return their descriptors."""
        accepted = []
        for peer in inbox.take():
            peer.setblocking(False)
            self._peers[peer.fileno()] = peer
            self._epoll.register(peer.fileno(), select.EPOLLIN)
            accepted.append(peer.fileno())
        return accepted

    def _parse(self, fd: int, data: bytes) -> list[Message]:
        data = self._received.pop(fd, b"") + data
        whole = len(data) - len(data) % _FRAME.size
        self._received[fd] = data[whole:]
        return [_unpack(frame) for frame in _FRAME.iter_unpack(data[:whole])]

    def _receive(self, fd: int, message: Message, *, all_live: bool) -> None:
        if self._chair is None:
            self._to_voter(message, all_live=all_live)
        elif fd in self._ranks:
            self._outbox.extend(self._chair.receive(self._ranks[fd], message, time.monotonic()))
        elif (
            message.kind is Kind.JOIN and 0 < message.number < self._size and message.number not in self._fds
        ):
            self._ranks[fd], self._fds[message.number] = message.number, fd
            self._chair.join(message.number)
        else:
            raise BadFrameError

    def _lose(self, fd: int) -> None:
        """The connection broke, or what came is no message."""
        self._epoll.unregister(fd)
        self._peers.pop(fd).close()
        self._received.pop(fd, None)
        if self._chair is None:
            self._voter.lose_chair(time.monotonic())
        elif (rank := self._ranks.pop(fd, None)) is not None:
            del self._fds[rank]
            self._outbox.extend(self._chair.lose(rank))

    # What goes out.

    def _to_voter(self, message: Message, *, all_live: bool) -> None:
        able = all_live and self._words.all_take_part()
        answers = self._voter.receive(message, time.monotonic(), can_take_part=able)
        if self._voter.stage is Stage.HELD:
            self._words.set_order(self._voter.order)
            self._read_at = time.monotonic() + SETTLE_SECONDS
        self._to_chair(answers)

    def _to_chair(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self._chair is not None:
                self._outbox.extend(self._chair.receive(0, message, time.monotonic()))
            elif (line := self._peers.get(self._line.fileno())) is not None and not self._send(line, message):
                self._lose(self._line.fileno())

    def _deliver(self, *, all_live: bool) -> None:
        """Deliver the chair's messages in their order, with those that follow from them."""
        while self._outbox:
            rank, message = self._outbox.popleft()
            if rank == 0:
                self._to_voter(message, all_live=all_live)
            elif (fd := self._fds.get(rank)) is not None and not self._send(self._peers[fd], message):
                self._lose(fd)

    @staticmethod
    def _send(peer: socket.socket, message: Message) -> bool:
        """Send 32 bytes, for which a connection that works always has room."""
        try:
            return peer.send(_pack(message)) == _FRAME.size
        except OSError:
            return False


def _pack(message: Message) -> bytes:
    return _FRAME.pack(*message)


def _unpack(frame: tuple[int, int, int, int]) -> Message:
    kind, number, step, tier = frame
    try:
        message = Message(Kind(kind), number, step, tier)
        if message.kind in (Kind.ASK, Kind.ENDED, Kind.LEAVE):
            KeptIn(tier)
    except ValueError as error:
        raise BadFrameError from error
    return message
