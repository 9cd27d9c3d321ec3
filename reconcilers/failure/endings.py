"""Ends of jobs by failures, and workers that may fail for good without such an end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.failure_policy import FailureAction
from crds.job_status import FailureBudget, JobFailure
from reconcilers.failure import budgets
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.facts import failure_of_pod
from reconcilers.failure.incidents import Incident, in_one_line
from reconcilers.observed.slots import is_extra, wanted_slots
from reconcilers.observed.workers import Workers

BY_RULE = Overdrawn("FailurePolicy", "a rule of failurePolicy fails the job")


@dataclass(frozen=True)
class Ending:
    """End of a job that fails."""

    reason: str
    message: str
    failure: JobFailure | None


def endings_of(
    job: ElasticJob,
    workers: Workers,
    spare: Mapping[str, Overdrawn],
    incident: Incident | None,
    budget: FailureBudget | None,
    failure: JobFailure | None,
) -> Iterator[Ending]:
    """Yield the reasons for which the job must end, the one that counts first.

    Args:
        spare: the workers that may fail for good, by uid.
        incident: the failure in place that is counted now.
        budget: the job's budget after it.
        failure: the job's last failure.
    """
    for worker in workers.exceptional:
        end = worker.status.last_exit
        if worker.status.phase is WorkerPhase.FAILED and end and end.action is FailureAction.FAIL_JOB:
            yield _ending_by(BY_RULE, _of(worker))
    if incident is not None and incident.action is FailureAction.FAIL_JOB:
        yield _ending_by(BY_RULE, incident.failure)
    if excess := budgets.overdrawn(budget, _allowed(job, names.WORKER), "training"):
        yield _ending_by(excess, failure)
    others = (worker for worker in workers.exceptional if worker.metadata.uid not in spare)
    for worker, excess in _spent(job, others):
        yield _ending_by(excess, _of(worker))


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


def spent_workers(job: ElasticJob, workers: Iterable[ElasticWorker]) -> dict[str, Overdrawn]:
    """Return the workers that have spent their budget, by uid."""
    return {worker.metadata.uid: excess for worker, excess in _spent(job, workers)}


def _spent(job: ElasticJob, workers: Iterable[ElasticWorker]) -> Iterator[tuple[ElasticWorker, Overdrawn]]:
    """Yield the workers whose Pods have overdrawn their budgets, with the excess."""
    for worker in workers:
        allowed = _allowed(job, worker.spec.type)
        if excess := budgets.overdrawn(worker.status.failure_budget, allowed, worker.metadata.name):
            yield worker, excess


def _allowed(job: ElasticJob, type_: str) -> int:
    spec = job.spec.replica_specs.get(type_)
    return spec.restart_count if spec is not None else 0


def _of(worker: ElasticWorker) -> JobFailure | None:
    end = worker.status.last_exit
    return failure_of_pod(worker.metadata.name, end) if end is not None else None


def _ending_by(excess: Overdrawn, failure: JobFailure | None) -> Ending:
    text = f"{excess.text}: {in_one_line(failure)}" if failure else excess.text
    return Ending(excess.reason, text, failure)
