"""Jobs of fixtures/mortal.py: how a rank is told to die, and how long it was until training went on.

For backends where the Pods' storage is a directory of this machine.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import PATIENCE_SECONDS, Observation

FIXTURES = Path(__file__).parent / "fixtures"
CPUS_OF_MORE_THAN_HALF_A_NODE = "5"
STEPS = 3
"""Steps in a row after which the job counts as training."""
MEMORY_LIMIT = "1Gi"


@dataclass(frozen=True)
class Life:
    """One life of rank 0: from its start to its end, in steps and Unix time."""

    name: str
    world: int
    first_step: int
    last_step: int
    began: float
    ended: float

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1


class Mortals:
    """One job, and what its ranks are told and tell through files."""

    def __init__(self, cluster: Cluster, observation: Observation, name: str = "mortal") -> None:
        self.cluster = cluster
        self.observation = observation
        self.name = name
        self.folder = Path(cluster.storage(observation.namespace).path) / name
        self.folder.mkdir()
        self._drained: list[str] = []
        self._without_power: list[str] = []
        for fixture in ("mortal.py", "fake_nvml"):
            source, target = FIXTURES / fixture, self.folder / fixture
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    def submit(
        self,
        workers: int,
        *,
        standby: int = 0,
        launcher: Sequence[str] = ("dlr", "run"),
        grace_seconds: int = 1,
        variables: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Submit with an artificial GPU in every Pod, and memory limits that are kept."""
        env = {
            "DEATHS": str(self.folder),
            "XIDS": str(self.folder),
            "PYTHONPATH": str(self.folder / "fake_nvml"),
            "NVIDIA_VISIBLE_DEVICES": "all",  # of the one that is none
            **(variables or {}),
        }
        manifest = jobs.scripted(
            self.cluster,
            self.name,
            workers,
            [*launcher, str(self.folder / "mortal.py")],
            env=env,
            resources={
                "requests": {"cpu": CPUS_OF_MORE_THAN_HALF_A_NODE},
                "limits": {"memory": MEMORY_LIMIT},
            },
            grace_seconds=grace_seconds,
            worker={"standby": standby},
            **spec,
        )
        self.cluster.apply(manifest, self.observation.namespace)

    def tell(self, rank: int, way: str) -> None:
        """Die before the next step; `way` is one of mortal.py's."""
        aside = self.folder / "request"
        aside.write_text(way)
        aside.rename(self.folder / f"rank-{rank}")

    def report_xid(self, pod: str, number: int) -> None:
        """Report an Xid as the driver of the Pod's GPU does."""
        aside = self.folder / "xid"
        aside.write_text(str(number))
        aside.rename(self.folder / pod)

    def wait_until_failed(self, within_seconds: float) -> None:
        def over() -> bool:
            return jobs.phase(self.observation, self.name) in ("Failed", "Succeeded")

        self.observation.wait_for(f"job {self.name} to fail", over, within_seconds)
        assert jobs.phase(self.observation, self.name) == "Failed", self.observation.describe()

    def finish(self) -> None:
        (self.folder / "finish").touch()
        jobs.wait_until_succeeded(self.observation, self.name)

    def lives(self) -> list[Life]:
        """Return the lives of rank 0, as it wrote them down."""
        log = self.folder / "steps.jsonl"
        complete, _, _ = log.read_text().rpartition("\n") if log.exists() else ("", "", "")
        lines = [json.loads(line) for line in complete.splitlines()]
        return [
            Life(name, own[0]["world"], own[0]["step"], own[-1]["step"], own[0]["time"], own[-1]["time"])
            for name, group in itertools.groupby(lines, key=lambda line: str(line["life"]))
            if (own := list(group))
        ]

    def wait_until_training(
        self,
        beyond: Life | None = None,
        *,
        world_of: int | None = None,
        within_seconds: float = PATIENCE_SECONDS,
    ) -> Life:
        """The newest life, once it is not the given one, and some steps old, of the published world.

        `world_of` is for when that is to be of so many ranks.
        """

        def trains() -> Life | None:
            lives, world = self.lives(), self.world()
            if not lives or lives[-1].name == (beyond and beyond.name) or lives[-1].steps < STEPS:
                return None
            size = world.get("worldSize")
            if world.get("phase") != "Formed" or size != lives[-1].world or world_of not in (None, size):
                return None
            return lives[-1] if lives[-1].began > jobs.unix_time(world["formedAt"]) else None

        return self.observation.wait_for("the ranks to make steps together", trains, within_seconds)

    def wait_until_replaced(self, pod: str) -> None:
        """Worker 1 has another Pod, which is in the published world."""

        def is_member() -> bool:
            incarnations, now = self.world()["incarnations"], self.worker(1)["spec"]["incarnation"]
            return self.world()["phase"] == "Formed" and self.pod(1) != pod and incarnations[1] == now

        self.observation.wait_for(f"another Pod for {pod}", is_member)

    # --- what is said of it ---

    def world(self) -> Object:
        return jobs.rendezvous(self.observation, self.name)

    def job(self) -> Object:
        return self.observation.job(self.name)

    def worker(self, index: int) -> Object:
        return self.observation.workers(self.name)[index]

    def pod(self, index: int) -> str:
        """The name of its present Pod."""
        worker = self.worker(index)
        return f"{worker['metadata']['name']}-{worker['spec']['incarnation']}"

    def node(self, index: int) -> str:
        return jobs.node_of(self.observation, self.pod(index))

    def last_failure(self) -> Object:
        found: Object = self.job().get("status", {}).get("lastFailure") or {}
        return found

    def restarts(self) -> dict[str, int]:
        """Return the restarts of processes in their Pods, by class."""
        found: dict[str, int] = self.job().get("status", {}).get("restarts") or {}
        return found

    def condition(self, kind: str) -> Object:
        return jobs.condition(self.job(), kind)

    def events(self, reason: str) -> list[str]:
        """Return all messages of the job's Events with this reason, earlier versions of each included."""
        found = [
            str(event["message"])
            for event in self.observation.history[Kind.EVENT]
            if event.get("reason") == reason and event["involvedObject"].get("name") == self.name
        ]
        return list(dict.fromkeys(found))

    # --- what is done to it ---

    def kill(self, index: int) -> None:
        """One training process, from outside."""
        pod = self.observation.pods()[self.pod(index)]
        self.cluster.kill_process(self.observation.namespace, pod)

    def drain(self, node: str) -> None:
        self._drained.append(node)
        whatever = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
        self.cluster.kubectl("drain", node, *whatever, "--timeout=240s")

    def power_off(self, index: int) -> None:
        """The node that its Pod is on."""
        node = self.node(index)
        self._without_power.append(node)
        self.cluster.power_off(node)

    def put_nodes_back(self) -> None:
        for node in self._drained:
            self.cluster.kubectl("uncordon", node)
        for node in self._without_power:
            self.cluster.power_on(node)
