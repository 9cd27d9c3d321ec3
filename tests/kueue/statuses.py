"""Statuses as Kueue writes them, and the part of its configuration that counts for them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.kueue.objects import ADMITTED, EVICTED, RESERVED, Info, Object, seconds, with_condition


@dataclass(frozen=True)
class Config:
    """What of Kueue's configuration counts here; the defaults are those of 0.19."""

    timeout_seconds: float = 1800
    """waitForPodsReady.timeout"""
    recovery_seconds: float = 1800
    """waitForPodsReady.recoveryTimeout"""
    backoff_seconds: float = 60
    """waitForPodsReady.requeuingStrategy.backoffBaseSeconds"""
    most_backoff_seconds: float = 3600
    """waitForPodsReady.requeuingStrategy.backoffMaxSeconds"""
    most_requeues: int | None = None
    """waitForPodsReady.requeuingStrategy.backoffLimitCount"""


def evicted(
    info: Info, reason: str, message: str, at: str, cause: str = "", status: Object | None = None
) -> Object:
    """Return the status with Evicted, its count and the checks Pending again."""
    status = info.status if status is None else status
    text = f"{reason}DueTo{cause}" if reason == "Deactivated" and cause else reason
    status = with_condition(status, EVICTED, True, text, message, at, info.generation)
    checks = []
    for check in status.get("admissionChecks") or ():
        if check["state"] != "Pending":
            before = f"Reset to Pending after eviction. Previously: {check['state']}"
            again = {"retryCount": (check.get("retryCount") or 0) + 1} if check["state"] == "Retry" else {}
            check = check | {"state": "Pending", "message": before, "lastTransitionTime": at} | again
        checks.append(check)
    if checks:
        status = status | {"admissionChecks": checks}
    counts = list((status.get("schedulingStats") or {}).get("evictions") or ())
    for index, each in enumerate(counts):
        if (each["reason"], each["underlyingCause"]) == (reason, cause):
            counts[index] = each | {"count": each["count"] + 1}
            break
    else:
        counts.append({"reason": reason, "underlyingCause": cause, "count": 1})
    return status | {"schedulingStats": {"evictions": counts}}


def unreserved(info: Info, reason: str, message: str, at: str) -> Object:
    """Return the status without quota, for that reason; the very same if it says so already."""
    status = with_condition(info.status, RESERVED, False, reason, message, at, info.generation)
    if "admission" in status:
        status = {key: value for key, value in status.items() if key != "admission"}
    return synced(info, status, at)


def synced(info: Info, status: Object, at: str) -> Object:
    """Return the status with Admitted as quota and checks say."""
    truths = {each["type"]: each["status"] == "True" for each in status.get("conditions") or ()}
    reserved = truths.get(RESERVED, False)
    ready = all(check["state"] == "Ready" for check in status.get("admissionChecks") or ())
    if truths.get(ADMITTED, False) == (reserved and ready):
        return status
    reason, message = "Admitted", "The workload is admitted"
    if not reserved and not ready:
        reason = "NoReservationUnsatisfiedChecks"
        message = "The workload has no reservation and not all checks ready"
    elif not reserved:
        reason, message = "NoReservation", "The workload has no reservation"
    elif not ready:
        reason = "UnsatisfiedChecks"
        message = "The workload has not all checks ready"
    if truths.get(ADMITTED) and reason != "Admitted":
        since = int(seconds(at) - seconds(info.conditions[ADMITTED]["lastTransitionTime"]))
        spent = (status.get("accumulatedPastExecutionTimeSeconds") or 0) + since
        status = status | {"accumulatedPastExecutionTimeSeconds": spent}
    return with_condition(status, ADMITTED, reserved and ready, reason, message, at, info.generation)
