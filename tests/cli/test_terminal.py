"""What a person sees on a terminal: what is waited for, and reasons on a narrow one."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dlr.commands.application import application
from dlr.commands.node_check.view import DOMAIN_COLUMNS, LINK_COLUMNS
from dlr.commands.output import table
from dlr.kube import waiting
from tests.agent.patience import wait_for
from tests.cli.scripted import GROUP_PATH, JSON, Dlr, Request, Script, job, listing

JOBS = f"GET {GROUP_PATH}/default/elasticjobs"
WHY = "FailedScheduling: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(waiting, "sys", SimpleNamespace(stderr=found))
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.01)
    return found


@pytest.mark.real
def test_what_is_quick_or_not_to_be_told_says_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting.without_display(), waiting.waiting_for("the API server"):
        time.sleep(0.05)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 300.0)
    with waiting.waiting_for("the API server"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.real
def test_a_slow_api_server_is_told_of_and_the_line_is_cleared(
    server: Script, dlr: Dlr, terminal: Terminal
) -> None:
    def slow(_: Request) -> JSON:
        with waiting.waiting_for("something within"):
            wait_for(
                lambda: re.search(r"waiting for the API server at http://127.*, \d+ s", terminal.getvalue())
            )
        return listing(job())

    server.answers[JOBS] = slow
    assert dlr("job", "list").exit_code == 0
    assert "something within" not in terminal.getvalue()
    assert terminal.getvalue().endswith(waiting.CLEAR_LINE)


def test_a_narrow_terminal_keeps_the_whole_reason(
    server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, message = WHY.split(": ", 1)
    server.answers[JOBS] = listing(job(phase="Pending", reason=reason, message=message), job("well"))
    wide = dlr("job", "list").out
    assert "ROUND" in wide.splitlines()[0]
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    verdict, _, *lines = dlr("job", "list").out.splitlines()
    assert verdict == "0 of 2 active jobs train"
    assert f"digits: {WHY}" in lines
    assert not [line for line in lines if line.startswith("well: ")]
    assert "WORKERS" in lines[0] and "ROUND" not in lines[0]


@pytest.mark.parametrize(
    ("headers", "row"),
    [
        (
            ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"),
            ("2m59s", "Warning", "FailedScheduling", f"elasticworker/{'x' * 45}-worker-12", WHY),
        ),
        (LINK_COLUMNS, (f"gpu-node-0123.{'x' * 30} and gpu-node-0124.{'x' * 30}", "Slow", WHY)),
        (DOMAIN_COLUMNS, ("rack=rack-12", ", ".join(f"gpu-node-{number:04}" for number in range(9)), WHY)),
    ],
)
def test_no_column_pushes_the_reason_off_a_narrow_terminal(
    headers: Sequence[str], row: Sequence[object]
) -> None:
    screen = Console(width=80, file=io.StringIO())
    lines = ["".join(part.text for part in line) for line in screen.render_lines(table(headers, [row]))]
    assert max(map(len, lines)) <= 80
    column = lines[0].index(headers[-1])
    assert "".join(line[column:].replace(" ", "") for line in lines[1:]) == WHY.replace(" ", "")
    assert "…" not in "".join(lines)


def completed(words: str) -> list[str]:
    environment = {
        "_DLR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(application, [], env=environment, prog_name="dlr").output.split()


def test_shell_completion_knows_the_commands() -> None:
    looks = {"list", "status", "logs", "stacks", "timeline", "diagnose", "trace"}
    assert set(completed("dlr job ")) == looks | {"submit", "launch", "scale", "suspend", "resume", "delete"}


def test_names_of_jobs_nodes_namespaces_and_contexts_are_completed(server: Script) -> None:
    server.answers[JOBS] = listing(job("digits"), job("other"))
    node = {"metadata": {"name": "node-1"}}, {"metadata": {"name": "node-2"}}
    server.answers["GET /api/v1/nodes"] = listing(*node)
    server.answers["GET /api/v1/namespaces"] = listing({"metadata": {"name": "team-a"}})
    assert completed("dlr job status d") == ["digits"]
    assert completed("dlr dashboard o") == ["other"]
    assert completed("dlr job launch t.py --like o") == ["other"]
    assert completed("dlr node-check --nodes node-1,n") == ["node-1,node-1", "node-1,node-2"]
    assert completed("dlr node-check history node") == ["node-1", "node-2"]
    assert completed("dlr job list -n t") == ["team-a"]
    assert completed("dlr job list --context x") == ["x"]
