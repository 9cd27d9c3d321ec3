"""What `make release` writes, once a run, and Helm."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crds.release import VERSION
from tests.release.bases import make_base
from tests.release.helm import Helm, find_helm

ROOT = Path(__file__).parents[2]


PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
"""Where programs are: beside this Python first."""


def find_uv() -> str:
    """Return the `uv` beside this Python, or else on PATH."""
    found = shutil.which("uv", path=PATH)
    assert found, f"uv is neither beside {sys.executable} nor on PATH"
    return found


def make(out: Path, base: Path, **variables: str) -> None:
    """Run `make release` without the worker's image, with further environment variables."""
    command = [sys.executable, "-m", "release", "--out", out, "--without-worker"]
    command += ["--python-base", base, "--busybox-base", base]
    environment = os.environ | {"PATH": PATH} | variables
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), python=platform.python_version())


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    out = tmp_path_factory.mktemp("dist")
    make(out, base)
    return out


@pytest.fixture(scope="session")
def chart(dist: Path) -> Path:
    return dist / f"dlr-{VERSION}.tgz"


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    folder = tmp_path_factory.mktemp("helm")
    return Helm(find_helm(folder), folder)
