"""Objects of a job in virtual time: the content of an API server, and its changes by Pods and agents.

This module only builds and copies models; the controller's code makes the decisions.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from crds.agent_report import PROTOCOL, AgentFailure, AgentReport, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import group_name
from crds.names import API_VERSION
from crds.nodecheck import NodeCheck
from reconcilers.observed.silence import Silence, SilenceVerdict
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.worker_status import Observation, observe

JOB = "simulated"
NAMESPACE = "default"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Second 0 of every simulation."""
_TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "none", "command": ["torchrun", "train.py"]}]}}

Wire = dict[str, Any]


def at(seconds: float) -> datetime:
    """Return the wall clock at a second of the simulation."""
    return EPOCH + timedelta(seconds=seconds)


def new_job(worker: Wire, spec: Wire, *, is_group: bool = False) -> ElasticJob:
    """Return a job with these fields of its spec, and of `replicaSpecs.worker` besides the template."""
    owner = {"apiVersion": API_VERSION, "kind": "ElasticJob", "name": JOB, "uid": JOB, "controller": True}
    return ElasticJob.model_validate(
        {
            "metadata": {
                "name": group_name(JOB, 0) if is_group else JOB,
                "namespace": NAMESPACE,
                "uid": JOB,
                "resourceVersion": "1",
                "generation": 1,
                "creationTimestamp": EPOCH,
                "ownerReferences": [owner] if is_group else [],
            },
            "spec": {"replicaSpecs": {"worker": {"template": _TEMPLATE} | worker}} | spec,
            "status": {},
        }
    )


def patched(target: Wire, patch: Wire) -> Wire:
    """Return the target after a JSON merge patch (RFC 7396)."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = patched(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


def created(body: Wire, now: datetime) -> ElasticWorker:
    """Return the ElasticWorker as the API server stores it."""
    metadata = body["metadata"] | {"uid": body["metadata"]["name"], "resourceVersion": "1"}
    return ElasticWorker.model_validate(body | {"metadata": metadata | {"creationTimestamp": now}})


def with_pod(job: ElasticJob, worker: ElasticWorker, node: str, now: datetime) -> ElasticWorker:
    """Return the worker with a Pod running on that node, with the Worker reconciler's own status."""
    return observed(job, worker, _pod(worker, node), now)


def observed(
    job: ElasticJob, worker: ElasticWorker, pod: Wire, now: datetime, silence: Silence | None = None
) -> ElasticWorker:
    """Return the worker with the Worker reconciler's next status, and its agent's unchanged report."""
    status = observe(worker, Observation(pod, JobAssignment(worker, {}, job), silence=silence), now)
    return worker.model_copy(update={"status": status.model_copy(update={"agent": worker.status.agent})})


def waiting(job: ElasticJob, worker: ElasticWorker, now: datetime, unschedulable: bool) -> ElasticWorker:
    """Return the worker with a Pod that does not run yet; `unschedulable`: because no node is free."""
    pod = _pod(worker, None)
    condition = {"type": "PodScheduled", "status": "False" if unschedulable else "True"}
    if unschedulable:
        condition |= {"reason": "Unschedulable", "message": "no node is free"}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    return observed(job, worker, pod, now)


def silent(job: ElasticJob, worker: ElasticWorker, seconds: float, now: datetime) -> ElasticWorker:
    """Return the worker after `seconds` without a Lease renewal of its agent and node."""
    silence = Silence(
        seconds,
        SilenceVerdict.NODE_LOST,
        f"the Lease of node {worker.status.node_name} has not been renewed either",
    )
    return observed(job, worker, _pod(worker, worker.status.node_name), now, silence)


def deleted(job: ElasticJob, worker: ElasticWorker, now: datetime, *, preempted: bool) -> ElasticWorker:
    """Return the worker with a Pod that is being deleted; `preempted`: with time to leave in good order."""
    pod = _pod(worker, worker.status.node_name)
    pod["metadata"]["deletionTimestamp"] = now.isoformat()
    pod["metadata"]["deletionGracePeriodSeconds"] = 30 if preempted else 0
    if preempted:
        pod["status"]["conditions"].append(
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        )
    return observed(job, worker, pod, now)


def _pod(worker: ElasticWorker, node: str | None) -> Wire:
    name = f"{worker.metadata.name}-{worker.spec.incarnation}"
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def ready(worker: ElasticWorker, now: datetime) -> ElasticWorker:
    """Return the worker with an agent that waits for a world."""
    return with_report(
        worker,
        AgentReport(
            protocol=PROTOCOL,
            incarnation=worker.spec.incarnation,
            pod_uid=worker.status.pod_uid or "",
            address=f"10.0.0.{worker.spec.index % 250}",
            store_port=20_000,
            local_world_size=1,
            state=AgentState.READY,
            since=now,
        ),
    )


def with_report(worker: ElasticWorker, report: AgentReport) -> ElasticWorker:
    return worker.model_copy(update={"status": worker.status.model_copy(update={"agent": report})})


def reporting(worker: ElasticWorker, **update: Any) -> ElasticWorker:
    """Return the worker with these fields of its agent's report changed; unchanged if it has none."""
    report = worker.status.agent
    return worker if report is None else with_report(worker, replace(report, **update))


def failed(worker: ElasticWorker, round_: int, now: datetime, **failure: Any) -> ElasticWorker:
    """Return the worker with an agent that reports a failure in this round."""
    report = worker.status.agent
    before = report.failure if report is not None else None
    reported = AgentFailure(
        sequence=1 + (before.sequence if before is not None else 0),
        round=round_,
        time=failure.pop("time", now),
        **failure,
    )
    return reporting(worker, state=AgentState.FAILED, observed_round=round_, failure=reported, since=now)


def check_of(body: Wire, begun: datetime, **status: Any) -> NodeCheck:
    """Return the controller's NodeCheck with these fields of its status."""
    metadata = body["metadata"] | {"uid": body["metadata"]["name"], "creationTimestamp": begun}
    return NodeCheck.model_validate(body | {"metadata": metadata, "status": status})


def alike(worker: ElasticWorker, index: int) -> ElasticWorker:
    """Return another slot, in its first incarnation, in the same state."""
    name = f"{JOB}-{worker.spec.type}-{index}"
    metadata = worker.metadata.model_copy(update={"name": name, "uid": name})
    lists = ("excluded_nodes", "lost_nodes", "faulty_nodes", "reported_nodes")
    nowhere: dict[str, Any] = {key: [] for key in lists}
    first = {"index": index, "incarnation": 1, "replaced_for": None} | nowhere
    spec = worker.spec.model_copy(update=first)
    pod = f"{name}-1"
    status = worker.status.model_copy(update={"observed_incarnation": 1, "pod_name": pod, "pod_uid": pod})
    other = ElasticWorker(metadata=metadata, spec=spec, status=status)
    return reporting(other, incarnation=1, pod_uid=pod, rounds=[], progress=None)
