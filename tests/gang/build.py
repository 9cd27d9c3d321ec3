"""The gate of gangs over objects that a test gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from controller.resources import PODS
from crds.elasticjob import ElasticJob
from reconcilers.gang.choice import GangChoice
from reconcilers.gang.gate import GangGate
from reconcilers.observed.ownership import BY_JOB
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.scale.writer import pods_job
from tests.reconcilers.caches import shaped_cache, tools_of


class Recorder:
    """Keeps the Events, each as its type, reason and message."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def event(self, _: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))


def gate_of(
    client: Any = None,
    *,
    jobs: Iterable[ElasticJob] = (),
    pods: Iterable[dict[str, Any]] = (),
    recorder: Any = None,
    monotonic: Callable[[], float] = float,
) -> GangGate:
    """The gate, whose cache has these jobs and Pods."""
    cache = shaped_cache()
    cache.add_index(PODS, BY_JOB, pods_job)
    for job in jobs:
        cache.store(ELASTICJOBS).apply(job.to_wire())
    for pod in pods:
        cache.store(PODS).apply(pod)
    choice = GangChoice(client, cache.store(ELASTICJOBS), monotonic)
    return GangGate(tools_of(cache, client, recorder or Recorder(), clock=Clock(monotonic=monotonic)), choice)
