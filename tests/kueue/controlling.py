"""What Kueue's Workload controller writes next, at one look at one Workload: at most one write, as the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.kueue.objects import (
    ADMITTED,
    EVICTED,
    FINALIZER,
    FINISHED,
    READY,
    REQUEUED,
    RESERVED,
    TARGET,
    Info,
    Object,
    seconds,
    stamp,
    with_condition,
    without_condition,
)
from tests.kueue.quota import Place
from tests.kueue.statuses import Config, evicted, synced


@dataclass(frozen=True)
class Change:
    """A write."""

    name: str
    status: Object | None = None
    active: bool | None = None
    """The new spec.active."""
    finalizers: tuple[str, ...] | None = None


Outcome = tuple[Change | None, float | None]
"""What is written now, and when a clock asks for another look."""


class Look:
    """One look at one Workload."""

    def __init__(self, info: Info, place: Place, config: Config, now: float) -> None:
        self._info = info
        self._place = place
        self._config = config
        self._now = now
        self._at = stamp(int(now))

    def outcome(self) -> Outcome:
        info = self._info
        if not info.owned and (info.deleted or info.job_uid):
            change = self._orphaned()
            if change is not None:
                return change, None
        if info.true(FINISHED):
            return None, None
        retry = self._retry_at()
        if retry is not None and retry > self._now and (info.requeue_at is None or info.requeue_at < retry):
            state = (info.status.get("requeueState") or {}) | {"requeueAt": stamp(int(retry))}
            return Change("retry time", info.status | {"requeueState": state}), None
        steps: tuple[Callable[[], Outcome | None], ...] = (
            self._switched,
            self._checks_listed,
            self._not_admitted,
            self._checks_failed,
        )
        for step in steps:
            found = step()
            if found is not None:
                return found
        return self._clocks() if info.true(RESERVED) else (None, None)

    # --- small ones ---------------------------------------------------------------------------------------

    def _set(self, status: Object, kind: str, value: bool, reason: str, message: str) -> Object:
        return with_condition(status, kind, value, reason, message, self._at, self._info.generation)

    def _requeued(self, reason: str, message: str) -> Outcome:
        return Change("requeue", self._set(self._info.status, REQUEUED, True, reason, message)), None

    def _waits_as(self) -> str:
        """Return the reason for which it is kept out of the queue."""
        found = self._info.conditions.get(REQUEUED)
        return found["reason"] if found and found["status"] == "False" else ""

    def _orphaned(self) -> Change | None:
        info = self._info
        if not info.deleted and not info.true(FINISHED):
            status = self._set(
                info.status, FINISHED, True, "OwnerNotFound", "The workload's owner no longer exists"
            )
            return Change("finish orphan", status)
        if FINALIZER in info.finalizers:
            return Change(
                "remove finalizer", finalizers=tuple(each for each in info.finalizers if each != FINALIZER)
            )
        return None

    def _retry_at(self) -> float | None:
        times = [
            seconds(check["lastTransitionTime"]) + check["requeueAfterSeconds"]
            for check in self._info.checks
            if check["state"] == "Retry" and check.get("requeueAfterSeconds") is not None
        ]
        return max(times, default=None)

    # --- active, and not ----------------------------------------------------------------------------------

    def _switched(self) -> Outcome | None:
        return self._reactivated() if self._info.active else self._deactivated()

    def _reactivated(self) -> Outcome | None:
        info = self._info
        if info.true(TARGET):
            return Change("deactivate", active=False), None
        at = info.requeue_at
        if at is not None and at > self._now:
            return None, at
        if at is not None and info.state == "Pending":
            return Change("backoff over", _without_requeue_at(info.status)), None
        reason = self._waits_as()
        if reason == "Deactivated":
            return self._requeued("Reactivated", "The workload was reactivated")
        if reason in ("PodsReadyTimeout", "AdmissionCheck"):
            return self._requeued("BackoffFinished", "The workload backoff was finished")
        return None

    def _deactivated(self) -> Outcome | None:
        info = self._info
        target = info.conditions.get(TARGET)
        status = {key: value for key, value in info.status.items() if key != "requeueState"}
        if target is not None:
            status = without_condition(status, TARGET)
        if not info.true(EVICTED):
            cause = target["reason"] if target else ""
            message = "The workload is deactivated" + (f" due to {target['message']}" if target else "")
            return self._evict("Deactivated", message, cause, status), None
        if "requeueState" in info.status:
            return Change("clear requeue state", status), None
        return None

    def _evict(self, reason: str, message: str, cause: str, status: Object | None = None) -> Change:
        info = self._info
        return Change("evict", evicted(info, reason, message, self._at, cause, status))

    # --- queues -------------------------------------------------------------------------------------------

    def _checks_listed(self) -> Outcome | None:
        if self._place.queue is None:
            return None
        wanted = self._place.queue.checks
        there = {check["name"]: check for check in self._info.checks}
        if set(wanted) == set(there):
            return None
        new = {"state": "Pending", "message": "", "lastTransitionTime": self._at}
        checks = [there.get(name) or {"name": name} | new for name in wanted]
        status = {key: value for key, value in self._info.status.items() if key != "admissionChecks"}
        return Change("list checks", status | ({"admissionChecks": checks} if checks else {})), None

    def _not_admitted(self) -> Outcome | None:
        info = self._info
        if info.true(ADMITTED):
            return None
        status = info.status
        if not info.true(RESERVED) and (message := self._blocked()):
            status = self._set(status, RESERVED, False, "Inadmissible", message)
        status = synced(info, status, self._at)
        return None if status is info.status else (Change("update conditions", status), None)

    def _blocked(self) -> str:
        """Return why no queue takes it; empty if one does."""
        place = self._place
        if not place.local:
            return f"LocalQueue {self._info.local_queue[1]} doesn't exist"
        if place.queue is None:
            return f"ClusterQueue {place.name} doesn't exist"
        return "" if place.active else f"ClusterQueue {place.name} is inactive"

    # --- with quota ---------------------------------------------------------------------------------------

    def _checks_failed(self) -> Outcome | None:
        info = self._info
        if not info.true(RESERVED) or info.true(EVICTED):
            return None
        for state in ("Rejected", "Retry"):
            failed = sorted(
                (each for each in info.checks if each["state"] == state), key=lambda each: each["name"]
            )
            if not failed:
                continue
            listed = [
                f'"{each["name"]}"' + (f" ({each['message']})" if each["message"] else "") for each in failed
            ]
            noun = "AdmissionCheck" if len(failed) == 1 else "AdmissionChecks"
            message = f"{noun} in {state} state: {'; '.join(listed)}"
            if state == "Rejected":
                status = self._set(info.status, TARGET, True, "AdmissionCheck", message)
                return None if status is info.status else (Change("target deactivation", status), None)
            return self._evict("AdmissionCheck", f"Evicted due to {message}", ""), None
        return None

    def _clocks(self) -> Outcome:
        ready, ready_at = self._pods_ready()
        if ready is not None:
            return ready, None
        info = self._info
        limit = info.spec.get("maximumExecutionTimeSeconds")
        if not limit or not info.true(ADMITTED):
            return None, ready_at
        spent = info.status.get("accumulatedPastExecutionTimeSeconds") or 0
        end = seconds(info.conditions[ADMITTED]["lastTransitionTime"]) + limit - spent
        if end > self._now:
            return None, min(end, ready_at or end)
        if info.true(TARGET):
            return None, ready_at
        status = {
            key: value for key, value in info.status.items() if key != "accumulatedPastExecutionTimeSeconds"
        }
        reason, message = "MaximumExecutionTimeExceeded", "exceeding the maximum execution time"
        return Change("target deactivation", self._set(status, TARGET, True, reason, message)), None

    def _pods_ready(self) -> Outcome:
        info, config = self._info, self._config
        if not info.active or info.true(EVICTED) or not info.true(ADMITTED) or info.true(READY):
            return None, None
        found = info.conditions.get(READY)
        cause = found["reason"] if found else "WaitForStart"
        if cause in ("WaitForStart", "PodsReady"):
            cause = "WaitForStart"
            end = seconds(info.conditions[ADMITTED]["lastTransitionTime"]) + config.timeout_seconds
        elif cause == "WaitForRecovery":
            end = seconds(info.conditions[READY]["lastTransitionTime"]) + config.recovery_seconds
        else:
            return None, None
        if end > self._now:
            return None, end
        state = info.status.get("requeueState") or {}
        count = (state.get("count") or 0) + 1
        if config.most_requeues is not None and count > config.most_requeues:
            message = "exceeding the maximum number of re-queuing retries"
            status = self._set(info.status, TARGET, True, "RequeuingLimitExceeded", message)
            return (None if status is info.status else Change("target deactivation", status)), None
        wait = min(config.backoff_seconds * 2 ** (count - 1), config.most_backoff_seconds)
        state = {"count": count, "requeueAt": stamp(int(self._now + wait))}
        message = f"Exceeded the PodsReady timeout {'/'.join(info.key)}"
        return self._evict("PodsReadyTimeout", message, cause, info.status | {"requeueState": state}), None


def _without_requeue_at(status: Object) -> Object:
    state = {key: value for key, value in status["requeueState"].items() if key != "requeueAt"}
    rest = {key: value for key, value in status.items() if key != "requeueState"}
    return rest | ({"requeueState": state} if state else {})
