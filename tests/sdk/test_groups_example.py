"""examples/groups without dlr's cluster: one group, as under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parents[2] / "examples/groups/train.py"


def test_the_example_trains_alone_and_learns() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"STEPS": "60", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert "gradients of 1 group" in done.stdout
    assert last.endswith("after 60 steps") and float(last.split()[2].rstrip("%")) > 80
