"""Ballots over real connections and real progress records."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.connection import handshake
from agent.connection.handshake import RefusedError
from agent.connection.listener import Inbox, Listener
from agent.facts.world import AgentWorld, Member
from agent.supervision import live_ballot, vote
from agent.supervision.ballot import Ballot
from agent.supervision.live_ballot import (
    RETRY_SECONDS,
    Frames,
    LiveBallot,
    ProcessWords,
    connect,
    pack,
    service,
)
from agent.supervision.vote import Message, MessageKind, VoteResult
from crds.checkpoint_files import KeptIn
from crds.phases import RendezvousPhase
from crds.progress_record import BOUNDARY, KEEPS_IN, ORDER, PROGRESS_FORMAT, SPEAKS, TAKES_PART, leave_at
from tests.agent.patience import SECONDS
from tests.forks import forks

KEY = bytes(range(32))
WORLD = AgentWorld(1, RendezvousPhase.FORMED, (Member(0, 1), Member(1, 1)), 2, "127.0.0.1", 1)


def record_of(path: Path, ended: int) -> Path:
    """The progress record of a process that takes part, and has ended that step."""
    words = [0] * len(PROGRESS_FORMAT)
    words[SPEAKS], words[BOUNDARY] = TAKES_PART, ended
    path.write_bytes(struct.pack(PROGRESS_FORMAT, *words))
    return path


def word(record: Path, number: int) -> int:
    return int(struct.unpack_from("q", record.read_bytes(), 8 * number)[0])


def take_part(world: AgentWorld, record: Path) -> None:
    """Be the other agent, until somebody ends this process."""
    vote.HOLD_SECONDS = handshake.CONNECT_SECONDS = SECONDS
    line = connect(world, 1, KEY)
    assert line is not None
    ballot = LiveBallot(2, line, ProcessWords([record]))
    while True:
        ballot.look(all_live=True)
        time.sleep(0.001)


def look_until(ballot: LiveBallot, what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        ballot.look(all_live=True)
        time.sleep(0.001)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with contextlib.closing(Listener("127.0.0.1", KEY)) as made:
        yield made


@pytest.mark.real
@pytest.mark.usefixtures("patient")
def test_two_agents_agree_and_one_that_is_killed_is_lost(listener: Listener, tmp_path: Path) -> None:
    inbox = Inbox()
    listener.offer(service(1), inbox.put)
    world = AgentWorld(1, RendezvousPhase.FORMED, WORLD.members, 2, listener.host, listener.port)
    records = [record_of(tmp_path / str(rank), 10 + rank) for rank in range(2)]
    ballot = LiveBallot(2, inbox, ProcessWords(records[:1]))
    with socket.create_connection((listener.host, listener.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n" * 4)
        ballot.look(all_live=True)
    other = forks.Process(target=take_part, args=(world, records[1]))
    other.start()

    def is_agreed() -> bool:
        if not ballot.ballot.is_open:  # until the other one has come, votes are off
            ballot.ask(KeptIn.STORAGE, all_live=True)
        return ballot.ballot.agreed is not None

    look_until(ballot, is_agreed)
    assert ballot.ballot.agreed == VoteResult(12, KeptIn.STORAGE)
    look_until(ballot, lambda: word(records[1], ORDER) == leave_at(12, KeptIn.STORAGE))
    assert ballot.ballot.lost_at is None
    other.kill()
    look_until(ballot, lambda: ballot.ballot.lost_at is not None)
    other.join()
    ballot.close()
    assert word(records[0], ORDER) == leave_at(12, KeptIn.STORAGE), "what was agreed stays"


@pytest.mark.parametrize("second", [None, b"", b"cut"])
def test_no_memory_stays_mapped_where_a_record_cannot_be_read(tmp_path: Path, second: bytes | None) -> None:
    records = [record_of(tmp_path / "0", 1), tmp_path / "1"]
    if second is not None:
        records[1].write_bytes(second)
    with pytest.raises((OSError, ValueError, TypeError)) as failed:
        ProcessWords(records)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), failed.value


def test_a_record_that_its_script_has_overwritten_ends_no_agent(tmp_path: Path) -> None:
    record = record_of(tmp_path / "0", 1)
    words = ProcessWords([record])
    for keeps_in, boundary in ((7, 2**63 - 1), (-(2**63), -(2**63))):
        content = bytearray(record.read_bytes())
        struct.pack_into("q", content, 8 * KEEPS_IN, keeps_in)
        struct.pack_into("q", content, 8 * BOUNDARY, boundary)
        record.write_bytes(content)
        found = words.read(all_live=True, stay=False)
        assert found.keep_in is (KeptIn.STORAGE if keeps_in > 0 else KeptIn.MEMORY)
        (step,) = found.ended
        words.set_order(leave_at(step + 1, found.keep_in))
        assert word(record, ORDER) >> 2 == step + 1
    words.close()


class Line:
    """The connection to rank 0's agent."""

    def __init__(self) -> None:
        self.came = b""
        self.sent: list[Message] = []

    def recv(self, size: int) -> bytes:
        data, self.came = self.came[:size], self.came[size:]
        return data

    def send(self, data: bytes) -> int:
        self.sent += Frames().feed(data)
        return len(data)

    def close(self) -> None:
        """Do nothing."""


