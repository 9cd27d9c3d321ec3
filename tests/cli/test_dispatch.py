"""How a command ends that something outside of it ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from agent.exec import main as execute
from dlr.commands import dispatch
from dlr.commands.errors import Interrupted

IGNORES_INTERRUPTS = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from dlr.cli import main
sys.argv = ["dlr", "--version"]
try:
    main()
except SystemExit:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    print("still ignored")
"""


def ended_by(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(dispatch, "_dispatch", fail)
    with pytest.raises(SystemExit) as end:
        dispatch.call(["job", "list"])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.real
def test_a_pipe_that_breaks_elsewhere_is_no_reader_who_has_seen_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_by(BrokenPipeError(errno.EPIPE, "Broken pipe"), monkeypatch) == dispatch.CRASHED
    assert "BrokenPipeError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"),
            dispatch.LIMITED,
            "/x: No space left on device.",
        ),
        (
            Interrupted("the check goes on: see it with kubectl"),
            130,
            "the check goes on: see it with kubectl",
        ),
    ],
)
def test_a_full_disk_is_no_verdict_of_a_node_check_and_an_interrupt_says_what_goes_on(
    error: Exception,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended_by(error, monkeypatch) == code
    assert capsys.readouterr().err == f"dlr: {says}\n"


@pytest.mark.real
def test_a_shell_that_has_interrupts_ignored_is_obeyed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IGNORES_INTERRUPTS], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.endswith("still ignored\n"), done.stderr


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--each-round", "--help"]])
def test_help_of_exec_is_no_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        execute(words)
    shown = capsys.readouterr()
    assert end.value.code == 0 and not shown.err
    assert shown.out.startswith("usage: dlr exec [--each-round] [--] COMMAND") and "-m MODULE" in shown.out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "there is no command to run"),
        (["--each-round", "--"], "there is no command to run"),
        (["-m"], "-m needs a module"),
        (["--each-rond", "train"], "there is no option --each-rond"),
    ],
)
def test_exec_says_what_is_wrong_with_its_arguments(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(words) == 2
    assert capsys.readouterr().err.startswith(f"dlr exec: {fault}; usage: dlr exec [--each-round]")
