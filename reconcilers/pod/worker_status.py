"""What an ElasticWorker's status says of its Pod: a pure function of what was read.

An incarnation's end is final: once Failed or Succeeded, its status stays until the ElasticJob reconciler
raises `spec.incarnation`. So a node that comes back from the dead changes nothing.

An end is counted once, whatever was observed or written in between: `status.lastExit` names the incarnation
and the Pod whose end was counted last, and incarnations end in their order. So a late write of an ex-leader
(`phase: Running`) is set right by the next look, and counts nothing.

A Pod that is replaced because a check found its node faulty has no end of its own: that it was taken off is
counted with the first look at the next incarnation, in one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.wording import last_line, shortened
from crds.elasticjob import FailureRule
from crds.elasticworker import (
    AgentFailure,
    AgentReport,
    AgentState,
    ElasticWorker,
    ElasticWorkerStatus,
    ExitClass,
    WorkerExit,
    WorkerPhase,
)
from crds.model import Condition, ConditionStatus
from reconcilers.account.worker_history import with_lives
from reconcilers.conditions import condition_of, with_condition
from reconcilers.failure import budgets
from reconcilers.failure.exit_class import (
    FREE,
    PodEnd,
    classify_pod,
    classify_process,
    deleted,
    failed_containers,
    heartbeat_lost,
    node_lost,
)
from reconcilers.failure.ground import highest_told
from reconcilers.failure.rules import action_for, of_pod
from reconcilers.pod.start import NOTHING, STARTED, Hindrance, hindrance_of

QUICK_EXIT_SECONDS = 60.0
ENDED = (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
MAX_MESSAGE = 2_048
MAX_REASON = 256
SCHEDULED = "Scheduled"
"""Condition of an ElasticWorker: whether its Pod has a node."""
WITHOUT_POD = "ended with its job, without a Pod"
REPLACED = "Replaced"
"""Reason of the end of an incarnation whose Pod lived when it was replaced, for a failure in place."""


@dataclass(frozen=True)
class Observation:
    """What the Worker reconciler read for the incarnation in `spec`."""

    pod: dict[str, Any] | None
    gone_pod_uid: str | None = None
    """Of a Pod that was there, is gone, and is not in the status yet."""
    heartbeat_lost_seconds: float | None = None
    """Set when the agent's Lease has not been renewed for longer than allowed."""
    node_lost: str | None = None
    """Set when the Pod's node is gone or not ready: why."""
    node: Mapping[str, Any] | None = None
    """Where the Pod is, or was."""
    topology_keys: Sequence[str] = ()
    """Labels of nodes that say what they share."""
    warning: Hindrance | None = None
    """Of its Events, if it is late to start."""
    rules: Sequence[FailureRule] = ()
    """The job's failurePolicy."""
    released: bool = False
    """The job is suspended or finished, or the check is, so that a missing Pod is no failure."""
    owner_ended: WorkerPhase | None = None
    """How the job has ended, if it has: with it ends who has no Pod."""


def observe(worker: ElasticWorker, seen: Observation, now: datetime) -> ElasticWorkerStatus:
    """The new status, without the agent's part."""
    status = _of_this_incarnation(worker, now)
    if status.phase in ENDED and not seen.released:
        return status
    if status.last_exit and _is_counted(status, worker.spec.incarnation) and not seen.released:
        end = status.last_exit  # of which a late write has called the Pod alive
        known = {"message": end.message[:MAX_MESSAGE], "pod_uid": end.pod_uid or None}
        status = status.model_copy(update=known | {"phase": WorkerPhase.FAILED})
    elif seen.pod is None:
        status = _without_pod(worker, status, seen, now)
    else:
        status = _with_pod(worker, status, seen.pod, seen, now)
    if status.phase is not WorkerPhase.RUNNING:
        status = status.model_copy(update={"standby": None})
    return with_lives(worker, status, now)


def is_on_its_way(worker: ElasticWorker, status: ElasticWorkerStatus) -> bool:
    """Whether the new status says no more than that a worker's first Pod is there and will soon run.

    Then nobody misses it for a moment, and with the Pod's next event one write says all of it.
    """
    return (
        worker.status.observed_incarnation is None
        and status.phase is WorkerPhase.PENDING
        and status.pod_uid is not None
        and not status.message
        and all(condition.status is ConditionStatus.TRUE for condition in status.conditions)
    )


