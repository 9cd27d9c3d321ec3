"""Jobs of fixtures/keeper.py: what their ranks went on from, and whether they learned what they should have.

For backends where the Pods' storage is a directory of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.fixtures import keeper
from e2e.observation import Observation

NAME = "keeper"
SCRIPT = Path(keeper.__file__)


class Training:
    """A job whose processes keep each step, and what they wrote.

    Args:
        workers: their number.
        variables: for their processes.
    """

    def __init__(
        self,
        cluster: Cluster,
        observation: Observation,
        *,
        workers: int = 2,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.observation = observation
        self.workers = workers
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path) / NAME
        self.folder.mkdir()
        manifest = jobs.scripted(
            cluster,
            NAME,
            workers,
            ["dlr", "run", str(SCRIPT)],
            storage=storage,
            env={"KEEPER": str(self.folder), **(variables or {})},
            grace_seconds=20,
            worker={"memoryCheckpoint": {"size": "16Mi", "replicas": 1}},
            elasticPolicy=jobs.QUICK_REPORTS,
        )
        cluster.apply(manifest, observation.namespace)

    def entries(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"rank-{rank}.jsonl"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def reached(self, start: int) -> int:
        """The highest step that any rank made between this start of its processes (1, 2, …) and the next."""
        return max(step for rank in range(self.workers) for step in self._steps(rank, start))

    def _steps(self, rank: int, start: int) -> Iterator[int]:
        starts = 0
        for entry in self.entries(rank):
            starts += "resumed" in entry
            if starts == start:
                yield entry.get("step", 0)

    def resumed(self, rank: int) -> list[int]:
        """Return the steps from which its processes resumed, in order."""
        return [entry["resumed"] for entry in self.entries(rank) if "resumed" in entry]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        self.observation.wait_for(what, lambda: condition() or None)

    def wait_for_start(self, number: int) -> tuple[int, int]:
        """Wait until processes were started so often and have made three steps; what they went on from."""
        ranks = range(self.workers)
        self.wait(f"start {number}", lambda: all(len(self.resumed(rank)) == number for rank in ranks))
        self.wait_for_step(self.resumed(0)[-1] + 3)
        return self.resumed(0)[-1], self.resumed(1)[-1]

    def wait_for_step(self, step: int) -> None:
        """Wait until rank 0 has made a step."""
        self.wait(f"step {step}", lambda: self.step() >= step)

    def step(self) -> int:
        """The step that rank 0 made last; 0 before the first of its present processes."""
        entries = self.entries(0)
        return int(entries[-1].get("step", 0)) if entries else 0

    def wait_until_resumed_from(self, step: int, tier: str) -> None:
        """Wait until the job's status has the step from which its newest world resumed."""
        expected = {"step": step, "tier": tier}
        self.wait(f"{expected} to be reported", lambda: self.resumption() == expected)

    def resumption(self) -> Object | None:
        resume: Object | None = jobs.rendezvous(self.observation, NAME).get("resume")
        return resume

    def finish(self) -> None:
        """End it after the present step, with the parameters of a run that nothing has disturbed."""
        (self.folder / "end").touch()
        jobs.wait_until_succeeded(self.observation, NAME)
        result = json.loads((self.folder / "result.json").read_text())
        assert result["digest"] == undisturbed(result["step"], self.workers)

    def messages(self, reason: str) -> list[str]:
        return [event["message"] for event in self.observation.events(reason=reason, of=NAME)]


def undisturbed(steps: int, ranks: int) -> str:
    """The parameters after so many steps of so many ranks of which nothing was lost."""
    model, optimizer = keeper.model_and_optimizer()
    for step in range(1, steps + 1):
        gradients = []
        for rank in range(ranks):
            optimizer.zero_grad()
            keeper.backward(model, step, rank)
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
        for parameter, *found in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = keeper.mean(found)
        optimizer.step()
    return keeper.digest(model)
