"""How often a job has failed in its life: `status.failures`, which nothing that is deleted lowers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

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
