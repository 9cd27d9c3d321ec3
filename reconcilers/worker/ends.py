"""The end of an incarnation in the status: `status.lastExit`, the history, the counts and the budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

from controller.wording import first_line
from crds.agent_report import AgentFailure, AgentReport
from crds.elasticworker import (
    MAX_LIFE_REASON,
    MAX_LIVES,
    MAX_MESSAGE,
    ElasticWorker,
    ElasticWorkerStatus,
    ExitClass,
    SlotLife,
    WorkerExit,
    WorkerPhase,
)
from crds.texts import shortened
from reconcilers.failure import budgets
from reconcilers.failure.facts import RESTARTED, began_at_unknown_step, highest_step
from reconcilers.failure.meaning import meaning_of, smells_of_hardware
from reconcilers.failure.rules import action_for, of_pod
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.containers import exit_words
from reconcilers.observed.ending import reported_failure
from reconcilers.observed.exit_class import PodEnd, classify_process
from reconcilers.observed.start import last_line
from reconcilers.observed.worker_state import HARDWARE_WELL, REPLACED
from reconcilers.worker.assignment import Assignment
from reconcilers.worker.leavers import may_train

RELEASED = "Released"
"""Reason of a Pod that was deleted because the job was suspended or has ended."""


def with_lives(worker: ElasticWorker, status: ElasticWorkerStatus, now: datetime) -> ElasticWorkerStatus:
    """The new status, with the stored status's history brought up to date."""
    lives = list(worker.status.history)
    last = lives[-1] if lives else None
    if last is None or last.incarnation != status.observed_incarnation:
        if last is not None and last.ended_at is None:  # its Pod was replaced before it had ended
            lives[-1] = _ended(last, status.last_exit, now)
        lives.append(SlotLife(incarnation=worker.spec.incarnation, created_at=_created_at(worker, now)))
    elif last.ended_at is not None:
        if not _lives(status):
            return status.model_copy(update={"history": lives})
        lives.append(SlotLife(incarnation=worker.spec.incarnation, created_at=now))  # after a suspension
    lives[-1] = _as_observed(lives[-1], worker, status, now)
    return status.model_copy(update={"history": lives[-MAX_LIVES:]})


def _created_at(worker: ElasticWorker, now: datetime) -> datetime:
    created = worker.metadata.creation_timestamp
    return created if created is not None and not worker.status.history else now


def _lives(status: ElasticWorkerStatus) -> bool:
    return status.pod_uid is not None and status.phase in (WorkerPhase.PENDING, WorkerPhase.RUNNING)


def _as_observed(
    life: SlotLife, worker: ElasticWorker, status: ElasticWorkerStatus, now: datetime
) -> SlotLife:
    known = {"node_name": status.node_name or life.node_name}
    if status.phase is WorkerPhase.RUNNING and life.running_at is None:
        return life.model_copy(update=known | {"running_at": now})
    life = life.model_copy(update=known)
    same_life = worker.status.observed_incarnation == status.observed_incarnation
    if same_life and worker.status.pod_uid is not None and status.pod_uid is None:
        return life.model_copy(update={"ended_at": now, "reason": RELEASED})
    if status.phase is WorkerPhase.SUCCEEDED:
        return life.model_copy(update={"ended_at": now, "exit_class": ExitClass.SUCCEEDED})
    if status.phase is not WorkerPhase.FAILED:
        return life
    if status.last_exit is None or status.last_exit.incarnation != life.incarnation:
        return life.model_copy(update={"ended_at": now, "reason": RELEASED})  # its end is not counted
    return _ended(life, status.last_exit, now)


def _ended(life: SlotLife, end: WorkerExit | None, now: datetime) -> SlotLife:
    if end is None or end.incarnation != life.incarnation:
        return life.model_copy(update={"ended_at": now})
    message = first_line(end.message)
    reason = shortened(f"{end.reason}: {message}" if message else end.reason, MAX_LIFE_REASON)
    update = {"ended_at": end.time, "exit_class": end.exit_class, "planned": end.planned, "reason": reason}
    return life.model_copy(update=update)


QUICK_EXIT_SECONDS = 60.0
MAX_REASON = 256
MOST_AT_ONCE = 16
"""Failures of one Pod that are charged to the budget at once; no budget allows as many."""


def faulty_node_exit(worker: ElasticWorker, now: datetime) -> WorkerExit | None:
    """The end of an incarnation whose node was found or reported faulty, so that its Pod was replaced."""
    status = worker.status
    fault = condition_of(status.conditions, HARDWARE_WELL)
    if status.node_name in worker.spec.faulty_nodes:
        reason, why = "FaultyNode", f"{status.node_name}, which a check found faulty"
    elif status.node_name in worker.spec.reported_nodes and fault is not None:
        reason, why = fault.reason, f"{status.node_name}: {fault.message}"
    else:
        return None
    message = shortened(f"{status.pod_name} was taken off the node {why}", MAX_MESSAGE)
    return WorkerExit(
        incarnation=status.observed_incarnation or 1,
        exit_class=ExitClass.CHECK_FAILED,
        reason=reason,
        message=message,
        node_name=status.node_name or "",
        node_uid=status.node_uid or "",
        pod_uid=status.pod_uid or "",
        time=now,
    )


def replacement_exit(worker: ElasticWorker, now: datetime) -> WorkerExit | None:
    """The end of an incarnation that was replaced for a process failure that its agent has reported.

    None if its Pod was replaced for another reason, such as a suspension.
    """
    status, report = worker.status, worker.status.agent
    if report is None or report.failure is None:
        return None
    if (report.incarnation, report.pod_uid) != (status.observed_incarnation, status.pod_uid):
        return None
    exit_class = classify_process(report.failure)
    if worker.spec.replaced_for is not exit_class:
        return None
    words = _words(report.failure)
    return WorkerExit(
        incarnation=report.incarnation,
        exit_class=exit_class,
        reason=REPLACED,
        exit_code=report.failure.exit_code,
        **words,
        suspects_hardware=smells_of_hardware(exit_class, words["message"]) or None,
        node_name=status.node_name or "",
        node_uid=status.node_uid or "",
        pod_uid=report.pod_uid,
        time=now,
    )


