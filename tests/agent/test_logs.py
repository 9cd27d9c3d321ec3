"""No thread of an agent ends unheard."""

from __future__ import annotations

import logging
import threading

import pytest

from agent.logs import log_to_stderr


def test_a_thread_that_ends_by_a_defect_is_told_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = logging.getLogger("agent")
    for name, value in (("handlers", []), ("propagate", package.propagate), ("level", package.level)):
        monkeypatch.setattr(package, name, value)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    log_to_stderr()
    thread = threading.Thread(name="dlr-example")
    for error in (KeyError("step"), SystemExit(3)):
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, thread)))
    said = capsys.readouterr().err
    assert said.count("the thread dlr-example has ended, and the agent goes on without what it did") == 1
    assert said.rstrip().endswith("KeyError: 'step'")
