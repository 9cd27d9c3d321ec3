"""Slots that cross the network: whole and verified, or not at all."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.connection.handshake import RefusedError
from agent.connection.listener import Listener
from agent.slots import replication
from agent.slots.format import CONTROL_BYTES, Commit, Mark, Part, lay_out
from agent.slots.pool import Pool
from agent.slots.server import SlotServer
from agent.slots.slot import Slot
from agent.slots.wire import (
    SERVICE,
    DamagedCopyError,
    FetchError,
    Request,
    Verb,
    copies,
    fetch,
    have_checked,
    offer,
    read,
)

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

NBYTES = 20 << 20
HEADER = lay_out([Part("weights", "uint8", (NBYTES,), NBYTES)])
MARK = Mark(7, 120, 3, 8)
KEY = bytes(range(32))


class Peer:
    def __init__(self) -> None:
        self.pool = Pool(32 << 20, 1)
        self.slot = self.pool.slots[0]
        self.slot.tensor(HEADER.entries[0]).random_(256)
        self.slot.commit(MARK, HEADER)
        self.slot.sum_up()
        self.offers: list[tuple[Mark, str]] = []
        self.listener = Listener("127.0.0.1", KEY)
        self.server = SlotServer(
            self.pool, self.listener, self._take, lambda round_: [replace(MARK, round=round_)]
        )

    def _take(self, mark: Mark, address: str) -> bool:
        self.offers.append((mark, address))
        return mark.step > 100


@pytest.fixture
def peer() -> Iterator[Peer]:
    found = Peer()
    yield found
    found.server.close()
    found.listener.close()
    found.pool.close()


@pytest.fixture
def target() -> Slot:
    return Slot(mmap.mmap(-1, 32 << 20))


def test_what_comes_is_what_was_there(peer: Peer, target: Slot) -> None:
    fetch(peer.server.address, KEY, MARK, target)
    assert target.mark is None, "the caller seals it"
    target.seal()
    assert target.mark == MARK
    assert target.tensor(HEADER.entries[0]).equal(peer.slot.tensor(HEADER.entries[0]))


def test_a_server_that_can_take_no_connection_for_a_while_goes_on(
    peer: Peer, target: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([RuntimeError("can't start new thread")] * 3)
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "dlr-slot" and (error := next(failures, None)):
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    for _ in range(3):
        with pytest.raises(FetchError):
            fetch(peer.server.address, KEY, MARK, target)
    fetch(peer.server.address, KEY, MARK, target)


def test_a_flipped_bit_is_found(peer: Peer, target: Slot) -> None:
    peer.slot.bytes(CONTROL_BYTES + NBYTES - 1, CONTROL_BYTES + NBYTES)[0] ^= 4
    with pytest.raises(DamagedCopyError, match="weights is not what was written"):
        fetch(peer.server.address, KEY, MARK, target)
    have_checked(peer.server.address, KEY, MARK)
    assert peer.slot.commit_word is Commit.DAMAGED
    with pytest.raises(FetchError, match="it is not here"):
        fetch(peer.server.address, KEY, MARK, target)


def test_a_slot_that_is_whole_stays_whatever_a_peer_says(peer: Peer, target: Slot) -> None:
    have_checked(peer.server.address, KEY, MARK)
    fetch(peer.server.address, KEY, MARK, target)


def test_a_header_that_cannot_be_read_is_damage(peer: Peer, target: Slot) -> None:
    peer.slot.bytes(HEADER.end, HEADER.end + 8)[:] = bytes(8)
    with pytest.raises(FetchError, match="it is not here"):
        fetch(peer.server.address, KEY, MARK, target)
    assert peer.slot.commit_word is Commit.DAMAGED


def test_what_is_overwritten_meanwhile_is_found(peer: Peer, target: Slot) -> None:
    chunks = iter(range(100))

    def overwrite() -> bool:
        if next(chunks) == 1:
            peer.slot.begin()
            peer.slot.tensor(HEADER.entries[0]).fill_(1)
        return True

    with pytest.raises(FetchError):
        fetch(peer.server.address, KEY, MARK, target, goes_on=overwrite)


def test_what_is_not_there_is_told(peer: Peer, target: Slot) -> None:
    with pytest.raises(FetchError, match="it is not here"):
        fetch(peer.server.address, KEY, Mark(7, 121, 3, 8), target)
    peer.slot.begin()
    with pytest.raises(FetchError, match="it is not here"):
        fetch(peer.server.address, KEY, MARK, target)


def test_a_slot_that_is_too_small_is_told(peer: Peer) -> None:
    with pytest.raises(FetchError, match="do not fit into a slot"):
        fetch(peer.server.address, KEY, MARK, Slot(mmap.mmap(-1, 1 << 20)))


def test_a_fetch_that_is_not_wanted_any_more_ends(peer: Peer, target: Slot) -> None:
    with pytest.raises(FetchError, match="not wanted"):
        fetch(peer.server.address, KEY, MARK, target, goes_on=lambda: False)


def test_a_range_is_served(peer: Peer) -> None:
    start, stop = CONTROL_BYTES, CONTROL_BYTES + 9
    assert read(peer.server.address, KEY, MARK, start, stop) == peer.slot.bytes(start, stop)
    assert len(read(peer.server.address, KEY, MARK, HEADER.end, None)) == HEADER.slot_bytes - HEADER.end
    with pytest.raises(OSError, match=f"it has {HEADER.slot_bytes} bytes"):
        read(peer.server.address, KEY, MARK, start, HEADER.slot_bytes + 1)


@given(
    st.sampled_from(Verb),
    st.builds(Mark, *[st.integers(0, 2**62)] * 4),
    st.integers(0, 2**62),
    st.none() | st.integers(0, 2**62),
    st.text(max_size=60),
)
def test_requests_survive_the_wire(verb: Verb, mark: Mark, start: int, stop: int | None, sender: str) -> None:
    request = Request(
        verb,
        mark,
        start if verb is Verb.SEND else 0,
        stop if verb is Verb.SEND else None,
        sender if verb is Verb.OFFER else "",
    )
    assert Request.decode(request.encode()) == request


PARTS = st.sampled_from(["slot", "offer", None]) | st.integers() | st.lists(st.integers(), max_size=5)


@given(st.binary(max_size=60) | st.lists(PARTS, max_size=6).map(lambda parts: json.dumps(parts).encode()))
def test_what_is_no_request_is_a_value_error(line: bytes) -> None:
    with contextlib.suppress(ValueError):
        Request.decode(line)


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[]\n", b"nonsense\n", b'["offer",3,0,0,""]\n', b"x" * 9_000]
)
def test_nonsense_harms_nobody(peer: Peer, target: Slot, line: bytes) -> None:
    host, port = peer.server.address.split(":")
    # A server that closes before it has read all resets the connection, at any of these calls.
    with socket.create_connection((host, int(port)), 300) as connection, contextlib.suppress(OSError):
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(100)
    fetch(peer.server.address, KEY, MARK, target)


def test_copies_are_told(peer: Peer) -> None:
    assert copies(peer.server.address, KEY, 9) == [Mark(9, 120, 3, 8)]


def test_an_offer_is_answered_when_it_is_held(peer: Peer) -> None:
    assert offer(peer.server.address, KEY, MARK, "10.0.0.1:1", 300)
    assert not offer(peer.server.address, KEY, Mark(7, 1, 3, 8), "10.0.0.1:1", 300)
    assert peer.offers[0] == (MARK, "10.0.0.1:1")


def test_an_offer_that_is_not_wanted_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.slots.wire.LOOK_SECONDS", 0.01)
    silent = Listener("127.0.0.1", KEY)
    connections: list[socket.socket] = []
    silent.offer(SERVICE, connections.append)
    with pytest.raises(RefusedError, match="has not answered"):
        offer(silent.address, KEY, MARK, "10.0.0.1:1", 600, lambda: False)
    silent.close()


def test_nobody_is_there(target: Slot) -> None:
    with socket.socket() as bound:  # it does not listen, and nobody else is given its port
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(FetchError, match="refused"):
            fetch(f"127.0.0.1:{bound.getsockname()[1]}", KEY, MARK, target)
    with pytest.raises(FetchError):
        fetch("", KEY, MARK, target)


def test_a_peer_that_goes_away_in_the_middle_is_told(peer: Peer, target: Slot) -> None:
    def half(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b'{"bytes": 100000}\n' + bytes(5_000))
        connection.close()

    listener = Listener("127.0.0.1", KEY)
    listener.offer(SERVICE, lambda connection: threading.Thread(target=half, args=(connection,)).start())
    with pytest.raises(FetchError, match="it closed the connection"):
        fetch(listener.address, KEY, MARK, target)
    listener.close()


def test_a_peer_that_has_no_copy_for_long_is_told_of_once_and_again_after_one_that_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a copy takes longer than two saves: what was offered is written over meanwhile."""
    taken = iter([False] * 5 + [True] + [False] * 3)
    step = itertools.count(10)
    done = threading.Event()

    def offer(*_: object) -> bool:
        if (answer := next(taken, None)) is None:
            done.set()
        return answer or False

    monkeypatch.setattr(replication, "offer", offer)
    monkeypatch.setattr(replication, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(replication, "WARN_SECONDS", 0.0)
    replicated: list[int] = []
    took: list[float] = []
    thread = replication.Replication(
        lambda: [Mark(1, next(step), 0, 2)], "127.0.0.1:1", KEY, replicated.append, took.append
    )
    thread.follow("127.0.0.1:2")
    thread.start()
    assert done.wait(300)
    thread.stop()
    thread.join(300)
    told = [record.getMessage() for record in caplog.records]
    assert replicated == [15]
    assert took[:5] == sorted(took[:5]), "what has not come takes as long as the one before, at least"
    assert [message[:55] for message in told] == [
        "no checkpoint from step 10 on has come to the memory of",
        "no checkpoint from step 16 on has come to the memory of",
    ]


def test_copies_that_never_come_are_tried_for_less_and_less_often() -> None:
    """Each one that is written over takes half of the network for nothing."""
    failures = replication._Failures()
    refused = {failures.add("peer", at, float(at), took=0.01) for at in range(20)}
    assert refused == {replication.RETRY_SECONDS}, "what is refused at once costs nothing"
    pauses = [failures.add("peer", at, float(at), took=5.0) for at in range(20, 40)]
    assert pauses[:4] == [10, 20, 40, replication.LONGEST_RETRY_SECONDS]
    assert set(pauses[4:]) == {replication.LONGEST_RETRY_SECONDS}
    assert failures.add("peer", 40, 40.0, took=300.0) == 300


@pytest.mark.parametrize("event", ["the processes have left", "another round"])
def test_a_pause_is_over_when_nothing_is_written_over_any_more(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers: Queue[int] = Queue()
    monkeypatch.setattr(replication, "offer", lambda peer, key, mark, *_: offers.put(mark.step))
    monkeypatch.setattr(replication._Failures, "add", lambda *_: 600.0)
    thread = replication.Replication(
        lambda: [Mark(1, 10, 0, 2)], "127.0.0.1:1", KEY, lambda _: None, lambda _: None
    )
    thread.follow("127.0.0.1:2")
    thread.start()
    assert offers.get(timeout=300) == 10
    if event == "another round":
        thread.follow(None)
        thread.follow("127.0.0.1:2")
    else:
        thread.hasten()
    assert offers.get(timeout=300) == 10
    thread.stop()
    thread.join(300)


def test_a_copy_that_fails_now_and_then_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    failures = replication._Failures()
    for at in range(int(replication.WARN_SECONDS)):
        failures.add("peer", at, float(at), took=0.01)
    failures.add("peer", 100, replication.WARN_SECONDS - 0.1, took=0.01)
    assert not caplog.records
    failures.add("peer", 101, replication.WARN_SECONDS, took=0.01)
    assert len(caplog.records) == 1
