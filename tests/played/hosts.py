"""The network between the hosts of a played cluster, and what agents and controller see of each other over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.facts.world import AgentWorld
from agent.peers.watch import PeerWatch
from crds.agent_report import SilentPeer
from reconcilers.worker.dialling import DIAL_SECONDS

if TYPE_CHECKING:
    from tests.played.agent import Agent
    from tests.played.cluster import Cluster

API_SERVER, ELSEWHERE = "api-server", "elsewhere"
"""The API server's host, and one that has no Pods."""
NOTICE_SECONDS = 0.5
"""The most by which the kernels of two hosts differ in when they notice that nothing is acknowledged."""


class Hosts:
    """Which hosts reach each other: all do, but for those that are cut off and the pairs whose link is broken."""

    def __init__(self) -> None:
        self.cut_off: set[str] = set()
        self.broken: set[tuple[str, str]] = set()
        """Links that carry nothing, each as from and to."""

    def reach(self, one: str, other: str) -> bool:
        """Whether they can speak with each other, which takes both ways."""
        if one == other:
            return True
        if {one, other} & self.cut_off:
            return False
        return (one, other) not in self.broken and (other, one) not in self.broken


class Neighbours:
    """An agent's watch of its neighbours in one round, without its sockets."""

    def __init__(self, agent: Agent, world: AgentWorld) -> None:
        self._agent, self._world = agent, world
        self._watch = PeerWatch(world.members, world.members.index(agent.me.member))
        self._reported: tuple[SilentPeer, ...] = ()
        self._is_due = self.is_over = False
        self.look_soon()

    def silent(self) -> tuple[SilentPeer, ...]:
        return tuple(SilentPeer(*member) for member in self._watch.silent(self._agent.now))

    def look_soon(self) -> None:
        """Something has changed between hosts, or an agent has ended."""
        if not (self._is_due or self.is_over):
            self._is_due = True
            seconds = self._agent.cluster.random.uniform(0.0, NOTICE_SECONDS)
            self._agent.after(seconds, "looks at its neighbours", self._look)

    def _look(self) -> None:
        agent, watch = self._agent, self._watch
        self._is_due = False
        if self.is_over or agent.cluster.is_over:
            return
        all_answer = True
        for rank in watch.watched(agent.now):
            peer = agent.cluster.agent_at(agent.account, self._world.members[rank])
            if not agent.cluster.hosts.reach(agent.host, peer.host):
                watch.failed(rank, agent.now)
            elif not peer.lives:
                watch.failed(rank, agent.now, is_refused=True)
            else:
                watch.answered(rank)
                continue
            all_answer = False
        if self.silent() != self._reported:
            self._reported = self.silent()
            agent.reporter.tell()
        if not all_answer:
            self.look_soon()


class PlayedDials:
    """The controller's attempts to connect."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._begun: dict[str, float] = {}

    def answers(self, namespace: str, host: str, port: int) -> bool | None:
        """See `reconcilers.worker.dialling.Dials`."""
        cluster, now = self._cluster, self._cluster.schedule.now
        agent = next(each for each in cluster.agents.values() if each.me.pod_ip == host)
        if cluster.hosts.reach(self._host, agent.host):
            return agent.lives
        begun = self._begun.get(host)
        if begun is None or now - begun > 2 * DIAL_SECONDS + 1.0:
            begun = self._begun[host] = now
        return False if now - begun >= DIAL_SECONDS else None
