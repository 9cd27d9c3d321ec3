"""What the gate says of Pods that are there and on no node: Kubernetes itself says nothing of a gang that is short."""

from __future__ import annotations

from typing import Any

import pytest

from reconcilers.gang.gate import UNTRIED_SECONDS, GangGate
from reconcilers.observed.builder import labels
from reconcilers.worker.assignment import Obstacle
from tests.gang.build import Recorder, gate_of
from tests.reconcilers.build import job, worker

JSON = dict[str, Any]
GANG = job(replicas=4)
GROUP = {"schedulingGroup": {"podGroupName": "digits"}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waiting(index: int, *, spec: JSON | None = None, **status: Any) -> JSON:
    """A Pod of which the scheduler says nothing, as it is where a gang is short (traces/22)."""
    metadata = {"name": f"digits-worker-{index}-1", "namespace": "default", "uid": f"pod-{index}"}
    metadata |= {"labels": labels("digits", "worker", index), "resourceVersion": "1"}
    return {
        "metadata": metadata,
        "spec": GROUP if spec is None else spec,
        "status": {"phase": "Pending"} | status,
    }


def held_after(seconds: float, pods: list[JSON], owner: Any = GANG) -> Obstacle | None:
    clock = Clock()
    gate = gate_of(jobs=[owner], pods=pods, monotonic=clock)
    gate.hold_of(pods[0], worker(), owner)
    clock.now = seconds
    return gate.hold_of(pods[0], worker(), owner)


def test_a_short_gang_says_which_group_has_how_many_of_how_many_pods() -> None:
    pods = [waiting(0), waiting(1), waiting(2, phase="Failed"), waiting(3, spec={})]
    held = held_after(UNTRIED_SECONDS, pods)
    assert held is not None and held.is_reported and held.reason == "PodGroupIncomplete"
    assert held.message.startswith("the PodGroup digits has 2 of the 4 Pods for which the scheduler waits")


def test_the_scheduler_is_given_time_and_the_worker_looks_again_when_it_is_over() -> None:
    held = held_after(3.0, [waiting(0)])
    assert held is not None and not held.is_reported
    assert held.retry_seconds == pytest.approx(UNTRIED_SECONDS - 3.0)


def test_a_gang_that_is_complete_is_the_schedulers_to_speak_of() -> None:
    held = held_after(60.0, [waiting(index) for index in range(4)])
    assert held is not None and not held.is_reported and held.retry_seconds >= UNTRIED_SECONDS


SAID = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}


@pytest.mark.parametrize(
    "pod",
    [
        waiting(0, spec={}),
        waiting(0, spec=GROUP | {"nodeName": "node-a"}),
        waiting(0, conditions=[SAID]),
        waiting(0, spec={"schedulingGroup": {"podGroupName": "another"}}),
    ],
    ids=["in no group", "on a node", "spoken of", "in another group"],
)
def test_other_pods_are_not_held(pod: JSON) -> None:
    assert held_after(60.0, [pod]) is None


def test_once_a_pod_runs_no_gang_is_short() -> None:
    owner = job(replicas=4, status={"replicaStatuses": {"worker": {"active": 1}}})
    held = held_after(60.0, [waiting(0)], owner)
    assert held is not None and not held.is_reported


def test_a_large_gang_is_counted_once_for_all_and_looked_at_less_often() -> None:
    owner, clock = job(replicas=10_000), Clock()
    gate = gate_of(jobs=[owner], pods=[waiting(0)], monotonic=clock)
    counts, waits = [], []
    for seconds in (0.0, 60.0, 60.5, 61.5):
        clock.now = seconds
        held = gate.hold_of(waiting(0), worker(), owner)
        assert held is not None
        counts.append(held.message.partition(" of ")[0].rpartition(" ")[2])
        waits.append(held.retry_seconds)
        gate._pods.apply(waiting(len(counts)))
    assert counts == ["1", "2", "2", "4"]
    assert waits == [UNTRIED_SECONDS, 200.0, 200.0, 200.0]


def dropped(gate: GangGate, wanted: JSON, stored: JSON) -> None:
    gate.note_created({"spec": wanted}, {"metadata": {"name": "digits-worker-0-1"}, "spec": stored}, GANG)


@pytest.mark.parametrize(("wanted", "stored"), [(GROUP, GROUP), ({}, {}), ({}, GROUP)])
def test_a_group_that_the_server_keeps_or_nobody_wanted_is_no_event(wanted: JSON, stored: JSON) -> None:
    recorder = Recorder()
    dropped(gate_of(jobs=[GANG], recorder=recorder), wanted, stored)
    assert recorder.events == []
