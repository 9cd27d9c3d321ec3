"""A saver's process, which writes slots to storage: how it is started, and what is said to it.

Training processes have one each (`dlr.checkpoint.persistence`), and agents start some after a failure
(`agent.checkpoints.persisting`). The program is `dlr.checkpoint.saver`, which is no part of the agent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

NICENESS = 5
"""Training goes first, at three to one. With more, a machine on which training leaves no core idle would let
savers wait for minutes, and training for them when it ends."""
_START = """
import os, sys
os.nice({niceness})
sys.path[:] = {path!r}
from dlr.checkpoint.saver import main
main()
"""
"""With the path of who starts it: whoever trains with dlr has its modules there."""


def start_saver() -> subprocess.Popen[str]:
    """Start one, which reads a request a line and ends with its input.

    Raises:
        OSError: there can be no other process.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _START.format(niceness=NICENESS, path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(
    saver: subprocess.Popen[str], request: str, has_read: Callable[[], None] = lambda: None
) -> str | None:
    """Have a slot written to storage, and wait for it.

    Args:
        request: a `dlr.checkpoint.request.Request`, as JSON.
        has_read: called as soon as the slot is needed no longer.

    Returns:
        None; or why the step is not there, in one clause.

    Raises:
        OSError, ValueError: the saver does not work.
    """
    assert saver.stdin is not None  # start_saver has asked for both
    assert saver.stdout is not None
    saver.stdin.write(request + "\n")
    saver.stdin.flush()
    for line in saver.stdout:
        answer = json.loads(line)
        if "read" in answer:
            has_read()
        else:
            error: str | None = answer.get("error")
            return error
    return f"the process that saves ended with {saver.wait()}"
