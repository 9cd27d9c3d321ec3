"""Which of several checks of one node tests it: claims on nodes, who waits, and who leaves a node. Pure.

A claim is a statement, so the rule of `reconcilers/observed/trust.py` holds for it: in its own namespace, and
if that is an administrator's everywhere, a check claims a node from when it wants it. Elsewhere it claims a
node only once its agent is ready there, so a check whose Pods never start holds nobody up.

One order decides between checks: by precedence, then those whose nodes are fixed, then the older one. A check
waits for those that are testing its nodes, and for those that go before it; never for others, so no two wait
for each other. One that has held a node for `HOLD_SECONDS` leaves it to a check of higher precedence, and one
that has tested it for so long to any check of another namespace.
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
"""Time for which a check that is no administrator's may wait for its agents, keeps nodes that a check of
higher precedence waits for, and tests nodes that a check of another namespace waits for."""
REST_SECONDS = 30.0
"""Time for which a namespace does not get nodes again that it has left to others, which look meanwhile."""

YIELDED = Out("it was left to another check, which waited for it", reason="Yielded")


class Precedence(IntEnum):
    """Which checks go first."""

    ADMINISTRATORS = 0
    """Checks in namespaces that may cordon."""
    JOBS = 1
    """Checks that the controller made for a job, whose world waits for them."""
    OTHERS = 2


@dataclass(frozen=True)
class NodeClaim:
    """What an unfinished check has, or wants, of the cluster's nodes."""

    uid: str
    namespace: str
    name: str
    precedence: Precedence
    created: datetime
    wanted: frozenset[str] = frozenset()
    """Nodes that it has yet to test."""
    present: frozenset[str] = frozenset()
    """The wanted nodes on which its agent is ready."""
    is_fixed: bool = False
    """Its nodes are written in its status, or that is under way."""
    tests: bool = False
    """It tests them now, or that is being written."""

    @property
    def order(self) -> tuple[object, ...]:
        """The smaller goes first."""
        return self.precedence, not self.is_fixed, self.created, self.uid

    def counting_in(self, namespace: str) -> frozenset[str]:
        """The nodes that it claims towards checks of a namespace."""
        counts = self.namespace == namespace or self.precedence is Precedence.ADMINISTRATORS
        return self.wanted if self.tests or counts else self.present

    def named_in(self, namespace: str) -> str:
        """The check, for a message in a namespace, which must not name objects of others."""
        is_ours = self.namespace == namespace
        return f"NodeCheck {self.namespace}/{self.name}" if is_ours else "a check in another namespace"


def claim_of(check: NodeCheck, precedence: Precedence, **more: Any) -> NodeClaim:
    """The claim of a check, with these fields of `NodeClaim`."""
    metadata, status = check.metadata, check.status
    fields = {"is_fixed": bool(status.nodes), "tests": status.phase is NodeCheckPhase.RUNNING} | more
    created = metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC)
    return NodeClaim(metadata.uid, metadata.namespace, metadata.name, precedence, created, **fields)


def precedence_of(
    check: dict[str, Any] | None, job: dict[str, Any] | None, is_administrators: bool
) -> Precedence:
    """The precedence of a stored check, which may be gone, by the stored job that it names."""
    if is_administrators:
        return Precedence.ADMINISTRATORS
    return Precedence.JOBS if check is not None and is_made_for_job(check, job) else Precedence.OTHERS


def in_the_way(mine: NodeClaim, claims: Iterable[NodeClaim]) -> dict[str, NodeClaim]:
    """The nodes that a check has to wait for before it begins, each with the claim that is in the way."""
    found: dict[str, NodeClaim] = {}
    left = set(mine.wanted)
    for claim in sorted(claims, key=lambda claim: claim.order):
        if claim.uid != mine.uid and (claim.tests or claim.order < mine.order):
            taken = left & claim.counting_in(mine.namespace)
            found |= dict.fromkeys(taken, claim)
            left -= taken
    return found


def gives_way(mine: NodeClaim, other: NodeClaim) -> bool:
    """Whether a check leaves nodes to another after a while, if both want the same."""
    if other.tests or mine.precedence is Precedence.ADMINISTRATORS:
        return False
    return other.precedence < mine.precedence or (mine.tests and other.namespace != mine.namespace)


def to_yield(mine: NodeClaim, claims: Iterable[NodeClaim], *, to_anybody: bool = False) -> frozenset[str]:
    """The nodes that a check leaves to others once it has held them for HOLD_SECONDS.

    Args:
        to_anybody: it has tested them for so long.
    """
    nodes = frozenset[str]()
    for claim in (each for each in claims if gives_way(mine, each)):
        if to_anybody and claim.namespace != mine.namespace:
            nodes |= mine.wanted & claim.wanted
        elif claim.precedence < mine.precedence:
            nodes |= mine.wanted & claim.counting_in(mine.namespace)
    return nodes


def sentence_on(contested: Mapping[str, NodeClaim], namespace: str) -> str:
    """What a check waits for, in words."""
    node = min(contested)
    claim = contested[node]
    others = len(contested) - 1
    more = f", and {counted(others, 'more node is', 'more nodes are')} too" if others else ""
    return f"node {node} is being checked by {claim.named_in(namespace)}{more}"


def agent_is_ready(worker: dict[str, Any]) -> bool:
    """Whether the agent of a stored check's ElasticWorker is there; not parsed, as there may be thousands."""
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
    """Whether the controller has a job's world wait for a stored NodeCheck that it made for that job.

    Anybody may write `jobName`, and a reference to a job. That the job carries out a check, and on which of
    its workers' nodes, is in its status, which the controller alone writes.
    """
    if job is None or check["spec"].get("jobName") != job["metadata"]["name"]:
        return False
    owners = check["metadata"].get("ownerReferences") or ()
    is_owned = any(it["uid"] == job["metadata"]["uid"] and it.get("controller") for it in owners)
    return is_owned and job.get("status", {}).get("activeCheck") == check["metadata"]["name"]
