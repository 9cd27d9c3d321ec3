"""The job's part of a Workload's status. Pure.

Reasons and messages are those of Kueue's own integrations:
https://github.com/kubernetes-sigs/kueue/blob/v0.19.1/pkg/controller/jobframework/reconciler.go
"""

from __future__ import annotations

from datetime import datetime

from controller.resources import Object
from reconcilers.kueue.workload import Workload

REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which a Workload may queue again at once; otherwise Kueue decides when."""
DEACTIVATED = "Deactivated"
READY_MESSAGE = "All pods reached readiness and the workload is running"
NOT_READY_MESSAGE = "Not all pods are ready or succeeded"
LOST_MESSAGE = "At least one pod has failed, waiting for recovery"


def finished(workload: Workload, reason: str, message: str, now: datetime) -> Object:
    """Return the status of a Workload that gives its quota back for good."""
    return _with(workload, now, Finished=("True", reason, message))


def released(workload: Workload, now: datetime) -> Object:
    """Return the status of an evicted Workload that gives its quota back, and queues again.

    Kueue lets a Workload queue again only for reasons that it knows, so a reason with the cause of a
    deactivation would keep it out for ever. A DeactivationTarget that stays would undo each activation.
    """
    evicted = workload.conditions["Evicted"]
    reason, message = evicted["reason"], evicted.get("message", "")
    queues = "True" if reason in REQUEUED_AT_ONCE else "False"
    because = DEACTIVATED if reason.startswith(DEACTIVATED) else reason
    status = _with(
        workload,
        now,
        QuotaReserved=("False", "Pending", message),
        Admitted=("False", "NoReservation", "The workload has no reservation"),
        Requeued=(queues, because, message),
        PodsReady=("False", "WaitForStart", NOT_READY_MESSAGE),
    )
    status.pop("admission", None)
    status["conditions"] = [each for each in status["conditions"] if each["type"] != "DeactivationTarget"]
    return status


def ready(workload: Workload, is_ready: bool, now: datetime) -> Object | None:
    """Return the status of a Workload with a new PodsReady condition; None if that is up to date.

    Kueue evicts a Workload that is not ready for too long:
    https://kueue.sigs.k8s.io/docs/tasks/manage/setup_wait_for_pods_ready/
    """
    before = workload.conditions.get("PodsReady", {})
    was_ready = before.get("status") == "True"
    if is_ready == was_ready:
        return None
    if not is_ready:
        return _with(workload, now, PodsReady=("False", "WaitForRecovery", LOST_MESSAGE))
    reason = "Recovered" if before.get("reason") == "WaitForRecovery" else "Started"
    return _with(workload, now, PodsReady=("True", reason, READY_MESSAGE))


def _with(workload: Workload, now: datetime, **changed: tuple[str, str, str]) -> Object:
    """The status with these conditions: status, reason and message by type."""
    found = dict(workload.conditions)
    for type_, (status, reason, message) in changed.items():
        before = found.get(type_, {})
        is_same = before.get("status") == status
        at = before["lastTransitionTime"] if is_same else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        found[type_] = {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": at,
            "observedGeneration": workload.raw["metadata"].get("generation", 0),
        }
    return {**workload.status, "conditions": list(found.values())}
