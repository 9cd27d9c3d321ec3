"""What is injected runs on the oldest Python that we promise: `make types` checks it for that one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dlr.commands.dispatch import CANNOT_LOAD, call

ROOT = Path(__file__).parents[2]


def test_the_package_promises_the_python_that_types_are_checked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10"
    assert "mypy --python-version 3.10 $(INJECTED)" in (ROOT / "Makefile").read_text()


def test_the_command_line_says_that_it_needs_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.version_info", (3, 10, 0, "final", 0))
    with pytest.raises(SystemExit) as ended:
        call(["job", "list"])
    assert ended.value.code == CANNOT_LOAD
    assert capsys.readouterr().err == (
        "dlr: this command needs Python 3.11 or newer, and this is 3.10; `dlr run` works here\n"
    )
