"""Announced evictions: a worker is replaced before its node lets its Pod go, and training hardly stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from e2e import elasticity, jobs
from e2e.capacity import NODE_CPUS
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.scenarios.test_leaving import DRAIN, NAME, Leaver, ago

LOOK_SECONDS = 0.005
RESOURCES = {"requests": {"cpu": NODE_CPUS}}
"""One Pod a node, of which there are four."""

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.POWER, Capability.WIDE_NODES)


class Pauses:
    """The times at which rank 0 wrote its steps down, as this machine saw the file grow."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._over = threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        size = 0
        while not self._over.wait(LOOK_SECONDS):
            if (found := self._file.stat().st_size) != size:
                size = found
                self._seen.append(time.monotonic())

    @property
    def longest_seconds(self) -> list[float]:
        """The three longest pauses between two steps."""
        pauses = (later - earlier for earlier, later in pairwise(self._seen))
        return sorted(pauses, reverse=True)[:3]


@contextmanager
def restored(cluster: Cluster, node: str) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


def nodes_of_world(observation: Observation) -> set[str]:
    pods = {pod["metadata"]["name"] for pod in jobs.current_pods(observation, NAME)}
    return {jobs.node_of(observation, pod) for pod in pods}


def seconds_to_replace(observation: Observation) -> float:
    """The time from the announcement to the swap, by the controller's clock, in whole seconds."""
    (announced,) = observation.events(reason="EvictionAnnounced")
    (moved,) = observation.events(reason="WorkerMoved")
    return jobs.seconds_between(announced["firstTimestamp"], moved["firstTimestamp"])


@pytest.fixture
def leaver(cluster: Cluster, observation: Observation) -> Leaver:
    return Leaver(cluster, observation)


@pytest.mark.parametrize("notice_seconds", [0, 60])
def test_a_drain_with_room_elsewhere_waits_for_no_pod_and_costs_no_step(
    cluster: Cluster, observation: Observation, leaver: Leaver, notice_seconds: int
) -> None:
    """With a notice, the node has been cordoned so long before it is drained."""
    leaver.submit(patience_seconds=120, resources=RESOURCES)
    leaver.train(3, steps=40)
    node = jobs.node_of(observation, f"{NAME}-worker-1-1")
    with restored(cluster, node), Pauses(leaver.folder / "steps.jsonl") as pauses:
        began = time.monotonic()
        if notice_seconds:
            cluster.kubectl("cordon", node)
            observation.wait_for("another on its way", lambda: observation.events(reason="EvictionAnnounced"))
            time.sleep(notice_seconds)
        cluster.kubectl(*DRAIN, node)
        print(f"{node} is drained after {ago(began)}")
        observation.wait_for("worker 1 to be replaced", lambda: observation.events(reason="WorkerMoved"))
        leaver.train(3)
        assert node not in nodes_of_world(observation)
    start_seconds = seconds_to_replace(observation)
    print(f"another Pod trained {start_seconds} s after the announcement")
    print("the longest pauses between two steps:", *(f"{pause:.2f} s" for pause in pauses.longest_seconds))
    assert len(elasticity.worlds(observation, NAME)) == 2, "one swap"
    assert not observation.events(reason="WorldBroken") and not observation.events(reason="EvictionsNotHeld")
    assert not observation.job(NAME)["status"].get("lastFailure")
    assert pauses.longest_seconds[0] < start_seconds, "nobody waited for its Pod"
    leaver.assert_no_step_was_lost()
