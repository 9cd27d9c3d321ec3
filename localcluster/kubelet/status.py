"""A Pod's status from its containers' states: pure, so that every row of it is tested without a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from localcluster.client.clock import timestamp
from localcluster.kubelet.states import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    init_containers,
    main_containers,
    names,
)
from localcluster.quantities import is_sidecar
from localcluster.resource import JSON

HOST_ADDRESS = "127.0.0.1"
IMAGE_ID = "host"
"""Images are ignored: commands run on the host."""


@dataclass(frozen=True)
class Verdict:
    """Why the kubelet itself ended a Pod."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodFacts:
    """All that a status is made of."""

    pod: JSON
    records: dict[str, ContainerRecord]
    started_at: datetime
    address: str = ""
    verdict: Verdict | None = None
    finished: bool = False
    """Whether nothing of the Pod runs and nothing will."""
    known_conditions: Sequence[JSON] = ()
    """The conditions as last written, for their times of transition."""


def phase_of(facts: PodFacts) -> str:
    """The Pod's phase: no final one while a container, a sidecar too, runs or may run again.

    https://github.com/kubernetes/kubernetes/pull/108366
    """
    mains = [facts.records[name] for name in names(main_containers(facts.pod))]
    if facts.finished:
        ended_well = all(isinstance(r.state, Terminated) and r.state.exit_code == 0 for r in mains)
        return "Succeeded" if ended_well and facts.verdict is None else "Failed"
    waits = any(isinstance(record.state, Waiting) and record.last is None for record in mains)
    return "Pending" if waits or not initialized(facts.pod, facts.records) else "Running"


def initialized(pod: JSON, records: dict[str, ContainerRecord]) -> bool:
    return not _uninitialized(pod, records)


def _uninitialized(pod: JSON, records: dict[str, ContainerRecord]) -> list[str]:
    if any(not isinstance(records[c["name"]].state, Waiting) for c in main_containers(pod)):
        return []
    pending = []
    for container in init_containers(pod):
        record = records[container["name"]]
        if is_sidecar(container):
            done = record.started or isinstance(record.state, Terminated) or record.last is not None
        else:
            done = isinstance(record.state, Terminated) and record.state.exit_code == 0
        if not done:
            pending.append(container["name"])
    return pending


def pod_status(facts: PodFacts, now: datetime) -> JSON:
    """The whole of what the kubelet says about a Pod."""
    pod = facts.pod
    phase = phase_of(facts)
    status: JSON = {
        "phase": phase,
        "conditions": _conditions(facts, phase, now),
        "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "startTime": timestamp(facts.started_at),
        "containerStatuses": [_container_status(pod, c, facts.records) for c in main_containers(pod)],
    }
    if facts.address:
        status |= {"podIP": facts.address, "podIPs": [{"ip": facts.address}]}
    if init_containers(pod):
        status["initContainerStatuses"] = [
            _container_status(pod, c, facts.records, init=True) for c in init_containers(pod)
        ]
    if facts.verdict is not None and facts.finished:
        status |= {"reason": facts.verdict.reason, "message": facts.verdict.message}
    return status


def _container_status(
    pod: JSON, container: JSON, records: dict[str, ContainerRecord], *, init: bool = False
) -> JSON:
    record = records[container["name"]]
    completed_init = init and isinstance(record.state, Terminated) and record.state.exit_code == 0
    run = f"{pod['metadata']['uid']}/{container['name']}/{record.restart_count}"
    ran = not isinstance(record.state, Waiting) or record.last is not None
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": IMAGE_ID,
        "containerID": f"process://{run}" if ran else "",
        "ready": record.ready or completed_init,
        "started": record.started,
        "restartCount": record.restart_count,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
    }


def _state(state: Waiting | Running | Terminated) -> JSON:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at):
            return {"running": {"startedAt": timestamp(started_at)}}
        case Terminated():
            ended: JSON = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(state.started_at or state.finished_at),
                "finishedAt": timestamp(state.finished_at),
            }
            return {"terminated": ended | ({"message": state.message} if state.message else {})}


def _conditions(facts: PodFacts, phase: str, now: datetime) -> list[JSON]:
    pod, records = facts.pod, facts.records
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    uninitialized = _uninitialized(pod, records)
    unready = [name for name in names(main_containers(pod)) if not records[name].ready]
    if over == "PodCompleted":
        uninitialized = []
    incomplete = f"containers with incomplete status: [{' '.join(uninitialized)}]"
    not_ready = f"containers with unready status: [{' '.join(unready)}]"
    containers_ready: JSON = {"type": "ContainersReady", "status": "True"}
    if unready or over:
        why = {"reason": over} if over else {"reason": "ContainersNotReady", "message": not_ready}
        containers_ready = {"type": "ContainersReady", "status": "False"} | why
    ready = containers_ready | {"type": "Ready"}
    began: JSON = {"type": "Initialized", "status": "True"}
    if uninitialized:
        began |= {"status": "False", "reason": "ContainersNotInitialized", "message": incomplete}
    conditions: list[JSON] = [{"type": "PodScheduled", "status": "True"}, began, ready, containers_ready]
    known = {condition["type"]: condition for condition in facts.known_conditions}
    return [_stamped(condition, known.get(condition["type"]), now) for condition in conditions]


def _stamped(condition: JSON, before: JSON | None, now: datetime) -> JSON:
    """The time of transition stays while the status does; fields of old that no longer hold are cleared."""
    moved = before is None or before["status"] != condition["status"]
    since = timestamp(now) if before is None or moved else before.get("lastTransitionTime", timestamp(now))
    cleared = {
        name: None for name in ("reason", "message") if name in (before or {}) and name not in condition
    }
    return condition | {"lastTransitionTime": since} | cleared
