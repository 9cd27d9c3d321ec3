"""Facts about a worker, from its status and its agent's report."""

from __future__ import annotations

from datetime import datetime

from controller.resources import Object
from crds import names
from crds.agent_report import AgentReport, AgentState
from crds.elasticworker import ElasticWorker, ElasticWorkerStatus, WorkerPhase
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.start import STARTED

REPLACED = "Replaced"
"""Reason of the end of an incarnation that was replaced while its Pod lived, for a failure in place."""
ENDED = (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
SCHEDULED = "Scheduled"
"""Condition of an ElasticWorker: whether its Pod has a node."""
AGENT_HEARD = "AgentHeard"
"""Condition of an ElasticWorker: False while its agent is silent and its node is not lost; else absent."""
HEARTBEAT_ON_TIME = "HeartbeatOnTime"
"""Condition of an ElasticWorker: False while its job may wait for it and its agent has missed a renewal; else
absent. Its transition time is the time of the last renewal."""
SIDECARS_WELL = "SidecarsWell"
"""Condition of an ElasticWorker: False once a sidecar of its Pod failed by itself; else absent."""
HARDWARE_WELL = "HardwareWell"
"""Condition of an ElasticWorker: False while its node's agents or kubelet report a fault; else absent."""
POD_INVALID, POD_FORBIDDEN = "PodInvalid", "PodForbidden"
"""Reasons of `SCHEDULED`: no Pod can be made of the template; a policy or admission forbids the Pod."""
OF_THE_TEMPLATE = (POD_INVALID, POD_FORBIDDEN)
POD_REFUSED = "PodRefused"
"""Reason of `SCHEDULED`: the API server does not take the Pod now, as when a quota is used up."""
REFUSALS = (*OF_THE_TEMPLATE, POD_REFUSED)
EARLIER_POD_STUCK = "EarlierPodStuck"
"""Reason of `SCHEDULED`: an earlier worker's Pod has the name, and should have gone by now."""


def current_report(worker: ElasticWorker, status: ElasticWorkerStatus | None = None) -> AgentReport | None:
    """Return `status.agent`, if the agent of this incarnation's Pod wrote it; None if it is stale.

    Args:
        status: the status to write, if its incarnation and Pod differ from those of the stored one.
    """
    report, status, incarnation = worker.status.agent, status or worker.status, worker.spec.incarnation
    if report is None or not report.incarnation == status.observed_incarnation == incarnation:
        return None
    return report if report.pod_uid == status.pod_uid else None


def runs_unheard(worker: ElasticWorker) -> bool:
    """Whether a training Pod runs and its agent has reported nothing, readable or not."""
    status = worker.status
    runs = status.phase is WorkerPhase.RUNNING and status.observed_incarnation == worker.spec.incarnation
    if not runs or worker.spec.type != names.WORKER or not status.history:
        return False
    is_heard = current_report(worker) is not None or bool(status.report_fault)
    return status.history[-1].running_at is not None and not is_heard


def leaving_pod(worker: ElasticWorker) -> str:
    """Return a leaving Pod of the slot whose training processes may still run; empty without one.

    The Pod of an incarnation that was replaced since the Worker reconciler last ran is one, too.
    """
    status, report = worker.status, worker.status.agent
    leaving = list(status.leaving_pods)
    if status.observed_incarnation not in (None, worker.spec.incarnation) and status.phase not in ENDED:
        leaving.append(status.pod_name or "")
    has_stopped = report is not None and report.state is AgentState.STOPPED
    if report is not None and has_stopped and report.pod_uid == status.pod_uid:
        leaving = [name for name in leaving if name != status.pod_name]
    return next(iter(leaving), "")


def silent_since(worker: ElasticWorker) -> datetime | None:
    """Return when its agent's silence became too long; None if it is heard."""
    condition = condition_of(worker.status.conditions, AGENT_HEARD)
    return None if condition is None else condition.last_transition_time


def stuck_by(worker: ElasticWorker) -> Condition | None:
    """Return the condition that says why its Pod has no node or is refused; None without one."""
    if worker.status.phase is not WorkerPhase.PENDING:
        return None
    unscheduled = (c for c in worker.status.conditions if c.type == SCHEDULED)
    return next((c for c in unscheduled if c.status is ConditionStatus.FALSE), None)


def is_refused_its_pod(worker: Object) -> bool:
    """Whether a stored ElasticWorker's Pod was refused."""
    conditions = worker.get("status", {}).get("conditions") or ()
    return any(each["type"] == SCHEDULED and each.get("reason") in REFUSALS for each in conditions)


def hindered_by(worker: ElasticWorker) -> Condition | None:
    """Return the condition that says why its Pod, which has a node, does not start; None without one."""
    if worker.status.phase is not WorkerPhase.PENDING:
        return None
    return condition_of(worker.status.conditions, STARTED)


def finished(worker: ElasticWorker, round_: int) -> bool:
    """Whether this worker's part is done: its Pod ended well, or its processes of this round did."""
    report = current_report(worker)
    if worker.status.phase is WorkerPhase.SUCCEEDED:
        return report is None or report.observed_round >= round_
    return report is not None and report.state is AgentState.SUCCEEDED and report.observed_round == round_


def runs(worker: ElasticWorker | None) -> bool:
    """Whether the Pod of its present incarnation runs."""
    if worker is None or worker.status.phase is not WorkerPhase.RUNNING:
        return False
    return worker.status.observed_incarnation == worker.spec.incarnation
