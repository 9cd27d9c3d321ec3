"""Corrects times of a job's status in the future, by a controller whose clock was ahead. Pure.

Everything that counts from such a time would wait until our clock reaches it, perhaps for hours: a hold of
the next world, a check that is recent enough, the judgement of a hang, a deadline. So it counts from now
instead, and the new time is written.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from crds.elasticjob import ElasticJob
from reconcilers.failure.budgets import longest_hold_seconds

TOLERANCE = timedelta(seconds=10)
"""Difference between the clocks of two leaders that is left uncorrected, as it costs no more than itself."""


def with_times_by_our_clock(job: ElasticJob, now: datetime) -> ElasticJob:
    """Return the job with impossible times set to now, or removed if they end a wait."""
    status, limit = job.status, now + TOLERANCE
    update: dict[str, object] = {}
    for name in _OF_THE_JOB:
        time = getattr(status, name)
        if time is not None and time > limit:
            update[name] = now
    world = status.rendezvous
    if world is not None:
        began = {name: getattr(world, name) for name in _BEGINNINGS}
        early = {name: now for name, time in began.items() if time is not None and time > limit}
        update |= {"rendezvous": world.model_copy(update=early)} if early else {}
    budget, longest = status.failure_budget, longest_hold_seconds(job.spec.elastic_policy)
    held_until = budget.held_until if budget is not None else None
    if budget is not None and held_until is not None and held_until > limit + timedelta(seconds=longest):
        update["failure_budget"] = budget.model_copy(update={"held_until": None})
    scaling = status.scaling
    if scaling is not None and scaling.at > limit:
        update["scaling"] = scaling.model_copy(update={"at": now})
    return job.having(**update) if update else job


_OF_THE_JOB = ("suspected_at", "start_time", "completion_time")
"""Fields of the status from which checks, the deadline and the time to live of an ended job count."""
_BEGINNINGS = ("formed_at", "reforming_since", "hang_since", "checkpoint_awaited_since")
"""Fields of a world from which waits count."""
