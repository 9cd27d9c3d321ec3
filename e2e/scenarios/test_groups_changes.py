"""Replica groups with checkpoints: a lost Pod, leaving by vote, standby workers, scaling, suspension."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from crds.names import WORKER
from dlr.checkpoint import storage
from dlr.checkpoint.files import files_at
from e2e.api import Kind
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.scenarios.test_groups import NAME, Groups, assert_alike, identity

pytestmark = pytest.mark.needs(Capability.STORAGE)


def newest(groups: Groups) -> int:
    return max((int(line["step"]) for line in groups.lines()), default=0)


def change(groups: Groups, **spec: object) -> None:
    where = ("-n", groups.observation.namespace)
    groups.cluster.kubectl("patch", "ej", NAME, "--type=merge", "-p", json.dumps({"spec": spec}), *where)


def first_step(groups: Groups, group: int, earlier: set[tuple[int, int, int]]) -> int:
    """The first step of the processes of a group that came after these."""
    fresh = [each for each in groups.lines() if each["group"] == group and identity(each) not in earlier]
    return min(int(each["step"]) for each in fresh)


def answer(pipe: Path, content: bytes) -> None:
    """Let storage answer again: put a file in the pipe's place, and release those that wait at the pipe."""
    aside = pipe.rename(pipe.with_suffix(".aside"))
    pipe.write_bytes(content)
    with suppress(OSError):  # nobody waits
        released = os.open(aside, os.O_WRONLY | os.O_NONBLOCK)
        os.write(released, content)
        os.close(released)
    aside.unlink()


def restarts(groups: Groups) -> int:
    return sum((groups.status().get("restarts") or {}).values())


def test_groups_go_on_through_a_lost_pod_without_storage_through_leaving_scaling_and_suspension(
    cluster: Cluster, observation: Observation
) -> None:
    groups = Groups(cluster, observation, count=2, workers=1)
    checkpoints = groups.folder.parent / "checkpoints"
    groups.submit(
        minimum=1,
        grace_seconds=40,
        worker={"standby": 1, "memoryCheckpoint": {"size": "16Mi"}},
        CHECKPOINTS=str(checkpoints),
    )
    groups.wait_until_all_train()
    observation.wait_for(
        "a checkpoint in storage",
        lambda: next(storage.steps_in(files_at(checkpoints)), 0) if checkpoints.exists() else 0,
    )

    # A Pod is lost while storage does not answer: a standby worker takes over the state of the other group.
    stays, lost, at = groups.processes(0), groups.processes(1), newest(groups)
    first = {identity(line) for line in groups.lines()}
    owner = checkpoints / storage.OWNER
    content = owner.read_bytes()
    os.mkfifo(pipe := checkpoints / "pipe")  # it blocks those who read it
    pipe.replace(owner)
    pod = groups.first_pod(1)
    cluster.delete_pod(observation.namespace, pod, at_once=True)
    observation.wait_for("other processes of the group", lambda: groups.processes(1) != lost or None)
    groups.wait_until_all_train()
    assert first_step(groups, 1, first) > at
    assert groups.processes(0) == stays, "the other group's processes go on"
    answer(owner, content)

    # A Pod is deleted in good order: its group leaves by vote, which is no failure.
    before, left = restarts(groups), groups.processes(1)
    cluster.delete_pod(observation.namespace, groups.first_pod(1))
    observation.wait_for("other processes of the group", lambda: groups.processes(1) != left or None)
    groups.wait_until_all_train()
    assert restarts(groups) == before
    assert groups.processes(0) == stays

    # One group, and two again.
    gone = groups.processes(1)
    change(groups, replicaSpecs={WORKER: {"replicas": 1}})
    observation.wait_for("one group to train", lambda: groups.members() == [0])
    observation.wait_for(
        "the other to be deleted", lambda: f"{NAME}-group-1" not in observation.objects(Kind.JOB)
    )
    at = newest(groups)
    observation.wait_for("the rest to train on", lambda: newest(groups) > at + 5)
    change(groups, replicaSpecs={WORKER: {"replicas": 2}})
    groups.wait_until_all_train()
    assert not groups.processes(1) & gone
    assert groups.processes(0) == stays

    # Suspended, and resumed from the step that the groups left after.
    change(groups, suspend=True)
    observation.wait_for("all Pods to go", lambda: not observation.pods() and not groups.members())
    assert groups.status()["phase"] == "Suspended"
    reached = newest(groups)
    last = {identity(line) for line in groups.lines()}
    change(groups, suspend=False)
    observation.wait_for(
        "other processes of both groups", lambda: not (groups.processes(0) | groups.processes(1)) & last
    )
    resumed = min(first_step(groups, group, last) for group in (0, 1))
    print(f"suspended after step {reached}, resumed with step {resumed}")
    assert resumed == reached + 1, "no step is lost"
    assert restarts(groups) == 0
    assert_alike(groups.lines())
