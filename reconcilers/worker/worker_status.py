"""The status of an ElasticWorker, as a pure function of what was observed of its Pod.

The end of an incarnation is final until the ElasticJob reconciler raises `spec.incarnation`, and is counted
once: `status.lastExit` names the incarnation and Pod whose end was counted last. So a late write of an
ex-leader counts nothing. A Pod that is replaced because its node is faulty has no end of its own: its end is
counted when the next incarnation is first observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crds.elasticworker import MAX_MESSAGE, ElasticWorker, ElasticWorkerStatus, WorkerPhase
from crds.failure_policy import FailureAction
from crds.model import Condition, ConditionStatus
from crds.texts import shortened
from reconcilers.failure import budgets
from reconcilers.failure.meaning import meaning_of
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.observed.containers import exit_words
from reconcilers.observed.device_taints import DeviceTaint
from reconcilers.observed.domains import domain_of
from reconcilers.observed.ending import PodJudgement, Situation, failed_sidecars, judge
from reconcilers.observed.exit_class import BY_GARBAGE_COLLECTOR, PodEnd, disruption_of
from reconcilers.observed.hardware import reported_fault
from reconcilers.observed.silence import Silence, SilenceVerdict
from reconcilers.observed.start import NOTHING, RUNS_BEFORE, STARTED, Hindrance, hindrance_of
from reconcilers.observed.worker_state import (
    AGENT_HEARD,
    ENDED,
    HARDWARE_WELL,
    HEARTBEAT_ON_TIME,
    REPLACED,
    SCHEDULED,
    SIDECARS_WELL,
    current_report,
)
from reconcilers.worker.assignment import Assignment
from reconcilers.worker.ends import (
    end_counts,
    failed_status,
    faulty_node_exit,
    is_counted,
    replacement_exit,
    with_lives,
)
from reconcilers.worker.leavers import NOBODY_LEAVES, Leavers, still_leaving

REPORT_READABLE = "ReportReadable"
"""Condition of an ElasticWorker: present, and False, while its agent's report cannot be read."""


MAX_FAULT = 400


WITHOUT_POD = "ended with its job, without a Pod"
COMPLETED = "completed"
FINAL_ACTIONS = (FailureAction.FAIL_JOB, FailureAction.REPLACE)


@dataclass(frozen=True)
class Observation:
    """All that the Worker reconciler has read about the incarnation in `spec`."""

    pod: dict[str, Any] | None
    assignment: Assignment
    leavers: Leavers = NOBODY_LEAVES
    """The slot's Pods whose training processes may run."""
    gone_pod_uid: str | None = None
    """Uid of a Pod that is gone, and that the status did not name yet."""
    silence: Silence | None = None
    """The silence of the Pod's agent; None if it was never heard."""
    node_lost: str | None = None
    """Why the Pod's node counts as lost: it is gone or not ready."""
    node: Mapping[str, Any] | None = None
    """Node of the Pod, also after the Pod's end."""
    device_taint: DeviceTaint | None = None
    """NoExecute taint of a device that the Pod uses."""
    warning: Hindrance | None = None
    """Reason from the Pod's Events why it starts late."""
    hold: Hindrance | None = None
    """Feature's reason why the Pod is not scheduled, for when the scheduler gives none."""


def observe(worker: ElasticWorker, seen: Observation, now: datetime) -> ElasticWorkerStatus:
    """Compute the new status, without the agent's part."""
    status = _of_the_pod(worker, seen, now)
    fault = worker.status.report_fault
    ignored = "the report is ignored until the agent writes another"
    message = f"status.{shortened(fault, MAX_FAULT)}; {ignored}" if fault else ""
    conditions = _shown(status.conditions, REPORT_READABLE, "ReportUnreadable", message, now)
    silence = seen.silence if status.phase not in ENDED else None
    # A new leader keeps the condition as it is until it has listened for long enough.
    if silence is None or silence.verdict is not SilenceVerdict.UNDECIDED:
        about = ""
        if silence is not None and silence.verdict is SilenceVerdict.SILENT:
            about = f"no heartbeat from {status.pod_name or ''}, and {silence.node}; the Pod is left alone"
        conditions = _shown(conditions, AGENT_HEARD, "NoHeartbeat", about, now)
    conditions = _with_late_heartbeat(conditions, silence, seen, now)
    if status.phase is not WorkerPhase.FAILED and seen.pod is not None:
        conditions = _shown(conditions, SIDECARS_WELL, "SidecarFailed", failed_sidecars(seen.pod), now)
    if status.phase not in ENDED and seen.pod is not None and worker.spec.job_name is not None:
        conditions = _shown(
            conditions, HARDWARE_WELL, *reported_fault(seen.pod, seen.node, seen.device_taint), now
        )
    leaving = still_leaving(worker, status, seen.leavers)
    if (conditions, leaving) == (status.conditions, status.leaving_pods):
        return status
    return status.model_copy(update={"conditions": conditions, "leaving_pods": leaving})


