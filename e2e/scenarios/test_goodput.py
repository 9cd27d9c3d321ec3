"""The goodput in a job's status is the one that its own step log gives."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from e2e import embedded, jobs
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NODES = 4
NAME = "stepper"
STEPS = 200
KILL_AT_STEP, DELETE_AT_STEP = 112, 135
FAILURES = [
    (27, 1, "raise"),
    (64, 1, "exit"),
    (118, 0, "SIGKILL"),
    (DELETE_AT_STEP, 1, "wait to be deleted"),
    (161, 0, "SIGSEGV"),
]
"""The controller is killed shortly before the third; the Pod of rank 1 is deleted after it."""
TOLERANCE = 0.02
MOMENT_SECONDS = 2.0
"""Between what two processes take for the same moment."""


@dataclass(frozen=True)
class Line:
    step: int
    process: int
    time: float
    """Seconds on the monotonic clock of the machine."""


class StepLog:
    """Step log of rank 0, process after process, written without dlr."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        complete, _, _ = self._path.read_text().rpartition("\n") if self._path.exists() else ("", "", "")
        return [Line(**json.loads(line)) for line in complete.splitlines()]

    def lives(self) -> list[list[Line]]:
        """The lines of each process."""
        return [list(life) for _, life in itertools.groupby(self.lines(), key=lambda line: line.process)]

    def effective_seconds(self) -> float:
        """Steps kept × seconds a step."""
        steps = [line.step for line in self.lines()]
        kept = max(steps) - min(steps) + 1
        return kept * self.stepping_seconds() / sum(len(life) - 1 for life in self.lives())

    def stepping_seconds(self) -> float:
        return sum(life[-1].time - life[0].time for life in self.lives())

    def pauses(self) -> list[tuple[float, float]]:
        """Return the intervals from the last step of a process to the first of the next, in Unix time."""
        unix = time.time() - time.monotonic()
        return [
            (unix + before[-1].time, unix + after[0].time)
            for before, after in itertools.pairwise(self.lives())
        ]

    def redone(self) -> int:
        steps = [line.step for line in self.lines()]
        return len(steps) - len(set(steps))


def unix_time(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def whole_history(observation: Observation) -> list[Object]:
    """All of the job's episodes, as they were told last: its status keeps the last ones alone."""
    whole: list[Object] = []
    for job in observation.history[Kind.JOB]:
        told = job.get("status", {}).get("history", [])
        begins = [(e["since"], e["state"]) for e in whole]
        first = (told[0]["since"], told[0]["state"]) if told else None
        whole = whole[: begins.index(first) if first in begins else 0] + told
    return whole


def recoveries(history: Sequence[Object]) -> list[tuple[float, float]]:
    """Return the intervals in which the job was in `Recovering`, in Unix time."""
    spans: list[tuple[float, float]] = []
    runs = [
        (state, list(run)) for state, run in itertools.groupby(history, key=lambda episode: episode["state"])
    ]
    for (state, run), (_, after) in itertools.pairwise(runs):
        if state == "Recovering":
            spans.append((unix_time(run[0]["since"]), unix_time(after[0]["since"])))
    return spans


def stepper(cluster: Cluster, folder: Path) -> Object:
    """Two workers, a rank each."""
    folder.mkdir()
    script = folder / "stepper.py"
    shutil.copy(Path(__file__).parent.parent / "fixtures" / script.name, script)
    (folder / "failures.json").write_text(json.dumps(FAILURES))
    return jobs.scripted(
        cluster,
        NAME,
        2,
        ["dlr", "run", str(script)],
        env={"STEPPER": str(folder), "STEPS": str(STEPS)},
        grace_seconds=0,
        elasticPolicy=jobs.QUICK_REPORTS,
    )


@pytest.mark.needs(Capability.CONTROL_PLANE)
@pytest.mark.needs(Capability.STORAGE)
def test_goodput_over_five_failures_and_a_killed_controller_is_what_the_step_log_says(
    cluster: Cluster, observation: Observation
) -> None:
    folder = Path(cluster.storage(observation.namespace).path) / NAME
    log = StepLog(folder / "steps.jsonl")
    cluster.apply(stepper(cluster, folder), observation.namespace)

    def wait_for_step(step: int) -> None:
        reached = lambda: any(line.step >= step for line in log.lines()[-1:])  # noqa: E731
        observation.wait_for(f"step {step}", reached)

    wait_for_step(KILL_AT_STEP)
    cluster.control_plane(embedded.CONTROLLER).signal(signal.SIGKILL)
    wait_for_step(DELETE_AT_STEP)
    cluster.delete_pod(observation.namespace, f"{NAME}-worker-1-1")
    jobs.wait_until_succeeded(observation, NAME)

    job = observation.job(NAME)
    status = job["status"]
    goodput = status["goodput"]
    seconds = goodput["seconds"]
    life_seconds = jobs.seconds_between(job["metadata"]["creationTimestamp"], status["completionTime"])
    told = {key: round(value, 1) for key, value in seconds.items()}
    print(
        f"\ngoodput {goodput['ratio']:.1%} of {life_seconds:.1f} s, {goodput['stepsRedone']} redone: {told}; "
        f"pauses {[round(end - start, 1) for start, end in log.pauses()]}"
    )

    assert len(log.lives()) == 6
    assert goodput["ratio"] == pytest.approx(log.effective_seconds() / life_seconds, rel=TOLERANCE)
    assert (goodput["firstStep"], goodput["lastStep"]) == (1, STEPS)
    assert goodput["steppingSeconds"] == pytest.approx(log.stepping_seconds(), rel=TOLERANCE)
    assert goodput["stepsRedone"] == log.redone()

    assert sum(seconds.values()) == pytest.approx(life_seconds, abs=0.01)
    start = unix_time(job["metadata"]["creationTimestamp"])
    first_step = log.lines()[0].time - time.monotonic() + time.time()
    assert seconds["Pending"] + seconds["Forming"] == pytest.approx(first_step - start, abs=MOMENT_SECONDS)
    history = whole_history(observation)
    states = [episode["state"] for episode in history]
    assert states[:3] == ["Pending", "Forming", "Training"]
    assert states.count("Training") == 6, states

    spans = recoveries(history)
    assert sum(end - start for start, end in spans) == pytest.approx(seconds["Recovering"], abs=0.01)
    for (failed, trained), (last_step, next_step) in zip(spans, log.pauses(), strict=True):
        assert last_step - MOMENT_SECONDS <= failed, "a process fails after its last step"
        assert trained == pytest.approx(next_step, abs=MOMENT_SECONDS)
    told_of_third = spans[2][1] - spans[2][0]
    assert told_of_third > (log.pauses()[2][1] - log.pauses()[2][0]) / 2, "it failed while nobody led"
