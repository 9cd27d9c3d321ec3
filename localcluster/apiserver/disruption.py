"""PodDisruptionBudgets: what one may ask for, and how many of the Pods it selects may go now. All of it pure.

https://kubernetes.io/docs/tasks/run-application/configure-pdb/
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from localcluster.apiserver.errors import invalid_value
from localcluster.client.clock import timestamp
from localcluster.resource import JSON
from localcluster.selectors import SelectorError, from_selector

ALWAYS_ALLOW = "AlwaysAllow"
CONDITION = "DisruptionAllowed"
_PERCENT = re.compile(r"[1-9]?[0-9]%|100%")


class ScaleUnknown(Exception):
    """How many Pods there should be cannot be told; the message says why."""


@dataclass(frozen=True)
class Health:
    """How the Pods of a budget are."""

    current: int
    desired: int
    expected: int

    @property
    def allowed(self) -> int:
        """A budget whose Pods are still to come allows nothing."""
        return max(self.current - self.desired, 0) if self.expected > 0 else 0


def is_ready(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def selects(budget: JSON, labels: JSON | None) -> bool:
    """A budget without a selector selects no Pod, one with an empty selector all."""
    selector = (budget.get("spec") or {}).get("selector")
    return selector is not None and from_selector(selector).matches(labels)


def health(spec: JSON, pods: Sequence[JSON], scale: Callable[[], int]) -> Health:
    """Count the Pods that a budget selects; `scale` returns their owners' wish, or raises ScaleUnknown."""
    current = sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    least, most_missing = spec.get("minAvailable"), spec.get("maxUnavailable")
    if most_missing is not None:
        expected = scale()
        return Health(current, max(expected - _share(most_missing, expected), 0), expected)
    if isinstance(least, str):
        expected = scale()
        return Health(current, _share(least, expected), expected)
    return Health(current, least or 0, 0 if least is None else len(pods))


def _share(amount: int | str, total: int) -> int:
    """A number, or a percentage of the total, rounded up."""
    if isinstance(amount, int):
        return amount
    return math.ceil(int(amount.removesuffix("%")) * total / 100)


def status_of(budget: JSON, found: Health | ScaleUnknown, now: datetime) -> JSON:
    """Return the next status of a budget. Where its Pods cannot be counted, no disruption is allowed."""
    before: JSON = budget.get("status") or {}
    if isinstance(found, ScaleUnknown):
        condition = {"status": "False", "reason": "SyncFailed", "message": str(found)}
        counts = {
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
            **before,
            "disruptionsAllowed": 0,
        }
    else:
        enough = found.allowed > 0
        reason = "SufficientPods" if enough else "InsufficientPods"
        condition = {"status": str(enough), "reason": reason, "message": ""}
        counts = {
            "currentHealthy": found.current,
            "desiredHealthy": found.desired,
            "expectedPods": found.expected,
            "disruptionsAllowed": found.allowed,
        }
    generation = budget["metadata"].get("generation", 0)
    others = [each for each in before.get("conditions") or () if each["type"] != CONDITION]
    known: JSON = next((each for each in before.get("conditions") or () if each["type"] == CONDITION), {})
    unchanged = known.get("status") == condition["status"]
    since = known["lastTransitionTime"] if unchanged else timestamp(now)
    whole = {"type": CONDITION, **condition, "observedGeneration": generation, "lastTransitionTime": since}
    return {**counts, "observedGeneration": generation, "conditions": [*others, whole]}


def faults(budget: JSON) -> list[JSON]:
    """Return the faults of a budget that no schema can express."""
    spec = budget.get("spec") or {}
    found: list[JSON] = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        found.append(invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for name in ("minAvailable", "maxUnavailable"):
        amount = spec.get(name, 0)
        if amount < 0 if isinstance(amount, int) else not _PERCENT.fullmatch(amount):
            found.append(invalid_value(f"spec.{name}", amount, "must be a number of Pods, or 0% to 100%"))
    try:
        from_selector(spec.get("selector") or {})
    except SelectorError as error:
        found.append(invalid_value("spec.selector", spec["selector"], str(error)))
    return found
