"""How often a job has failed in its life: `status.failures`, which nothing that is deleted lowers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Departed, ElasticJobStatus

Counts = Mapping[str, int]


def failures_of(
    before: ElasticJobStatus, restarts: Counts, present: Iterable[Counts], departed: Departed | None
) -> tuple[dict[str, int], Departed | None]:
    """Return all failures by exit class, and `departed` with those of whoever is gone since the last look.

    Args:
        before: the status that is stored.
        restarts: failures in place, with those of this look.
        present: failures of each worker's Pods, or of each replica group.
        departed: the counts of workers that are deleted, with those of this look.
    """
    known = departed or Departed()
    counted = Counter(known.failures)
    for each in present:
        counted.update(each)
    gone = Counter(before.failures) - Counter(before.restarts) - counted  # keeps what is positive
    if gone:
        departed = known.model_copy(update={"failures": dict(Counter(known.failures) + gone)})
    return dict(Counter(restarts) + counted + gone), departed


def with_departed(job: ElasticJob, surplus: Collection[ElasticWorker]) -> ElasticJob:
    """The job with the counts of workers that are deleted (`status.departed`).

    They are taken over with the write that comes before the deletion, and the slot is remembered as counted
    for as long as its worker is there: so a controller that dies in between counts nothing twice.

    Args:
        surplus: the workers that are deleted, as long as they are there.
    """
    known = job.status.departed
    failed = [worker for worker in surplus if worker.status.restarts]
    if known is None and not failed:
        return job
    known = known or Departed()
    counted = {(type_, index) for type_, slots in known.leaving.items() for index in slots}
    restarts, failures = Counter(known.restarts), Counter(known.failures)
    leaving = dict[str, list[int]]()
    for worker in failed:
        leaving.setdefault(worker.spec.type, []).append(worker.spec.index)
        if (worker.spec.type, worker.spec.index) not in counted:
            restarts.update(worker.status.restarts)
            failures.update(worker.status.failures)
    slots = {type_: sorted(indices) for type_, indices in leaving.items()}
    update = {"restarts": dict(restarts), "failures": dict(failures), "leaving": slots}
    return job.having(departed=known.model_copy(update=update))
