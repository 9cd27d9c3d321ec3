"""Observations of a worker, whose owner has the facts that a test names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from crds.elasticworker import WorkerPhase
from crds.failure_policy import FailureRule
from reconcilers.worker.assignment import Assignment
from reconcilers.worker.worker_status import Observation


@dataclass(frozen=True)
class Owner:
    """What a worker's status follows from, of its assignment."""

    topology_keys: Sequence[str] = ()
    domain_policy: str | None = None
    failure_rules: Sequence[FailureRule] = ()
    restart_count: int = 0
    released: bool = False
    ended: WorkerPhase | None = None
    counted_round: int | None = None
    awaited: bool = False
    heartbeat_timeout_seconds: float = 0.0


def observation(pod: dict[str, Any] | None, **seen: Any) -> Observation:
    owner = Owner(**{field.name: seen.pop(field.name) for field in fields(Owner) if field.name in seen})
    return Observation(pod, cast(Assignment, owner), **seen)
