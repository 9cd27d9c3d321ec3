"""An agent that ends before it has begun reports why: the shell behind which it runs may hide its exit code."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.report import launch_mark
from agent.report.failed_start import report_failed_start
from crds.agent_report import AgentReport
from crds.names import HAS_BEGUN
from crds.progress_record import ENV_PROGRESS_FILE
from tests.agent.fake_cluster import FakeCluster
from tests.agent.fork_server import ROOT
from tests.agent.patience import SECONDS

pytestmark = pytest.mark.real


def _torchrun(
    cluster: FakeCluster, *arguments: str, environ: dict[str, str] | None = None, command: str = "torchrun"
) -> subprocess.CompletedProcess[str]:
    """`torchrun` in a worker's Pod."""
    constants = {"agent.report.failed_start.MOST_SECONDS": SECONDS}
    main = (
        f"import sys; from tests.agent.patience import Patience; Patience({constants}).install(); "
        "from dlr.pod import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", main, command, *arguments],
        env={"PATH": "/usr/bin:/bin", **(environ or cluster.environ(0))},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("argument", "why"),
    [("--bogus", "unrecognized arguments: --bogus"), ("--nproc-per-node=gpu", "Cuda is not available")],
)
def test_arguments_that_are_refused_are_a_failure_with_their_sentence(
    cluster: FakeCluster, tmp_path: Path, argument: str, why: str
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    environ = {**cluster.environ(0), "DLR_TERMINATION_LOG": str(message)}
    ran = _torchrun(cluster, "--rdzv-backend=dlr", argument, "train.py", environ=environ)
    assert ran.returncode == 2 and why in ran.stderr
    assert not message.read_text(), "the report is taken, so the launcher's mark goes"
    _, body = cluster.reports[-1]  # where the first one was late, there are two
    report = TypeAdapter(AgentReport).validate_python(body)
    assert (report.state, report.observed_round) == ("Failed", 0)
    assert report.failure is not None and why in report.failure.message
    assert (report.failure.sequence, report.failure.exit_code) == (1, 2)


def test_a_launcher_that_fails_before_its_first_report_writes_its_error_behind_the_mark(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """A kubelet falls back on the log only where there is no message."""
    message = tmp_path / "termination-log"
    message.touch()
    (tmp_path / "tenacity.py").write_text("raise RuntimeError('libcudart.so.12: no such file')")
    environ = {"PYTHONPATH": str(tmp_path), "DLR_TERMINATION_LOG": str(message)}
    for _ in range(2):
        ran = _torchrun(cluster, "x.py", environ={**cluster.environ(0), **environ})
        assert ran.returncode == 1 and not cluster.reports
        first, *_, last = message.read_text().splitlines()
        assert first == f"dlr: torchrun {HAS_BEGUN}"
        assert (
            last
            == f"dlr: {ran.stderr.splitlines()[-1]}"
            == "dlr: RuntimeError: libcudart.so.12: no such file"
        )
        assert message.read_text().count("RuntimeError") == 2, (
            "of this start alone: its line, and the source's"
        )


def test_a_refusal_that_nobody_takes_stands_behind_the_mark(cluster: FakeCluster, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    environ = {**cluster.environ(0), "DLR_JOB_NAME": "", "DLR_TERMINATION_LOG": str(message)}
    ran = _torchrun(cluster, "--rdzv-backend=dlr", "x.py", environ=environ)
    assert ran.returncode == 2
    assert message.read_text() == f"dlr: torchrun {HAS_BEGUN}\n{ran.stderr.splitlines()[-1]}\n"


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("x.py", "dlr: agent.environment.InvalidEnvironmentError: DLR_"),
        ("torchrun", "dlr: torchrun --rdzv-backend=dlr: DLR_"),
    ],
)
def test_a_rendezvous_that_torchs_own_launcher_cannot_make_says_why_behind_the_mark(
    tmp_path: Path, program: str, last: str
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    text = f"import sys; sys.argv = [{program!r}]; from dlr.torchrun import get_handler; get_handler()(None)"
    environ = {"PATH": "/usr/bin:/bin", "DLR_TERMINATION_LOG": str(message)}
    assert subprocess.run([sys.executable, "-c", text], env=environ, timeout=300).returncode
    assert message.read_text().startswith(f"dlr: torchrun {HAS_BEGUN}\ndlr: ")
    assert message.read_text().splitlines()[-1].startswith(last)


@given(words=st.text(max_size=50), why=st.text() | st.text(alphabet="é\n x", min_size=3000, max_size=9000))
def test_a_reason_leaves_the_mark_in_what_a_kubelet_reads_and_goes_with_it(words: str, why: str) -> None:
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", newline="") as file:
        environ = {"DLR_TERMINATION_LOG": file.name}
        path = Path(file.name)
        launch_mark.explain(environ, why)
        assert not path.read_bytes(), "nothing without the mark"
        own = "".join(f"{line}\n" for line in words.splitlines())
        path.write_text(own)
        launch_mark.write(environ, "torchrun")
        for _ in range(2):
            launch_mark.explain(environ, why)
            assert path.read_bytes()[-4096:].decode(errors="ignore").count(HAS_BEGUN) == 1
            if lines := [line for line in why.splitlines() if line.strip()]:
                assert len(lines[-1]) > 1000 or lines[-1] in path.read_text()
        launch_mark.clear(environ)
        assert path.read_text() == own


@pytest.mark.usefixtures("patient")
def test_failures_are_counted_on_from_those_of_an_earlier_agent_of_the_pod(cluster: FakeCluster) -> None:
    environ = cluster.environ(0)
    for _ in range(2):
        report_failed_start(environ, "dlr run: no", 2)
    assert [body["failure"]["sequence"] for _, body in cluster.reports] == [1, 2]


def test_what_a_training_process_starts_does_not_speak_for_its_agent(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Nor does it leave a line for the kubelet, as `dlr run evaluate.py` in a script did."""
    message = tmp_path / "termination-log"
    message.touch()
    environ = {**cluster.environ(0), ENV_PROGRESS_FILE: "/tmp/it", "DLR_TERMINATION_LOG": str(message)}
    assert _torchrun(cluster, "--bogus", "evaluate.py", environ=environ, command="run").returncode == 2
    assert not cluster.reports and not message.read_text()
