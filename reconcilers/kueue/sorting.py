"""The roles of a job's Workloads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reconcilers.kueue.workload import Workload


@dataclass(frozen=True)
class JobWorkloads:
    """A job's Workloads by their roles."""

    held: Workload | None = None
    """The one with quota, to which the job's Pods are charged."""
    replaced: Workload | None = None
    """The one before `held`, which is charged until it is finished."""
    slice: Workload | None = None
    """The one that waits to replace `held`."""
    waiting: Workload | None = None
    """The one that waits for quota, if none has it."""
    others: Sequence[Workload] = ()
    """All other unfinished ones without quota."""
    finished: Sequence[Workload] = ()
    leaving: Sequence[Workload] = ()
    """Deleted ones without quota that we have released, and that others' finalizers keep."""

    @property
    def current(self) -> Workload | None:
        return self.held or self.waiting


def sorted_workloads(workloads: Sequence[Workload]) -> JobWorkloads:
    """Sort out a job's Workloads, in order of their numbers."""
    workloads = sorted(workloads, key=lambda each: (each.number, each.name))
    leaving = [
        each
        for each in workloads
        if each.is_deleted and not each.has_finalizer and (each.is_finished or not each.has_quota)
    ]
    workloads = [each for each in workloads if each not in leaving]
    finished = [each for each in workloads if each.is_finished]
    charged = [each for each in workloads if each.has_quota and not each.is_finished]
    free = [each for each in workloads if not each.has_quota and not each.is_finished]
    if not charged:
        waiting = next((each for each in free if not each.is_deleted), None) or next(iter(free), None)
        others = [w for w in free if w is not waiting]
        return JobWorkloads(waiting=waiting, others=others, finished=finished, leaving=leaving)
    held = charged[-1]
    replaced = charged[-2] if len(charged) > 1 else None
    slice_ = next((each for each in free if each.replaces == held.name and not each.is_deleted), None)
    others = [w for w in free if w is not slice_]
    return JobWorkloads(held, replaced, slice_, others=others, finished=finished, leaving=leaving)
