"""How many Pods a PodDisruptionBudget lets go now."""

from __future__ import annotations

import math
from collections.abc import Sequence

from localcluster.resource import JSON


def is_ready(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def disruptions_allowed(budget: JSON, pods: Sequence[JSON]) -> int:
    """For the Pods that a budget selects."""
    spec = budget["spec"]
    ready = sum(is_ready(pod) for pod in pods)
    if "maxUnavailable" in spec:
        return ready - (len(pods) - _count(spec["maxUnavailable"], len(pods)))
    return ready - _count(spec.get("minAvailable", 0), len(pods))


def _count(amount: int | str, total: int) -> int:
    """A number or a percentage of all Pods, rounded up."""
    if isinstance(amount, int):
        return amount
    return math.ceil(int(amount.removesuffix("%")) * total / 100)
