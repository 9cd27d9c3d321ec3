"""examples/plain: the same loss curve, and every sample once an epoch, though it is stopped and the world grows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parents[2] / "examples/plain/train.py"
STEPS, SAMPLES = 23, 1437
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def start(directory: Path, *launcher: str, step_delay_seconds: float = 0) -> subprocess.Popen[str]:
    """An epoch of the example, with a checkpoint after every step."""
    options = ("--epochs=1", "--save-every-steps=1", f"--step-delay-seconds={step_delay_seconds}")
    places = (f"--checkpoint-dir={directory}", f"--sample-log-dir={directory}")
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [*launcher, str(SCRIPT), *options, *places],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(training: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = training.communicate(timeout=300)
    return training.returncode, output


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)/\d+ loss (\S+) saved", output)}


def samples(directory: Path) -> dict[int, list[int]]:
    """What each step learned from: of a step that was repeated, the last time counts."""
    logs = (path.read_text() for path in directory.glob("rank-*.jsonl"))
    lines = sorted(
        (json.loads(line) for log in logs for line in log.splitlines()), key=lambda line: line["time"]
    )
    found: dict[int, list[int]] = {}
    for step in {line["step"] for line in lines}:
        of_step = [line for line in lines if line["step"] == step]
        last = of_step[-of_step[-1]["world"] :]
        found[step] = sorted(index for line in last for index in line["samples"])
    return found


# Five processes import torch. The scenario of six workers, four and six again trains this example too, with each
# sample once an epoch; test_data_gradients has the same losses at every number of ranks.
def test_the_example_stopped_and_resumed_with_more_workers_trains_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    status, undisturbed = finish(start(tmp_path / "undisturbed", sys.executable))
    assert status == 0 and len(losses(undisturbed)) == STEPS

    training = start(tmp_path / "stopped", sys.executable, step_delay_seconds=0.5)
    assert training.stdout is not None
    begun = "".join(training.stdout.readline() for _ in range(5))
    training.send_signal(signal.SIGTERM)
    status, ended = finish(training)
    assert status == 128 + signal.SIGTERM
    before = losses(begun + ended)
    assert 3 < len(before) < STEPS

    status, resumed = finish(start(tmp_path / "stopped", *TORCHRUN))
    assert status == 0 and f"rank 0 of 2: steps {max(before)} to {STEPS}" in resumed
    assert before | losses(resumed) == pytest.approx(losses(undisturbed), abs=0.005)

    learned = samples(tmp_path / "stopped")
    assert learned == samples(tmp_path / "undisturbed")
    assert sorted(index for step in learned.values() for index in step) == list(range(SAMPLES))
