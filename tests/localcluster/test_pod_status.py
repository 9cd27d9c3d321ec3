"""A Pod's status from its containers' states, and the rules of restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from localcluster.kubelet.states import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    backoff_seconds,
    ended,
    is_over,
    recover_records,
    restarts,
)
from localcluster.kubelet.status import PodFacts, Verdict, pod_status

JSON = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
UP = ContainerRecord(Running(NOW), started=True, ready=True)
DONE = ContainerRecord(ended(0, NOW, LATER))
FAILED = ContainerRecord(ended(3, NOW, LATER))
FRESH = ContainerRecord(Waiting("ContainerCreating"))
CRASHING = ContainerRecord(Waiting("CrashLoopBackOff"), last=ended(3, NOW, LATER), restart_count=1)


def pod(policy: str = "Always", *, mains: int = 1, inits: int = 0, sidecar: bool = False) -> JSON:
    init: list[JSON] = [{"name": f"init-{i}", "image": "x"} for i in range(inits)]
    if sidecar:
        init.append({"name": "sidecar", "image": "x", "restartPolicy": "Always"})
    containers = [{"name": f"main-{i}", "image": "x"} for i in range(mains)]
    spec = {"restartPolicy": policy, "containers": containers, "initContainers": init}
    return {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": spec}


def status(described: JSON, *records: ContainerRecord, **facts: Any) -> JSON:
    spec = described["spec"]
    names = [c["name"] for c in spec["initContainers"] + spec["containers"]]
    by_name = dict(zip(names, records, strict=True))
    return pod_status(PodFacts(described, by_name, NOW, "127.1.1.1", **facts), LATER)


def condition(of: JSON, kind: str) -> JSON:
    return next(c for c in of["conditions"] if c["type"] == kind)


@pytest.mark.parametrize(
    ("records", "phase"),
    [([DONE], "Succeeded"), ([FAILED], "Failed"), ([DONE, FAILED], "Failed"), ([DONE, FRESH], "Failed")],
)
def test_phase_is_final_only_when_nothing_of_the_pod_runs_any_more(
    records: list[ContainerRecord], phase: str
) -> None:
    described = pod("Never", mains=len(records))
    assert status(described, *records)["phase"] == ("Pending" if FRESH in records else "Running")
    assert status(described, *records, finished=True)["phase"] == phase


@pytest.mark.parametrize(
    ("policy", "records", "phase"),
    [
        ("Always", [FRESH], "Pending"),
        ("Always", [UP], "Running"),
        ("Always", [CRASHING], "Running"),
        ("OnFailure", [FAILED], "Running"),
        ("Never", [DONE, UP], "Running"),
        ("Never", [UP, FRESH], "Pending"),
    ],
)
def test_phase_follows_the_containers(policy: str, records: list[ContainerRecord], phase: str) -> None:
    assert status(pod(policy, mains=len(records)), *records)["phase"] == phase


def test_init_containers_come_first() -> None:
    initializing = status(pod("Never", inits=2), DONE, UP, FRESH)
    assert initializing["phase"] == "Pending"
    assert condition(initializing, "Initialized")["message"] == "containers with incomplete status: [init-1]"
    assert status(pod("Never", inits=1), FAILED, FRESH, finished=True)["phase"] == "Failed"
    sidecar_runs = status(pod("Never", inits=1, sidecar=True), FAILED, UP, FRESH)
    assert sidecar_runs["phase"] == "Pending"
    assert status(pod("Always", inits=1), FAILED, FRESH)["phase"] == "Pending"
    assert condition(status(pod(inits=1), DONE, UP), "Initialized")["status"] == "True"


def test_a_sidecar_initializes_by_running_and_does_not_decide_the_outcome() -> None:
    stopped = ContainerRecord(ended(143, NOW, LATER))
    assert status(pod("Never", sidecar=True), UP, UP)["phase"] == "Running"
    assert status(pod("Never", sidecar=True), UP, DONE)["phase"] == "Running"
    assert status(pod("Never", sidecar=True), UP, FAILED)["phase"] == "Running"
    killed = ContainerRecord(ended(137, NOW, LATER))
    for sidecar in (stopped, killed):
        assert status(pod("Never", sidecar=True), sidecar, DONE, finished=True)["phase"] == "Succeeded"


def test_readiness_is_of_all_main_containers() -> None:
    unready = ContainerRecord(Running(NOW), started=True)
    assert condition(status(pod(mains=2), UP, UP), "Ready")["status"] == "True"
    partly = condition(status(pod(mains=2), UP, unready), "Ready")
    assert (partly["status"], partly["reason"]) == ("False", "ContainersNotReady")
    assert partly["message"] == "containers with unready status: [main-1]"
    assert condition(status(pod("Never"), DONE, finished=True), "Ready")["reason"] == "PodCompleted"


def test_the_time_of_transition_stays_while_the_status_does() -> None:
    before = [{"type": "Ready", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}]
    assert condition(status(pod(), UP, known_conditions=before), "Ready")["lastTransitionTime"].startswith(
        "2025"
    )
    after = condition(status(pod(), CRASHING, known_conditions=before), "Ready")
    assert after["lastTransitionTime"] == "2026-01-01T00:05:00Z"


def test_the_kubelets_own_verdict_fails_the_pod() -> None:
    verdict = Verdict("DeadlineExceeded", "too long")
    running = status(pod(), UP, verdict=verdict)
    over = status(pod(), FAILED, verdict=verdict, finished=True)
    assert (running["phase"], over["phase"], over["reason"]) == ("Running", "Failed", "DeadlineExceeded")
    assert "reason" not in running


def test_restart_policies() -> None:
    assert restarts("Always", 0) and restarts("Always", 1) and restarts("OnFailure", 1)
    assert not restarts("OnFailure", 0) and not restarts("Never", 1)


def test_back_off_starts_at_once_and_doubles_to_five_minutes() -> None:
    quick = ended(1, NOW, NOW + timedelta(seconds=1))
    waits: list[float] = []
    previous: float | None = None
    for _ in range(8):
        previous = backoff_seconds(previous, quick)
        waits.append(previous)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    calm = ended(1, NOW, NOW + timedelta(minutes=11))
    assert backoff_seconds(300, calm) == 0


def stored(described: JSON, *states: JSON) -> JSON:
    statuses = [
        {"name": f"main-{index}", "state": state, "lastState": {}, "restartCount": 2}
        for index, state in enumerate(states)
    ]
    return {**described, "status": {"phase": "Running", "containerStatuses": statuses}}


RAN = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z", "reason": "Completed"}}


def test_what_ran_when_the_kubelet_died_is_lost() -> None:
    described = stored(pod("Never", mains=2), RAN, ENDED)
    records = recover_records(described, LATER)
    lost = records["main-0"].state
    assert isinstance(lost, Terminated)
    assert (lost.exit_code, lost.reason) == (137, "ContainerStatusUnknown")
    assert records["main-1"].state == Terminated(0, "Completed", NOW)
    assert is_over(described, records)
    facts = PodFacts(described, records, NOW, finished=True)
    assert pod_status(facts, LATER)["phase"] == "Failed"
