"""What a job asks of its own scale: as its shard sets want it, or as there is free room. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.capacity import growth
from reconcilers.capacity.opportunity import Step
from reconcilers.job.seen import Seen
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.scale.permission import own_refusal
from reconcilers.scale.request import Origin, ScaleRequest, ScaleWrite, own_request
from reconcilers.shards import by_shards


@dataclass(frozen=True)
class OwnScaling:
    """What a job asks of its own scale."""

    growth: Step | None = None
    """What opportunistic growth remembers."""
    write: ScaleWrite | None = None
    """The request to write into the job."""
    events: tuple[Event, ...] = ()
    look_again_seconds: tuple[float | None, ...] = ()


def plan_scaling(
    job: ElasticJob, workers: Workers, seen: Seen, now: datetime, *, is_quiet: bool, failed: str
) -> OwnScaling:
    """The scale that the job asks for by itself after this look.

    Args:
        is_quiet: no check, move, roll or failure is under way.
        failed: how training failed in place, in the look that counts it.
    """
    sized = by_shards.size_of(job, workers, seen.ages.idle)
    if sized.scale:
        removed = {names.WORKER: list(sized.scale.removed)} if sized.scale.removed else {}
        request = own_request(job, Origin.SHARDS, sized.scale.replicas, removed=removed)
        write, wait = own_write(job, request, seen)
        return OwnScaling(None, write, look_again_seconds=(sized.look_again_seconds, wait))
    refused = refusal_of(seen, Origin.GROWTH)
    grown = partial(growth.grown, job, workers, seen.published, now=now, is_quiet=is_quiet, failed=failed)
    step = grown(refused)
    if step is None:
        return giving_back(job, seen)
    write, wait = _growth(job, workers, seen, step)
    if write is not None and write.refusal:
        step = grown(write.refusal) or step
        write, wait = _growth(job, workers, seen, step)
    again = (sized.look_again_seconds, step.look_again_seconds, wait)
    return OwnScaling(step, write, growth.events(step), again)


def _growth(
    job: ElasticJob, workers: Workers, seen: Seen, step: Step
) -> tuple[ScaleWrite | None, float | None]:
    count = job.spec.replica_specs[names.WORKER].replicas
    if step.count == count:
        return None, None
    gone = growth.going(job, workers, seen.published, step.count) if step.count < count else ()
    removed = {names.WORKER: list(gone)} if gone else {}
    request = own_request(job, Origin.GROWTH, step.count, removed=removed)
    return own_write(job, request, seen, is_free=step.count < count)


def giving_back(job: ElasticJob, seen: Seen) -> OwnScaling:
    """The request by which a job that is suspended, or is to grow no more, comes back to the count that it
    was asked for."""
    count = growth.to_give_back(job)
    if count is None:
        return OwnScaling()
    write, wait = own_write(job, own_request(job, Origin.GROWTH, count), seen, is_free=True)
    if write is not None:
        write = replace(write, events=growth.events_of_return(job, count))
    return OwnScaling(None, write, look_again_seconds=(wait,))


def own_write(
    job: ElasticJob, request: ScaleRequest, seen: Seen, *, is_free: bool = False
) -> tuple[ScaleWrite | None, float | None]:
    """The write of a request of dlr's own; or, if the same was refused, the seconds until it is repeated.

    Args:
        is_free: the request needs no permission.
    """
    refused = seen.scale_refused
    if refused is not None and refused.request.asks_same(request):
        return None, refused.left_seconds
    return ScaleWrite(request, refusal="" if is_free else own_refusal(job, request, seen.nodes)), None


def refusal_of(seen: Seen, origin: Origin) -> str:
    """Why the last request of this origin was refused, for as long as that counts."""
    refused = seen.scale_refused
    return refused.message if refused is not None and refused.request.origin is origin else ""
