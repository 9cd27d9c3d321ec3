"""Consequences of failures: a count, a wait, another Pod, or the end of the job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.wording import first_line
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.failure_policy import FailureAction, FailureRule
from crds.job_status import ElasticJobStatus, FailureBudget, JobFailure
from reconcilers.failure import budgets
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.domains import in_its_domain, workers_behind_switch
from reconcilers.failure.facts import (
    Blame,
    Break,
    Hold,
    began_at_unknown_step,
    failure_of_pod,
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
    culprit_of,
    in_one_line,
    incident_in,
    incident_of,
    late_incident,
    uncounted,
    with_incident,
)
from reconcilers.failure.memory import memory_of
from reconcilers.failure.rules import rules_of
from reconcilers.observed.slots import is_extra, wanted_slots
from reconcilers.observed.workers import Workers

BY_RULE = Overdrawn("FailurePolicy", "a rule of failurePolicy fails the job")
RENEWAL_SECONDS = 1.0
"""Time until the next reconcile for a worker that needs a new Pod, unless a write triggers it before."""
LATE_SECONDS = 30.0
"""Age up to which the next world is broken again for a new Pod of a culprit that is found late."""


@dataclass(frozen=True)
class Renewal:
    """Replacement of a Pod that lives."""

    exit_class: ExitClass
    """Class of the failure that causes it."""
    reason: str
    avoids_node: bool
    """Whether it is for another node; otherwise it is for more memory."""
    avoids_domain: str = ""
    """Domain that the next Pod avoids."""


@dataclass(frozen=True)
class Ending:
    """End of a job that fails."""

    reason: str
    message: str
    failure: JobFailure | None


@dataclass(frozen=True)
class Assessment:
    """Consequences of failures in one reconcile of a job."""

    incident: Incident | None
    """The failure in place that is counted now, or takes over the blame from another."""
    restarts: dict[str, int]
    budget: FailureBudget | None
    last_failure: JobFailure | None
    ending: Ending | None
    renewals: Mapping[str, Renewal] = field(default_factory=dict)
    """Workers that get a new Pod now, by uid."""
    waits_for_renewal: bool = False
    """Whether no world is formed before the worker that failed has its new Pod."""
    inquiry: Inquiry | None = None
    """A hang that is not judged yet; until then, no world is formed, and the job does not end by it."""
    late_loss: Blame | None = None
    """A Pod's end that was noticed only after one of its peers had been blamed for a failure."""
    late_switch: Blame | None = None
    """A switch that turns out to be to blame after the first worker of its domain was blamed."""

    @property
    def blame(self) -> Blame | None:
        """The first failure of the round that broke; None while it is not found."""
        if self.late_loss is not None or self.late_switch is not None:
            return self.late_loss or self.late_switch
        return blame_of(self.incident) if self.incident is not None and not self.incident.follows else None

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
        held_until = self.budget.held_until if self.budget else None
        if self.budget is None or held_until is None:
            return None
        return Hold(held_until, f"until {held_until:%H:%M:%S} UTC {budgets.why_held(self.budget)}")