def is_over(worker: ElasticWorker) -> bool:
    """Whether the incarnation has ended, so that its Pod is not made again."""
    status = worker.status
    observed = status.observed_incarnation == worker.spec.incarnation
    return (observed and status.phase in ENDED) or _is_counted(status, worker.spec.incarnation)


def _of_this_incarnation(worker: ElasticWorker, now: datetime) -> ElasticWorkerStatus:
    status = worker.status
    if status.observed_incarnation == worker.spec.incarnation:
        return status
    afresh = ElasticWorkerStatus(
        observed_incarnation=worker.spec.incarnation,
        phase=WorkerPhase.PENDING,
        restarts=status.restarts,
        restart_count=status.restart_count,
        failure_budget=status.failure_budget,
        quick_exits=status.quick_exits,
        last_exit=status.last_exit,
    )
    if status.observed_incarnation is None or status.phase in ENDED:
        return afresh
    end = _taken_off(worker, now) or _replaced(worker, now)
    if end is None or _is_counted(status, end.incarnation):
        return afresh
    return afresh.model_copy(update=_counted(status, end) | {"quick_exits": 0})


def _taken_off(worker: ElasticWorker, now: datetime) -> WorkerExit | None:
    status = worker.status
    if status.node_name not in worker.spec.faulty_nodes:
        return None
    message = f"{status.pod_name} was taken off the node {status.node_name}, which a check found faulty"
    return WorkerExit(
        incarnation=status.observed_incarnation or 1,
        exit_class=ExitClass.CHECK_FAILED,
        reason="FaultyNode",
        message=message,
        node_name=status.node_name or "",
        pod_uid=status.pod_uid or "",
        time=now,
    )


def _replaced(worker: ElasticWorker, now: datetime) -> WorkerExit | None:
    """The end of an incarnation of which the last word was that its processes had failed.

    Its Pod is deleted before this is written, so that its agent may have reported meanwhile that it stops.
    A hardware error counts only if the Pod was replaced for it, and then also if its agent told of it when it
    had joined the next round. Else the job is resumed, say, and a check of the node is to judge.
    """
    status, report = worker.status, worker.status.agent
    if report is None or report.failure is None:
        return None
    if (report.incarnation, report.pod_uid) != (status.observed_incarnation, status.pod_uid):
        return None
    exit_class = classify_process(report.failure)
    if exit_class is ExitClass.HARDWARE_ERROR:
        counts = worker.spec.replaced_for is exit_class
    else:
        has_ended = report.state in (AgentState.FAILED, AgentState.STOPPED)
        counts = has_ended and report.failure.round >= report.observed_round
    if not counts:
        return None
    return WorkerExit(
        incarnation=report.incarnation,
        exit_class=exit_class,
        reason=REPLACED,
        exit_code=report.failure.exit_code,
        **_words(report.failure),
        node_name=status.node_name or "",
        pod_uid=report.pod_uid,
        time=now,
    )


def _is_counted(status: ElasticWorkerStatus, incarnation: int) -> bool:
    """Whether the end of this incarnation is counted: they end in their order, and each once."""
    return status.last_exit is not None and status.last_exit.incarnation >= incarnation


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
        without_pod = {"pod_name": None, "pod_uid": None, "node_name": None, "topology": None}
        if seen.owner_ended is not None:
            return _with_its_owner(status, seen.owner_ended, WITHOUT_POD).model_copy(update=without_pod)
        waits_for_nothing = {"message": "", "conditions": []}
        return status.model_copy(update={"phase": WorkerPhase.PENDING} | without_pod | waits_for_nothing)
    gone = status.pod_uid or seen.gone_pod_uid
    if gone is None:
        return status
    status = status.model_copy(update={"pod_uid": gone})
    return _ended(worker, status, deleted(seen.node), None, seen, now)


