"""From ElasticWorkers to the participants of world forming."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import AgentState, ElasticWorker, WorkerPhase
from reconcilers.rendezvous import Bounds, Participant
from reconcilers.worker_status import current_report

MAX_REASON = 200
"""Characters of a worker's message that the world's reason quotes."""


def bounds_of(job: ElasticJob) -> Bounds:
    worker, policy = job.spec.replica_specs.get(names.WORKER), job.spec.elastic_policy
    replicas = worker.replicas if worker else 0
    return Bounds(
        desired=replicas,
        minimum=(worker.min_replicas if worker else None) or replicas,
        node_unit=policy.node_unit,
        last_call_seconds=float(policy.last_call_seconds),
        shrink_after_seconds=float(policy.shrink_after_seconds),
    )


def participants_of(
    job: ElasticJob, workers: Sequence[ElasticWorker], ages: Mapping[str, float]
) -> list[Participant]:
    """The wanted training workers. `ages` gives, by uid, seconds since each began to wait for a world."""
    desired = bounds_of(job).desired
    return [
        _participant(worker, ages.get(worker.metadata.uid, 0.0))
        for worker in workers
        if worker.spec.type == names.WORKER and worker.spec.index < desired
    ]


def is_waiting(worker: ElasticWorker) -> Hashable:
    """A value that changes whenever the worker's agent begins, or ceases, to wait for a world."""
    report = worker.status.agent
    if report is None or not current_report(worker):
        return None
    return (report.pod_uid, report.state in (AgentState.READY, AgentState.FAILED))


def _participant(worker: ElasticWorker, seconds_since_joined: float) -> Participant:
    status = worker.status
    judged = status.observed_incarnation == worker.spec.incarnation
    succeeded = judged and status.phase is WorkerPhase.SUCCEEDED
    failed = judged and status.phase is WorkerPhase.FAILED
    return Participant(
        index=worker.spec.index,
        incarnation=worker.spec.incarnation,
        alive=not succeeded and not failed,
        succeeded=succeeded,
        gone_because=_first_line(status.message) if failed else "",
        report=status.agent if current_report(worker) else None,
        seconds_since_joined=seconds_since_joined,
    )


def _first_line(message: str) -> str:
    return message.partition("\n")[0][:MAX_REASON]
