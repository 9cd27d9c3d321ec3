"""What an ElasticWorker's status says of its Pod: a pure function of what was read.

An incarnation's end is final: once Failed or Succeeded, its status stays until the ElasticJob reconciler
raises `spec.incarnation`. So a node that comes back from the dead changes nothing.

A Pod that is replaced because a check found its node faulty has no end of its own: that it was taken off is
counted with the first look at the next incarnation, in one write.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crds.elasticworker import (
    AgentState,
    ElasticWorker,
    ElasticWorkerStatus,
    ExitClass,
    WorkerExit,
    WorkerPhase,
)
from crds.model import ConditionStatus
from reconcilers.conditions import with_condition
from reconcilers.exit_class import PodEnd, classify_pod

QUICK_EXIT_SECONDS = 60.0
ENDED = (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
MAX_MESSAGE = 2_048
MAX_REASON = 256
SCHEDULED = "Scheduled"
"""Condition of an ElasticWorker: whether its Pod has a node."""


@dataclass(frozen=True)
class Observation:
    """What the Worker reconciler read for the incarnation in `spec`."""

    pod: dict[str, Any] | None
    heartbeat_lost_seconds: float | None = None
    """Set when the agent's Lease has not been renewed for longer than allowed."""
    node_lost: str | None = None
    """Set when the Pod's node is gone or not ready: why."""
    released: bool = False
    """The job is suspended or finished, or the check is, so that a missing Pod is no failure."""


def observe(worker: ElasticWorker, seen: Observation, now: datetime) -> ElasticWorkerStatus:
    """The new status, without the agent's part."""
    status = _of_this_incarnation(worker, now)
    if status.phase in ENDED and not seen.released:
        return status
    if seen.pod is None:
        return _without_pod(worker, status, seen, now)
    return _with_pod(worker, status, seen.pod, seen, now)


def _of_this_incarnation(worker: ElasticWorker, now: datetime) -> ElasticWorkerStatus:
    status = worker.status
    if status.observed_incarnation == worker.spec.incarnation:
        return status
    afresh = ElasticWorkerStatus(
        observed_incarnation=worker.spec.incarnation,
        phase=WorkerPhase.PENDING,
        restarts=status.restarts,
        restart_count=status.restart_count,
        quick_exits=status.quick_exits,
        last_exit=status.last_exit,
    )
    if status.observed_incarnation is None or status.phase in ENDED:
        return afresh
    if status.node_name not in worker.spec.faulty_nodes:
        return afresh
    message = f"{status.pod_name} was taken off the node {status.node_name}, which a check found faulty"
    taken_off = WorkerExit(
        incarnation=status.observed_incarnation,
        exit_class=ExitClass.CHECK_FAILED,
        reason="FaultyNode",
        message=message,
        node_name=status.node_name,
        time=now,
    )
    return afresh.model_copy(update=_counted(status, taken_off) | {"quick_exits": 0})


def _counted(status: ElasticWorkerStatus, end: WorkerExit) -> dict[str, Any]:
    """The fields that remember one more end."""
    restarts = dict(status.restarts)
    restarts[end.exit_class.value] = restarts.get(end.exit_class.value, 0) + 1
    return {"restarts": restarts, "restart_count": sum(restarts.values()), "last_exit": end}


def _without_pod(
    worker: ElasticWorker, status: ElasticWorkerStatus, seen: Observation, now: datetime
) -> ElasticWorkerStatus:
    if seen.released:
        if status.phase in ENDED:
            return status
        return status.model_copy(
            update={"phase": WorkerPhase.PENDING, "pod_name": None, "pod_uid": None, "node_name": None}
        )
    if status.pod_uid is None:
        return status
    return _ended(
        worker, status, PodEnd(ExitClass.KILLED, "Deleted", message="the Pod was deleted"), None, now
    )


