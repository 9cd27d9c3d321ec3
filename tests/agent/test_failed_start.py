"""An agent that ends before it has begun reports why: the shell behind which it runs may hide its exit code."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.report.failed_start import report_failed_start
from crds.agent_report import AgentReport
from tests.agent.fake_cluster import FakeCluster


def _torchrun(
    cluster: FakeCluster, *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`torchrun` in a worker's Pod."""
    main = "import sys; from agent.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", main, "torchrun", *arguments],
        env={"PATH": "/usr/bin:/bin", **(environ or cluster.environ(0))},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--bogus", "train.py"], "unrecognized arguments: --bogus"),
        (["--nproc-per-node=gpu", "train.py"], "Cuda is not available"),
        ([], "the following arguments are required: training_script"),
    ],
)
def test_arguments_that_are_refused_are_a_failure_with_their_sentence(
    cluster: FakeCluster, arguments: list[str], why: str
) -> None:
    ran = _torchrun(cluster, *arguments)
    assert ran.returncode == 2 and why in ran.stderr
    ((_, body),) = cluster.reports
    report = AgentReport.model_validate(body)
    assert (report.state, report.observed_round) == ("Failed", 0)
    assert report.failure is not None and why in report.failure.message
    assert (report.failure.sequence, report.failure.exit_code) == (1, 2)


@pytest.mark.parametrize("is_taken", [True, False])
def test_the_first_report_that_is_taken_deletes_the_launchers_mark(
    cluster: FakeCluster, tmp_path: Path, is_taken: bool
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    environ = {**cluster.environ(0), "DLR_TERMINATION_LOG": str(message)}
    if not is_taken:
        environ["DLR_JOB_NAME"] = ""
    _torchrun(cluster, "--rdzv-backend=dlr", "--bogus", environ=environ)
    assert bool(message.read_text()) is not is_taken


def test_help_is_no_failure(cluster: FakeCluster) -> None:
    assert "usage:" in _torchrun(cluster, "--help").stdout
    assert not cluster.reports


def test_failures_are_counted_on_from_those_of_an_earlier_agent_of_the_pod(cluster: FakeCluster) -> None:
    environ = cluster.environ(0)
    for _ in range(2):
        report_failed_start(environ, "dlr run: no", 2)
    assert [body["failure"]["sequence"] for _, body in cluster.reports] == [1, 2]


def test_outside_of_a_job_nothing_is_reported() -> None:
    began = time.monotonic()
    report_failed_start({}, "dlr run: no", 2)
    report_failed_start({"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, "dlr run: no", 2)
    assert time.monotonic() - began < 5