def test_a_vote_that_begins_within_the_millisecond_of_the_last_is_answered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, line = [100.0], Line()
    monkeypatch.setattr(live_ballot, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ballot = LiveBallot.__new__(LiveBallot)
    ballot.__dict__ |= {
        "_line": line,
        "_words": ProcessWords([record_of(tmp_path / "0", 5)]),
        "stay": False,
        "ballot": Ballot(2, 7),
        "_peers": {7: line},
        "_frames": {7: Frames()},
        "_epoll": SimpleNamespace(poll=lambda _: [(7, 1)] if line.came else [], close=lambda: None),
    }
    line.came = pack(Message(MessageKind.HOLD, 1))
    ballot.look(all_live=True)
    line.came = pack(Message(MessageKind.OFF, 1)) + pack(Message(MessageKind.HOLD, 2))
    ballot.look(all_live=True)
    now[0] += 2 * vote.SETTLE_SECONDS
    ballot.look(all_live=True)
    assert line.sent == [Message(MessageKind.ENDED, 2, 5, KeptIn.MEMORY)]
    ballot.close()


class Busy:
    """An agent that closes some connections, or is gone, and the clock."""

    def __init__(self, error: OSError, refusals: int, first_seconds: float) -> None:
        self._error, self._refusals, self._first_seconds = error, refusals, first_seconds
        self.now = 0.0
        self.asked: list[float] = []

    def connect(self, *_: object) -> Any:
        self.now += 0.0 if self.asked else self._first_seconds
        self.asked.append(self.now)
        if len(self.asked) <= self._refusals:
            raise self._error
        return SimpleNamespace(sendall=lambda data: None, setblocking=lambda flag: None)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("refusals", "joins"), [(3, True), (1_000, False)])
def test_an_agent_that_closes_connections_is_asked_again_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, refusals: int, joins: bool
) -> None:
    """The first attempt may take long, as where this agent does not run for a while."""
    busy = Busy(RefusedError("the agent closed the connection"), refusals, first_seconds=20.0)
    monkeypatch.setattr(handshake, "connect", busy.connect)
    monkeypatch.setattr(live_ballot, "time", busy)
    assert (connect(WORLD, 1, KEY) is not None) is joins
    assert len(busy.asked) > 3
    assert busy.asked[-1] <= 20.0 + RETRY_SECONDS


def test_an_agent_that_is_gone_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Busy(ConnectionRefusedError(), 1_000, first_seconds=0.0)
    monkeypatch.setattr(handshake, "connect", gone.connect)
    monkeypatch.setattr(live_ballot, "time", gone)
    assert connect(WORLD, 1, KEY) is None
    assert len(gone.asked) == 1


class Peer:
    """A connection, as far as a ballot that cannot watch it sees one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_closed = False

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, _: bool) -> None:
        """Nothing blocks here."""

    def recv(self, _: int) -> bytes:
        raise BlockingIOError

    def close(self) -> None:
        self.is_closed = True


def test_a_connection_that_the_node_cannot_watch_ends_the_votes_and_not_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit fs.epoll.max_user_watches counts the watches of all processes of a user on the node."""
    line = Inbox()

    class Epoll:
        def __init__(self) -> None:
            self.watched = set[int]()

        def register(self, fd: int, _: int) -> None:
            if len(self.watched) == 2:  # the inbox's, and the first peer's
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.watched.add(fd)

        def poll(self, _: float) -> list[tuple[int, int]]:
            return [(line.fileno(), select.EPOLLIN)]

        def close(self) -> None:
            """There is none."""

    monkeypatch.setattr(live_ballot.select, "epoll", Epoll)
    monkeypatch.setattr(live_ballot, "time", SimpleNamespace(monotonic=float))
    ballot = LiveBallot(3, line, ProcessWords([record_of(tmp_path / "0", 1)]))
    peers: list[Any] = [Peer(2_000), Peer(2_001)]
    for peer in peers:
        line.put(peer)
    ballot.look(all_live=True)
    assert [peer.is_closed for peer in peers] == [False, True]
    assert "fs.epoll.max_user_watches" in caplog.text and "no votes in this round" in caplog.text
    ballot.ask(KeptIn.MEMORY, all_live=True)
    assert not ballot.ballot.is_open, "not all agents are there"
    ballot.look(all_live=True)
    ballot.close()
    assert len(caplog.records) == 1
