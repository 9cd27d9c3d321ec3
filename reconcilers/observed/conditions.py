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
    """What a condition states, without its type and times."""

    status: ConditionStatus
    reason: str
    message: str = ""
    data: ConditionData | None = None


NextState = ConditionState | Condition | None
"""The next state of a condition; the condition that is there, to keep it as it is; None, to have none."""


def stated(known: Condition | None, type_: str, state: ConditionState, now: datetime) -> Condition:
    """The condition in this state. Its transition time is in whole seconds, as a metav1.Time.

    Args:
        known: the condition before, whose transition time is kept while the status is the same.
    """
    if known is not None and state == ConditionState(known.status, known.reason, known.message, known.data):
        return known
    is_same_status = known is not None and known.status == state.status
    return Condition(
        type=type_,
        status=state.status,
        reason=state.reason,
        message=state.message,
        last_transition_time=known.last_transition_time
        if known is not None and is_same_status
        else now.replace(microsecond=0),
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
    """The conditions with this one set; in place of the earlier one of its type, if there is one."""
    known = condition_of(conditions, type_)
    condition = stated(known, type_, ConditionState(status, reason, message, data), now)
    if known is None:
        return [*conditions, condition]
    return [condition if c.type == type_ else c for c in conditions]


FAILURE_TARGET = "FailureTarget"
"""Condition by which another reconciler ends a job, with reason and message of its failure, as in a Job of
Kubernetes (https://kep.k8s.io/3329)."""


def failure_target(conditions: Sequence[Condition]) -> Condition | None:
    """The condition by which the job is to fail; None if it is not."""
    found = condition_of(conditions, FAILURE_TARGET)
    return found if found is not None and found.status is ConditionStatus.TRUE else None


NO_DATA = ConditionData()


def data_of(known: Condition | JobWarning | None) -> ConditionData:
    """The data of a condition or warning; empty without one, or without data."""
    return known.data if known is not None and known.data is not None else NO_DATA


def observed_at(status: Status, generation: int) -> Status:
    """The status with `observedGeneration`, its own and that of each condition: which spec they follow from.

    Every look judges all conditions, also those that it keeps; so all are of one generation.
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
    """Whether it is there, and says no: neither missing nor unknown."""
    found = condition_of(conditions, type_)
    return found is not None and found.status is ConditionStatus.FALSE
