"""Replica groups through many kills: all have the same parameters, and one process can repeat the run."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from crds.names import LABEL_GROUP_INDEX
from e2e import embedded, jobs, processes
from e2e.cluster import Capability, Cluster
from e2e.fixtures import exact
from e2e.observation import Observation

NAME = "killed"
GROUPS = 3
KILLS = int(os.environ.get("DLR_KILLS", "40"))
"""Number of processes that are killed; docs/groups.md has a run of 300."""
CONTROLLER_EVERY = 10
"""Number of kills after each of which the controller is killed too."""
RECENT_STEPS = 5
Line = dict[str, Any]


def process_of(line: Line) -> tuple[int, int, int]:
    """The process that wrote a line."""
    return line["group"], line["rank"], line["pid"]


class Run:
    """The job, what its processes wrote, and whom the test has killed."""

    def __init__(self, cluster: Cluster, observation: Observation) -> None:
        self._cluster, self._observation = cluster, observation
        self.folder = Path(cluster.storage(observation.namespace).path) / NAME
        self.folder.mkdir()
        self._read: dict[Path, int] = {}
        self.lines: dict[Path, list[Line]] = defaultdict(list)
        """By process, in their order."""

    def submit(self) -> None:
        manifest = jobs.scripted(
            self._cluster,
            NAME,
            GROUPS * exact.WORKERS,
            ["dlr", "run", exact.__file__],
            storage=self._cluster.storage(self._observation.namespace),
            env={"FOLDER": str(self.folder)},
            worker={"restartCount": 1_000},
            elasticPolicy={"replicaGroups": {"workers": exact.WORKERS, "min": 2}, "lastCallSeconds": 1},
        )
        self._cluster.apply(manifest, self._observation.namespace)

    def look(self) -> None:
        """Read what processes have written since the last look."""
        for path in self.folder.iterdir():
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self.lines[path] += [json.loads(line) for line in whole.splitlines()]

    def living(self) -> dict[tuple[int, int, int], int]:
        """The training processes of this machine, by group, rank and the number that they write."""
        found = {}
        for pod in self._observation.pods().values():
            for process in processes.training_processes(pod["metadata"]["uid"]):
                variables = processes.environment(process.pid)
                if "RANK" in variables:  # it has not just ended
                    place = int(pod["metadata"]["labels"][LABEL_GROUP_INDEX]), int(variables["RANK"])
                    found[*place, processes.number_inside(process.pid)] = process.pid
        return found

    def train(self) -> dict[int, list[int]]:
        """The groups all of whose ranks have made one of the newest steps; their processes by rank."""
        living = self.living()
        self.look()
        last = [lines[-1] for lines in self.lines.values() if lines]
        newest = max((line["step"] for line in last), default=0)
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for line in last:
            if line["step"] > newest - RECENT_STEPS and (pid := living.get(process_of(line))):
                found[line["group"]][line["rank"]] = pid
        return {
            group: [pids[rank] for rank in sorted(pids)]
            for group, pids in found.items()
            if len(pids) == exact.WORKERS
        }

    def wait_until(self, number: int) -> dict[int, list[int]]:
        """Wait until so many groups train."""

        def enough() -> dict[int, list[int]] | None:
            found = self.train()
            return found if len(found) >= number else None

        return self._observation.wait_for(f"{number} groups to train", enough)

    def replace_controller(self) -> None:
        controller = self._cluster.control_plane(embedded.CONTROLLER)
        killed = controller.pid()
        controller.signal(signal.SIGKILL)
        self._observation.wait_for("the next controller", lambda: controller.pid() not in (None, killed))


@pytest.mark.timeout(300 + 10 * KILLS)
@pytest.mark.needs(Capability.STORAGE)
@pytest.mark.needs(Capability.CONTROL_PLANE)
@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_no_step_is_lost_or_made_twice_or_differs_through_many_kills(
    cluster: Cluster, observation: Observation
) -> None:
    run, chance, kills = Run(cluster, observation), random.Random(7), 0
    run.submit()
    run.wait_until(GROUPS)
    while kills < KILLS:
        several = chance.random() < 0.3
        able = run.wait_until(GROUPS if several else 2)
        for group in chance.sample(sorted(able), 2 if several else 1):
            pid = chance.choice(able[group])
            os.kill(pid, signal.SIGKILL)
            kills += 1
            if kills % CONTROLLER_EVERY == 0:
                run.replace_controller()
    run.wait_until(GROUPS)
    run.look()
    living = run.living()
    lines, last = list[Line](), list[Line]()
    for each in filter(None, run.lines.values()):
        if process_of(each[-1]) not in living:
            last.append(each.pop())
        lines += each
    # One that died may have learned alone that all agree: its step died with it, and others made it again.
    steps = {line["step"] for line in lines}
    lines += [line for line in last if line["step"] not in steps]
    digests, groups_of = defaultdict[int, set[str]](set), dict[int, list[int]]()
    for line in lines:
        digests[line["step"]].add(line["digest"])
        groups_of[line["step"]] = line["groups"]
    assert sorted(digests) == list(range(len(digests))), "no step is missing"
    assert {step: each for step, each in digests.items() if len(each) > 1} == {}
    made = [next(iter(digests[step])) for step in range(len(digests))]
    first = {line["pid"] for line in lines if line["step"] == 0}
    assert any(exact.replay(seed, groups_of) == made for seed in first)
    print(f"{kills} kills, {len(made)} steps")