def _with_pod(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    pod: dict[str, Any],
    seen: Observation,
    now: datetime,
) -> ElasticWorkerStatus:
    phase = pod.get("status", {}).get("phase")
    has_run = status.phase is WorkerPhase.RUNNING and status.pod_uid == pod["metadata"]["uid"]
    if has_run and phase == "Pending":
        return status  # what is seen is old: a Pod that has run is pending no more
    status = status.model_copy(
        update={
            "pod_name": pod["metadata"]["name"],
            "pod_uid": pod["metadata"]["uid"],
            "node_name": pod.get("spec", {}).get("nodeName"),
            "topology": _topology(seen),
        }
    )
    if phase == "Succeeded":
        return status.model_copy(update={"phase": WorkerPhase.SUCCEEDED, "message": "completed"})
    if seen.owner_ended is not None and "deletionTimestamp" not in pod["metadata"]:
        return _in_an_ended_job(status, pod, seen)
    if seen.released:
        return status
    if phase == "Failed" or pod["metadata"].get("deletionTimestamp"):
        return _ended(worker, status, classify_pod(pod, seen.node), pod, seen, now)
    if seen.node_lost:
        return _ended(worker, status, node_lost(seen.node_lost), pod, seen, now)
    if seen.heartbeat_lost_seconds is not None:
        end = heartbeat_lost(pod["metadata"]["name"], seen.heartbeat_lost_seconds)
        return _ended(worker, status, end, pod, seen, now)
    return _alive(status, pod, seen.warning, running=phase == "Running", now=now)


def _topology(seen: Observation) -> list[str] | None:
    """As the status has it; None where nothing is asked for, or the node is not known."""
    if seen.node is None or not seen.topology_keys:
        return None
    labels = seen.node["metadata"].get("labels") or {}
    return [labels.get(key, "") for key in seen.topology_keys]


def _in_an_ended_job(
    status: ElasticWorkerStatus, pod: dict[str, Any], seen: Observation
) -> ElasticWorkerStatus:
    """Its phase follows its Pod to the end; but that counts nothing any more."""
    if pod.get("status", {}).get("phase") == "Failed":
        end = classify_pod(pod, seen.node)
        why = end.message or f"exit code {end.exit_code}"
        return _with_its_owner(status, WorkerPhase.FAILED, f"ended with its job: {why}")
    if seen.node_lost:
        return _with_its_owner(status, WorkerPhase.FAILED, seen.node_lost)
    return status


def _with_its_owner(status: ElasticWorkerStatus, phase: WorkerPhase, message: str) -> ElasticWorkerStatus:
    """Ended without an end of its own; who had ended before says so as before. Nothing is waited for."""
    if status.phase in ENDED:
        return status
    return status.model_copy(update={"phase": phase, "message": message[:MAX_MESSAGE], "conditions": []})


def _alive(
    status: ElasticWorkerStatus,
    pod: dict[str, Any],
    warning: Hindrance | None,
    *,
    running: bool,
    now: datetime,
) -> ElasticWorkerStatus:
    scheduled = next(
        (c for c in pod.get("status", {}).get("conditions", ()) if c.get("type") == "PodScheduled"), None
    )
    conditions = status.conditions
    known = condition_of(conditions, STARTED)
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
    hindrance = None if running else hindrance_of(pod, known) or warning or _as_before(known)
    if hindrance is not None and hindrance != NOTHING:
        conditions = with_condition(conditions, STARTED, ConditionStatus.FALSE, *hindrance, now)
    else:
        conditions = [condition for condition in conditions if condition is not known]
    return status.model_copy(
        update={
            "phase": WorkerPhase.RUNNING if running else WorkerPhase.PENDING,
            "message": "" if running else _why_pending(scheduled, hindrance),
            "conditions": conditions,
        }
    )


def _as_before(known: Condition | None) -> Hindrance | None:
    """What an Event said holds until they are read again, or the Pod starts."""
    return None if known is None else Hindrance(known.reason, known.message)


def _why_pending(scheduled: dict[str, Any] | None, hindrance: Hindrance | None) -> str:
    if scheduled is not None and scheduled.get("status") != "True":
        return str(scheduled.get("message", ""))[:MAX_MESSAGE]
    return hindrance.message[:MAX_MESSAGE] if hindrance is not None else ""


