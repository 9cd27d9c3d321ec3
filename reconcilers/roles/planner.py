"""The plan for a job with parameter servers, from an `ObservedJob` to a `JobPlan`. Pure.

It is the counterpart of `reconcilers/job/plan.py`, and carried out in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from crds import names
from crds.rendezvous import Rendezvous
from reconcilers.failure.policy import Assessment, assess
from reconcilers.job import events as events_of_job
from reconcilers.job.plan import (
    JobPlan,
    completed,
    plan_end,
    plan_failure,
    plan_finished,
    relaunching,
    waits_of_all,
    wanted,
    with_standing,
    without_surplus,
    written,
)
from reconcilers.job.status import going_on, suspended
from reconcilers.job.times import with_times_by_our_clock
from reconcilers.job.workers import relaunches_of
from reconcilers.look import DesiredJob, ObservedJob
from reconcilers.roles.conditions import TABLE
from reconcilers.roles.pods import cluster_fault
from reconcilers.roles.progress import ending, phase_of, spare_workers
from reconcilers.roles.tasks import dated, events, next_cluster, still_served
from reconcilers.scale.rolling import Roll, roll_without_world
from reconcilers.scale.uptake import with_moves_done
from reconcilers.world.participants import bounds_of


def plan_cluster(seen: ObservedJob, now: datetime) -> JobPlan:
    """Plan the writes of one look at a job with a cluster of roles."""
    seen = replace(seen, job=with_times_by_our_clock(seen.job, now))
    if seen.job.status.finished:
        return plan_finished(seen, now)
    look = wanted(seen, now)
    served = still_served(seen.job, look.surplus, seen.workers.of_type.get(names.CHIEF, ()), now)
    surplus = [worker for worker in look.surplus if worker.metadata.uid not in served.uids]
    look = without_surplus(replace(look, surplus=surplus), cluster_fault(seen.job), TABLE)
    if seen.job.stops:
        plan = written(look, suspended(look, None))
    else:
        plan = plan_end(look, ending(look.job, look.workers)) or _train(look)
    return completed(plan, look, served.seconds)


def _train(look: DesiredJob) -> JobPlan:
    """The plan for a running job: its cluster, and the consequences of failures."""
    look = with_standing(look, spare_workers(look.job, look.workers))
    job, workers = look.job, look.workers
    failures = assess(job, workers, look.spare, (), look.now, nodes=look.seen.nodes)
    if (failed := plan_failure(look, failures)) is not None:
        return failed
    roll = Roll() if look.is_refused else roll_without_world(job, workers, look.fresh)
    due, retry_seconds = relaunches_of(look, Rendezvous(), bounds_of(job), roll, failures.renewals)
    return relaunching(_go_on(look, failures, waits_of_all(look)), look, due, retry_seconds)


def _go_on(look: DesiredJob, failures: Assessment, waits: tuple[float | None, ...]) -> JobPlan:
    """The status of a job that goes on."""
    job, moved = with_moves_done(look.job, look.workers, None)
    known = job.status.cluster
    cluster = dated(known, next_cluster(job, look.workers.by_slot), look.now)
    look = replace(look, job=job.having(cluster=cluster))
    status = going_on(look, failures, phase_of(job, look.workers), None)
    all_events = (*events_of_job.of_moves(moved), *events(known, cluster))
    return written(look, status, look_again=waits, events=all_events)
