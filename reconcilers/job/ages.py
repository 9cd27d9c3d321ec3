"""How long a job's workers have been as they are, by our own clock: `Ages`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from controller.slices import Slices
from controller.store import Memory, Store
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.observations import Observations
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers
from reconcilers.shards.by_shards import holders_of, scaling_of
from reconcilers.world.participants import Ages, checkpoint_of, is_waiting, seconds_behind_checkpoint


class _Heard(NamedTuple):
    """What a worker's agent has said, and since when. Times are monotonic."""

    version: str
    """resourceVersion of the ElasticWorker; until it changes, there is nothing else to read."""
    checking: str | None
    """The check that the job carried out then."""
    waits: Hashable
    """The answer of `is_waiting`."""
    waits_since: float
    step: int | None
    """Step of the last checkpoint that was ever reported."""
    saved_since: float
    behind_seconds: float | None
    """The answer of `seconds_behind_checkpoint`; None if no checkpoint is reported now."""


class AgesView:
    """All count from when we first saw a thing."""

    def __init__(self, workers: Store, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heard: Memory[_Heard] = workers.memory()
        self._idle = Observations(workers, monotonic)

    async def of(self, job: ElasticJob, workers: Workers, checking: str | None) -> Ages:
        """
        Args:
            checking: the job's active check: who joins is seen to do so anew when it begins and ends.
        """
        now, joined, checkpoint, slices = self._monotonic(), {}, {}, Slices()
        for worker in workers:
            uid, version = worker.metadata.uid, worker.metadata.resource_version
            known = self._heard.get(uid)
            if known is None or known.version != version or known.checking != checking:
                known = self._heard.put(uid, _heard(worker, checking, known, now))
            joined[uid] = now - known.waits_since
            if known.behind_seconds is not None:
                checkpoint[uid] = max(now - known.saved_since, known.behind_seconds)
            await slices.pause()
        return Ages(joined, checkpoint, self._idle_seconds(job, workers, now))

    def _idle_seconds(self, job: ElasticJob, workers: Workers, now: float) -> dict[str, float]:
        if scaling_of(job) is None:
            return {}
        holders, idle = holders_of(job), {}
        for worker in workers.training:
            uid, holds = worker.metadata.uid, (worker.spec.index, worker.spec.incarnation) in holders
            seconds = self._idle.age_seconds(uid, holds, now)
            if not holds:
                idle[uid] = seconds
        return idle


def _heard(worker: ElasticWorker, checking: str | None, before: _Heard | None, now: float) -> _Heard:
    report = current_report(worker)
    waits, told = is_waiting(report), checkpoint_of(report)
    still = before if before and (before.waits, before.checking) == (waits, checking) else None
    saved = before if before and told in (None, before.step) else None  # told no more, it is not made anew
    return _Heard(
        version=worker.metadata.resource_version,
        checking=checking,
        waits=waits,
        waits_since=still.waits_since if still else now,
        step=saved.step if saved else told,
        saved_since=saved.saved_since if saved else now,
        behind_seconds=None if told is None else seconds_behind_checkpoint(report),
    )
