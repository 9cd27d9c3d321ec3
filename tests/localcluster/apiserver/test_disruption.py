"""What a PodDisruptionBudget spares."""

from typing import Any

import pytest

from localcluster.apiserver.disruption import disruptions_allowed


def pods(ready: int, total: int) -> list[dict[str, Any]]:
    def pod(is_ready: bool) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]}}

    return [pod(number < ready) for number in range(total)]


@pytest.mark.parametrize(
    ("spec", "ready", "total", "allowed"),
    [
        ({"minAvailable": 1}, 2, 2, 1),
        ({"minAvailable": 1}, 1, 2, 0),
        ({"minAvailable": "50%"}, 3, 3, 1),
        ({"maxUnavailable": 1}, 3, 3, 1),
        ({"maxUnavailable": 1}, 2, 3, 0),
        ({"maxUnavailable": "34%"}, 3, 3, 2),
        ({}, 2, 2, 2),
    ],
)
def test_disruptions_allowed(spec: dict[str, Any], ready: int, total: int, allowed: int) -> None:
    assert disruptions_allowed({"spec": spec}, pods(ready, total)) == allowed
