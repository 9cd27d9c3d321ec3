"""Scripts and images that know nothing of dlr: they train, a process is killed, and they train to their end.

The agent is injected. A bare virtual environment stands for an image with torch alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.bare_venv import NEVER_THERE, BareVenv
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.strangers import SCRIPTS, Stranger

GOOD_LOSS = 5.0
"""Limit of a mean squared error that is about 100 before training."""
FOREVER = "300"
"""Epochs; a hurried job makes them in seconds."""

FAKES = ("agent", "controller", "crds", "healthcheck", "pynvml", "tenacity", "urllib3")
FAKE = "raise ImportError('this is the user\\'s own module, and nobody asked for it')\n"

pytestmark = [pytest.mark.needs(Capability.STORAGE), pytest.mark.needs(Capability.NODE_PROCESSES)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> BareVenv:
    bare = BareVenv(tmp_path_factory.mktemp("image") / "venv")
    assert bare.importable([*NEVER_THERE, "torch"]) == ["torch"]
    return bare


@pytest.mark.named
def test_fsdp2_with_dcp_by_torchruns_own_path(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    """DCP takes numpy, whoever starts it."""
    image = BareVenv(tmp_path / "venv", extras=["numpy"])
    job = Stranger(cluster, observation, "fsdp2")
    torchrun = [str(image.program("torchrun")), "--nproc-per-node=2"]
    job.submit([*torchrun, str(SCRIPTS / "fsdp2.py"), "60", "--snapshot", str(job.snapshot)])
    job.survive_a_kill(victim=0, local_rank=1)
    assert job.loss() < GOOD_LOSS


def test_the_users_own_modules_of_our_names_are_the_only_ones(
    cluster: Cluster, observation: Observation, image: BareVenv
) -> None:
    """Beside the script, in the working directory and on PYTHONPATH. The loader's processes are spawned."""
    job = Stranger(cluster, observation, "names")
    work, libraries = job.folder / "work", job.folder / "libraries"
    for folder in (work, libraries):
        folder.mkdir()
    for name in FAKES:
        (work / f"{name}.py").write_text(FAKE)
        (libraries / name).mkdir()
        (libraries / name / "__init__.py").write_text(FAKE)
    command = ["dlr", "run", str(SCRIPTS / "names.py"), str(job.folder), str(SCRIPTS / "ddp.py"), FOREVER]
    command += ["--snapshot", str(job.snapshot), "--loader-processes=1", "--start-method=spawn"]
    path = f"{work}:{libraries}"
    job.submit(command, variables={"PATH": image.path, "PYTHONPATH": path}, working_directory=work)
    job.survive_a_kill(victim=0)
