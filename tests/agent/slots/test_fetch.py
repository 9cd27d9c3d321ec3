"""Slots that cross the network: whole and verified, or not at all."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent.connection.listener import Listener
from agent.slots.format import CONTROL_BYTES, CommitWord, Mark, TensorPart, lay_out
from agent.slots.pool import Pool
from agent.slots.server import SlotServer
from agent.slots.slot import Slot
from agent.slots.wire import SERVICE, DamagedCopyError, FetchError, fetch, have_checked, offer, read

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

NBYTES = 20 << 20
HEADER = lay_out([TensorPart("weights", "uint8", (NBYTES,), NBYTES)])
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
    assert peer.slot.commit_word is CommitWord.DAMAGED
    with pytest.raises(FetchError, match="it is not here"):
        fetch(peer.server.address, KEY, MARK, target)


def test_what_is_overwritten_meanwhile_is_found(peer: Peer, target: Slot) -> None:
    chunks = iter(range(100))

    def overwrite() -> bool:
        if next(chunks) == 1:
            peer.slot.begin()
            peer.slot.tensor(HEADER.entries[0]).fill_(1)
        return True

    with pytest.raises(FetchError):
        fetch(peer.server.address, KEY, MARK, target, goes_on=overwrite)


def test_a_range_is_served(peer: Peer) -> None:
    start, stop = CONTROL_BYTES, CONTROL_BYTES + 9
    assert read(peer.server.address, KEY, MARK, start, stop) == peer.slot.bytes(start, stop)
    assert len(read(peer.server.address, KEY, MARK, HEADER.end, None)) == HEADER.slot_bytes - HEADER.end
    with pytest.raises(OSError, match=f"it has {HEADER.slot_bytes} bytes"):
        read(peer.server.address, KEY, MARK, start, HEADER.slot_bytes + 1)


def test_an_offer_is_answered_when_it_is_held(peer: Peer) -> None:
    assert offer(peer.server.address, KEY, MARK, "10.0.0.1:1", 300)
    assert not offer(peer.server.address, KEY, Mark(7, 1, 3, 8), "10.0.0.1:1", 300)
    assert peer.offers[0] == (MARK, "10.0.0.1:1")


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
