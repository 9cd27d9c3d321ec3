"""Ballots of several agents in one process, over real connections and real progress records."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.connection import handshake
from agent.connection.handshake import RefusedError
from agent.connection.listener import Inbox, Listener
from agent.facts.world import Member, World
from agent.supervision import ballot as voting
from agent.supervision.ballot import RETRY_SECONDS, Ballot, ProcessWords, connect, service
from agent.supervision.vote import Agreed
from crds.checkpoint_files import KeptIn
from crds.phases import RendezvousPhase
from crds.progress_record import BOUNDARY, GO_ON, ORDER, PROGRESS_FORMAT, SPEAKS, leave_at

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

SIZE = 3
KEY = bytes(range(32))


class Round:
    """The ballots of all agents, each with two processes that have ended some steps."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.listener = Listener(address, KEY)
        inbox = Inbox()
        self.listener.offer(service(1), inbox.put)
        members = tuple(Member(index, 1) for index in range(SIZE))
        self.world = World(1, RendezvousPhase.FORMED, members, SIZE, address, self.listener.port)
        self.lines = [inbox, *(connect(self.world, rank, KEY) for rank in range(1, SIZE))]
        self.records = [[folder / f"{rank}.{local}" for local in range(2)] for rank in range(SIZE)]
        self.ballots = []
        for rank, line in enumerate(self.lines):
            assert line is not None
            for local, path in enumerate(self.records[rank]):
                path.write_bytes(bytes(struct.calcsize(PROGRESS_FORMAT)))
                self.write(rank, local, SPEAKS, 1)
                self.write(rank, local, BOUNDARY, 10 + rank + local)
            self.ballots.append(Ballot(rank, SIZE, line, ProcessWords(self.records[rank])))
        self.closed: set[int] = set()
        chair = self.ballots[0]._chair
        assert chair is not None
        self.look_until(lambda: len(chair._present) == SIZE)

    def write(self, rank: int, local: int, word: int, value: int) -> None:
        with self.records[rank][local].open("r+b") as file:
            file.seek(8 * word)
            file.write(struct.pack("q", value))

    def orders(self, rank: int) -> list[int]:
        return [struct.unpack_from("q", path.read_bytes(), 8 * ORDER)[0] for path in self.records[rank]]

    def look(self) -> None:
        for rank, ballot in enumerate(self.ballots):
            if rank not in self.closed:
                ballot.look(all_live=True)

    def look_until(self, what: Callable[[], bool], within_seconds: float = 300.0) -> float:
        """How long it took."""
        begun_at = time.monotonic()
        while not what():
            assert time.monotonic() - begun_at < within_seconds
            self.look()
        return time.monotonic() - begun_at

    def agreed(self) -> set[Agreed | None]:
        return {ballot.agreed for ballot in self.ballots}

    def close(self, rank: int) -> None:
        if rank not in self.closed:
            self.closed.add(rank)
            self.ballots[rank].close()


@pytest.fixture
def round_(tmp_path: Path) -> Iterator[Round]:
    made = Round(tmp_path)
    yield made
    for rank in range(SIZE):
        made.close(rank)
    made.listener.close()


@pytest.mark.parametrize("asking", range(SIZE))
def test_all_agree_on_the_step_after_the_highest(round_: Round, asking: int) -> None:
    round_.ballots[asking].ask(KeptIn.MEMORY)
    seconds = round_.look_until(lambda: None not in round_.agreed())
    print(f"agreed after {seconds * 1000:.1f} ms")
    assert round_.agreed() == {Agreed(14, KeptIn.MEMORY)}
    for rank in range(SIZE):
        assert round_.orders(rank) == [leave_at(14, KeptIn.MEMORY)] * 2
    assert not round_.ballots[0].has_arrived(0)
    round_.write(0, 0, BOUNDARY, 14)
    assert round_.ballots[0].has_arrived(0)
    round_.close(0)
    assert round_.orders(0) == [leave_at(14, KeptIn.MEMORY)] * 2, "what was agreed stays"


def test_a_process_that_takes_no_part_calls_the_vote_off(round_: Round) -> None:
    round_.write(1, 1, SPEAKS, 0)
    round_.ballots[2].ask(KeptIn.STORAGE)
    round_.look_until(lambda: not any(ballot.is_open for ballot in round_.ballots))
    assert [round_.orders(rank) for rank in range(SIZE)] == [[GO_ON] * 2] * SIZE


@pytest.mark.parametrize("lost", range(1, SIZE))
def test_an_agent_that_is_lost_holds_nobody(round_: Round, lost: int) -> None:
    round_.ballots[0].ask(KeptIn.STORAGE)
    for rank in {*range(SIZE)} - {lost}:
        round_.ballots[rank].look(all_live=True)
    assert min(round_.orders(0)) < GO_ON
    round_.close(lost)
    round_.look_until(lambda: not any(ballot.is_open for ballot in round_.ballots))
    assert [round_.orders(rank) for rank in range(SIZE)] == [[GO_ON] * 2] * SIZE
    round_.ballots[0].ask(KeptIn.STORAGE)
    round_.look_until(lambda: not round_.ballots[0].is_open)


