"""Scripts that call nothing of dlr's: their steps are counted, and hangs and goodput go by the count."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import jobs
from e2e.bare_venv import BareVenv
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.strangers import SCRIPTS, STEPS, Stranger

POLICY = {**jobs.QUICK_REPORTS, "hangTimeoutSeconds": 30}
TOLERANCE = 0.02
EPOCHS = "60"

pytestmark = [
    pytest.mark.needs(Capability.STORAGE),
    pytest.mark.needs(Capability.NODE_PROCESSES),
]

UNKNOWN = "it is unknown which step the last start went on with"
SAMPLES_LINE = "in read_slowly: time.sleep(0.1)"


def submitted(job: Stranger, folder: Path, script: str, packages: list[str]) -> None:
    """Submit two workers of one rank each."""
    image = BareVenv(folder / "venv", extras=packages)
    command = ["torchrun", str(SCRIPTS / f"{script}.py"), EPOCHS, "--snapshot", str(job.snapshot)]
    job.submit(command, workers=2, variables={"PATH": image.path}, elasticPolicy=POLICY)


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("ddp", []),
        ("fsdp2", ["numpy"]),
        ("with_accelerate", ["accelerate"]),
        ("with_lightning", ["lightning"]),
        ("with_transformers", ["transformers", "accelerate"]),
    ],
)
def test_steps_and_goodput_are_those_of_its_own_log(
    cluster: Cluster, observation: Observation, tmp_path: Path, script: str, packages: list[str]
) -> None:
    job = Stranger(cluster, observation, script.replace("_", "-"))
    submitted(job, tmp_path, script, packages)
    job.wait_for_reported_step(STEPS)
    job.wait_for_checkpoint()
    job.finish()
    status = observation.job(job.name)["status"]
    assert status["goodput"]["lastStep"] == max(line["step"] for line in job.lines(0) if "step" in line)
    assert status["goodput"]["latest"]["counted"] is True
    reported, own = job.reported_goodput(), job.own_goodput()
    print(f"{script}: goodput {reported:.4f} by its status, {own:.4f} by its own log")
    assert reported == pytest.approx(own, rel=TOLERANCE)


def test_goodput_after_a_kill_is_that_of_its_own_log_where_the_optimizer_keeps_its_steps(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    job = Stranger(cluster, observation, "fsdp2-killed")
    submitted(job, tmp_path, "fsdp2", ["numpy"])
    job.survive_a_kill(victim=1)
    status = observation.job(job.name)["status"]
    assert job.reported_goodput() == pytest.approx(job.own_goodput(), rel=TOLERANCE)
    assert status["goodput"]["stepsRedone"] == job.own_steps_redone()
    assert not jobs.warning(observation.job(job.name), "StartUnknown")


def test_goodput_after_a_kill_is_no_more_than_that_of_its_own_log_and_said_to_be_unknown(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    job = Stranger(cluster, observation, "ddp-killed")
    submitted(job, tmp_path, "ddp", [])
    job.survive_a_kill(victim=1)
    assert job.reported_goodput() <= job.own_goodput() + TOLERANCE
    assert jobs.warning(observation.job(job.name), "StartUnknown")["message"].startswith(UNKNOWN)


def test_a_rank_whose_storage_does_not_answer_is_blamed(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    job = Stranger(cluster, observation, "ddp-hangs")
    submitted(job, tmp_path, "ddp", [])
    failure = job.hang(rank=1)
    print(failure["message"])
    assert "rank 1, after step " in failure["message"].splitlines()[0]
    assert SAMPLES_LINE in failure["message"].splitlines()[0]
    job.finish()
    assert observation.job(job.name)["status"]["restarts"] == {"Hang": 1}
