"""States of a Pod's containers, and the rules that follow from them alone: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from localcluster.client.clock import parse_timestamp
from localcluster.quantities import is_sidecar
from localcluster.resource import JSON

LOST_EXIT_CODE = 137
LOST_REASON = "ContainerStatusUnknown"
LOST_MESSAGE = "The container could not be located when the pod was terminated"
FIRST_BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0
CALM_SECONDS = 600.0
"""A container that ran this long starts its back-off anew."""


@dataclass(frozen=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    started_at: datetime


@dataclass(frozen=True)
class Terminated:
    exit_code: int
    reason: str
    finished_at: datetime
    started_at: datetime | None = None
    message: str = ""

    @property
    def ran_seconds(self) -> float:
        return (self.finished_at - self.started_at).total_seconds() if self.started_at else 0.0


State = Waiting | Running | Terminated


@dataclass(frozen=True)
class ContainerRecord:
    """One container: what it does now and what it did last."""

    state: State
    last: Terminated | None = None
    restart_count: int = 0
    ready: bool = False
    started: bool = False

    def restarted(self) -> ContainerRecord:
        """The record of the next run."""
        last = self.state if isinstance(self.state, Terminated) else self.last
        return ContainerRecord(Waiting("ContainerCreating"), last, self.restart_count + 1)


def ended(
    exit_code: int, started_at: datetime, finished_at: datetime, *, out_of_memory: bool = False
) -> Terminated:
    """The end of a process, in the words of a container runtime.

    As with containerd, it is OOMKilled if anything in it was, though it may have ended later, and otherwise.
    """
    reason = "OOMKilled" if out_of_memory else "Completed" if exit_code == 0 else "Error"
    return Terminated(exit_code, reason, finished_at, started_at)


def restart_policy(pod: JSON, container: JSON, *, init: bool) -> str:
    """Sidecars always; other init containers until they succeed, unless the Pod never restarts."""
    if init and is_sidecar(container):
        return "Always"
    policy = pod["spec"].get("restartPolicy") or "Always"
    return "OnFailure" if init and policy == "Always" else str(policy)


def restarts(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def backoff_seconds(previous_seconds: float | None, ended_run: Terminated) -> float:
    """How long to wait before the next start: the first restart is immediate, then 10 s, 20 s, ... 5 min."""
    if previous_seconds is None or ended_run.ran_seconds >= CALM_SECONDS:
        return 0.0
    return min(max(2 * previous_seconds, FIRST_BACKOFF_SECONDS), LONGEST_BACKOFF_SECONDS)


def init_containers(pod: JSON) -> list[JSON]:
    return list(pod["spec"].get("initContainers") or ())


def main_containers(pod: JSON) -> list[JSON]:
    return list(pod["spec"]["containers"])


def fresh_records(pod: JSON) -> dict[str, ContainerRecord]:
    waiting = "PodInitializing" if init_containers(pod) else "ContainerCreating"
    return {
        container["name"]: ContainerRecord(Waiting(waiting))
        for container in init_containers(pod) + main_containers(pod)
    }


def recover_records(pod: JSON, now: datetime) -> dict[str, ContainerRecord]:
    """Return the records after a kubelet's restart: running containers are lost, ended ones stay ended."""
    records = fresh_records(pod)
    status = pod.get("status") or {}
    for entry in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        if entry["name"] in records:
            records[entry["name"]] = _recover(entry, now)
    return records


def _recover(entry: JSON, now: datetime) -> ContainerRecord:
    last = entry.get("lastState", {}).get("terminated")
    record = ContainerRecord(
        Waiting("ContainerCreating"), _terminated(last) if last else None, entry.get("restartCount", 0)
    )
    state = entry.get("state") or {}
    if "terminated" in state:
        return replace(record, state=_terminated(state["terminated"]))
    if "running" in state:
        lost = Terminated(
            LOST_EXIT_CODE, LOST_REASON, now, parse_timestamp(state["running"]["startedAt"]), LOST_MESSAGE
        )
        return replace(record, state=lost)
    if state.get("waiting", {}).get("reason") == "CrashLoopBackOff" and record.last is not None:
        return replace(record, state=record.last)
    return record


def _terminated(state: JSON) -> Terminated:
    started_at = state.get("startedAt")
    return Terminated(
        state["exitCode"],
        state.get("reason", ""),
        parse_timestamp(state["finishedAt"]),
        parse_timestamp(started_at) if started_at else None,
        state.get("message", ""),
    )


def init_failed_for_good(pod: JSON, container: JSON, records: dict[str, ContainerRecord]) -> bool:
    state = records[container["name"]].state
    policy = restart_policy(pod, container, init=True)
    return isinstance(state, Terminated) and state.exit_code != 0 and not restarts(policy, state.exit_code)


def is_over(pod: JSON, records: dict[str, ContainerRecord]) -> bool:
    """Whether nothing of the Pod will run again by itself."""
    if any(init_failed_for_good(pod, container, records) for container in init_containers(pod)):
        return True
    return all(
        isinstance(state := records[container["name"]].state, Terminated)
        and not restarts(restart_policy(pod, container, init=False), state.exit_code)
        for container in main_containers(pod)
    )


def names(containers: Iterable[JSON]) -> list[str]:
    return [container["name"] for container in containers]