@pytest.mark.parametrize("lost", range(SIZE))
def test_an_agent_that_is_lost_before_its_processes_have_left_is_told_to_the_others(
    round_: Round, lost: int
) -> None:
    round_.ballots[1].ask(KeptIn.STORAGE)
    round_.look_until(lambda: None not in round_.agreed())
    round_.close(lost)
    others = [ballot for rank, ballot in enumerate(round_.ballots) if rank != lost]
    round_.look_until(lambda: all(ballot.lost_at is not None for ballot in others))


def test_agents_whose_processes_have_left_are_not_lost(round_: Round) -> None:
    round_.ballots[1].ask(KeptIn.STORAGE)
    round_.look_until(lambda: None not in round_.agreed())
    for rank in (1, 0):
        round_.ballots[rank].say_left()
        round_.close(rank)
    for _ in range(20):
        time.sleep(0.01)
        round_.look()
    assert round_.ballots[2].lost_at is None


def test_without_rank_0_there_are_no_votes(round_: Round) -> None:
    round_.ballots[1].ask(KeptIn.STORAGE)
    round_.look_until(lambda: min(round_.orders(1)) < GO_ON)
    round_.closed.add(2)  # never answers
    round_.close(0)
    round_.look_until(lambda: not round_.ballots[1].is_open)
    assert round_.orders(1) == [GO_ON] * 2
    round_.closed.discard(2)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n" * 4, struct.pack("!4q", 1, 0, 0, 1), b"\0" * 7]
)
def test_strangers_change_nothing(round_: Round, said: bytes) -> None:
    with socket.create_connection((round_.listener.host, round_.listener.port)) as stranger:
        stranger.sendall(said)
        round_.look()
        round_.look()
        assert not any(ballot.is_open for ballot in round_.ballots)
        round_.ballots[1].ask(KeptIn.MEMORY)
        round_.look_until(lambda: None not in round_.agreed())


@pytest.mark.parametrize("second", [None, b"", b"cut"])
def test_no_memory_stays_mapped_where_a_record_cannot_be_read(tmp_path: Path, second: bytes | None) -> None:
    records = [tmp_path / "0", tmp_path / "1"]
    records[0].write_bytes(bytes(struct.calcsize(PROGRESS_FORMAT)))
    if second is not None:
        records[1].write_bytes(second)
    with pytest.raises((OSError, ValueError, TypeError)) as failed:
        ProcessWords(records)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), failed.value


def test_a_single_agent_agrees_with_itself(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.write_bytes(struct.pack(PROGRESS_FORMAT, *[0] * SPEAKS, 1, 41, 0, 0, 0, 0))
    ballot = Ballot(0, 1, Inbox(), ProcessWords([record]))
    ballot.ask(KeptIn.STORAGE)
    while ballot.agreed is None:
        ballot.look(all_live=True)
    assert ballot.agreed == Agreed(42, KeptIn.STORAGE)
    ballot.close()


def test_an_address_that_is_gone_is_no_reason_to_stop() -> None:
    listener = Listener("127.0.0.1", KEY)
    world = World(1, RendezvousPhase.FORMED, (Member(0, 1), Member(1, 1)), 2, "127.0.0.1", listener.port)
    assert connect(world, 1, KEY) is None, "no votes are taken"
    listener.close()
    assert connect(world, 1, KEY) is None


@pytest.mark.parametrize("first_seconds", [0.0, 20.0])
@pytest.mark.parametrize(("refusals", "joins"), [(0, True), (3, True), (1_000, False)])
def test_an_agent_that_closes_connections_is_asked_again_for_a_bounded_time(
    round_: Round, monkeypatch: pytest.MonkeyPatch, refusals: int, joins: bool, first_seconds: float
) -> None:
    """The first attempt may take long, as where this agent does not run for a while."""
    asked, now = list[float](), [0.0]
    ours, theirs = socket.socketpair()

    def refuse(*_: object) -> socket.socket:
        now[0] += 0.0 if asked else first_seconds
        asked.append(now[0])
        if len(asked) <= refusals:
            raise RefusedError("the agent closed the connection")
        return ours

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(handshake, "connect", refuse)
    monkeypatch.setattr(voting, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    assert (connect(round_.world, 1, KEY) is ours) is joins
    assert asked[-1] <= first_seconds + RETRY_SECONDS
    ours.close()
    theirs.close()


def test_an_agent_that_is_gone_is_not_asked_again(round_: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gone(*_: object) -> socket.socket:
        asked.append(1)
        raise ConnectionRefusedError

    monkeypatch.setattr(handshake, "connect", gone)
    assert connect(round_.world, 1, KEY) is None and asked == [1]
