"""A job of four Pods, a process each, whose world becomes smaller and larger while the processes live on."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from e2e import jobs, processes
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.fixtures import resized
from e2e.observation import Observation
from e2e.survivors import environment_with_torch

NAME = "resized"
FIXTURE = Path(__file__).parent / "fixtures" / "resized.py"


class Resized:
    """The job, by the lines that its processes write."""

    def __init__(self, cluster: Cluster, observation: Observation, kind: str, **policy: int) -> None:
        self.cluster, self.observation = cluster, observation
        self._room = f"e2e.example/{observation.namespace}"
        """Label of the nodes that take the job's Pods."""
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path)
        manifest = jobs.scripted(
            cluster,
            NAME,
            4,
            ["dlr", "run", "--nproc-per-node", "1", str(FIXTURE)],
            storage=storage,
            env={
                "FOLDER": storage.path,
                "KIND": kind,
                "PATH": f"{environment_with_torch()}/bin:{os.environ['PATH']}",
            },
            resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
            grace_seconds=30,
            worker={"memoryCheckpoint": {"size": "64Mi", "replicas": 1}, "minReplicas": 2, "maxReplicas": 4},
            elasticPolicy=jobs.QUICK_REPORTS | policy,
            runPolicy=jobs.KEEP_PODS,
        )
        template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
        template["spec"]["nodeSelector"] = {self._room: "yes"}
        self.set_room(True)
        cluster.apply(manifest, observation.namespace)

    def set_room(self, has_room: bool) -> None:
        """Let nodes take Pods of the job, or no more of them."""
        label = f"{self._room}=yes" if has_room else f"{self._room}-"
        self.cluster.kubectl("label", "nodes", "--all", "--overwrite", label)

    def lose_pod(self, round_: int, rank: int) -> None:
        """Kill all of the Pod that has a rank in a round, its agent too."""
        (uid,) = {line["pod"] for line in self.by_round()[round_] if line["rank"] == rank}
        ours = [pid for pid in processes.all_pids() if processes.environment(pid).get("DLR_POD_UID") == uid]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in ours:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def lines(self) -> list[Object]:
        """All lines of all processes, by time."""
        texts = [path.read_text() for path in self.folder.glob("process-*")]
        lines = [json.loads(line) for text in texts for line in text.splitlines() if line.endswith("}")]
        return sorted(lines, key=lambda line: line["at"])

    def by_round(self) -> dict[int, list[Object]]:
        """The lines of each round in which a step was made."""
        found: dict[int, list[Object]] = defaultdict(list)
        for line in self.lines():
            found[line["round"]].append(line)
        return found

    def await_world(self, size: int, after: int = 0, steps: int = 20) -> int:
        """Wait until a round after another has made steps at that size; return it."""

        def found() -> int | None:
            rounds = self.by_round()
            newest = max(rounds, default=0)
            of_newest = rounds.get(newest, [])
            trains = newest > after and len(of_newest) >= steps * size and of_newest[-1]["size"] == size
            return newest if trains else None

        return self.observation.wait_for(f"steps of a world of {size}", found)

    def processes(self, round_: int) -> set[str]:
        return {line["process"] for line in self.by_round()[round_]}

    def pause(self, round_: int) -> float:
        """Seconds from the last step before a round to the first of its last rank."""
        rounds = self.by_round()
        before: float = max(
            line["at"] for number, lines in rounds.items() if number < round_ for line in lines
        )
        first: dict[str, float] = {}
        for line in rounds[round_]:
            first.setdefault(line["process"], line["at"])
        return max(first.values()) - before

    def assert_equal_to_a_replay(self) -> None:
        """Each step was made by all ranks of a world, of its very samples, with one process's loss."""
        made: dict[int, dict[int, list[Object]]] = defaultdict(lambda: defaultdict(list))
        for line in self.lines():
            made[line["step"]][line["round"]].append(line)
        steps = sorted(made)
        assert steps == list(range(len(steps)))
        for step, (samples, loss) in zip(steps[:-1], replay(), strict=False):  # the last may be under way
            lines = made[step][max(made[step])]
            assert sorted(line["rank"] for line in lines) == list(range(lines[0]["size"])), lines
            assert sorted(itertools.chain(*(line["samples"] for line in lines))) == sorted(samples), step
            assert sum(line["part"] for line in lines) == pytest.approx(loss, rel=1e-9), step


def replay() -> Iterator[tuple[list[int], float]]:
    """Yield the samples and the loss of each step, as one process makes them."""
    model = resized.build("plain")
    optimizer, sampler, data = resized.optimizer_of(model), resized.sampler_of(1, 0), resized.Numbered()
    while True:
        for indices in sampler:
            optimizer.zero_grad()
            loss = resized.loss_of(model, torch.stack([data[index] for index in indices]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield indices, loss.item()
            sampler.advance()