def _with_late_heartbeat(
    conditions: list[Condition], silence: Silence | None, seen: Observation, now: datetime
) -> list[Condition]:
    """The conditions, with the time since which an agent that its job waits for is silent."""
    is_late = silence is not None and seen.assignment.awaited and silence.is_late
    last_heard = now - timedelta(seconds=silence.seconds if silence is not None else 0.0)
    lost_at = f"{seen.assignment.heartbeat_timeout_seconds:.0f} s"
    message = f"no heartbeat; the worker is lost at {lost_at}" if is_late else ""
    return _shown(conditions, HEARTBEAT_ON_TIME, "Late", message, last_heard)


def _shown(
    conditions: list[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """The conditions with one that is False if there is a message, and absent otherwise."""
    if not message:
        return [condition for condition in conditions if condition.type != type_]
    return with_condition(conditions, type_, ConditionStatus.FALSE, reason, message, now)


def _of_the_pod(worker: ElasticWorker, seen: Observation, now: datetime) -> ElasticWorkerStatus:
    status = _of_this_incarnation(worker, now)
    if status.phase in ENDED and not seen.assignment.released:
        return status
    if status.last_exit and is_counted(status, worker.spec.incarnation) and not seen.assignment.released:
        end = status.last_exit  # a late write has since reported the Pod as alive
        known = {"message": end.message[:MAX_MESSAGE], "pod_uid": end.pod_uid or None}
        status = status.model_copy(update=known | {"phase": WorkerPhase.FAILED})
    elif seen.pod is None:
        status = _without_pod(worker, status, seen, now)
    else:
        status = _with_pod(worker, status, seen.pod, seen, now)
    return with_lives(worker, status, now)


def is_on_its_way(worker: ElasticWorker, status: ElasticWorkerStatus) -> bool:
    """Whether the new status says only that a worker's first Pod exists and will soon run.

    Its write can wait for the Pod's next event, so that one write covers both.
    """
    return (
        worker.status.observed_incarnation is None
        and status.phase is WorkerPhase.PENDING
        and status.pod_uid is not None
        and not status.message
        and not status.leaving_pods
        and all(condition.status is ConditionStatus.TRUE for condition in status.conditions)
    )


def is_over(worker: ElasticWorker) -> bool:
    """Whether the incarnation has ended, so that it gets no other Pod."""
    status = worker.status
    observed = status.observed_incarnation == worker.spec.incarnation
    return (observed and status.phase in ENDED) or is_counted(status, worker.spec.incarnation)


def _of_this_incarnation(worker: ElasticWorker, now: datetime) -> ElasticWorkerStatus:
    status = worker.status
    if status.observed_incarnation == worker.spec.incarnation:
        return status
    afresh = ElasticWorkerStatus(
        observed_incarnation=worker.spec.incarnation,
        phase=WorkerPhase.PENDING,
        restarts=status.restarts,
        restart_count=status.restart_count,
        failures=status.failures,
        failure_budget=status.failure_budget,
        quick_exits=status.quick_exits,
        last_exit=status.last_exit,
        domain=status.domain,
    )
    if status.observed_incarnation is None or status.phase in ENDED:
        return afresh
    end = faulty_node_exit(worker, now) or replacement_exit(worker, now)
    if end is None or is_counted(status, end.incarnation):
        return afresh
    is_failure = end.reason != REPLACED  # else it was counted when it failed in place
    return afresh.model_copy(update=end_counts(status, end, is_failure=is_failure) | {"quick_exits": 0})


def _without_pod(
    worker: ElasticWorker, status: ElasticWorkerStatus, seen: Observation, now: datetime
) -> ElasticWorkerStatus:
    if seen.assignment.released:
        if status.phase in ENDED:
            return status
        without_pod = {"pod_name": None, "pod_uid": None, "node_name": None, "node_uid": None}
        without_pod |= {"topology": None}
        if seen.assignment.ended is not None:
            return _with_its_owner(status, seen.assignment.ended, WITHOUT_POD).model_copy(update=without_pod)
        waits_for_nothing = {"message": "", "conditions": []}
        return status.model_copy(update={"phase": WorkerPhase.PENDING} | without_pod | waits_for_nothing)
    gone = status.pod_uid or seen.gone_pod_uid
    if gone is None:
        return status
    status = status.model_copy(update={"pod_uid": gone})
    return _as_judged(worker, status, None, seen, now)


def _with_pod(
    worker: ElasticWorker, status: ElasticWorkerStatus, pod: dict[str, Any], seen: Observation, now: datetime
) -> ElasticWorkerStatus:
    has_run = status.phase is WorkerPhase.RUNNING and status.pod_uid == pod["metadata"]["uid"]
    named = status.model_copy(
        update={
            "pod_name": pod["metadata"]["name"],
            "pod_uid": pod["metadata"]["uid"],
            "node_name": pod.get("spec", {}).get("nodeName"),
            "node_uid": _node_uid(worker, pod, seen),
            "topology": _topology(seen),
            "domain": _domain(worker, pod, seen),
        }
    )
    if not seen.assignment.released:
        return _as_judged(worker, named, pod, seen, now, has_run=has_run)
    judged = judge(_situation(worker, named, pod, seen))
    if status.phase in ENDED:
        return named
    if judged.phase is WorkerPhase.SUCCEEDED:
        return _completed(named, pod)
    end = judged.end if judged.phase is WorkerPhase.FAILED else None
    if end is None or seen.assignment.ended is None or "deletionTimestamp" in pod["metadata"]:
        return named
    return _in_an_ended_job(named, end, seen.assignment.ended)


def _as_judged(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    pod: dict[str, Any] | None,
    seen: Observation,
    now: datetime,
    *,
    has_run: bool = False,
) -> ElasticWorkerStatus:
    """The status of a worker whose Pod its job needs.

    Args:
        has_run: whether the Pod is running by the stored status.
    """
    judged = judge(_situation(worker, status, pod, seen))
    report = current_report(worker, status)
    if judged.phase is WorkerPhase.SUCCEEDED:
        return _completed(status, pod)
    if judged.phase is WorkerPhase.FAILED and judged.end is not None:
        return failed_status(worker, status, judged.end, pod, report, seen.assignment, now)
    assert pod is not None
    if has_run and judged.phase is WorkerPhase.PENDING and not judged.failures:
        return worker.status  # the cache is stale: a Pod that has run is not pending again
    running = judged.phase is WorkerPhase.RUNNING
    status = _alive(status, pod, seen.warning, seen.hold, running=running, now=now)
    return _with_failures(worker, status, judged, pod, seen, now)


def _completed(status: ElasticWorkerStatus, pod: dict[str, Any] | None) -> ElasticWorkerStatus:
    """The status of a worker that has succeeded, regardless of its sidecars."""
    sidecars = failed_sidecars(pod)
    message = f"{COMPLETED}; {sidecars}" if sidecars else COMPLETED
    update = {"phase": WorkerPhase.SUCCEEDED, "message": shortened(message, MAX_MESSAGE)}
    return status.model_copy(update=update)


def _situation(
    worker: ElasticWorker, status: ElasticWorkerStatus, pod: dict[str, Any] | None, seen: Observation
) -> Situation:
    """The facts by which the Pod is judged. The agents of a check report nothing about training."""
    trains = worker.spec.job_name is not None
    return Situation(
        pod=pod,
        trains=trains,
        report=current_report(worker, status) if trains else None,
        is_unreadable=trains and bool(worker.status.report_fault),
        node=seen.node,
        deleted_node=(status.node_name or "") if _is_node_deleted(status, pod, seen) else "",
        node_lost=seen.node_lost,
        silence=None if seen.assignment.released else seen.silence,
    )


def _is_node_deleted(status: ElasticWorkerStatus, pod: dict[str, Any] | None, seen: Observation) -> bool:
    """Whether the Pod's Node was deleted. A Node never seen may be hidden from the controller."""
    if status.node_uid is not None:
        return seen.node is None or bool(seen.node["metadata"].get("uid") != status.node_uid)
    disruption = disruption_of(pod or {}) or {}
    return seen.node is None and disruption.get("reason") == BY_GARBAGE_COLLECTOR


def _with_failures(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    judged: PodJudgement,
    pod: dict[str, Any],
    seen: Observation,
    now: datetime,
) -> ElasticWorkerStatus:
    """The status with the container failures of a running Pod that are not counted yet.

    They end the incarnation if another start in the same Pod is useless or exceeds the budget.
    """
    last = worker.status.last_exit
    is_of_this_pod = last is not None and last.pod_uid == status.pod_uid
    known = (last.failures_in_pod or 0) if last is not None and is_of_this_pod else 0
    if judged.end is None or judged.failures <= known:
        return status
    report, new = current_report(worker, status), judged.failures - known
    after = failed_status(worker, status, judged.end, pod, report, seen.assignment, now, times=new)
    end = after.last_exit
    assert end is not None
    spent = budgets.overdrawn(after.failure_budget, seen.assignment.restart_count, worker.metadata.name)
    if spent or meaning_of(end.exit_class).needs_new_pod or end.action in FINAL_ACTIONS:
        return after
    return after.model_copy(
        update={
            "phase": status.phase,
            "message": status.message,
            "quick_exits": status.quick_exits,
            "last_exit": end.model_copy(update={"failures_in_pod": judged.failures, "in_good_order": None}),
        }
    )


def _node_uid(worker: ElasticWorker, pod: dict[str, Any], seen: Observation) -> str | None:
    """The uid of the Pod's Node. A later Node of the same name may be another machine."""
    if worker.status.pod_uid == pod["metadata"]["uid"] and worker.status.node_uid is not None:
        return worker.status.node_uid
    is_placed = bool(pod.get("spec", {}).get("nodeName"))
    return (seen.node or {}).get("metadata", {}).get("uid") if is_placed else None


def _topology(seen: Observation) -> list[str] | None:
    """Value of `status.topology`; None without topology keys or without a node in the cache."""
    if seen.node is None or not seen.assignment.topology_keys:
        return None
    return [domain_of(seen.node, key) for key in seen.assignment.topology_keys]


def _domain(worker: ElasticWorker, pod: dict[str, Any], seen: Observation) -> str | None:
    """Value of `status.domain`; the stored one if the node is gone."""
    if not seen.assignment.domain_policy:
        return None
    if seen.node is None or not pod.get("spec", {}).get("nodeName"):
        return worker.status.domain
    return domain_of(seen.node, seen.assignment.domain_policy) or None


def _in_an_ended_job(
    status: ElasticWorkerStatus, end: PodEnd, owner_ended: WorkerPhase
) -> ElasticWorkerStatus:
    """The status of a worker whose Pod ends after its job: its phase is final, and nothing is counted."""
    if end.exit_code == 0:  # the process exited because its job had ended
        return _with_its_owner(status, owner_ended, "ended with its job")
    why = end.message or exit_words(end.exit_code)
    return _with_its_owner(status, WorkerPhase.FAILED, f"ended with its job: {why}")


def _with_its_owner(status: ElasticWorkerStatus, phase: WorkerPhase, message: str) -> ElasticWorkerStatus:
    """The status of a worker that ends with its owner; one that had ended before keeps its own."""
    if status.phase in ENDED:
        return status
    return status.model_copy(update={"phase": phase, "message": message[:MAX_MESSAGE], "conditions": []})


def _alive(
    status: ElasticWorkerStatus,
    pod: dict[str, Any],
    warning: Hindrance | None,
    hold: Hindrance | None,
    *,
    running: bool,
    now: datetime,
) -> ElasticWorkerStatus:
    scheduled = next(
        (c for c in pod.get("status", {}).get("conditions", ()) if c.get("type") == "PodScheduled"), None
    )
    if scheduled is None and hold is not None:
        scheduled = {"status": "False", "reason": hold.reason, "message": hold.message}
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
    """The hindrance of an earlier Event, which holds until Events are read again or the Pod starts."""
    return None if known is None or known.reason == RUNS_BEFORE else Hindrance(known.reason, known.message)


def _why_pending(scheduled: dict[str, Any] | None, hindrance: Hindrance | None) -> str:
    if scheduled is not None and scheduled.get("status") != "True":
        return str(scheduled.get("message", ""))[:MAX_MESSAGE]
    return hindrance.message[:MAX_MESSAGE] if hindrance is not None else ""
