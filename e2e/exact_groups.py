"""A job of replica groups whose run one process can repeat bit by bit: its lines, and who lives."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from crds.names import LABEL_GROUP_INDEX
from e2e import embedded, jobs, processes
from e2e.cluster import Cluster
from e2e.fixtures import exact
from e2e.observation import Observation
from e2e.survivors import environment_with_torch

RECENT_STEPS = 5
Line = dict[str, Any]


def process_of(line: Line) -> tuple[int, int, int]:
    """The process that wrote a line."""
    return line["group"], line["rank"], line["pid"]


class ExactGroups:
    """The job.

    Args:
        groups: number of them.
        workers: number of each, with a process each.
        lives: whether processes live on when a peer of their group dies.
        variables: further ones of their environment.
    """

    def __init__(
        self,
        cluster: Cluster,
        observation: Observation,
        name: str,
        groups: int,
        workers: int = 2,
        *,
        minimum: int,
        lives: bool,
        grace_seconds: int = 3,
        **variables: str,
    ) -> None:
        self._cluster, self._observation, self._workers = cluster, observation, workers
        storage = cluster.storage(observation.namespace)
        self.folder, self.ready = Path(storage.path) / name, Path(storage.path) / f"{name}-ready"
        self.folder.mkdir()
        self.ready.mkdir()
        self._read: dict[Path, int] = {}
        self.lines: dict[Path, list[Line]] = defaultdict(list)
        """Lines of each process, in order."""
        env = {"FOLDER": str(self.folder), "READY": str(self.ready), **variables}
        worker: dict[str, Any] = {"restartCount": 1_000}
        if lives:
            env["CHECKPOINTS"] = f"{storage.path}/checkpoints"
            env["PATH"] = f"{environment_with_torch()}/bin:{os.environ['PATH']}"
            worker["memoryCheckpoint"] = {"size": "16Mi", "replicas": 1}
        manifest = jobs.scripted(
            cluster,
            name,
            groups * workers,
            ["dlr", "run", exact.__file__],
            storage=storage,
            env=env,
            worker=worker,
            grace_seconds=grace_seconds,
            elasticPolicy={
                "replicaGroups": {"workers": workers, "min": minimum},
                "lastCallSeconds": 1,
            },
        )
        cluster.apply(manifest, observation.namespace)

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
            if len(pids) == self._workers
        }

    def wait_until(self, number: int) -> dict[int, list[int]]:
        """Wait until so many groups train; return their processes by rank."""

        def enough() -> dict[int, list[int]] | None:
            found = self.train()
            return found if len(found) >= number else None

        return self._observation.wait_for(f"{number} groups to train", enough)

    def pod_of(self, group: int, rank: int) -> str:
        """Return the name of the Pod that has a process."""
        uid = processes.environment(self.train()[group][rank])["DLR_POD_UID"]
        pods = (pod["metadata"] for pod in self._observation.pods().values())
        return next(str(pod["name"]) for pod in pods if pod["uid"] == uid)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        self._observation.wait_for(what, condition)

    def wait_for_steps(self, more: int, group: int | None = None) -> None:
        """Wait until so many more steps are made than now, by that group or by any."""

        def newest() -> int:
            self.look()
            steps = [
                lines[-1]["step"]
                for lines in self.lines.values()
                if lines and group in (None, lines[-1]["group"])
            ]
            return max(steps, default=0)

        goal = newest() + more
        self._observation.wait_for(f"step {goal}", lambda: newest() >= goal)

    def longest_step_seconds(self, group: int, since: float) -> float:
        """Return the longest time between two steps of a group, by rank 0.

        Args:
            since: monotonic time.
        """
        self.look()
        lines = [line for of_process in self.lines.values() for line in of_process]
        times = sorted(float(line["time"]) for line in lines if (line["group"], line["rank"]) == (group, 0))
        return max(after - before for before, after in pairwise(times) if after > since)

    def replace_controller(self) -> None:
        """Kill the controller, and wait for the next one."""
        controller = self._cluster.control_plane(embedded.CONTROLLER)
        killed = controller.pid()
        controller.signal(signal.SIGKILL)
        self._observation.wait_for("the next controller", lambda: controller.pid() not in (None, killed))

    def assert_alike(self) -> list[Line]:
        """No step is missing, and all groups had one state after each; return the lines that count."""
        self.look()
        living = self.living()
        lines, last = list[Line](), list[Line]()
        for of_process in self.lines.values():
            for round_ in {line["round"] for line in of_process}:
                of_round = [line for line in of_process if line["round"] == round_]
                if round_ < of_process[-1]["round"] or process_of(of_round[-1]) not in living:
                    last.append(of_round.pop())
                lines += of_round
        # A group that broke off may have learned alone that all agree: others made that step again.
        steps = {line["step"] for line in lines}
        lines += [line for line in last if line["step"] not in steps]
        digests = defaultdict[int, set[str]](set)
        for line in lines:
            digests[line["step"]].add(line["digest"])
        assert sorted(digests) == list(range(len(digests))), "no step is missing"
        assert {step: each for step, each in digests.items() if len(each) > 1} == {}
        return lines

    def assert_equal_to_a_replay(self, loaders: int = 0) -> int:
        """One process comes to the same after each step; return the number of steps.

        Args:
            loaders: number of processes that load each process's samples, and live as long as it does.
        """
        lines = self.assert_alike()
        groups_of = {line["step"]: line["groups"] for line in lines}
        self._assert_each_sample_once(groups_of)
        for path in self.ready.iterdir():
            of_process = {each for line in read_lines(path) for each in line["loaders"]}
            assert len(of_process) <= (loaders or 1), path
        digest_of = {line["step"]: line["digest"] for line in lines}
        made = [digest_of[step] for step in range(len(digest_of))]
        first = {(line["seed"], line["parts"]) for line in lines if line["step"] == 0}
        assert any(exact.replay(seed, groups_of, parts) == made for seed, parts in first)
        return len(made)

    def _assert_each_sample_once(self, groups_of: Mapping[int, Sequence[int]]) -> None:
        """Each whole epoch has had each sample once, in the steps of the groups whose gradients counted."""
        lines = [line for path in self.ready.iterdir() for line in read_lines(path)]
        dealt = {}
        for line in sorted(lines, key=itemgetter("time")):  # the last time counts, where a step is made again
            dealt[line["step"], line["group"], line["part"]] = line
        epochs = defaultdict[int, Counter[int]](Counter)
        for (step, group, _), line in dealt.items():
            if group in groups_of.get(step, ()):
                epochs[line["epoch"]].update(line["samples"])
        assert len(epochs) > 1
        for epoch in range(max(epochs)):
            assert epochs[epoch] == Counter(range(exact.SAMPLES)), epoch


def read_lines(path: Path) -> list[Line]:
    """Return the whole lines of a file."""
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
