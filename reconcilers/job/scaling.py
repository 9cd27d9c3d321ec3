"""What a job asks of its own scale: as its shard sets want it, or as there is free room. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.capacity import growth
from reconcilers.job.seen import Seen
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Act, Event, Verb
from reconcilers.scale import auto_plans
from reconcilers.scale.auto_plans import Scale
from reconcilers.scale.opportunity import Step
from reconcilers.scale.plan import GROWTH
from reconcilers.shards import by_shards


@dataclass(frozen=True)
class OwnScaling:
    """What a job asks of its own scale."""

    growth: Step | None = None
    """What opportunistic growth remembers."""
    acts: tuple[Act, ...] = ()
    """Automatic ScalePlans to make, and those to delete."""
    events: tuple[Event, ...] = ()
    look_again_seconds: tuple[float | None, ...] = ()


def plan_scaling(
    job: ElasticJob, workers: Workers, seen: Seen, now: datetime, *, is_quiet: bool
) -> OwnScaling:
    """The scale that the job asks for by itself after this look.

    Args:
        job: with what is asked of its scale in its status.
        workers: but for those that are to go.
        is_quiet: no check, move, roll or failure is under way.
    """
    sized = by_shards.decide(job, workers.training, seen.ages.idle)
    step = growth.grown(job, workers, seen.published, seen.plans.spent, now, is_quiet=is_quiet)
    acts: tuple[Act, ...] = ()
    count = job.spec.replica_specs[names.WORKER].replicas if step is not None else 0
    if sized.scale:
        acts = auto_plans.acts(job, sized.scale, seen.plans, by_shards.PLANS, now)
    elif step is None:
        acts = giving_back(job, seen, now)
    elif step.count != count:
        gone = growth.going(job, workers, seen.published, step.count) if step.count < count else ()
        acts = auto_plans.acts(job, Scale(step.count, gone), seen.plans, GROWTH, now)
    waits = (sized.look_again_seconds, auto_plans.seconds_to_retry(seen.plans.spent, now))
    if step is None:
        return OwnScaling(None, acts, look_again_seconds=waits)
    again = (*waits, step.look_again_seconds)
    return OwnScaling(step, acts, growth.events(step), again)


def giving_back(job: ElasticJob, seen: Seen, now: datetime) -> tuple[Act, ...]:
    """The automatic plan by which a job that is suspended, or is to grow no more, comes back to the count
    that it was asked for."""
    count = growth.to_give_back(job)
    if count is None:
        return ()
    acts = auto_plans.acts(job, Scale(count), seen.plans, GROWTH, now)
    events = growth.events_of_return(job, count)
    return tuple(replace(act, events=events) if act.verb is Verb.CREATE else act for act in acts)
