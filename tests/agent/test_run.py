from __future__ import annotations

import errno
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from agent import arguments, run, standalone
from agent.flags import Flags
from agent.torch_compat.elastic import UNLIMITED_RESTARTS
from agent.warm import Preloads, warm_parent
from crds import names


@pytest.fixture(autouse=True)
def no_pet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)


def test_environment_of_torchrun_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    args = arguments.parse(["train.py"])
    assert (args.max_restarts, args.nproc_per_node) == (2, "4")


def test_stderr_goes_to_the_pod_log_and_to_a_file_unless_said() -> None:
    assert (arguments.parse(["train.py"]).redirects, arguments.parse(["train.py"]).tee) == ("0", "2")
    assert arguments.parse(["--redirects=3", "train.py"]).tee == "0"
    assert arguments.parse(["--tee=3", "train.py"]).tee == "3"


def test_rendezvous_flags_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NUM", "4")
    args = arguments.parse(["--rdzv-backend=c10d", "--nnodes=1:$NODE_NUM", "-m", "package.train", "--lr=1"])
    assert (args.rdzv_backend, args.nnodes) == ("dlr", "1:4")
    assert (args.training_script, args.training_script_args, args.module) == (
        "package.train",
        ["--lr=1"],
        True,
    )


FRONTS = (
    ["train.py"],
    ["-m", "package.train"],
    ["--nproc-per-node=2", "--no_python", "--", "train.sh"],
    ["--nno=1:2", "--mod", "--rol", "x", "package.train"],  # shortened, as torchrun allows
    ["-t3", "-r", "0:1", "--rol", "trainer", "--max-restarts=3", "train.sh"],
)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    "behind",
    [
        ["--h", "64", "--pre", "0.5", "--fail", "2"],
        ["--hang-timeout", "3", "--preload=x", "--standalone", "--nnodes=7"],
        [],
    ],
)
def test_what_is_behind_the_script_is_the_scripts(front: list[str], behind: list[str]) -> None:
    args, stock = arguments.parse([*front, *behind]), get_args_parser().parse_args(front)
    assert args.training_script_args == behind
    ours = ("training_script_args", "rdzv_backend", "rdzv_endpoint", "tee", "master_addr", "master_port")
    for name, value in vars(stock).items():
        assert name in ours or getattr(args, name) == (value or getattr(args, name)), name
    assert args.max_restarts == (3 if "--max-restarts=3" in front else UNLIMITED_RESTARTS)
    assert (args.hang_timeout, args.preload, args.no_warm_start) == (None, [], False)


def test_our_flags_are_read_in_front_of_the_script_and_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    args = arguments.parse(["--preload", "x", "--no-warm-start", "--failure-grace=0", "train.py"])
    assert (args.preload, args.no_warm_start, args.failure_grace) == (["x"], True, 0.0)
    for help_flag in ("-h", "--h"):
        with pytest.raises(SystemExit) as end:
            arguments.parse([help_flag])
        assert end.value.code == 0 and "--hang-timeout" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--pre"):
        arguments.parse(["--pre=x", "train.py"])


def test_standalone_restarts_as_a_job_does_unless_told_otherwise() -> None:
    assert arguments.parse(["--standalone", "train.py"]).max_restarts == 3
    assert arguments.parse(["--standalone", "--max-restarts=0", "train.py"]).max_restarts == 0


@pytest.mark.parametrize("flags", [["--standalone", "--nnodes=2"], ["--hang-timeout=3"]])
def test_what_only_standalone_has_or_has_not_is_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*flags, "train.py"]) == 2
    assert "--standalone" in capsys.readouterr().err


