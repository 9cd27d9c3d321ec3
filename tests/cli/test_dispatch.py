"""How a command ends that something outside of it ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

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
