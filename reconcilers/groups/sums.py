"""Conditions and warnings that sum up those of all replica groups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
from crds.ranges import as_ranges
from crds.texts import shortened
from reconcilers.conditions.table import WARNINGS
from reconcilers.findings.reasons import NODES_CHECKED, QUIET
from reconcilers.observed.conditions import ConditionState, condition_of

MAX_NAMED = 64
"""Limit of characters of the groups' names."""


def sums_of_warnings(groups: Mapping[int, ElasticJob]) -> list[JobWarning]:
    """Return one warning for each type that a group has, with the first group's message, gravest first."""
    found: dict[str, dict[int, JobWarning]] = {}
    for index, group in sorted(groups.items()):
        for warning in group.status.warnings:
            found.setdefault(warning.type, {})[index] = warning
    return [_sum(found[kind.type]) for kind in WARNINGS if kind.type in found]


def _sum(warnings: Mapping[int, JobWarning]) -> JobWarning:
    first = next(iter(warnings.values()))
    message = of_some({index: each.message for index, each in warnings.items()})
    since = min(each.since for each in warnings.values())
    return first.model_copy(update={"message": message, "since": since})


def nodes_checked(groups: Mapping[int, ElasticJob]) -> ConditionState | None:
    """Return the worst of the groups' conditions `NodesChecked`; None if no group has one."""
    found = {
        index: condition
        for index, group in sorted(groups.items())
        if (condition := condition_of(group.status.conditions, NODES_CHECKED)) is not None
    }
    if not found:
        return None
    worst = max(found.values(), key=_gravity)
    alike = {index: each.message for index, each in found.items() if _gravity(each) == _gravity(worst)}
    return ConditionState(worst.status, worst.reason, of_some(alike), worst.data)


def _gravity(condition: Condition) -> int:
    if condition.status is ConditionStatus.TRUE:
        return 0
    if condition.reason in QUIET:
        return 1
    return 3 if condition.status is ConditionStatus.FALSE else 2


def of_some(messages: Mapping[int, str]) -> str:
    """Return the first message after the names of the groups that have one."""
    (_, first), *others = messages.items()
    who = f"{named([*messages])}, of the first" if others else named([*messages])
    return shortened(f"{who}: {first}", MAX_CONDITION_MESSAGE)


def named(indices: Collection[int]) -> str:
    """Return the groups in words, such as `group 1` or `groups 0-2`."""
    return shortened(f"group{'s' if len(indices) > 1 else ''} {as_ranges(indices)}", MAX_NAMED)
