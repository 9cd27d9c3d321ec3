"""Whether a job that should train makes steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from crds.grouping import is_grouped
from crds.phases import RendezvousPhase
from dlr.job import report
from dlr.job.case import Case
from dlr.job.wording import parse_time
from dlr.kube.api import JSON

STALLED_STEPS = 20
STALLED_SECONDS = 60.0
"""Agents report steps every few seconds; without one for so long, and so many usual steps, nothing trains."""


@dataclass(frozen=True)
class Stall:
    seconds: float
    """The time since the last step of any rank."""
    worker: JSON
    """The worker furthest behind."""
    step: int | None


def trains(case: Case) -> bool:
    """Whether the job has a formed world, or replica groups that train together."""
    if is_grouped(case.job):
        return report.phase(case.job) == "Running"
    world = case.status.get("rendezvous") or {}
    return report.phase(case.job) == "Running" and world.get("phase") == RendezvousPhase.FORMED


def stall_of(case: Case) -> Stall | None:
    """Return the stall of a formed world without a step for much longer than a step takes."""
    steps = [
        (moment, worker, progress)
        for worker, progress in case.telling
        if (moment := parse_time(progress.get("time")))
    ]
    if not steps or not trains(case):
        return None
    usual = case.progress.seconds_per_step if case.progress else None
    newest = max(moment for moment, _, _ in steps)
    silent = (case.now - newest).total_seconds()
    if silent < max(STALLED_SECONDS, STALLED_STEPS * (usual or 0.0)) or _world_is_younger(case, newest):
        return None
    _, worker, progress = min(steps, key=lambda each: (each[2].get("step", 0), each[0]))
    return Stall(silent, worker, progress.get("step"))


def _world_is_younger(case: Case, moment: datetime) -> bool:
    formed = parse_time((case.status.get("rendezvous") or {}).get("formedAt"))
    return formed is not None and formed > moment
