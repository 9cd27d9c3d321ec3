"""Condition `CheckpointsFailing`: what training processes tell does not work with their checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from crds.model import Condition, ConditionStatus
from reconcilers.acts import Event
from reconcilers.conditions import condition_of, is_true, with_condition
from reconcilers.job.workers import Workers

CHECKPOINTS_FAILING = "CheckpointsFailing"


def with_saving(conditions: Sequence[Condition], workers: Workers, now: datetime) -> list[Condition]:
    """The conditions, with this one once something did not work.

    Its message is kept as long as the same worker has the same trouble, whatever its newest step is.
    """
    reports = ((worker.metadata.name, worker.status.agent) for worker in workers.telling_steps)
    telling = [(name, report.checkpoint_trouble) for name, report in reports if report is not None]
    troubled = [(name, trouble) for name, trouble in telling if trouble is not None]
    known = condition_of(conditions, CHECKPOINTS_FAILING)
    if not troubled:
        if known is None or known.status is ConditionStatus.FALSE:
            return list(conditions)
        return with_condition(conditions, CHECKPOINTS_FAILING, ConditionStatus.FALSE, "Saved", "", now)
    name, trouble = troubled[0]
    others = f"; {len(troubled) - 1} more workers tell of such" if len(troubled) > 1 else ""
    message = f"{name}: {trouble.message}{others}"
    if (
        known is not None
        and known.status is ConditionStatus.TRUE
        and known.reason == trouble.reason
        and known.message.startswith(f"{name}: ")
    ):
        message = known.message
    return with_condition(conditions, CHECKPOINTS_FAILING, ConditionStatus.TRUE, trouble.reason, message, now)


def events_of_saving(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """One when it begins, and one for each other reason."""
    old, new = condition_of(before, CHECKPOINTS_FAILING), condition_of(after, CHECKPOINTS_FAILING)
    if new is None or not is_true(after, CHECKPOINTS_FAILING):
        return
    if old is None or old.status is not new.status or old.reason != new.reason:
        yield Event("Warning", CHECKPOINTS_FAILING, new.message)