def assess(
    job: ElasticJob,
    workers: Workers,
    spare: Mapping[str, Overdrawn],
    breaks: Sequence[Break],
    now: datetime,
    *,
    is_asked: bool = True,
    are_tested: bool = False,
) -> Assessment:
    """Assess the failures that are reported so far.

    Args:
        is_asked: whether the ElasticWorld asks the members of a world that hangs for their stacks.
        are_tested: whether nodes are checked after failures of hardware.
    """
    rules, status = rules_of(job), job.status
    inquiry, incident = _who_was_first(status, workers, rules, breaks, now, is_asked=is_asked)
    if incident is not None:
        failure = in_its_domain(incident.failure, job, workers)
        incident = replace(incident, failure=failure or incident.failure).at(now)
    restarts, budget = with_incident(status.restarts, incident), status.failure_budget
    failure = incident.failure if incident else in_its_domain(last_failure(job, workers), job, workers)
    late_loss = None
    if incident is not None:
        budget = _charged(job, workers, incident, now)
    elif budget is not None and budget.consequences:
        end = last_failure(job, workers, with_planned=True)
        if _explains(end, status, workers):
            failure, restarts = end, uncounted(restarts, ExitClass.UNKNOWN)
            budget = budgets.explained(budget)
            late_loss = _late_loss(end, status, workers)
    behind = [] if are_tested else workers_behind_switch(failure, job, workers)
    renewals = {} if incident else _renewals(job, workers, now, are_tested=are_tested)
    if incident is None and failure is not None:
        renewals |= {worker.metadata.uid: _off_its_domain(failure) for worker in behind}
    pending = incident is not None and _renewal(
        job, culprit_of(incident.failure, workers), incident, are_tested=are_tested
    )
    return Assessment(
        incident=incident,
        restarts=restarts,
        budget=budget,
        last_failure=failure,
        ending=_ending(job, workers, spare, incident, budget, failure),
        renewals=renewals,
        waits_for_renewal=bool(pending or renewals or behind),
        inquiry=inquiry,
        late_loss=late_loss,
        late_switch=None if incident else _late_switch(failure, status.last_failure),
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


def blame_of(incident: Incident) -> Blame | None:
    round_ = incident.failure.round
    return None if round_ is None else Blame(round_, in_one_line(incident.failure))


def spare_workers(job: ElasticJob, workers: Workers) -> dict[str, Overdrawn]:
    """Return the workers that have spent their budget, by uid, if enough others are left to train.

    In a job without standby workers, these are only extra workers, since nothing replaces others.
    """
    spec = job.spec.replica_specs.get(names.WORKER)
    if spec is None or not spec.standby:
        extra = (w for w in workers.exceptional if is_extra(job, w))
        return spent_workers(job, extra)
    wanted = frozenset(wanted_slots(job, names.WORKER))
    training = (w for w in workers.training if w.spec.index in wanted)
    spent = spent_workers(job, training)
    return spent if len(wanted) - len(spent) >= spec.replicas else {}


def exhausted_workers(workers: Workers, spare: Mapping[str, Overdrawn]) -> dict[str, str]:
    """Return the workers that get no further Pod, since there are enough others, by uid, with the reason."""
    failed = [
        w for w in workers.exceptional if w.metadata.uid in spare and w.status.phase is WorkerPhase.FAILED
    ]
    enough = {names.WORKER: "there are enough others"}
    return {
        w.metadata.uid: f"not started again, since {enough.get(w.spec.type, 'training goes on without it')}: "
        f"{_ending_by(spare[w.metadata.uid], _of(w)).message}"
        for w in failed
    }


def _charged(job: ElasticJob, workers: Workers, incident: Incident, now: datetime) -> FailureBudget:
    """Return the job's budget after this incident."""
    before = job.status.failure_budget or FailureBudget()
    before = before.model_copy(update={"step": reached_before(job, workers)})
    far = reached(job, workers)
    if incident.instead_of is not None:
        before = budgets.without(before, incident.instead_of.exit_class).model_copy(update={"step": far})
    failed = budgets.Failed(
        exit_class=incident.exit_class,
        message=incident.failure.message,
        reached=far,
        action=incident.action,
        follows=incident.follows,
        start_unknown=began_at_unknown_step(
            (w.status.agent for w in workers.reporting_steps), incident.failure.round
        ),
    )
    charged = budgets.after(before, failed)
    formed_at = job.status.world.formed_at
    lasted_seconds = (now - formed_at).total_seconds() if formed_at else 0.0
    return budgets.with_hold(charged, job.spec.elastic_policy.heartbeat_timeout_seconds, now, lasted_seconds)


def _explains(end: JobFailure | None, status: ElasticJobStatus, workers: Workers) -> bool:
    """Whether the end of a Pod is newly the last failure, and may have caused the peers' failures.

    It has not if the worker's agent took part in the next world. But a node without power is only a member of
    that, until its silence is noticed: its agent has reported nothing of it.
    """
    blamed, published = status.last_failure, status.world
    if end is None or end.round is not None or end == blamed:
        return False
    if blamed is None or blamed.round is None or blamed.round == published.round:
        return True
    lost = _worker_of(end, workers)
    report = lost.status.agent
    takes_part = report is not None and report.observed_round >= published.round
    return lost.spec.index not in published.members or not takes_part


def _late_loss(end: JobFailure | None, status: ElasticJobStatus, workers: Workers) -> Blame | None:
    """Return the blame of a Pod's end, instead of the worker that was blamed so far.

    A Pod that ends after the next world was formed did not break the one before.
    """
    blamed, published = status.last_failure, status.world
    if end is None or blamed is None or blamed.round is None or blamed.round != published.round:
        return None
    index = _worker_of(end, workers).spec.index
    line = f"worker {index} was lost: {first_line(end.message)}".removesuffix(": ")
    return Blame(blamed.round, line, blamed.worker)


def _late_switch(failure: JobFailure | None, blamed: JobFailure | None) -> Blame | None:
    if failure is None or failure.round is None or not failure.domain or failure == blamed:
        return None
    return Blame(failure.round, in_one_line(failure))


def _off_its_domain(failure: JobFailure) -> Renewal:
    """Return the renewal of a worker in the domain whose switch failed."""
    class_ = ExitClass(failure.exit_class)
    why = f"{class_}: {in_one_line(failure)}"
    return Renewal(class_, why, avoids_node=True, avoids_domain=failure.domain or "")


def _worker_of(end: JobFailure, workers: Workers) -> ElasticWorker:
    return next(w for w in workers.exceptional if w.metadata.name == end.worker)


def _renewals(job: ElasticJob, workers: Workers, now: datetime, *, are_tested: bool) -> dict[str, Renewal]:
    """Return the renewal of the recorded culprit: a controller that dies in between counts it only once."""
    blamed, world = job.status.last_failure, job.status.world
    culprit = culprit_of(blamed, workers)
    if blamed is None or blamed.round is None or culprit is None:
        return {}
    begun = world.round == blamed.round + 1 and world.formed_at is not None
    young = begun and (now - (world.formed_at or now)).total_seconds() < LATE_SECONDS
    if world.round != blamed.round and not young:
        return {}  # it was restarted in place, and trains
    incident = incident_in(culprit, blamed.round, rules_of(job))
    renewal = _renewal(job, culprit, incident, are_tested=are_tested) if incident else None
    return {culprit.metadata.uid: renewal} if renewal else {}


def _renewal(
    job: ElasticJob, worker: ElasticWorker | None, incident: Incident, *, are_tested: bool
) -> Renewal | None:
    """Return the new Pod of its worker, by a rule or otherwise by its exit class; None without one."""
    if worker is None:
        return None
    class_, line = incident.exit_class, in_one_line(incident.failure)
    if incident.action is FailureAction.REPLACE:
        return Renewal(class_, f"a rule of failurePolicy replaces it: {line}", avoids_node=True)
    if incident.action is not None:
        return None
    if class_ is ExitClass.HARDWARE_ERROR and not are_tested:
        return Renewal(class_, f"{class_}: {line}", avoids_node=True)
    if class_ is ExitClass.OOM and memory_of(job, worker) is not None:
        return Renewal(class_, f"{class_}: {line}", avoids_node=False)
    return None


def _ending(
    job: ElasticJob,
    workers: Workers,
    spare: Mapping[str, Overdrawn],
    incident: Incident | None,
    budget: FailureBudget | None,
    failure: JobFailure | None,
) -> Ending | None:
    for worker in workers.exceptional:
        end = worker.status.last_exit
        over = worker.status.phase is WorkerPhase.FAILED
        if over and end is not None and end.action is FailureAction.FAIL_JOB:
            return _ending_by(BY_RULE, _of(worker))
    if incident is not None and incident.action is FailureAction.FAIL_JOB:
        return _ending_by(BY_RULE, incident.failure)
    excess = budgets.overdrawn(budget, _allowed(job, names.WORKER), "training")
    if excess is not None:
        return _ending_by(excess, failure)
    for worker in workers.exceptional:
        excess = _overdrawn(job, worker)
        if excess is not None and worker.metadata.uid not in spare:
            return _ending_by(excess, _of(worker))
    return None


def spent_workers(job: ElasticJob, workers: Iterable[ElasticWorker]) -> dict[str, Overdrawn]:
    """Return the workers that have spent their budget, by uid."""
    found = ((worker.metadata.uid, _overdrawn(job, worker)) for worker in workers)
    return {uid: excess for uid, excess in found if excess is not None}


def _overdrawn(job: ElasticJob, worker: ElasticWorker) -> Overdrawn | None:
    """Return the excess of the worker's Pods over its budget; None without one."""
    allowed = _allowed(job, worker.spec.type)
    return budgets.overdrawn(worker.status.failure_budget, allowed, worker.metadata.name)


def _allowed(job: ElasticJob, type_: str) -> int:
    spec = job.spec.replica_specs.get(type_)
    return spec.restart_count if spec is not None else 0


def _of(worker: ElasticWorker) -> JobFailure | None:
    end = worker.status.last_exit
    return failure_of_pod(worker.metadata.name, end) if end is not None else None


def _ending_by(excess: Overdrawn, failure: JobFailure | None) -> Ending:
    text = f"{excess.text}: {in_one_line(failure)}" if failure else excess.text
    return Ending(excess.reason, text, failure)
