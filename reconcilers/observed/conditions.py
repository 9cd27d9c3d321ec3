"""Conditions: the transition time of a metav1.Condition moves only when its status does.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from crds.job_status import ElasticJobStatus, JobWarning
from crds.model import Condition, ConditionData, ConditionStatus
from crds.nodecheck import NodeCheckStatus

Status = TypeVar("Status", ElasticJobStatus, NodeCheckStatus)


def condition_of(conditions: Sequence[Condition], type_: str) -> Condition | None:
    return next((c for c in conditions if c.type == type_), None)


def warning_of(warnings: Sequence[JobWarning], type_: str) -> JobWarning | None:
    return next((w for w in warnings if w.type == type_), None)


@dataclass(frozen=True)
class ConditionState:
    """Content of a condition, without its type and times."""

    status: ConditionStatus
    reason: str
    message: str = ""
    data: ConditionData | None = None


NextState = ConditionState | Condition | None
"""Next state of a condition: a new state, the present condition to keep it, or None to remove it."""


def stated(before: Condition | None, type_: str, state: ConditionState, now: datetime) -> Condition:
    """Return the condition in this state. Its transition time is in whole seconds, as a metav1.Time.

    Args:
        before: the previous condition, whose transition time is kept while the status is the same.
    """
    if before is not None and state == ConditionState(
        before.status, before.reason, before.message, before.data
    ):
        return before
    kept = before if before is not None and before.status == state.status else None
    return Condition(
        type=type_,
        status=state.status,
        reason=state.reason,
        message=state.message,
        last_transition_time=kept.last_transition_time if kept else now.replace(microsecond=0),
        data=state.data,
    )


def with_condition(
    conditions: Sequence[Condition],
    type_: str,
    status: ConditionStatus,
    reason: str,
    message: str,
    now: datetime,
    data: ConditionData | None = None,
) -> list[Condition]:
    """Return the conditions with this one set, in place of an earlier one of its type."""
    before = condition_of(conditions, type_)
    condition = stated(before, type_, ConditionState(status, reason, message, data), now)
    if before is None:
        return [*conditions, condition]
    return [condition if c.type == type_ else c for c in conditions]


FAILURE_TARGET = "FailureTarget"
"""Condition by which another reconciler ends a job, with reason and message of its failure, as in a Job of
Kubernetes (https://kep.k8s.io/3329)."""


def failure_target(conditions: Sequence[Condition]) -> Condition | None:
    """Return the condition that makes the job fail; None without one."""
    found = condition_of(conditions, FAILURE_TARGET)
    return found if found is not None and found.status is ConditionStatus.TRUE else None


NO_DATA = ConditionData()


def data_of(found: Condition | JobWarning | None) -> ConditionData:
    """Return the data of a condition or warning; empty without one, or without data."""
    return found.data if found is not None and found.data is not None else NO_DATA


def observed_at(status: Status, generation: int) -> Status:
    """Return the status with `observedGeneration` set, its own and that of each condition.

    Every reconcile judges all conditions, including those that it keeps, so all have one generation.
    """
    conditions = [
        c if c.observed_generation == generation else c.model_copy(update={"observed_generation": generation})
        for c in status.conditions
    ]
    return status.model_copy(update={"observed_generation": generation, "conditions": conditions})


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    found = condition_of(conditions, type_)
    return found is not None and found.status is ConditionStatus.TRUE


def is_false(conditions: Sequence[Condition], type_: str) -> bool:
    """Whether the condition is False: neither missing nor Unknown."""
    found = condition_of(conditions, type_)
    return found is not None and found.status is ConditionStatus.FALSE
