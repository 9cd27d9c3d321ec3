"""Claims of checks on nodes: which of several checks tests a node, waits for it or leaves it. Pure.

The rule of `reconcilers/observed/trust.py` applies to claims: within its own namespace, and everywhere if
that is an administrator's, a check claims a node as soon as it wants it. In other namespaces it claims a node
only once its agent is ready there, so a check whose Pods never start delays no other.

Checks have an order: by precedence, then those whose nodes are fixed, then the older one. A check waits for
those that are testing its nodes, and for those before it; never for others, so no two wait for each other. A
check that has had a node for `HOLD_SECONDS` leaves it to a check of higher precedence, and one that has
tested it for that long, to any check of another namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from controller.resources import Object
from controller.wording import counted
from crds.nodecheck import NodeCheck, NodeCheckPhase
from reconcilers.nodecheck.nodes import Out
from reconcilers.observed.containers import has_ended

WAITING_FOR_CHECK = "WaitingForCheck"
WAITING_FOR_AGENTS = "WaitingForAgents"

HOLD_SECONDS = 300.0
"""Time for which a check that is not an administrator's may wait for its agents, keep nodes for which a check
of higher precedence waits, and test nodes for which a check of another namespace waits."""
REST_SECONDS = 30.0
"""Time for which a namespace cannot take back nodes that it has left to others, so that they get them."""

YIELDED = Out("it was left to another check, which waited for it", reason="Yielded")


class Precedence(IntEnum):
    """The precedence of checks; the lowest value goes first."""

    ADMINISTRATORS = 0
    """Checks in namespaces that may cordon."""
    JOBS = 1
    """Checks that the controller created for a job, whose world waits for them."""
    OTHERS = 2


@dataclass(frozen=True)
class NodeClaim:
    """The nodes that an unfinished check has or wants."""

    uid: str
    namespace: str
    name: str
    precedence: Precedence
    created: datetime
    wanted: frozenset[str] = frozenset()
    """Nodes that it has yet to test."""
    present: frozenset[str] = frozenset()
    """The wanted nodes on which the check's agent is ready."""
    is_fixed: bool = False
    """Whether its status has its nodes, or is about to."""
    tests: bool = False
    """Whether it tests them, or is about to."""

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key; the smaller goes first."""
        return self.precedence, not self.is_fixed, self.created, self.uid

    def counting_in(self, namespace: str) -> frozenset[str]:
        """The nodes on which its claim counts against checks of a namespace."""
        counts = self.namespace == namespace or self.precedence is Precedence.ADMINISTRATORS
        return self.wanted if self.tests or counts else self.present

    def named_in(self, namespace: str) -> str:
        """The check as a message in a namespace may name it, which excludes objects of other namespaces."""
        is_ours = self.namespace == namespace
        return f"NodeCheck {self.namespace}/{self.name}" if is_ours else "a check in another namespace"


def claim_of(check: NodeCheck, precedence: Precedence, **more: Any) -> NodeClaim:
    """The claim of a check, with these further fields of `NodeClaim`."""
    metadata, status = check.metadata, check.status
    fields = {"is_fixed": bool(status.nodes), "tests": status.phase is NodeCheckPhase.RUNNING} | more
    created = metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC)
    return NodeClaim(metadata.uid, metadata.namespace, metadata.name, precedence, created, **fields)


def precedence_of(
    check: dict[str, Any] | None, job: dict[str, Any] | None, is_administrators: bool
) -> Precedence:
    """The precedence of a raw check, which may be gone, by the raw job that it names."""
    if is_administrators:
        return Precedence.ADMINISTRATORS
    return Precedence.JOBS if check is not None and is_made_for_job(check, job) else Precedence.OTHERS


def in_the_way(mine: NodeClaim, claims: Iterable[NodeClaim]) -> dict[str, NodeClaim]:
    """The nodes that block the beginning of a check, each with the claim in the way."""
    found: dict[str, NodeClaim] = {}
    left = set(mine.wanted)
    for claim in sorted(claims, key=lambda claim: claim.order):
        if claim.uid != mine.uid and (claim.tests or claim.order < mine.order):
            taken = left & claim.counting_in(mine.namespace)
            found |= dict.fromkeys(taken, claim)
            left -= taken
    return found


def gives_way(mine: NodeClaim, other: NodeClaim) -> bool:
    """Whether a check, after a while, leaves nodes to another that wants the same."""
    if other.tests or mine.precedence is Precedence.ADMINISTRATORS:
        return False
    return other.precedence < mine.precedence or (mine.tests and other.namespace != mine.namespace)


def to_yield(mine: NodeClaim, claims: Iterable[NodeClaim], *, to_anybody: bool = False) -> frozenset[str]:
    """The nodes that a check leaves to others once it has held them for HOLD_SECONDS.

    Args:
        to_anybody: whether it has tested them for that long.
    """
    nodes = frozenset[str]()
    for claim in (each for each in claims if gives_way(mine, each)):
        if to_anybody and claim.namespace != mine.namespace:
            nodes |= mine.wanted & claim.wanted
        elif claim.precedence < mine.precedence:
            nodes |= mine.wanted & claim.counting_in(mine.namespace)
    return nodes


def sentence_on(contested: Mapping[str, NodeClaim], namespace: str) -> str:
    """The nodes that a check waits for, in words."""
    node = min(contested)
    claim = contested[node]
    others = len(contested) - 1
    more = f", and {counted(others, 'more node is', 'more nodes are')} too" if others else ""
    return f"node {node} is being checked by {claim.named_in(namespace)}{more}"


def agent_is_ready(worker: dict[str, Any]) -> bool:
    """Whether the agent of a check's ElasticWorker is ready. The worker is raw, as there may be thousands."""
    status = worker.get("status") or {}
    report = status.get("agent") or {}
    incarnation = worker["spec"].get("incarnation")
    return (
        report.get("incarnation") == status.get("observedIncarnation") == incarnation
        and report.get("podUid") == status.get("podUid") is not None
        and report.get("state") != "Stopped"
        and not has_ended(worker)
    )


def is_made_for_job(check: Object, job: Object | None) -> bool:
    """Whether the controller created the raw NodeCheck for the job, whose world waits for it.

    Anybody may write `jobName` and an owner reference. But the job's current check, and its workers' nodes,
    are in its status, which only the controller writes.
    """
    if job is None or check["spec"].get("jobName") != job["metadata"]["name"]:
        return False
    owners = check["metadata"].get("ownerReferences") or ()
    is_owned = any(it["uid"] == job["metadata"]["uid"] and it.get("controller") for it in owners)
    return is_owned and job.get("status", {}).get("activeCheck") == check["metadata"]["name"]
