"""Decides whether a worker that does not answer its peers is lost, which takes two witnesses. Pure.

Witnesses are peers on different nodes that cannot reach it (`silentPeers` of their reports), the controller
if it cannot connect to its agent but reaches one of these peers, and its Lease if it was not renewed for two
periods. A single witness only shows that a link is broken, which has no consequences.

A worker that reports a silent peer in turn, or renews its Lease, has outlived the broken link: it is not
lost, even if others cannot reach it. So no timestamp of another machine counts, and a new leader continues
from the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crds import names
from crds.elasticworker import WorkerPhase

SETTLING_SECONDS = 0.5
"""Time from the first report until a worker may be lost, in which it can report its peer: both notice a
broken link within one beat (`agent/peers/watcher.py`)."""
MISSED_RENEWALS = 2
SLACK_SECONDS = 0.2
"""Largest difference of two ages that began at the same time."""

Object = Mapping[str, Any]
Address = tuple[str, int]


class ReachVerdict(StrEnum):
    LIVES = "Lives"
    """It was heard since, or there is only one witness."""
    UNDECIDED = "Undecided"
    LOST = "Lost"


@dataclass(frozen=True)
class Peer:
    """A worker that reports another as silent."""

    name: str
    node: str


@dataclass(frozen=True)
class ReachEvidence:
    """Evidence about a worker that peers report as silent."""

    peers: Sequence[Peer]
    seconds: float
    """Age of these reports."""
    unheard_seconds: float
    """Time since the last renewal of its Lease."""
    renewal_seconds: float
    """Period of the renewals."""
    is_dialled: bool = False
    """Whether the controller has tried to connect to its agent and to a peer's, with whatever outcome."""
    answers: bool | None = None
    """Whether its agent takes connections of the controller; None where that reaches no peer either."""

    @property
    def witnesses(self) -> list[str]:
        """The witnesses against it, as clauses."""
        found = [f"{each.name} cannot reach it" for each in {each.node: each for each in self.peers}.values()]
        if self.answers is False:
            found.append("the controller cannot connect to it")
        if self.unheard_seconds >= MISSED_RENEWALS * self.renewal_seconds:
            found.append(f"its Lease was not renewed for {self.unheard_seconds:.0f} s")
        return found


def judge(seen: ReachEvidence) -> ReachVerdict:
    """Whether the worker is lost."""
    if not seen.peers or seen.unheard_seconds < seen.seconds - SLACK_SECONDS:
        return ReachVerdict.LIVES
    if seen.seconds < SETTLING_SECONDS or not seen.is_dialled:
        return ReachVerdict.UNDECIDED
    return ReachVerdict.LOST if seen.answers is not True and len(seen.witnesses) > 1 else ReachVerdict.LIVES


def peers_without(worker: Object, others: Iterable[Object]) -> list[Peer]:
    """Return those of a job's other workers that cannot reach a worker.

    A peer that the worker reports as silent, too, is left out: both live, and only their link is broken.
    """
    silent_for_it = set(silent_peers(worker))
    return [
        Peer(other["metadata"]["name"], other["status"].get("nodeName") or "")
        for other in others
        if _place(worker) in silent_peers(other) and _place(other) not in silent_for_it
    ]


def silent_peers(worker: Object) -> list[tuple[int, int]]:
    """Return index and incarnation of the members that the agent of a worker's Pod reports as silent.

    Empty if the Pod does not run, since its agent's report is out of date then.
    """
    spec, status = worker["spec"], worker.get("status") or {}
    report = status.get("agent") or {}
    is_current = (
        spec.get("type") == names.WORKER
        and status.get("phase") == WorkerPhase.RUNNING
        and status.get("observedIncarnation") == spec.get("incarnation") == report.get("incarnation")
        and status.get("podUid") == report.get("podUid")
    )
    named = (report.get("silentPeers") or ()) if is_current else ()
    return [(each["index"], each["incarnation"]) for each in named]


def address_of(worker: Object, pod: Object) -> Address | None:
    """Return the address of the agent of a worker's Pod; None if that Pod's agent has not reported one."""
    status = worker.get("status") or {}
    report = status.get("agent") or {}
    if not status.get("podUid") == report.get("podUid") == pod["metadata"].get("uid") is not None:
        return None
    host, port = (pod.get("status") or {}).get("podIP"), report.get("storePort")
    return (host, port) if host and port else None


def _place(worker: Object) -> tuple[int, int]:
    spec = worker["spec"]
    return spec["index"], spec["incarnation"]
