"""The watch of neighbours over real sockets. Hosts that are cut off are in e2e/scenarios/test_silent_hosts.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from agent.connection.listener import Listener
from agent.connection.store import PeerStore
from agent.connection.store_server import StoreServer
from agent.facts.world import AgentWorld, Member
from agent.peers.watcher import PeerWatcher
from crds.agent_report import SilentPeer
from crds.phases import RendezvousPhase

pytestmark = pytest.mark.real
KEY = bytes(range(32))
MOST_SECONDS = 30.0
"""For what takes two or three seconds on a machine that is not busy."""


class Agent:
    """The part of an agent that others watch, and that watches."""

    def __init__(self, index: int) -> None:
        self.changed = threading.Event()
        self.listener = Listener("127.0.0.1", KEY)
        self.store = StoreServer(self.listener)
        self.watcher = PeerWatcher(Member(index, 1), self.listener.host, self.listener.port, KEY)
        self.watcher.serve(self.changed.set)

    def meet(self, world: AgentWorld, chair: Agent) -> None:
        store = PeerStore.connect(chair.listener.host, chair.listener.port, KEY)
        self.watcher.meet(store.under("round/1/"), world)

    def wait_until(self, silent: int) -> float:
        """Wait until that member alone is silent; return the seconds."""
        begun = time.monotonic()
        while self.watcher.to_status() != (SilentPeer(silent, 1),):
            assert time.monotonic() - begun < MOST_SECONDS, self.watcher.to_status()
            self.changed.wait(0.05)
            self.changed.clear()
        return time.monotonic() - begun

    def is_watched_by(self, count: int) -> bool:
        return len(self.store._clients) >= count

    def close(self) -> None:
        self.watcher.close()
        self.store.close()
        self.listener.close()


def meet(agents: list[Agent], *watched: int) -> None:
    """Have them meet, and wait until two watch each of these."""
    members = tuple(Member(index, 1) for index in range(len(agents)))
    for agent in agents:
        agent.meet(AgentWorld(1, RendezvousPhase.FORMED, members, len(members)), agents[0])
    deadline = time.monotonic() + MOST_SECONDS
    while not all(agents[index].is_watched_by(2) for index in watched):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


@pytest.fixture
def three() -> Iterator[list[Agent]]:
    agents = [Agent(index) for index in range(3)]
    yield agents
    for agent in agents:
        agent.close()


def test_an_agent_that_ends_is_silent_for_both_neighbours_after_the_time_of_its_kubelet(
    three: list[Agent],
) -> None:
    meet(three, 0, 1, 2)
    assert three[0].watcher.to_status() is None
    three[1].close()
    assert three[0].wait_until(1) > 4.0
    three[2].wait_until(1)


def test_a_member_that_gives_no_address_costs_nobody_the_watch_of_the_others(three: list[Agent]) -> None:
    three[1].watcher._address = "nowhere"
    meet(three, 0, 2)
    three[2].close()
    three[0].wait_until(2)
