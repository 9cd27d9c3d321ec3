"""examples/digits and examples/groups without dlr's cluster, as one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed_by(example: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, EXAMPLES / example / "train.py"],
        env=environment | variables | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits_go_on_from_their_newest_checkpoint_in_storage(tmp_path: Path) -> None:
    told = {"EPOCHS": "3", "CHECKPOINT_DIR": str(tmp_path)}
    assert "rank 0 of 1: steps 0 to 69" in printed_by("digits", **told)
    first = json.loads((tmp_path / "result.json").read_text())
    assert "rank 0 of 1: steps 50 to 69" in printed_by("digits", **told)
    assert json.loads((tmp_path / "result.json").read_text()) == first


def test_one_group_trains_alone_and_learns() -> None:
    told = printed_by("groups", STEPS="60")
    *_, last = told.splitlines()
    assert "gradients of 1 group" in told
    assert last.endswith("after 60 steps") and float(last.split()[2].rstrip("%")) > 80
