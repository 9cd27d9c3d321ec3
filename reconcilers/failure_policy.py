"""When failures end the job: `restartCount`, spent only by what is the user's doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crds import names
from crds.elasticworker import ElasticWorker
from reconcilers.exit_class import FREE

_FREE_NAMES = frozenset(exit_class.value for exit_class in FREE)


def spent(restarts: Mapping[str, int]) -> int:
    """How much of the budget these restarts have used."""
    return sum(count for exit_class, count in restarts.items() if exit_class not in _FREE_NAMES)


def over_budget(
    restarts_in_place: Mapping[str, int], workers: Sequence[ElasticWorker], budgets: Mapping[str, int]
) -> str | None:
    """Why the job must fail, or None.

    Args:
        restarts_in_place: the job's broken worlds by class.
        workers: their own `restarts` count the Pods that ended.
        budgets: `restartCount` by replica type.
    """
    budget = budgets.get(names.WORKER, 0)
    if spent(restarts_in_place) > budget:
        return f"training failed {spent(restarts_in_place)} times, with restartCount {budget}"
    for worker in workers:
        count, allowed = spent(worker.status.restarts), budgets.get(worker.spec.type, 0)
        if count > allowed:
            return f"{worker.metadata.name} failed {count} times, with restartCount {allowed}"
    return None
