"""Decides when a cordoned node is tested again, and with which nodes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any

from crds import names
from crds.findings import Cause, Finding
from reconcilers.findings.faulty import is_ready
from reconcilers.findings.machine import NVIDIA, gpus_of
from reconcilers.findings.record import unhealthy_taint
from reconcilers.observed.announced import announcement
from reconcilers.observed.hardware import is_cordoned_for_our_verdict, reports_fault, well_since
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import NODECHECKS

FIRST_SECONDS = 600.0
"""Time from the verdict to the first check."""
LONGEST_SECONDS = 86_400.0
MOST_FAILURES = 5
"""Failed checks in a row after which only a sign of repair leads to another."""
PARTNERS = 3
"""Healthy nodes that the cordoned one tests with, enough to tell which node is at fault."""
TTL_SECONDS = 7 * 86_400
UNTESTABLE = frozenset({Cause.HARDWARE_ERROR, Cause.NODE_CONDITION})
"""Causes that no test of a check has found, so that passed tests prove no repair."""


@dataclass(frozen=True)
class CordonedNode:
    """A node that is cordoned by a verdict, with its later checks."""

    acted: Finding
    """The finding that led to the cordon."""
    record: Sequence[Finding] = ()
    """Findings of the node's last checks, the oldest first."""
    ends: Sequence[datetime] = ()
    """Ends of the checks by this policy that still exist."""
    repaired_at: datetime = LONG_AGO
    """Newest sign of repair."""

    @property
    def last(self) -> datetime:
        """Time of the newest finding or check."""
        return max([self.acted.time, *(finding.time for finding in self.record), *self.ends])

    @property
    def failures(self) -> int:
        """Number of checks in a row that the node has failed, since its last sign of repair."""
        count = 0
        for finding in reversed(self.record):
            if finding.healthy or finding.time <= self.repaired_at:
                break
            count += 1
        return count

    @property
    def vain(self) -> int:
        """Number of checks since the last sign of repair that have left no finding."""
        recorded = sum(finding.time > max(self.repaired_at, self.acted.time) for finding in self.record)
        return max(sum(end > self.repaired_at for end in self.ends) - recorded, 0)


def due_at(cordoned: CordonedNode) -> datetime | None:
    """The time of the next check; None if a sign of repair has to come first."""
    if cordoned.repaired_at <= cordoned.last and not _shows_by_tests(cordoned):
        return None
    doublings = min(max(cordoned.vain, cordoned.failures - 1, 0), 16)
    return cordoned.last + timedelta(seconds=min(FIRST_SECONDS * 2**doublings, LONGEST_SECONDS))


def _shows_by_tests(cordoned: CordonedNode) -> bool:
    """Whether a check would find the fault, and has not found it too often."""
    return UNTESTABLE.isdisjoint(cordoned.acted.causes) and cordoned.failures <= MOST_FAILURES


def is_left_to_us(node: Mapping[str, Any]) -> bool:
    """Whether no one else keeps a cordoned node out, and it reports no fault."""
    is_kept_out = names.TAINT_UNSCHEDULABLE in taint_keys(node) and not is_cordoned_for_our_verdict(node)
    return is_ready(node) and not is_kept_out and not reports_fault(node)


def repaired_at(node: Mapping[str, Any]) -> datetime:
    """The newest sign of repair on a raw Node."""
    return max(well_since(node), default=LONG_AGO)


def partners(
    node: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]], busy: Collection[str], turn: str
) -> list[str]:
    """Choose healthy nodes of the same kind without workers of dlr; different ones at each turn.

    Those that announce evictions come last, since the check would be evicted with them.
    """
    own, borne = node["metadata"]["name"], taint_keys(node) - {names.TAINT_UNHEALTHY}
    fit = (
        (bool(announcement(other)), _digest(turn, name), name)
        for other in nodes
        if _kind(other) == _kind(node)
        and unhealthy_taint(other) is None
        and is_left_to_us(other)
        and taint_keys(other) <= borne
        and (name := other["metadata"]["name"]) != own
        and name not in busy
    )
    return [name for *_, name in nsmallest(PARTNERS, fit)]


def check_of(
    node: Mapping[str, Any], beside: Sequence[str], namespace: str, cordoned: CordonedNode
) -> dict[str, Any]:
    """The NodeCheck to create; its name stays the same until there is a newer finding on the node."""
    name = f"recheck-{_digest(node['metadata']['uid'], cordoned.last.isoformat())[:16]}"
    labels = {names.LABEL_RECHECK: "true", names.LABEL_MANAGED_BY: names.MANAGER}
    spec = {
        "nodes": [node["metadata"]["name"], *beside],
        "screeningRounds": PARTNERS,
        "ttlSecondsAfterFinished": TTL_SECONDS,
    }
    return NODECHECKS.manifest({"name": name, "namespace": namespace, "labels": labels}, spec=spec)


def taint_keys(node: Mapping[str, Any]) -> set[str]:
    """The keys of a raw Node's taints."""
    return {taint["key"] for taint in (node.get("spec") or {}).get("taints") or ()}


def _kind(node: Mapping[str, Any]) -> tuple[int, str]:
    """The hardware that two nodes have to share to test each other."""
    return gpus_of(node), (node["metadata"].get("labels") or {}).get(f"{NVIDIA}.product", "")


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()
