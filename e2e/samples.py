"""Samples and world of each step, as written by examples/plain."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

VARIABLE = "SAMPLE_LOG_DIR"
SAMPLES_AN_EPOCH = 1437


@dataclass(frozen=True)
class Stretch:
    """Steps that followed each other in worlds of one size."""

    world: int
    first_step: int
    last_step: int
    began: float
    """Unix time of the beginning of the first step; `ended`, of that of the last."""
    ended: float

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1


@dataclass(frozen=True)
class Change:
    """The change from the last step of one stretch to the first of the next."""

    before: int
    after: int
    """Workers."""
    pause_seconds: float
    repeated_steps: int
    """Begun in the old world, and made again in the new one."""
    began: float
    """Unix time of the first step in the new world."""

    def __str__(self) -> str:
        return (
            f"{self.before} → {self.after} workers: {self.pause_seconds:.1f} s from the last step "
            f"to the next, {self.repeated_steps} steps made again"
        )


class SampleLog:
    """The log of one job's samples, where its Pods' storage is a directory of this machine."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._directory = Path(cluster.storage(namespace).path) / "samples"

    def ask_for(self, manifest: Object) -> Object:
        """The digits job with the variable that has its workers write the log."""
        container = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
        container["env"].append({"name": VARIABLE, "value": str(self._directory)})
        return manifest

    def stretches(self) -> list[Stretch]:
        """Return the stretches as each rank 0 wrote them down."""
        found: list[Stretch] = []
        for line in _lines(self._directory / "rank-0.jsonl"):
            last = found[-1] if found else None
            if last and (last.world, last.last_step + 1) == (line["world"], line["step"]):
                found[-1] = Stretch(last.world, last.first_step, line["step"], last.began, line["time"])
            else:
                found.append(Stretch(line["world"], line["step"], line["step"], line["time"], line["time"]))
        return found

    def changes(self, since: Stretch) -> list[Change]:
        """Return the changes after this stretch, in order."""
        return [
            Change(
                before=old.world,
                after=new.world,
                pause_seconds=new.began - old.ended,
                repeated_steps=old.last_step - new.first_step + 1,
                began=new.began,
            )
            for old, new in itertools.pairwise(self.stretches())
            if new.began > since.began
        ]

    def learned(self) -> dict[int, list[int]]:
        """The samples of each step: of one that was made again, the last time counts."""
        lines = sorted(
            itertools.chain.from_iterable(_lines(path) for path in self._directory.glob("rank-*.jsonl")),
            key=lambda line: float(line["time"]),
        )
        by_step: dict[int, list[Object]] = {}
        for line in lines:
            by_step.setdefault(line["step"], []).append(line)
        return {
            step: sorted(index for line in found[-found[-1]["world"] :] for index in line["samples"])
            for step, found in by_step.items()
        }

    def assert_exact(self, epochs: int) -> None:
        """Every sample once in every epoch, and none twice."""
        learned = self.learned()
        assert sorted(learned) == list(range(1, epochs * jobs.STEPS_AN_EPOCH + 1))
        for epoch in range(epochs):
            steps = range(epoch * jobs.STEPS_AN_EPOCH + 1, (epoch + 1) * jobs.STEPS_AN_EPOCH + 1)
            times = Counter(index for step in steps for index in learned[step])
            assert set(times) == set(range(SAMPLES_AN_EPOCH)), f"samples of epoch {epoch} were left out"
            assert times.total() == SAMPLES_AN_EPOCH, f"samples came twice in epoch {epoch}: {times}"

    def wait_for_world(self, observation: Observation, size: int, *, steps: int = 5) -> Stretch:
        """The newest stretch of steps, once it has so many and is of so many workers."""

        def trains() -> Stretch | None:
            newest = self.stretches()[-1:]
            return newest[0] if newest and newest[0].world == size and newest[0].steps >= steps else None

        what = f"{size} workers to train {steps} steps together"
        return observation.wait_for(what, trains)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines so far; a process may have been killed within its last line."""
    if not path.exists():
        return []
    complete, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines() if line]
