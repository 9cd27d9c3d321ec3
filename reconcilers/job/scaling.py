"""What a job asks of its own scale, as its shard sets want it. Pure."""

from __future__ import annotations

from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.job.seen import Seen
from reconcilers.observed.workers import Workers
from reconcilers.scale.permission import own_write
from reconcilers.scale.request import Origin, ScaleWrite, own_request
from reconcilers.shards import by_shards


def plan_scaling(
    job: ElasticJob, workers: Workers, seen: Seen
) -> tuple[ScaleWrite | None, tuple[float | None, ...]]:
    """The request to write into the job after this look, and the seconds to the next."""
    sized = by_shards.size_of(job, workers, seen.ages.idle)
    if not sized.scale:
        return None, (sized.look_again_seconds,)
    removed = {names.WORKER: list(sized.scale.removed)} if sized.scale.removed else {}
    request = own_request(job, Origin.SHARDS, sized.scale.replicas, removed=removed)
    write, wait = own_write(job, request, seen.scale_refused, seen.nodes)
    return write, (sized.look_again_seconds, wait)
