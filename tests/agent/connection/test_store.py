"""The store that agents meet through: as torch's, for peers alone."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import Queue

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from agent.connection.handshake import RefusedError, connect
from agent.connection.listener import Listener
from agent.connection.store import PeerStore
from agent.connection.store_server import SERVICE, StoreServer
from agent.connection.store_state import (
    LONGEST_WAIT_SECONDS,
    MAX_FRAME_BYTES,
    BadFrameError,
    Operation,
    StoreAnswer,
    StoreState,
    Values,
    decode,
    encode,
    round_prefix,
)
from tests.played.schedule import Schedule, play_seeds

KEY = bytes(range(32))


class Clients:
    """Clients of a store, and what each has been answered."""

    def __init__(self, *numbers: int) -> None:
        self.state = StoreState(Values())
        self.now = 0.0
        for number in numbers:
            self.state.add(number)

    def ask(self, number: int, operation: Operation, *strings: bytes) -> None:
        self.state.receive(number, encode(operation, strings), self.now)

    def answers(self) -> list[tuple[int, StoreAnswer, list[bytes]]]:
        sent, self.state.outgoing = self.state.outgoing, []
        return [
            (number, StoreAnswer(kind), values)
            for number, (kind, values) in ((n, decode(d[4:])) for n, d in sent)
        ]


def test_a_wait_for_many_keys_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, looks = [b"here/%d" % number for number in range(300)], list[bytes]()
    has = Values.has
    monkeypatch.setattr(Values, "has", lambda values, key: looks.append(key) or has(values, key))
    clients = Clients(1, 2)
    clients.ask(1, Operation.WAIT, b"9000", *keys)
    for key in keys:
        clients.ask(2, Operation.SET, key, b"x")
    assert clients.answers()[-1] == (1, StoreAnswer.OK, []) and len(looks) <= 2 * len(keys)


def test_a_wait_of_a_month_is_cut() -> None:
    clients = Clients(1)
    clients.ask(1, Operation.WAIT, b"%d" % (30 * 86_400_000), b"late")
    assert clients.state.deadline == LONGEST_WAIT_SECONDS


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack("!I", MAX_FRAME_BYTES + 1),
        struct.pack("!I", 0),
        encode(99, []),
        encode(Operation.WAIT, []),
        encode(Operation.WAIT, [b"soon", b"key"]),
        struct.pack("!IBI", 5, Operation.SET, 10),
    ],
)
def test_nonsense_is_an_error_of_the_client_that_it_came_from_alone(nonsense: bytes) -> None:
    clients = Clients(1, 2)
    clients.ask(2, Operation.WAIT, b"9000", b"a")
    with pytest.raises(ValueError):
        clients.state.receive(1, encode(Operation.SET, [b"a", b"b"]) + nonsense, 0.0)
    clients.state.drop(1)
    assert (2, StoreAnswer.OK, []) in clients.answers()


@pytest.mark.parametrize(
    ("operation", "strings"),
    [(Operation.SET, [b"key"]), (Operation.ADD, [b"key", b"many"]), (Operation.ADD, [])],
)
def test_a_request_that_makes_no_sense_is_refused(operation: Operation, strings: list[bytes]) -> None:
    clients = Clients(1)
    clients.ask(1, operation, *strings)
    assert clients.answers() == [(1, StoreAnswer.INVALID, [])]


@given(st.integers(0, 255), st.lists(st.binary(max_size=40), max_size=10))
def test_frames_survive_the_wire(kind: int, strings: list[bytes]) -> None:
    assert decode(encode(kind, strings)[4:]) == (kind, strings)


@given(st.binary(max_size=60))
def test_what_is_no_frame_is_a_bad_one(payload: bytes) -> None:
    try:
        kind, strings = decode(payload)
    except BadFrameError:
        return
    assert encode(kind, strings)[4:] == payload


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_the_keys_of_the_newest_two_rounds_are_kept(rounds: list[int]) -> None:
    values = Values()
    opened: list[int] = []
    for round_ in rounds:
        values.open_round(round_)
        opened = opened if round_ in opened else [*opened, round_][-2:]
        values.apply(Operation.SET, [f"{round_prefix(round_)}key".encode(), b""])
    kept = {r for r in range(10) if values.has(f"{round_prefix(r)}key".encode())}
    assert kept == set(opened)


class Game:
    """Clients that set, add, wait and go, whose bytes come in any pieces."""

    def __init__(self, seed: int) -> None:
        self.schedule, self.wrong = Schedule(seed), list[str]()
        self.clients, self.there = Clients(*range(4)), set(range(4))
        self.keys, self.sum = set[bytes](), 0
        self.waits: dict[int, tuple[float, list[bytes]]] = {}
        """What each waits for, and until when."""
        self.added: dict[int, int] = {}
        for number in 4 * list(range(4)) * 3:
            moment = self.schedule.random.uniform(0.0, 20.0)
            self.schedule.after(moment, "sends", lambda number=number: self.act(number))  # type: ignore[misc]

    def act(self, number: int) -> None:
        if number in self.waits:
            self.go(number, b"")  # or it goes on waiting
            return
        if number not in self.there:
            return
        act = self.schedule.random.choice((self.set, self.add, self.wait, self.go))
        if data := act(number, b"%d" % self.schedule.random.randrange(5)):
            for at in range(0, len(data), size := self.schedule.random.randint(1, len(data))):
                self.clients.state.receive(number, data[at : at + size], self.schedule.now)

    def set(self, number: int, key: bytes) -> bytes:
        self.keys.add(key)
        return encode(Operation.SET, [key, b""])

    def add(self, number: int, key: bytes) -> bytes:
        self.keys.add(b"sum")
        self.added[number] = self.schedule.random.randrange(9)
        return encode(Operation.ADD, [b"sum", b"%d" % self.added[number]])

    def wait(self, number: int, key: bytes) -> bytes:
        seconds, awaited = self.schedule.random.randrange(1, 9), [key, b"3", b"sum"]
        self.waits[number] = self.schedule.now + seconds, awaited
        self.schedule.after(seconds, "its time", lambda: self.clients.state.expire(self.schedule.now))
        return encode(Operation.WAIT, [b"%d" % (1000 * seconds), *awaited])

    def go(self, number: int, key: bytes) -> bytes:
        if self.schedule.chance(0.1):
            self.there.discard(number)
            self.waits.pop(number, None)
            self.clients.state.drop(number)
        return b""

    def check(self) -> None:
        for number, answer, values in self.clients.answers():
            if number not in self.there:
                self.wrong.append(f"an answer to {number}, who has gone")
            elif number in self.waits:
                end, awaited = self.waits.pop(number)
                is_early = answer is StoreAnswer.MISSING and self.schedule.now < end
                if is_early or (answer is StoreAnswer.OK) is not self.keys.issuperset(awaited):
                    self.wrong.append(f"a wait for {awaited} ended with {answer.name} at {self.schedule.now}")
            elif values:
                self.sum += self.added.pop(number)
                if int(values[0]) != self.sum:
                    self.wrong.append(f"a sum is {values[0]!r}, not {self.sum}")
        for number, (end, awaited) in self.waits.items():
            if self.keys.issuperset(awaited) or self.schedule.now > end:
                self.wrong.append(f"the wait of {number} for {awaited} is not answered")


def play(seed: int) -> list[str]:
    """Play one schedule.

    A wait is answered once: at the moment at which all its keys are there, or else when its time is over. A sum is
    that of all that was added. Nothing is sent to who has gone, and no wait is remembered.
    """
    game = Game(seed)
    while game.schedule.step():
        game.check()
    if game.clients.state._waiting or game.clients.state.deadline is not None:
        game.wrong.append("it remembers waits that are over")
    return game.wrong


@pytest.mark.played
def test_clients() -> None:
    play_seeds(play, 300)


# Over real connections.


class Agent:
    def __init__(self) -> None:
        self.listener = Listener("127.0.0.1", KEY)
        self.server = StoreServer(self.listener)

    def store(self) -> PeerStore:
        return PeerStore.connect(self.listener.host, self.listener.port, KEY)

    def close(self) -> None:
        self.server.close()
        self.listener.close()


@pytest.fixture
def agent(patient: None) -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def in_thread(call: Callable[[], object]) -> Queue[object]:
    result: Queue[object] = Queue()
    threading.Thread(target=lambda: result.put(call()), daemon=True).start()
    return result


@pytest.mark.real
def test_what_one_sets_another_gets(agent: Agent) -> None:
    one, other = agent.store(), agent.store()
    one.set("a", "text")
    one.multi_set(["b", "c"], [b"\0\xff", ""])
    assert other.get("a") == b"text"
    assert other.multi_get(["b", "c"]) == [b"\0\xff", b""]
    assert other.check(["a", "b"]) and not other.check(["a", "z"])
    assert (one.add("n", 2), other.add("n", 3), one.get("n")) == (2, 5, b"5")
    one.under("one/").under("more/").set("key", "3")
    assert other.get("one/more/key") == b"3" and not other.under("two/").check(["more/key"])
    with pytest.raises(dist.DistStoreError, match="refuses SET"):
        one._ask(Operation.SET, [b"key"])


@pytest.mark.real
def test_a_lost_server_is_noticed_at_once(agent: Agent) -> None:
    store = agent.store()

    def wait() -> object:
        try:
            return store.wait(["never"], timedelta(minutes=10))
        except dist.DistNetworkError as error:
            return error

    result = in_thread(wait)
    agent.store().set("some", "")
    agent.server.close()
    assert isinstance(result.get(timeout=300), dist.DistNetworkError)
    with pytest.raises(dist.DistNetworkError):
        store.set("a", "b")


@pytest.mark.real
def test_a_stranger_and_nonsense_reach_nothing(agent: Agent) -> None:
    innocent = agent.store()
    innocent.set("address", "10.0.0.1")
    with pytest.raises(RefusedError):
        PeerStore.connect(agent.listener.host, agent.listener.port, secrets.token_bytes(32))
    with socket.create_connection((agent.listener.host, agent.listener.port), 300) as stranger:
        stranger.sendall(encode(Operation.SET, [b"address", b"evil"]) * 100)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    with connect(agent.listener.host, agent.listener.port, KEY, SERVICE) as peer:
        peer.sendall(struct.pack("!I", MAX_FRAME_BYTES + 1))
        assert peer.recv(1) == b""
    assert innocent.get("address") == b"10.0.0.1"
