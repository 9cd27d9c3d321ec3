"""The counts of workers that are let go stay with their job (`status.departed`). Pure.

They are taken over with the write that comes before the deletion, and the slot is remembered as counted for
as long as its worker is there: so a controller that dies in between counts nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Departed


def with_departed(job: ElasticJob, surplus: Sequence[ElasticWorker]) -> ElasticJob:
    """The job, with what these workers have counted in its status.

    Args:
        surplus: the workers that are deleted, as long as they are there.
    """
    known = job.status.departed
    failed = [worker for worker in surplus if worker.status.restarts]
    if known is None and not failed:
        return job
    known = known or Departed()
    counted = {(type_, index) for type_, slots in known.leaving.items() for index in slots}
    restarts, leaving = Counter(known.restarts), dict[str, list[int]]()
    for worker in failed:
        leaving.setdefault(worker.spec.type, []).append(worker.spec.index)
        if (worker.spec.type, worker.spec.index) not in counted:
            restarts.update(worker.status.restarts)
    slots = {type_: sorted(indices) for type_, indices in leaving.items()}
    return job.with_status(departed=Departed(restarts=dict(restarts), leaving=slots))
