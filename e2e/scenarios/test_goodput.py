"""What the status says of a job's goodput is what a reader of its own step log computes."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from e2e import embedded, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "stepper"
STEPS = 200
FAILURES = [(27, 1, "raise"), (64, 0, "SIGKILL"), (118, 1, "exit"), (161, 0, "SIGSEGV")]
"""The controller is killed shortly before the third; a Pod is deleted after it."""
KILL_AT_STEP, DELETE_AT_STEP = 110, 135
RUN_SECONDS = 240
TOLERANCE = 0.01
START_TOLERANCE_SECONDS = 0.5
PAUSE_TOLERANCE_SECONDS = 4.0
"""Of five together: from a step to the end of the process that failed after it, or of the deleted Pod."""


@dataclass(frozen=True)
class Line:
    step: int
    process: int
    time: float
    """Seconds on the monotonic clock of the machine."""


class StepLog:
    """What rank 0 wrote, process after process; it knows nothing of dlr."""

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

    def pauses(self) -> list[float]:
        """Seconds from the last step of a process to the first of the next."""
        return [after[0].time - before[-1].time for before, after in itertools.pairwise(self.lives())]

    def redone(self) -> int:
        steps = [line.step for line in self.lines()]
        return len(steps) - len(set(steps))


def submitted(job: Object) -> float:
    """Unix time."""
    return datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()


def stepper(cluster: Cluster, folder: Path) -> Object:
    """Two workers, a rank each."""
    folder.mkdir()
    script = folder / "stepper.py"
    shutil.copy(Path(__file__).parent.parent / "fixtures" / script.name, script)
    (folder / "failures.json").write_text(json.dumps(FAILURES))
    variables = {"STEPPER": str(folder), "STEPS": str(STEPS), "OMP_NUM_THREADS": "1"}
    container = {
        "name": "main",
        "image": cluster.image,
        "command": ["dlr", "run", str(script)],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": jobs.TRAINING_RESOURCES,
    }
    template = {
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    }
    return jobs.job(NAME, template, 2, elasticPolicy=jobs.QUICK_REPORTS)


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
        observation.wait_for(f"step {step}", reached, RUN_SECONDS)

    wait_for_step(KILL_AT_STEP)
    cluster.control_plane(embedded.CONTROLLER).signal(signal.SIGKILL)
    wait_for_step(DELETE_AT_STEP)
    cluster.delete_pod(observation.namespace, f"{NAME}-worker-1-1")
    jobs.wait_until_succeeded(observation, NAME, within_seconds=RUN_SECONDS)

    job = observation.job(NAME)
    status = job["status"]
    goodput = status["goodput"]
    seconds = goodput["seconds"]
    life_seconds = jobs.seconds_between(job["metadata"]["creationTimestamp"], status["completionTime"])
    told = {key: round(value, 1) for key, value in seconds.items()}
    print(
        f"\ngoodput {goodput['ratio']:.1%} of {life_seconds:.1f} s, {goodput['stepsRedone']} redone: {told}; "
        f"pauses {[round(pause, 1) for pause in log.pauses()]}"
    )

    assert len(log.lives()) == 6
    assert goodput["ratio"] == pytest.approx(log.effective_seconds() / life_seconds, rel=TOLERANCE)
    assert (goodput["firstStep"], goodput["lastStep"]) == (1, STEPS)
    assert goodput["steppingSeconds"] == pytest.approx(log.stepping_seconds(), rel=TOLERANCE)
    assert abs(goodput["stepsRedone"] - log.redone()) <= 1, "the other rank may have told the last step alone"

    assert sum(seconds.values()) == pytest.approx(life_seconds, abs=0.01)
    assert seconds["Recovering"] == pytest.approx(sum(log.pauses()), abs=PAUSE_TOLERANCE_SECONDS)
    start = log.lines()[0].time - time.monotonic() + time.time() - submitted(job)
    assert seconds["Pending"] + seconds["Forming"] == pytest.approx(start, abs=START_TOLERANCE_SECONDS)
    states = [episode["state"] for episode in status["history"]]
    assert states[:3] == ["Pending", "Forming", "Training"]
    assert states.count("Training") == 6, states
    assert [life["incarnation"] for life in observation.workers(NAME)[1]["status"]["history"]] == [1, 2]
