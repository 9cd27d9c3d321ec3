"""Consequences of failures: a count, a wait, another Pod, or the end of the job. Pure.

A reconcile finds one of these cases:

| found | restarts and budget | last failure |
|---|---|---|
| an incident: the first failure in place of a round | count it, not the one blamed before | the incident |
| a Pod's end that explains failures of its peers | do not count those any more | the end |
| a hang that is not judged yet, or nothing new | stay | stays, or is the newest end of a Pod |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from controller.wording import first_line
from crds.elasticjob import ElasticJob
from crds.elasticworker import ExitClass
from crds.failure_policy import FailureRule
from crds.job_status import ElasticJobStatus, FailureBudget, JobFailure
from reconcilers.failure import budgets
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.domains import in_its_domain
from reconcilers.failure.endings import Ending, endings_of
from reconcilers.failure.facts import (
    Blame,
    Break,
    Hold,
    began_at_unknown_step,
    last_failure,
    reached,
    reached_before,
)
from reconcilers.failure.hangs import (
    ANSWER_SECONDS,
    Inquiry,
    culprit_of_hang,
    inquiry_of,
    is_open,
    was_counted,
)
from reconcilers.failure.incidents import (
    Incident,
    in_one_line,
    incident_of,
    late_incident,
    uncounted,
    with_incident,
)
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.renewals import Renewal, renewals_due
from reconcilers.failure.rules import rules_of
from reconcilers.observed.workers import Workers

RENEWAL_SECONDS = 1.0
"""Time until the next reconcile for a worker that needs a new Pod, unless a write triggers it before."""


@dataclass(frozen=True)
class Count:
    """A job's failures so far."""

    restarts: Mapping[str, int]
    budget: FailureBudget | None
    last_failure: JobFailure | None
    late: Blame | None = None
    """A lost Pod or a broken switch that is found to be to blame after a worker was blamed."""


@dataclass(frozen=True)
class Assessment:
    """Consequences of failures in one reconcile of a job."""

    incident: Incident | None
    """The failure in place that is counted now, or takes over the blame from another."""
    inquiry: Inquiry | None
    """A hang that is not judged yet; until then, no world is formed, and the job does not end by it."""
    count: Count
    ending: Ending | None
    renewals: Mapping[str, Renewal]
    """Workers that get a new Pod now, by uid."""
    waits_for_renewal: bool
    """Whether no world is formed before the worker that failed has its new Pod."""

    @property
    def blame(self) -> Blame | None:
        """The first failure of the round that broke; None while it is not found."""
        first = self.incident if self.incident and not self.incident.follows else None
        return self.count.late or (blame_of(first.failure) if first else None)

    @property
    def hang_since(self) -> datetime | None:
        return self.inquiry.since if self.inquiry is not None else None

    def seconds_to_judgement(self, now: datetime) -> float | None:
        return (self.inquiry.until - now).total_seconds() if self.inquiry is not None else None

    def hold(self, now: datetime) -> Hold | None:
        """Return the wait before a world replaces the broken one; None without one."""
        if self.inquiry is not None:
            why = f"up to {ANSWER_SECONDS:.0f} s for all ranks to say where they hang"
            return Hold(self.inquiry.until, why)
        if self.waits_for_renewal:
            until = now + timedelta(seconds=RENEWAL_SECONDS)
            return Hold(until, "for the worker that failed to get a new Pod")
        budget = self.count.budget
        if budget is None or budget.held_until is None:
            return None
        return Hold(budget.held_until, f"until {budget.held_until:%H:%M:%S} UTC {budgets.why_held(budget)}")


def assess(
    job: ElasticJob,
    workers: Workers,
    spare: Mapping[str, Overdrawn],
    breaks: Sequence[Break],
    now: datetime,
    *,
    nodes: Collection[Mapping[str, Any]],
    is_asked: bool = True,
    are_tested: bool = False,
) -> Assessment:
    """Assess the failures that are reported so far.

    Args:
        spare: the workers that may fail for good, by uid.
        nodes: raw Nodes, on which a worker that ran out of memory may get more.
        is_asked: whether the ElasticWorld asks the members of a world that hangs for their stacks.
        are_tested: whether nodes are checked after failures of hardware.
    """
    rules = rules_of(job)
    inquiry, incident = _who_was_first(job.status, workers, rules, breaks, now, is_asked=is_asked)
    if incident is not None:
        # Its time is that of our own clock, as are those of Pods' ends.
        own = in_its_domain(incident.failure, job, workers).model_copy(update={"time": now})
        incident = replace(incident, failure=own)
        count = _with_incident(job, workers, incident, now)
    else:
        count = _explained(job, workers) or _unchanged(job, workers)
    failure, budget = count.last_failure, count.budget
    room = MemoryRoom(job, workers, nodes)
    due = renewals_due(job, workers, incident, failure, now, room=room, are_tested=are_tested)
    return Assessment(
        incident=incident,
        inquiry=inquiry,
        count=count,
        ending=next(endings_of(job, workers, spare, incident, budget, failure), None),
        # Only a recorded failure renews Pods: a controller that dies in between counts it only once.
        renewals=due if incident is None else {},
        waits_for_renewal=bool(due),
    )