def _ended(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    end: PodEnd,
    pod: dict[str, Any] | None,
    seen: Observation,
    now: datetime,
) -> ElasticWorkerStatus:
    failure = None if end.exit_class in FREE and end.message else _last_word(worker)
    words = _words(failure, end.message, end.log)
    text = words["message"] or _told_by_its_log(end)
    action = action_for(seen.rules, of_pod(pod, f"{text}\n{words['log_tail']}"))
    last_exit = WorkerExit(
        incarnation=worker.spec.incarnation,
        exit_class=end.exit_class,
        reason=end.reason[:MAX_REASON],
        exit_code=end.exit_code,
        **(words | {"message": text}),
        node_name=status.node_name or "",
        pod_uid=status.pod_uid or "",
        action=action,
        in_good_order=(end.exit_class is not ExitClass.NODE_LOST and _stops_in_good_order(pod)) or None,
        time=now,
    )
    reached = highest_told(current_report(worker))
    spent = budgets.after(
        status.failure_budget,
        budgets.Failed(end.exit_class, text, reached, action),
    )
    return status.model_copy(
        update={
            "phase": WorkerPhase.FAILED,
            "message": (end.message or text)[:MAX_MESSAGE],
            "quick_exits": (status.quick_exits or 0) + 1 if _was_quick(pod, now) else 0,
            "failure_budget": spent,
            **_counted(status, last_exit),
        }
    )


def _stops_in_good_order(pod: dict[str, Any] | None) -> bool:
    """Whether it runs, and has the time between its deletion and SIGKILL to save.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
    """
    if pod is None or not pod["metadata"].get("deletionTimestamp"):
        return False
    runs = pod.get("status", {}).get("phase") == "Running" and not failed_containers(pod)
    return runs and pod["metadata"].get("deletionGracePeriodSeconds") != 0


def _last_word(worker: ElasticWorker) -> AgentFailure | None:
    """The failure of the round that the agent acted on last; an earlier one has been told before."""
    report = current_report(worker)
    if report is None or report.failure is None:
        return None
    return report.failure if report.failure.round >= report.observed_round else None


def _told_by_its_log(end: PodEnd) -> str:
    """Of a process that left by itself, with the last line that it wrote, which mostly says why."""
    text, line = f"exit code {end.exit_code}", last_line(end.log)
    left = line and end.exit_class is ExitClass.USER_ERROR
    return shortened(f"{text}: {line}", MAX_MESSAGE) if left else text


def _words(failure: AgentFailure | None, message: str = "", log: str = "") -> dict[str, Any]:
    """What there is to say of an end: the training process's own words before the Pod's."""
    if failure is None:
        return {"rank": None, "message": message[:MAX_MESSAGE], "log_tail": log[-MAX_MESSAGE:]}
    said = (failure.message or message)[:MAX_MESSAGE]
    return {"rank": failure.rank, "message": said, "log_tail": failure.log_tail[-MAX_MESSAGE:]}


def _was_quick(pod: dict[str, Any] | None, now: datetime) -> bool:
    """Whether the Pod ended by itself, soon after its start."""
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return False
    started = pod.get("status", {}).get("startTime")
    if not started:
        return False
    lived = now - datetime.fromisoformat(started.replace("Z", "+00:00"))
    return lived.total_seconds() < QUICK_EXIT_SECONDS


def current_report(worker: ElasticWorker) -> AgentReport | None:
    """`status.agent`, if the agent of this incarnation's Pod wrote it; otherwise it is stale."""
    report, status, incarnation = worker.status.agent, worker.status, worker.spec.incarnation
    if report is None or not report.incarnation == status.observed_incarnation == incarnation:
        return None
    return report if report.pod_uid == status.pod_uid else None


def stuck_by(worker: ElasticWorker) -> Condition | None:
    """Why its Pod finds no node, or is refused; None if it is neither."""
    if worker.status.phase is not WorkerPhase.PENDING:
        return None
    unscheduled = (c for c in worker.status.conditions if c.type == SCHEDULED)
    return next((c for c in unscheduled if c.status is ConditionStatus.FALSE), None)


def hindered_by(worker: ElasticWorker) -> Condition | None:
    """Why its Pod, which has a node, does not start."""
    if worker.status.phase is not WorkerPhase.PENDING:
        return None
    return condition_of(worker.status.conditions, STARTED)


def finished(worker: ElasticWorker, round_: int) -> bool:
    """Whether this worker's part is done: its Pod ended well, or its processes of this round did."""
    if worker.status.phase is WorkerPhase.SUCCEEDED:
        return True
    report = current_report(worker)
    return report is not None and report.state is AgentState.SUCCEEDED and report.observed_round == round_
