"""Condition `SidecarsFailed`: sidecars that failed by themselves, whatever training does. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from controller.wording import counted
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.observed.worker_state import SIDECARS_WELL
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

SIDECARS_FAILED = "SidecarsFailed"


def with_sidecars(conditions: Sequence[Condition], workers: Workers, now: datetime) -> list[Condition]:
    """The conditions, with this one once a sidecar of a worker failed."""
    failing = [
        (worker.metadata.name, found.message)
        for worker in workers.exceptional
        if (found := condition_of(worker.status.conditions, SIDECARS_WELL)) is not None
    ]
    if failing:
        (name, why), others = failing[0], len(failing) - 1
        more = f", and {counted(others, 'more worker')}" if others else ""
        message = f"{why} ({name}{more})"
        return with_condition(
            conditions, SIDECARS_FAILED, ConditionStatus.TRUE, "SidecarFailed", message, now
        )
    if condition_of(conditions, SIDECARS_FAILED) is not None:
        return with_condition(conditions, SIDECARS_FAILED, ConditionStatus.FALSE, "NoneFailed", "", now)
    return list(conditions)


def events_of_sidecars(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """One when it begins."""
    old, new = condition_of(before, SIDECARS_FAILED), condition_of(after, SIDECARS_FAILED)
    if new is None or new.status is not ConditionStatus.TRUE:
        return
    if old is None or old.status is not new.status:
        yield Event("Warning", SIDECARS_FAILED, new.message)
