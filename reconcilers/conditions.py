"""Setting a metav1.Condition: the transition time moves only when the status does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crds.model import Condition, ConditionStatus


def with_condition(
    conditions: Sequence[Condition],
    type_: str,
    status: ConditionStatus,
    reason: str,
    message: str,
    now: datetime,
) -> list[Condition]:
    """The conditions with this one set; in place of the earlier one of its type, if there is one."""
    earlier = next((c for c in conditions if c.type == type_), None)
    unmoved = earlier is not None and earlier.status == status
    condition = Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=earlier.last_transition_time if earlier and unmoved else now,
    )
    if earlier is None:
        return [*conditions, condition]
    return [condition if c.type == type_ else c for c in conditions]


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    return any(c.type == type_ and c.status is ConditionStatus.TRUE for c in conditions)
