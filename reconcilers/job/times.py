"""Times in a job's status that are yet to come: the clock of the controller that wrote them was ahead. Pure.

Whatever counts from such a time would wait until our clock gets there, for hours maybe: a hold of the next
world, a test that is new enough, the judgement of a hang, a deadline. So it counts from now on, and that is
written.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from crds.elasticjob import ElasticJob
from reconcilers.failure.budgets import longest_hold_seconds

TOLERANCE = timedelta(seconds=10)
"""The clocks of two leaders may differ by less, which costs no more."""


def with_times_by_our_clock(job: ElasticJob, now: datetime) -> ElasticJob:
    """Returns the job with what is later than it can be set to now, or without it where it ends a wait."""
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
    if budget is not None and _is_beyond(budget.held_until, limit, longest):
        update["failure_budget"] = budget.model_copy(update={"held_until": None})
    scaling = status.scaling
    if scaling is not None and scaling.at > limit:
        update["scaling"] = scaling.model_copy(update={"at": now})
    return job.having(**update) if update else job


_OF_THE_JOB = ("suspected_at", "start_time", "completion_time")
"""Fields of the status from which on tests count, the deadline, and the time that an ended job has."""
_BEGINNINGS = ("formed_at", "reforming_since", "hang_since", "checkpoint_awaited_since")
"""Fields of a world."""


def _is_beyond(end: datetime | None, limit: datetime, seconds: float) -> bool:
    """Whether a wait of at most so many seconds ends later than it can."""
    return end is not None and end > limit + timedelta(seconds=seconds)
