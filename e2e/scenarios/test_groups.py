"""Replica groups: one loses a process or a Pod, the others train on, and all have the same parameters."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

pytestmark = pytest.mark.needs(Capability.STORAGE)
NAME = "grouped"
SCRIPT = Path(__file__).parent.parent / "fixtures" / "grouped.py"
GROUPS, WORKERS = 3, 2


class Groups:
    """A job of groups, and what its processes wrote."""

    def __init__(
        self, cluster: Cluster, observation: Observation, count: int = GROUPS, workers: int = WORKERS
    ) -> None:
        self.cluster, self.observation = cluster, observation
        self.count, self.workers = count, workers
        self.folder = Path(cluster.storage(observation.namespace).path) / NAME
        self.folder.mkdir()

    def submit(
        self, *, minimum: int = 2, grace_seconds: int = 3, worker: Object | None = None, **variables: str
    ) -> None:
        """Apply the job.

        Args:
            worker: further fields of its workers.
            variables: of their environment.
        """
        policy = {"replicaGroups": {"workers": self.workers, "min": minimum}, "lastCallSeconds": 1}
        manifest = jobs.scripted(
            self.cluster,
            NAME,
            self.count * self.workers,
            ["dlr", "run", str(SCRIPT)],
            storage=self.cluster.storage(self.observation.namespace),
            env={"FOLDER": str(self.folder), **variables},
            grace_seconds=grace_seconds,
            worker=worker,
            elasticPolicy=jobs.QUICK_REPORTS | policy,
        )
        self.cluster.apply(manifest, self.observation.namespace)

    def status(self) -> Object:
        status: Object = self.observation.job(NAME).get("status", {})
        return status

    def warnings(self) -> list[str]:
        """The types of the job's warnings."""
        return [each["type"] for each in self.status().get("warnings", ())]

    def lines(self) -> list[dict[str, Any]]:
        found = [line for path in self.folder.iterdir() for line in path.read_text().splitlines()]
        return [json.loads(line) for line in found if line.endswith("}")]

    def members(self) -> list[int]:
        """The groups that train together, by the published membership."""
        return [each["index"] for each in (self.status().get("membership") or {}).get("groups", ())]

    def first_pod(self, group: int) -> str:
        """The name of the Pod of a group's rank 0, which standby workers may have made another one."""
        (first, *_) = jobs.rendezvous(self.observation, f"{NAME}-group-{group}")["members"]
        name: str = self.pod(group, first)["metadata"]["name"]
        return name

    def processes(self, group: int) -> set[tuple[int, int, int]]:
        """The processes of a group that have made the newest steps."""
        newest: dict[int, dict[str, Any]] = {}
        for line in self.lines():
            if line["group"] == group and line["step"] >= newest.get(line["rank"], line)["step"]:
                newest[line["rank"]] = line
        return {identity(line) for line in newest.values()}

    def wait_until_all_train(self) -> None:
        def all_train() -> bool:
            if self.members() != list(range(self.count)):
                return False
            lines = self.lines()
            newest = max((line["step"] for line in lines), default=0)
            recent = {(line["group"], line["rank"]) for line in lines if line["step"] >= newest - 3}
            is_whole = len(recent) == self.count * self.workers
            return is_whole and lines[-1]["contributors"] == self.count

        self.observation.wait_for("all groups to train", all_train)

    def pod(self, group: int, worker: int) -> Object:
        pods = self.observation.pods().values()
        labels = {"group-index": str(group), "replica-index": str(worker)}
        for pod in pods:
            own = {key.rpartition("/")[2]: value for key, value in pod["metadata"]["labels"].items()}
            if labels.items() <= own.items() and pod["status"].get("phase") == "Running":
                return pod
        raise AssertionError(f"group {group} has no Pod of worker {worker}")


def identity(line: dict[str, Any]) -> tuple[int, int, int]:
    """Return the identity of a process."""
    return line["group"], line["rank"], line["start"]


@pytest.fixture
def groups(cluster: Cluster, observation: Observation) -> Groups:
    return Groups(cluster, observation)


def assert_alike(lines: list[dict[str, Any]]) -> None:
    """After every step that more than one process made, all have the same parameters."""
    made: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        made[line["step"]].append(line)
    assert [each for each in made.values() if len({line["digest"] for line in each}) > 1] == []


@pytest.mark.named
def test_others_train_on_when_a_process_of_a_group_dies(groups: Groups, cluster: Cluster) -> None:
    groups.submit()
    groups.wait_until_all_train()
    stay = groups.processes(0) | groups.processes(2)
    died = groups.processes(1)
    cluster.kill_process(groups.observation.namespace, groups.pod(1, 1))
    groups.observation.wait_for("other processes of the group", lambda: not groups.processes(1) & died)
    groups.wait_until_all_train()
    assert groups.processes(0) | groups.processes(2) == stay, "the other groups' processes go on"
    lines = groups.lines()
    assert_alike(lines)
    times: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for line in lines:
        times[identity(line)].append(line["time"])
    steps = [after - before for each in stay for before, after in pairwise(sorted(times[each]))]
    print(f"longest step of the others {max(steps):.3f} s, of a step of {statistics.median(steps):.3f} s")
    history = [(each["state"], each["members"]) for each in groups.status()["history"]]
    assert ("Training", "0,2") in history, "each version, with who trained in it"
    assert history[-1] == ("Training", "0-2")
    jobs_of_groups = [name for name in groups.observation.objects(Kind.JOB) if name != NAME]
    assert sorted(jobs_of_groups) == [f"{NAME}-group-{index}" for index in range(GROUPS)]