def _with_pod(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    pod: dict[str, Any],
    seen: Observation,
    now: datetime,
) -> ElasticWorkerStatus:
    phase = pod.get("status", {}).get("phase")
    status = status.model_copy(
        update={
            "pod_name": pod["metadata"]["name"],
            "pod_uid": pod["metadata"]["uid"],
            "node_name": pod.get("spec", {}).get("nodeName"),
        }
    )
    if phase == "Succeeded":
        return status.model_copy(update={"phase": WorkerPhase.SUCCEEDED, "message": "completed"})
    if seen.released:
        return status
    if phase == "Failed" or pod["metadata"].get("deletionTimestamp"):
        return _ended(worker, status, classify_pod(pod), pod, now)
    if seen.node_lost:
        return _ended(
            worker, status, PodEnd(ExitClass.NODE_LOST, "NodeLost", message=seen.node_lost), pod, now
        )
    if seen.heartbeat_lost_seconds is not None:
        message = f"no heartbeat from {pod['metadata']['name']} for {seen.heartbeat_lost_seconds:.0f} s"
        return _ended(worker, status, PodEnd(ExitClass.NODE_LOST, "HeartbeatLost", message=message), pod, now)
    return _alive(status, pod, running=phase == "Running", now=now)


def _alive(
    status: ElasticWorkerStatus, pod: dict[str, Any], *, running: bool, now: datetime
) -> ElasticWorkerStatus:
    scheduled = next(
        (c for c in pod.get("status", {}).get("conditions", ()) if c.get("type") == "PodScheduled"), None
    )
    conditions = status.conditions
    if scheduled is not None:
        is_true = scheduled.get("status") == "True"
        conditions = with_condition(
            conditions,
            SCHEDULED,
            ConditionStatus.TRUE if is_true else ConditionStatus.FALSE,
            "Scheduled" if is_true else scheduled.get("reason", "Unschedulable"),
            "" if is_true else scheduled.get("message", ""),
            now,
        )
    return status.model_copy(
        update={
            "phase": WorkerPhase.RUNNING if running else WorkerPhase.PENDING,
            "message": "" if running else _why_pending(pod, scheduled),
            "conditions": conditions,
        }
    )


def _why_pending(pod: dict[str, Any], scheduled: dict[str, Any] | None) -> str:
    if scheduled is not None and scheduled.get("status") != "True":
        return str(scheduled.get("message", ""))[:MAX_MESSAGE]
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            text = f"{container['name']}: {waiting['reason']}: {waiting.get('message', '')}"
            return text.rstrip(": ")[:MAX_MESSAGE]
    return ""


def _ended(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    end: PodEnd,
    pod: dict[str, Any] | None,
    now: datetime,
) -> ElasticWorkerStatus:
    failure = worker.status.agent.failure if current_report(worker) and worker.status.agent else None
    message = end.message or (failure.message if failure else "") or f"exit code {end.exit_code}"
    last_exit = WorkerExit(
        incarnation=worker.spec.incarnation,
        exit_class=end.exit_class,
        reason=end.reason[:MAX_REASON],
        exit_code=end.exit_code,
        rank=failure.rank if failure else None,
        message=(failure.message or failure.log_tail if failure else message)[:MAX_MESSAGE],
        node_name=status.node_name or "",
        time=now,
    )
    return status.model_copy(
        update={
            "phase": WorkerPhase.FAILED,
            "message": message[:MAX_MESSAGE],
            "quick_exits": (status.quick_exits or 0) + 1 if _was_quick(pod, now) else 0,
            **_counted(status, last_exit),
        }
    )


def _was_quick(pod: dict[str, Any] | None, now: datetime) -> bool:
    """Whether the Pod ended by itself, soon after its start."""
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return False
    started = pod.get("status", {}).get("startTime")
    if not started:
        return False
    lived = now - datetime.fromisoformat(started.replace("Z", "+00:00"))
    return lived.total_seconds() < QUICK_EXIT_SECONDS


def current_report(worker: ElasticWorker) -> bool:
    """Whether `status.agent` was written by the agent of this incarnation's Pod; otherwise it is stale."""
    report, status = worker.status.agent, worker.status
    return (
        report is not None
        and report.incarnation == worker.spec.incarnation
        and status.observed_incarnation == worker.spec.incarnation
        and report.pod_uid == status.pod_uid
    )


def finished(worker: ElasticWorker, round_: int) -> bool:
    """Whether this worker's part is done: its Pod ended well, or its processes of this round did."""
    if worker.status.phase is WorkerPhase.SUCCEEDED:
        return True
    report = worker.status.agent
    return (
        current_report(worker)
        and report is not None
        and report.state is AgentState.SUCCEEDED
        and report.observed_round == round_
    )
