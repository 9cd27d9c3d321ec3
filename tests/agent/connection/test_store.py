"""The store that agents meet through, over real connections: as torch's, for peers alone."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.elastic.utils.store import barrier, synchronize

from agent.connection.handshake import RefusedError, connect
from agent.connection.listener import Listener
from agent.connection.store import PeerStore
from agent.connection.store_server import (
    MAX_FRAME_BYTES,
    SERVICE,
    BadFrameError,
    Operation,
    StoreServer,
    Values,
    decode,
    encode,
    round_prefix,
)

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

KEY = bytes(range(32))
SOON = timedelta(milliseconds=50)


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
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def in_thread(call: Callable[[], object]) -> Queue[object]:
    result: Queue[object] = Queue()
    threading.Thread(target=lambda: result.put(call()), daemon=True).start()
    return result


def test_what_one_sets_another_gets(agent: Agent) -> None:
    one, other = agent.store(), agent.store()
    one.set("a", "text")
    one.multi_set(["b", "c"], [b"\0\xff", ""])
    assert other.get("a") == b"text"
    assert other.multi_get(["b", "c"]) == [b"\0\xff", b""]
    assert other.check(["a", "b"]) and not other.check(["a", "z"])
    assert (one.add("n", 2), other.add("n", 3), one.get("n")) == (2, 5, b"5")


def test_prefixes_are_apart(agent: Agent) -> None:
    store = agent.store()
    store.under("one/").set("key", "1")
    store.under("two/").set("key", "2")
    assert (store.get("one/key"), store.get("two/key")) == (b"1", b"2")
    assert store.under("one/").under("more/").set("key", "3") is None
    assert store.get("one/more/key") == b"3"


def test_a_wait_ends_when_the_last_key_comes(agent: Agent) -> None:
    waiting, setting = agent.store(), agent.store()
    result = in_thread(lambda: waiting.multi_get(["a", "b", "c"]))
    for key in ("c", "a"):
        setting.set(key, key)
    assert result.empty()
    setting.add("b", 7)
    assert result.get(timeout=300) == [b"a", b"7", b"c"]


def test_a_wait_for_many_keys_takes_linear_time(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, looks = [f"here/{number}" for number in range(300)], list[bytes]()
    has = Values.has

    def counted(values: Values, key: bytes) -> bool:
        looks.append(key)
        return has(values, key)

    monkeypatch.setattr(Values, "has", counted)
    waiting, writing = agent.store(), agent.store()
    done = in_thread(lambda: waiting.wait(keys, timedelta(seconds=300)))
    for key in keys:
        writing.set(key, "x")
    assert done.get(timeout=300) is None
    assert len(looks) <= 2 * len(keys)


def test_a_wait_for_what_does_not_come_ends_with_its_time(agent: Agent) -> None:
    store = agent.store()
    with pytest.raises(dist.DistStoreError, match=r"here/1 and 0 more keys are not all there after 0\.05 s"):
        store.wait(["here/1"], SOON)
    store.set_timeout(SOON)
    assert store.timeout == SOON
    with pytest.raises(dist.DistStoreError):
        store.get("here/1")
    store.set("here/1", "now")
    assert store.get("here/1") == b"now", "an answer in vain is not the next one's"


def test_a_wait_of_a_month_ends_nobody_elses_service(agent: Agent) -> None:
    store = agent.store()
    found = in_thread(lambda: store.wait(["late"], timedelta(days=30)))
    others = agent.store()
    others.set("a", "b")
    assert others.get("a") == b"b"
    others.set("late", "x")
    assert found.get(timeout=300) is None


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


def test_it_is_a_store_for_torchs_agents(agent: Agent) -> None:
    def member(rank: int) -> Queue[object]:
        store = agent.store()
        return in_thread(lambda: synchronize(store, b"%d" % rank, rank, 3, "data", timeout=300))

    gathered = [result.get(timeout=300) for result in [member(rank) for rank in range(3)]]
    assert gathered == [[b"0", b"1", b"2"]] * 3
    with pytest.raises(dist.DistStoreError):
        barrier(agent.store(), 2, "exit", barrier_timeout=0.05)


def test_a_stranger_reaches_nothing(agent: Agent) -> None:
    agent.store().set("address", "10.0.0.1")
    with pytest.raises(RefusedError):
        PeerStore.connect(agent.listener.host, agent.listener.port, secrets.token_bytes(32))
    with socket.create_connection((agent.listener.host, agent.listener.port), 300) as stranger:
        stranger.sendall(encode(Operation.SET, [b"address", b"evil"]) * 100)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    assert agent.store().get("address") == b"10.0.0.1"


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
def test_nonsense_ends_the_connection_that_it_came_on_alone(agent: Agent, nonsense: bytes) -> None:
    innocent = agent.store()
    with connect(agent.listener.host, agent.listener.port, KEY, SERVICE) as peer:
        peer.sendall(nonsense)
        assert peer.recv(1) == b""
    innocent.set("a", "b")
    assert innocent.get("a") == b"b"


@pytest.mark.parametrize(
    ("operation", "strings"),
    [
        (Operation.SET, [b"key"]),
        (Operation.ADD, [b"key", b"many"]),
        (Operation.ADD, [b"key"]),
        (Operation.ADD, []),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    agent: Agent, operation: Operation, strings: list[bytes]
) -> None:
    store = agent.store()
    with pytest.raises(dist.DistStoreError, match=f"refuses {operation.name}"):
        store._ask(operation, strings)
    store.set("a", "b")


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


@settings(deadline=None)
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
