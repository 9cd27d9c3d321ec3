"""Verdicts on silent agents: a worker is lost only if its node gives no sign of life either. Pure.

If only the agents' connection to the API server is broken, all fall silent at once while training goes on.
So silence alone ends no worker. If the node is lost as well, the worker is lost and its slot avoids the node.
If the node is well and nearly all other agents were heard for a whole time-out, the agent counts as stuck
after a longer time-out, and gets a new Pod. In all other cases the job has the warning `AgentsSilent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

AGENT_TIMEOUTS = 3
"""Time-outs after which an agent counts as stuck if it alone is silent and its node is well."""
LEAST_AGENT_SECONDS = 90.0
"""Shortest time until then: Kubernetes itself calls a silent node not ready after 40 or 50 s."""
FEW = 20
"""One in so many agents, and at least one, may count as stuck at the same time."""
NODE_LEASE_SHARE = 3 / 8
"""Share of a node Lease's duration without a renewal after which the node is silent: 15 s of 40 s. Kubelets
renew in a quarter of the duration, so that is one renewal and a half."""
DEFAULT_NODE_LEASE_SECONDS = 40.0

Object = Mapping[str, Any]


class SilenceVerdict(StrEnum):
    HEARD = "Heard"
    UNDECIDED = "Undecided"
    """The agent or its node has not been watched for long enough."""
    SILENT = "Silent"
    """Silent for too long; it only causes a warning."""
    AGENT_LOST = "AgentLost"
    """The agent is stuck; its node is well."""
    NODE_LOST = "NodeLost"
    UNREACHABLE = "Unreachable"
    """Neither peers nor others reach its host (`reach.py`)."""


LOSSES = (SilenceVerdict.AGENT_LOST, SilenceVerdict.NODE_LOST, SilenceVerdict.UNREACHABLE)


@dataclass(frozen=True)
class NodeLease:
    """Observations of a node's Lease, by our own monotonic clock."""

    unchanged_seconds: float
    """Time since its present renewal was first read."""
    observed_seconds: float
    """Time for which it was watched while the agent was silent."""
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
        """Time until a verdict on the node's silence is possible."""
        return max(0.0, self.patience_seconds - self.observed_seconds)


@dataclass(frozen=True)
class NodeWitness:
    """State of an agent's node by other sources than the agent."""

    name: str = ""
    lost_because: str = ""
    """Reason why the node counts as lost; empty if it does not."""
    is_well: bool = False
    """Whether Kubernetes calls it ready and its kubelet renews its Lease."""
    judged_in_seconds: float = 0.0
    """Time until its Lease was watched for long enough for a verdict."""


@dataclass(frozen=True)
class Company:
    """The agents of the same owner that have been heard at least once."""

    heard: int = 0
    silent: int = 1
    """The agent in question among them."""
    few_seconds: float = 0.0
    """Time for which no more than a few have been silent."""

    @property
    def is_few(self) -> bool:
        """Whether so few are silent that the cause is the agents, not their connection to the API server."""
        return self.heard > 0 and self.silent <= max(1, (self.heard + self.silent) // FEW)


@dataclass(frozen=True)
class Silence:
    """Silence of an agent, and the verdict on it."""

    seconds: float
    verdict: SilenceVerdict
    node: str = ""
    """State of its node, or the witnesses that cannot reach it, as a clause."""
    missed_renewal: bool = False

    @property
    def is_late(self) -> bool:
        """Whether a renewal is missing, and no verdict says more."""
        return self.missed_renewal and self.verdict in (SilenceVerdict.HEARD, SilenceVerdict.UNDECIDED)

    @property
    def is_loss(self) -> bool:
        return self.verdict in LOSSES


def judge_silence(seconds: float, timeout_seconds: float, node: NodeWitness, company: Company) -> Silence:
    """Judge an agent's silence of so many seconds."""
    if seconds < timeout_seconds:
        return Silence(seconds, SilenceVerdict.UNDECIDED)
    if node.lost_because:
        return Silence(seconds, SilenceVerdict.NODE_LOST, node.lost_because)
    if node.judged_in_seconds:
        return Silence(seconds, SilenceVerdict.UNDECIDED)
    if not node.is_well:
        about = f"nothing is known of its node {node.name}" if node.name else "its Pod has no node"
        return Silence(seconds, SilenceVerdict.SILENT, about)
    is_long = seconds >= agent_timeout_seconds(timeout_seconds)
    is_alone = company.is_few and company.few_seconds >= timeout_seconds
    verdict = SilenceVerdict.AGENT_LOST if is_long and is_alone else SilenceVerdict.SILENT
    return Silence(seconds, verdict, f"its node {node.name} is well")


def agent_timeout_seconds(timeout_seconds: float) -> float:
    """Return the silence after which an agent on a well node may count as stuck."""
    return max(AGENT_TIMEOUTS * timeout_seconds, LEAST_AGENT_SECONDS)


def company_of(seconds_since_renewals: Iterable[float], timeout_seconds: float) -> Company:
    """Return the company of an agent among agents whose Leases were last renewed so many seconds ago.

    Agents renew at least three times in a time-out, so one that has not in half of it counts as silent.
    """
    heard = silent = 0
    for seconds in seconds_since_renewals:
        if seconds < timeout_seconds / 2:
            heard += 1
        else:
            silent += 1
    return Company(heard, silent)


def witness_of(name: str, node: Object | None, lease: NodeLease | None, *, is_gone: bool) -> NodeWitness:
    """Return the state of a node.

    Args:
        name: empty if the Pod has no node.
        node: None if it is not in the cache.
        lease: None if there is none, or it cannot be read.
        is_gone: whether the API server has no such node.
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
    """Return why the node is not ready; empty if it is, or has no condition Ready."""
    ready = None if node is None else _ready_condition(node)
    if node is None or ready is None or ready.get("status") == "True":
        return ""
    return f"node {node['metadata']['name']} is not ready: {ready.get('message', ready.get('reason', ''))}"


def _ready_condition(node: Object) -> Object | None:
    conditions = node.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "Ready"), None)
