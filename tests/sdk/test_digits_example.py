"""examples/digits without dlr: it saves to storage, and goes on from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parents[2] / "examples/digits/train.py"
STEPS_AN_EPOCH, SAVED_STEP = 23, 50


def train(directory: Path, epochs: int) -> str:
    """What it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"EPOCHS": str(epochs), "CHECKPOINT_DIR": str(directory), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_goes_on_from_its_newest_checkpoint_in_storage(tmp_path: Path) -> None:
    last_step = 3 * STEPS_AN_EPOCH
    assert f"rank 0 of 1: steps 0 to {last_step}" in train(tmp_path, 3)
    first = json.loads((tmp_path / "result.json").read_text())
    assert f"rank 0 of 1: steps {SAVED_STEP} to {last_step}" in train(tmp_path, 3)
    assert json.loads((tmp_path / "result.json").read_text()) == first
