"""Processes of replica groups and their agents, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from queue import Queue

import pytest

from agent.connection.listener import Listener
from agent.connection.store import PeerStore
from agent.connection.store_server import StoreServer
from agent.connection.store_state import version_prefix
from agent.replicas import desk as desk_module
from agent.replicas.client import AgentChannel
from agent.replicas.desk import ReplicasDesk
from agent.replicas.facts import GroupsView, VersionGroups
from agent.replicas.roster import EndConnection
from crds.agent_report import ReplicasReport
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

KEY = bytes(range(32))
WITHIN_SECONDS = 300.0
ROUND = 4


class Agent:
    """The agent of a group, with its desk, and its processes in this one."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.listener = Listener("127.0.0.1", KEY)
        self.store = StoreServer(self.listener)
        self.desk = ReplicasDesk(index, KEY, self.store)
        self.told: Queue[ReplicasReport | None] = Queue()
        """What the agent reported at once."""
        self.desk.serve(lambda: self.told.put(self.desk.to_status()))

    @property
    def place(self) -> tuple[int, int]:
        return self.index, ROUND

    def process(self, rank: int = 0, size: int = 1, round_: int = ROUND) -> Process:
        return Process(self.desk.path, rank, size, round_)

    def close(self) -> None:
        self.desk.close()
        self.store.close()
        self.listener.close()


class Process:
    """A training process that has joined."""

    def __init__(self, path: str, rank: int, size: int, round_: int) -> None:
        self.channel = AgentChannel(path, round_)
        self.changed = threading.Condition()
        self.times: list[float] = []
        self.channel.follow(self._note, rank, size)

    def _note(self) -> None:
        with self.changed:
            self.times.append(time.monotonic())
            self.changed.notify_all()

    def wait_for(self, version: int) -> VersionGroups:
        def is_there() -> bool:
            return self.channel.membership is not None and self.channel.membership.version >= version

        with self.changed:
            assert self.changed.wait_for(is_there, WITHIN_SECONDS), self.channel.membership
        assert self.channel.membership is not None
        return self.channel.membership


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, patient: None) -> Iterator[Callable[[int], Agent]]:
    for limit in ("desk.LEAD_SECONDS", "desk.LOOK_SECONDS", "client.ANSWER_SECONDS"):
        monkeypatch.setattr(f"agent.replicas.{limit}", WITHIN_SECONDS)
    agents: list[Agent] = []

    def made(index: int) -> Agent:
        agents.append(Agent(index))
        return agents[-1]

    yield made
    for agent in agents:
        agent.close()


@pytest.fixture
def agent(make: Callable[[int], Agent]) -> Agent:
    made = make(0)
    made.desk.begin(ROUND, 1)
    return made


@pytest.fixture
def two(make: Callable[[int], Agent]) -> tuple[Agent, Agent]:
    """The lead, and an agent of another group."""
    pair = make(0), make(1)
    for each in pair:
        each.desk.begin(ROUND, 1)
        each.desk.see(together(1, *pair))
    return pair


def together(version: int, *agents: Agent) -> GroupsView:
    lead = agents[0].listener
    return GroupsView(version, tuple(each.place for each in agents), lead.host, lead.port)