def test_outside_of_a_job_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DLR_JOB_NAME", raising=False)
    assert run.main(["train.py"]) == 2
    assert capsys.readouterr().err == (
        "dlr run: DLR_JOB_NAME is not set, so this is not a worker Pod of an ElasticJob: submit the job with "
        "`dlr job submit`, or train on this machine alone with `dlr run --standalone`\n"
    )


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--nproc-per-node=0", "--nproc-per-node is 0, and must be above 0"),
        ("--monitor-interval=0", "--monitor-interval is 0.0, and must be above 0"),
        ("--hang-timeout=-1", "argument --hang-timeout: '-1' is no number of seconds"),
        ("--hang-timeout=0", "argument --hang-timeout: '0' is not above 0"),
        ("--failure-grace=nan", "argument --failure-grace: 'nan' is no number of seconds"),
    ],
)
def test_a_number_that_means_nothing_is_refused_by_the_name_of_its_flag(
    flag: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(standalone_command(monkeypatch, flag, "train.py")) == 2
    assert capsys.readouterr().err.endswith(f"dlr run: {sentence}\n")


def standalone_command(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Set the environment of `--standalone`, and return its command."""
    command, environ = ["--standalone", *words], dict[str, str]()
    standalone.prepare(Flags.read(command, environ), environ)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return command


def test_alone_what_is_not_there_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("the agent was built")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "build", started)
    (tmp_path / "not-executable").touch()
    for words, sentence in (
        (["train.py"], f"there is no script {tmp_path}/train.py: correct its path, or use -m for a module"),
        (
            ["--no-python", "./train"],
            f"no program ./train can be run in {tmp_path} or from PATH: correct its path",
        ),
        (
            ["--no-python", "./not-executable"],
            f"no program ./not-executable can be run in {tmp_path} or from PATH: correct its path",
        ),
    ):
        assert run.main(standalone_command(monkeypatch, "--no-warm-start", *words)) == 2
        assert capsys.readouterr().err.endswith(f"dlr run: {sentence}\n")


@pytest.mark.parametrize(("flag", "seconds"), [("inf", 27), ("1e400", 27), ("28", 27), ("5", 5), ("0", 0)])
def test_the_grace_after_a_failure_is_at_most_the_pods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str, seconds: float
) -> None:
    monkeypatch.setenv(names.ENV_GRACE_SECONDS, "30")
    words = standalone_command(monkeypatch, f"--failure-grace={flag}", "--hang-timeout=inf", "-m", "train")
    launch = arguments.LaunchArguments.read(words)
    assert (launch.failure_grace_seconds, launch.args.hang_timeout) == (seconds, math.inf)


def test_alone_what_is_there_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for words in (
        ["train.py"],
        ["."],
        ["-"],
        ["--no-python", "sh"],
        ["-m", "train"],
        ["--run-path", "train.py"],
    ):
        arguments.LaunchArguments.read(standalone_command(monkeypatch, *words))


def test_exit_codes_are_a_shells() -> None:
    assert [run.exit_code(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


def test_processes_get_the_pods_grace_less_a_margin() -> None:
    assert arguments.stop_grace_seconds(30, None) == 27
    assert arguments.stop_grace_seconds(4, None) == 2
    assert arguments.stop_grace_seconds(0, None) == 0
    assert arguments.stop_grace_seconds(300, 10) == 10


@pytest.mark.parametrize(
    ("flags", "variable", "seconds"),
    [([], "", None), ([], "3", 3), (["--shutdown-timeout=7"], "3", 7)],
)
def test_the_grace_may_come_from_torchruns_variable(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], variable: str, seconds: int | None
) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable)
    assert arguments.parse([*flags, "train.py"]).shutdown_timeout == seconds
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon is not a number of seconds"):
        arguments.parse(["train.py"])


def test_a_master_that_is_named_is_told_to_be_ignored(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.parse(["--master-addr=localhost", "train.py"])
    assert caplog.text == ""
    for flag in ("--master-port=29500", "--master-addr=node-7"):
        caplog.clear()
        arguments.parse([flag, "train.py"])
        assert "are ignored: scripts find each round's in MASTER_ADDR and MASTER_PORT" in caplog.text


def test_where_a_sandbox_forbids_it_to_adopt_forks_an_agent_starts_new_interpreters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(warm_parent, "become_subreaper", refuse)
    launch: Any = SimpleNamespace(
        args=SimpleNamespace(no_warm_start=False, preload=[]),
        entrypoint=sys.executable,
        entrypoint_args=["-u", "train.py"],
    )
    assert run._warm_start(launch, Preloads(), None) is None
    assert "started as new interpreters" in caplog.text


def test_a_warm_parent_that_outlives_sigkill_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """It imports from a mount that hangs, say."""

    def wait(timeout: float) -> int:
        raise subprocess.TimeoutExpired("dlr-warm-parent", timeout)

    process: Any = SimpleNamespace(pid=7, kill=lambda: None, wait=wait)
    control: Any = SimpleNamespace(close=lambda: None)
    warm_parent.WarmParent(process, control, {}, Preloads()).close()
    assert "the warm parent 7 survives SIGKILL: giving it up" in caplog.text
