"""What it means that an agent is silent: a worker is lost when its node, too, gives no sign of life. Pure.

Where only the agents' way to the API server is broken, every agent falls silent at once while training goes
on. So silence alone ends no worker. If the node is lost as well, the worker is lost and its slot keeps off
the node. If the node is well and nearly all other agents have been heard for a whole time-out, the agent is
stuck after a longer time-out: it gets a new Pod. In any other case the job has the warning `AgentsSilent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

AGENT_TIMEOUTS = 3
"""Time-outs after which an agent that is alone in its silence is taken to be stuck, with its node well."""
LEAST_AGENT_SECONDS = 90.0
"""And no sooner than this: Kubernetes itself calls a silent node not ready after 40 or 50 s."""
FEW = 20
"""One in so many agents, and at least one, may be taken to be stuck at the same time."""
NODE_LEASE_SHARE = 3 / 8
"""Share of a node Lease's duration without a renewal after which the node is silent: 15 s of 40 s. Kubelets
renew in a quarter of the duration, so that is one renewal and a half."""
DEFAULT_NODE_LEASE_SECONDS = 40.0

Object = Mapping[str, Any]


class SilenceVerdict(StrEnum):
    HEARD = "Heard"
    UNDECIDED = "Undecided"
    """We have not listened to it, or not watched its node, for long enough to say."""
    SILENT = "Silent"
    """Silent for too long, and nothing is done about it."""
    AGENT_LOST = "AgentLost"
    """The agent is stuck; its node is well."""
    NODE_LOST = "NodeLost"
    UNREACHABLE = "Unreachable"
    """Neither peers nor others reach its host (`reach.py`)."""


LOSSES = (SilenceVerdict.AGENT_LOST, SilenceVerdict.NODE_LOST, SilenceVerdict.UNREACHABLE)


@dataclass(frozen=True)
class NodeLease:
    """What was observed of a node's Lease, by our own monotonic clock."""

    unchanged_seconds: float
    """How long it has had the present renewal, from when we first read that."""
    observed_seconds: float
    """How long it has been watched while the agent was silent."""
    duration_seconds: float = DEFAULT_NODE_LEASE_SECONDS

    @property
    def patience_seconds(self) -> float:
        """Time without a renewal after which the node is silent."""
        return self.duration_seconds * NODE_LEASE_SHARE

    @property
    def is_silent(self) -> bool:
        return self.unchanged_seconds >= self.patience_seconds

    @property
    def judged_in_seconds(self) -> float:
        """Time until it was watched for long enough to say whether the node is silent."""
        return max(0.0, self.patience_seconds - self.observed_seconds)


@dataclass(frozen=True)
class NodeWitness:
    """What is known of an agent's node without the agent."""

    name: str = ""
    lost_because: str = ""
    """Why the node counts as lost; empty if it does not."""
    is_well: bool = False
    """Whether Kubernetes calls it ready and its kubelet renews its Lease."""
    judged_in_seconds: float = 0.0
    """Time for which its Lease is still to be watched before a verdict."""


@dataclass(frozen=True)
class Company:
    """The agents of the same owner that have been heard at least once."""

    heard: int = 0
    silent: int = 1
    """The agent in question among them."""
    few_seconds: float = 0.0
    """How long no more than a few have been silent."""

    @property
    def is_few(self) -> bool:
        """Whether so few are silent that it is the agents, and not their way to the API server."""
        return self.heard > 0 and self.silent <= max(1, (self.heard + self.silent) // FEW)


@dataclass(frozen=True)
class Silence:
    """How long an agent has been silent, and what that means."""

    seconds: float
    verdict: SilenceVerdict
    node: str = ""
    """What is known of its node, or by whom it cannot be reached, as a clause."""
    missed_renewal: bool = False

    @property
    def is_late(self) -> bool:
        """Whether a renewal is missing, and no verdict says more."""
        return self.missed_renewal and self.verdict in (SilenceVerdict.HEARD, SilenceVerdict.UNDECIDED)

    @property
    def is_loss(self) -> bool:
        return self.verdict in LOSSES


def judge_silence(seconds: float, timeout_seconds: float, node: NodeWitness, company: Company) -> Silence:
    """What an agent's silence of so many seconds means."""
    if seconds < timeout_seconds:
        return Silence(seconds, SilenceVerdict.UNDECIDED)
    if node.lost_because:
        return Silence(seconds, SilenceVerdict.NODE_LOST, node.lost_because)
    if node.judged_in_seconds:
        return Silence(seconds, SilenceVerdict.UNDECIDED)
    if not node.is_well:
        about = f"of its node {node.name} nothing is known" if node.name else "its Pod has no node"
        return Silence(seconds, SilenceVerdict.SILENT, about)
    is_long = seconds >= agent_timeout_seconds(timeout_seconds)
    is_alone = company.is_few and company.few_seconds >= timeout_seconds
    verdict = SilenceVerdict.AGENT_LOST if is_long and is_alone else SilenceVerdict.SILENT
    return Silence(seconds, verdict, f"its node {node.name} is well")


def agent_timeout_seconds(timeout_seconds: float) -> float:
    """Silence after which an agent may be taken to be stuck though its node is well."""
    return max(AGENT_TIMEOUTS * timeout_seconds, LEAST_AGENT_SECONDS)


def company_of(seconds_since_renewals: Iterable[float], timeout_seconds: float) -> Company:
    """The company of an agent among agents whose Leases were last renewed so many seconds ago.

    Agents renew three times in a time-out at least, so one that has not for half of it counts as silent.
    """
    heard = silent = 0
    for seconds in seconds_since_renewals:
        if seconds < timeout_seconds / 2:
            heard += 1
        else:
            silent += 1
    return Company(heard, silent)


def witness_of(name: str, node: Object | None, lease: NodeLease | None, *, is_gone: bool) -> NodeWitness:
    """What is known of a node.

    Args:
        name: empty if the Pod has no node.
        node: None if it is not in the cache.
        lease: None if there is none, or it cannot be read.
        is_gone: the API server has no such node.
    """
    if not name:
        return NodeWitness()
    if is_gone:
        return NodeWitness(name, f"its node {name} is gone")
    if why := why_not_ready(node):
        return NodeWitness(name, why)
    is_ready = node is not None and _ready_condition(node) is not None
    if lease is None:
        return NodeWitness(name, is_well=is_ready)
    if lease.is_silent:
        seconds = f"{lease.unchanged_seconds:.0f} s"
        return NodeWitness(name, f"its node {name} has not renewed its Lease for {seconds}")
    judged_in = lease.judged_in_seconds
    return NodeWitness(name, is_well=is_ready and not judged_in, judged_in_seconds=judged_in)


def why_not_ready(node: Object | None) -> str:
    """Why Kubernetes does not call the node ready; empty if it does, or says nothing."""
    ready = None if node is None else _ready_condition(node)
    if node is None or ready is None or ready.get("status") == "True":
        return ""
    return f"node {node['metadata']['name']} is not ready: {ready.get('message', ready.get('reason', ''))}"


def _ready_condition(node: Object) -> Object | None:
    conditions = node.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "Ready"), None)
