"""What a PodDisruptionBudget spares, what its status says, and what it may not ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from localcluster.apiserver.disruption import Health, ScaleUnknown, faults, health, status_of

JSON = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pods(ready: int, total: int, *, going: int = 0) -> list[JSON]:
    """Ready ones first; the first `going` of them are on their way out."""

    def pod(number: int) -> JSON:
        status = "True" if number < ready else "False"
        metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if number < going else {}
        return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": status}]}}

    return [pod(number) for number in range(total)]


def no_scale() -> int:
    raise ScaleUnknown("not to be asked")


@pytest.mark.parametrize(
    ("spec", "ready", "total", "scale", "desired", "allowed"),
    [
        ({"minAvailable": 1}, 2, 2, None, 1, 1),
        ({"minAvailable": 5}, 2, 2, None, 5, 0),
        ({"minAvailable": "50%"}, 3, 3, 3, 2, 1),
        ({"minAvailable": "50%"}, 3, 3, 6, 3, 0),
        ({"maxUnavailable": 1}, 3, 3, 3, 2, 1),
        ({"maxUnavailable": 5}, 2, 3, 3, 0, 2),
        ({"maxUnavailable": "34%"}, 3, 3, 3, 1, 2),
        ({"maxUnavailable": 1}, 3, 3, 0, 0, 0),
        ({}, 2, 2, None, 0, 0),
    ],
)
def test_how_many_may_go(
    spec: JSON, ready: int, total: int, scale: int | None, desired: int, allowed: int
) -> None:
    found = health(spec, pods(ready, total), no_scale if scale is None else lambda: scale)
    assert (found.current, found.desired, found.allowed) == (ready, desired, allowed)


def test_pods_on_their_way_out_are_not_healthy() -> None:
    assert health({"minAvailable": 1}, pods(3, 3, going=2), no_scale) == Health(1, 1, 3)


def test_the_status_says_what_was_counted_and_since_when() -> None:
    budget: JSON = {"metadata": {"generation": 3}}
    status = status_of(budget, Health(current=3, desired=2, expected=4), NOW)
    condition = status.pop("conditions")[0]
    assert status == {
        "currentHealthy": 3,
        "desiredHealthy": 2,
        "expectedPods": 4,
        "disruptionsAllowed": 1,
        "observedGeneration": 3,
    }
    assert (condition["status"], condition["reason"]) == ("True", "SufficientPods")

    budget["status"] = {**status, "conditions": [condition]}
    later = NOW.replace(hour=5)
    same = status_of(budget, Health(current=4, desired=2, expected=4), later)
    assert same["conditions"] == [condition]
    (less,) = status_of(budget, Health(current=2, desired=2, expected=4), later)["conditions"]
    assert (less["status"], less["reason"]) == ("False", "InsufficientPods")
    assert less["lastTransitionTime"] == "2026-01-01T05:00:00Z"


def test_what_cannot_be_counted_allows_nothing_and_says_why() -> None:
    budget: JSON = {"metadata": {"generation": 1}, "status": {"currentHealthy": 3, "disruptionsAllowed": 1}}
    status = status_of(budget, ScaleUnknown("x does not implement the scale subresource"), NOW)
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (3, 0)
    (condition,) = status["conditions"]
    assert (condition["reason"], condition["message"]) == (
        "SyncFailed",
        "x does not implement the scale subresource",
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec"),
        ({"minAvailable": -1}, "spec.minAvailable"),
        ({"maxUnavailable": "101%"}, "spec.maxUnavailable"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "spec.selector"),
    ],
)
def test_bad_budgets_are_refused_with_the_field(spec: JSON, field: str) -> None:
    assert [fault["field"] for fault in faults({"spec": spec})] == [field]
