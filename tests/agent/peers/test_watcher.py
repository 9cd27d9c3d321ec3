"""The watch of neighbours over real sockets, and what a host that is cut off looks like to its peers' kernels."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from agent.connection.listener import Listener
from agent.connection.store import PeerStore
from agent.connection.store_server import StoreServer
from agent.facts.world import AgentWorld, Member
from agent.peers.watcher import PeerWatcher
from crds.agent_report import SilentPeer
from crds.phases import RendezvousPhase
from e2e import links
from e2e.links import CLONE_NEWNET, NAMESPACES, NodeNetworks
from localcluster.kubelet.namespaces import setns

pytestmark = pytest.mark.real
KEY = bytes(range(32))
T = TypeVar("T")
MOST_SECONDS = 30.0
"""For what takes two or three seconds on a machine that is not busy."""


def there(node: str | None, make: Callable[[], T]) -> T:
    """Make something in the network of a node; a socket stays where its thread was."""
    if node is None:
        return make()

    def enter() -> T:
        with (NAMESPACES / node).open() as file:
            setns(file.fileno(), CLONE_NEWNET)
        return make()

    with ThreadPoolExecutor(1) as thread:  # of its own, to leave there
        return thread.submit(enter).result()


class Agent:
    """The part of an agent that others watch, and that watches."""

    def __init__(self, index: int, host: str, node: str | None = None) -> None:
        self.node, self.changed = node, threading.Event()
        self.listener = there(node, lambda: Listener(host, KEY))
        self.store = StoreServer(self.listener)
        self.watcher = PeerWatcher(Member(index, 1), host, self.listener.port, KEY)
        self.watcher.serve(self.changed.set)

    def meet(self, world: AgentWorld, chair: Agent) -> None:
        def begin() -> None:
            store = PeerStore.connect(chair.listener.host, chair.listener.port, KEY)
            self.watcher.meet(store.under("round/1/"), world)

        there(self.node, begin)

    def wait_until(self, *silent: int) -> float:
        """Wait until these are the ones that are silent; return the seconds."""
        begun = time.monotonic()
        wanted = tuple(SilentPeer(index, 1) for index in silent) or None
        while self.watcher.to_status() != wanted:
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


def met(agents: list[Agent]) -> None:
    members = tuple(Member(index, 1) for index in range(len(agents)))
    world = AgentWorld(1, RendezvousPhase.FORMED, members, len(members))
    for agent in agents:
        agent.meet(world, agents[0])
    deadline = time.monotonic() + MOST_SECONDS
    neighbours = min(2, len(agents) - 1)
    while not all(agent.is_watched_by(neighbours) for agent in agents):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


@pytest.fixture
def three() -> Iterator[list[Agent]]:
    agents = [Agent(index, "127.0.0.1") for index in range(3)]
    yield agents
    for agent in agents:
        agent.close()


def test_an_agent_that_ends_is_silent_for_both_neighbours_after_the_time_of_its_kubelet(
    three: list[Agent],
) -> None:
    met(three)
    assert three[0].watcher.to_status() is None
    three[1].close()
    assert three[0].wait_until(1) > 4.0
    three[2].wait_until(1)


def test_a_member_that_gives_no_address_costs_nobody_the_watch_of_the_others(three: list[Agent]) -> None:
    three[1].watcher._address = "nowhere"
    world = AgentWorld(1, RendezvousPhase.FORMED, tuple(Member(index, 1) for index in range(3)), 3)
    for agent in three:
        agent.meet(world, three[0])
    deadline = time.monotonic() + MOST_SECONDS
    while not (three[2].is_watched_by(2) and three[0].is_watched_by(2)):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    three[2].close()
    three[0].wait_until(2)


@pytest.mark.skipif(not links.can_be_had(), reason="takes root, and the command ip")
def test_a_host_that_is_cut_off_is_silent_within_seconds_and_heard_again() -> None:
    nodes = ["a", "b"]
    with (
        socket.create_server(("127.0.0.1", 0)) as nobody,
        NodeNetworks(nodes, nobody.getsockname()) as networks,
    ):
        agents = [
            Agent(number, address, networks._namespace(node))
            for number, (node, address) in enumerate(networks._addresses.items())
        ]
        try:
            met(agents)
            subprocess.run(["ip", "link", "set", f"{networks._id}.1", "down"], check=True)
            seconds = agents[0].wait_until(1)
            agents[1].wait_until(0)
            print(f"silent after {seconds:.2f} s")
            assert seconds > 1.5
            subprocess.run(["ip", "link", "set", f"{networks._id}.1", "up"], check=True)
            agents[0].wait_until()
            agents[1].wait_until()
        finally:
            for agent in agents:
                agent.close()
