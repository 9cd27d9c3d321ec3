"""Modules of processes that live on, by the torch that DLR_TORCH_NEXT_PYTHON has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.survivors import environment_with_torch

CASES = Path(__file__).with_name("living_modules.py")


@pytest.mark.real
def test_modules_fit_worlds_of_other_sizes_and_what_does_not_is_named() -> None:
    python = environment_with_torch() / "bin" / "python"
    command = [str(python), "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    root = CASES.parents[2]
    ran = subprocess.run(
        [*command, f"--rootdir={root}", str(CASES)], cwd=root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