def _who_was_first(
    status: ElasticJobStatus,
    workers: Workers,
    rules: Sequence[FailureRule],
    breaks: Sequence[Break],
    now: datetime,
    *,
    is_asked: bool,
) -> tuple[Inquiry | None, Incident | None]:
    """Return the hang that is not judged yet, and the incident that is judged now; at most one of them."""
    published, blamed = status.world, status.last_failure
    members = published.members
    inquiry = inquiry_of(status, breaks, workers, now, is_asked=is_asked)
    if inquiry is None:
        found = incident_of(breaks, workers, published.round, rules, members)
        return None, found or late_incident(blamed, workers, rules, members, blames_waiting=False)
    if is_open(inquiry, published, workers, now):
        return inquiry, None
    if was_counted(status):  # the break came before the hang was reported, so nobody was asked
        return None, late_incident(blamed, workers, rules, members)
    return None, culprit_of_hang(inquiry, published, workers, rules, now)


def blame_of(failure: JobFailure) -> Blame | None:
    """Return the blame of a failure in place; None for the end of a Pod."""
    return None if failure.round is None else Blame(failure.round, in_one_line(failure))


def _with_incident(job: ElasticJob, workers: Workers, incident: Incident, now: datetime) -> Count:
    """Return the count with this incident."""
    status, far = job.status, reached(job, workers)
    before, step = status.failure_budget or FailureBudget(), reached_before(job, workers)
    if (wrong := incident.instead_of) is not None:
        before, step = budgets.without(before, wrong.exit_class), far
    reports = (worker.status.agent for worker in workers.reporting_steps)
    failed = budgets.Failed(
        exit_class=incident.exit_class,
        message=incident.failure.message,
        reached=far,
        action=incident.action,
        follows=incident.follows,
        start_unknown=began_at_unknown_step(reports, incident.failure.round),
    )
    charged = budgets.after(before.model_copy(update={"step": step}), failed)
    formed_at = status.world.formed_at
    lasted_seconds = (now - formed_at).total_seconds() if formed_at else 0.0
    timeout_seconds = job.spec.elastic_policy.heartbeat_timeout_seconds
    budget = budgets.with_hold(charged, timeout_seconds, now, lasted_seconds)
    return Count(with_incident(status.restarts, incident), budget, incident.failure)


def _explained(job: ElasticJob, workers: Workers) -> Count | None:
    """Return the count after a Pod's end that may have caused its peers' failures; None without one.

    It has not if the worker's agent took part in the next world. But a node without power is only a member of
    that, until its silence is noticed: its agent has reported nothing of it.
    """
    status = job.status
    budget, blamed, published = status.failure_budget, status.last_failure, status.world
    if budget is None or not budget.consequences:
        return None
    end = last_failure(job, workers, with_planned=True)
    if end is None or end.round is not None or end == blamed:
        return None
    lost = next(w for w in workers.exceptional if w.metadata.name == end.worker)
    late = None
    if blamed is not None and blamed.round == published.round:
        line = f"worker {lost.spec.index} was lost: {first_line(end.message)}".removesuffix(": ")
        late = Blame(published.round, line, blamed.worker)
    elif blamed is not None and blamed.round is not None:  # a later world has been formed
        report = lost.status.agent
        takes_part = report is not None and report.observed_round >= published.round
        if lost.spec.index in published.members and takes_part:
            return None
    restarts = uncounted(status.restarts, ExitClass.UNKNOWN)
    return Count(restarts, budgets.explained(budget), end, late)


def _unchanged(job: ElasticJob, workers: Workers) -> Count:
    """Return the count without a new failure in place; the recorded one may turn out to be its switch's."""
    status, failure = job.status, last_failure(job, workers)
    late = None
    if failure is not None:
        failure = in_its_domain(failure, job, workers)
        late = blame_of(failure) if failure.domain and failure != status.last_failure else None
    return Count(status.restarts, status.failure_budget, failure, late)