def is_counted(status: ElasticWorkerStatus, incarnation: int) -> bool:
    """Whether the end of this incarnation is counted: incarnations end in order, each once."""
    end = status.last_exit
    if end is None or end.incarnation < incarnation:
        return False
    return end.incarnation > incarnation or end.failures_in_pod is None


def end_counts(
    status: ElasticWorkerStatus, end: WorkerExit, times: int = 1, *, is_failure: bool = True
) -> dict[str, Any]:
    """The status fields for one more end, or several of one kind."""
    end_of_class = Counter({end.exit_class.value: times})
    restarts = dict(Counter(status.restarts) + end_of_class)
    failures = dict(Counter(status.failures) + end_of_class) if is_failure else status.failures
    of_all = {"restarts": restarts, "restart_count": sum(restarts.values()), "failures": failures}
    return of_all | {"last_exit": end}


def failed_status(
    worker: ElasticWorker,
    status: ElasticWorkerStatus,
    end: PodEnd,
    pod: dict[str, Any] | None,
    report: AgentReport | None,
    assignment: Assignment,
    now: datetime,
    times: int = 1,
) -> ElasticWorkerStatus:
    """The status of a worker whose incarnation has ended like this.

    Args:
        times: how many ends like this one are counted.
    """
    if end.exit_class is ExitClass.NODE_LOST and end.container and status.node_name:
        end = replace(end, message=f"{status.node_name}{RESTARTED}")
    is_others = (meaning_of(end.exit_class).free and end.message) or end.other_container
    own = reported_failure(report)
    words = _words(None if is_others else own, end.message, end.log)
    text = words["message"] or _with_last_line(end)
    action = action_for(assignment.failure_rules, of_pod(pod, end, f"{text}\n{words['log_tail']}"))
    in_good_order = _stops_in_good_order(pod, end)
    last_exit = WorkerExit(
        incarnation=worker.spec.incarnation,
        exit_class=end.exit_class,
        reason=end.reason[:MAX_REASON],
        exit_code=end.exit_code,
        container=end.other_container,
        **(words | {"message": text}),
        node_name=status.node_name or "",
        node_uid=status.node_uid or "",
        pod_uid=status.pod_uid or "",
        action=action,
        suspects_hardware=smells_of_hardware(end.exit_class, text) or None,
        in_good_order=in_good_order or None,
        planned=in_good_order or _never_ran(worker, end) or None,
        time=now,
    )
    blind = began_at_unknown_step([report], report.observed_round if report else None)
    failed = budgets.Failed(end.exit_class, text, highest_step(report), action, start_unknown=blind)
    spent = status.failure_budget
    for _ in range(min(times, MOST_AT_ONCE)):
        spent = budgets.after(spent, failed)
    is_counted = own is not None and own.round == assignment.counted_round
    return status.model_copy(
        update={
            "phase": WorkerPhase.FAILED,
            "message": (end.message or text)[:MAX_MESSAGE],
            "quick_exits": (status.quick_exits or 0) + 1 if _was_quick(pod, now) else 0,
            "failure_budget": spent,
            **end_counts(status, last_exit, times, is_failure=not (is_counted or last_exit.planned)),
        }
    )


def _never_ran(worker: ElasticWorker, end: PodEnd) -> bool:
    """Whether the Pod was deleted before it ran."""
    is_taken = meaning_of(end.exit_class).taken and end.exit_class is not ExitClass.NODE_LOST
    return is_taken and worker.status.phase is not WorkerPhase.RUNNING


def _stops_in_good_order(pod: dict[str, Any] | None, end: PodEnd) -> bool:
    """Whether the deleted Pod still runs, and has until SIGKILL to save."""
    return end.exit_class is not ExitClass.NODE_LOST and _is_deleted(pod) and may_train(pod)


def _is_deleted(pod: dict[str, Any] | None) -> bool:
    return pod is not None and "deletionTimestamp" in pod["metadata"]


def _with_last_line(end: PodEnd) -> str:
    """The exit of a process in words, with the last line of its log, which usually has the reason."""
    text, line = exit_words(end.exit_code), last_line(end.log)
    if end.other_container:
        text = f"{end.role} {end.container}: {text}"
    is_user_error = end.exit_class is ExitClass.USER_ERROR
    return shortened(f"{text}: {line}", MAX_MESSAGE) if line and is_user_error else text


def _words(failure: AgentFailure | None, message: str = "", log: str = "") -> dict[str, Any]:
    """Rank, message and log of an end: the training process's own if there are any, else the Pod's."""
    if failure is None:
        return {"rank": None, "message": message[:MAX_MESSAGE], "log_tail": log[-MAX_MESSAGE:]}
    message = (failure.message or message)[:MAX_MESSAGE]
    return {"rank": failure.rank, "message": message, "log_tail": failure.log_tail[-MAX_MESSAGE:]}


def _was_quick(pod: dict[str, Any] | None, now: datetime) -> bool:
    """Whether the Pod ended by itself, soon after its start."""
    if pod is None or _is_deleted(pod):
        return False
    started = pod.get("status", {}).get("startTime")
    if not started:
        return False
    lived = now - datetime.fromisoformat(started.replace("Z", "+00:00"))
    return lived.total_seconds() < QUICK_EXIT_SECONDS