def in_thread(call: Callable[[], object]) -> Queue[object]:
    result: Queue[object] = Queue()

    def run() -> None:
        try:
            result.put(call())
        except BaseException as error:
            result.put(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def waits(agent: Agent) -> bool:
    """Whether somebody waits for a key in the agent's store."""
    return bool(agent.store._state._waiting)


def raw(agent: Agent) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(WITHIN_SECONDS)
    connection.connect(agent.desk.path)
    return connection


def is_cut_off(process: Process) -> bool:
    """Whether it knows that it gets no more news."""
    try:
        _ = process.channel.membership
    except ConnectionError:
        return True
    return False


def is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


# --- membership ----------------------------------------------------------------------------------------------


def test_a_stopped_process_holds_up_neither_the_watch_nor_the_others(agent: Agent) -> None:
    agent.desk.begin(ROUND, 2)
    stopped = raw(agent)  # it reads nothing
    stopped.sendall(json.dumps({"join": {"rank": 0, "size": 2, "round": ROUND}}).encode() + b"\n")
    process = agent.process(1, 2)
    agent.told.get(timeout=WITHIN_SECONDS)
    others = tuple((index, 1) for index in range(1, 1_000))
    longest = 0.0
    for version in range(1, 30):
        begun_at = time.monotonic()
        agent.desk.see(GroupsView(version, others))
        longest = max(longest, time.monotonic() - begun_at)
        process.wait_for(version)
    assert longest < WITHIN_SECONDS  # a send that waited for it would never end
    assert is_closed(stopped)


def test_the_desk_of_an_agent_that_ends_leaves_no_socket_and_no_thread(agent: Agent) -> None:
    process = agent.process()
    agent.told.get(timeout=WITHIN_SECONDS)
    agent.desk.close()
    wait_for(lambda: all("dlr-replicas" not in each.name for each in threading.enumerate()))
    assert not Path(agent.desk.path).parent.exists()
    with pytest.raises(OSError):
        process.channel.open_store(1)


# --- reports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b"\xff\n", b'{"join": {"rank": 1, "size": 3, "round": 4}}\n{"at": {"version": -1, "step": 0}}\n']
)
def test_a_connection_that_makes_no_sense_ends_and_no_other(
    agent: Agent, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    agent.desk.begin(ROUND, 3)
    process = agent.process(0, 3)
    agent.desk.see(together(1, agent))
    process.wait_for(1)
    stranger = raw(agent)
    stranger.sendall(text)
    assert is_closed(stranger)
    wait_for(lambda: "makes no sense" in caplog.text)
    agent.process(2, 3).wait_for(1)
    assert agent.desk.to_status() is None, "nobody of rank 1 is ready"
    agent.desk.see(together(2, agent))
    process.wait_for(2)


def test_a_line_without_end_is_not_kept(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    stranger = raw(agent)
    with pytest.raises(OSError):
        for _ in range(100):
            stranger.sendall(b"x" * (1 << 18))
    wait_for(lambda: "too long" in caplog.text)


# --- the store -----------------------------------------------------------------------------------------------


def test_a_wait_ends_as_soon_as_there_is_a_newer_version(two: tuple[Agent, Agent]) -> None:
    lead, other = two
    process = other.process()
    store = process.channel.open_store(1)
    store.set("address", b"\x00\xff")
    store.wait(["address"], timedelta(seconds=1))
    assert store.get("address") == b"\x00\xff"
    assert store.check(["address"]) and not store.check(["address", "never"])
    got = in_thread(lambda: store.get("never"))
    wait_for(lambda: waits(lead))
    begun_at = time.monotonic()
    other.desk.see(together(2, lead, other))
    assert isinstance(got.get(timeout=WITHIN_SECONDS), ConnectionError)
    assert time.monotonic() - begun_at < desk_module.KEY_SECONDS
    assert process.wait_for(2).place == 1
    wait_for(lambda: not waits(lead))
    with pytest.raises(ConnectionError):
        store.set("key", "value")
    with pytest.raises(ConnectionError):
        process.channel.open_store(1).get("key")  # it is over
    process.channel.open_store(2).set("key", "value")
    has = [each.store.values.has(f"{version_prefix(2)}key".encode()) for each in two]
    assert has == [True, False], "the lead's store has it"


def test_a_lead_that_is_silent_is_an_error_soon(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "LEAD_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and sends nothing
        port = server.getsockname()[1]
        agent.desk.see(GroupsView(1, ((0, 1), agent.place), "127.0.0.1", port))
        process = agent.process()
        with pytest.raises(ConnectionError, match=f"store of group 0 at 127.0.0.1:{port}"):
            process.channel.open_store(1).get("key")
    agent.desk.see(GroupsView(2))
    process.wait_for(2)


def test_keys_that_a_peer_leaves_under_no_version_stop_no_news(two: tuple[Agent, Agent]) -> None:
    lead, other = two
    process = lead.process()
    peer = PeerStore.connect(lead.listener.host, lead.listener.port, KEY)
    odd = [
        "replicas/",
        "replicas/x/key",
        "replicas/-1/key",
        "replicas/" + "9" * 5_000 + "/key",
        "replicas/\u0663",
    ]
    for key in odd:
        peer.set(key, "value")
    for version in (2, 3):
        lead.desk.see(together(version, lead, other))
        process.wait_for(version)
    assert not [key for key in odd if lead.store.values.has(key.encode())]


def test_a_process_that_gets_no_more_news_learns_that_instead_of_waiting_for_ever(agent: Agent) -> None:
    """As one that was stopped while many versions came and went."""
    process = agent.process()
    agent.desk.see(together(1, agent))
    process.wait_for(1)
    news = len(process.times)
    agent.desk._carry_out(lambda: [EndConnection(key) for key in agent.desk.roster._connections])
    wait_for(lambda: is_cut_off(process))
    wait_for(lambda: len(process.times) > news)
    with pytest.raises(ConnectionError, match="cannot follow the replica groups any more"):
        _ = process.channel.membership
