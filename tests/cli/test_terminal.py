"""What a person sees on a terminal: what is waited for, and reasons on a narrow one."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from dlr.commands.application import application, with_options_behind
from dlr.commands.node_check.view import DOMAIN_COLUMNS, LINK_COLUMNS
from dlr.commands.output import console, table
from dlr.job.workers import NARROW_COLUMNS
from dlr.kube import waiting
from tests.cli.scripted import GROUP_PATH, Request, ScriptedServer, event, job, listing

pytestmark = pytest.mark.real

JSON = dict[str, Any]
Dlr = Callable[..., Any]
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


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_takes_long_says_what_it_waits_for_and_clears_its_line(terminal: Terminal) -> None:
    with waiting.waiting_for("the drawing"), waiting.waiting_for("something within"):
        until(lambda: re.search(r"waiting for the drawing, \d+ s", terminal.getvalue()))
    assert "something within" not in terminal.getvalue()
    assert terminal.getvalue().endswith(waiting.CLEAR_LINE)


def test_what_is_quick_or_not_to_be_told_says_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting.untold(), waiting.waiting_for("the API server"):
        time.sleep(0.05)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 300.0)
    with waiting.waiting_for("the API server"):
        pass
    assert terminal.getvalue() == ""


def test_a_slow_api_server_is_told_of(server: ScriptedServer, dlr: Dlr, terminal: Terminal) -> None:
    def slow(_: Request) -> JSON:
        until(lambda: "waiting for the API server at http://127.0.0.1:" in terminal.getvalue())
        return listing(job())

    server.answers[JOBS] = slow
    assert dlr("job", "list").exit_code == 0


def test_a_terminal_without_a_size_shows_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "0")
    assert console().size == (80, 24)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_narrow_terminal_keeps_the_whole_reason(
    server: ScriptedServer, dlr: Dlr, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    reason, message = WHY.split(": ", 1)
    server.answers[JOBS] = listing(job(phase="Pending", reason=reason, message=message), job("well"))
    wide = dlr("job", "list").out
    assert "ROUND" in wide.splitlines()[0]
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    verdict, _, *lines = dlr("job", "list").out.splitlines()
    assert verdict == "0 of 2 active jobs train"
    assert f"digits: {WHY}" in lines
    assert not [line for line in lines if line.startswith("well: ")]
    assert "WORKERS" in lines[0] and "ROUND" not in lines[0]


def test_on_a_narrow_terminal_reasons_of_two_namespaces_are_told_apart(
    server: ScriptedServer, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = job(phase="Pending", message="no room")
    there["metadata"]["namespace"] = "research"
    path = f"GET {GROUP_PATH.removesuffix('/namespaces')}/elasticjobs"
    server.answers[path] = listing(job(phase="Pending", message="no quota"), there)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    lines = Text.from_ansi(dlr("job", "list", "-A").out).plain.splitlines()
    assert [line.rstrip() for line in lines[-2:]] == ["default/digits: no quota", "research/digits: no room"]


def test_events_on_a_narrow_terminal_keep_their_whole_message(
    server: ScriptedServer, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "pretrain-of-the-large-model"
    server.answers[f"{JOBS}/{name}"] = job(name)
    server.answers["GET /api/v1/namespaces/default/events"] = listing(
        event("Pod", f"{name}-worker-12-1", "FailedScheduling", "2026-01-01T00:00:09Z", message=WHY),
    )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    lines = Text.from_ansi(dlr("job", "events", name).out).plain.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 4
    assert lines[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "MESSAGE"]
    column = lines[0].index("MESSAGE")
    assert " ".join(line[column:].strip() for line in lines[1:]) == f"{name}-worker-12-1: {WHY}"


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


def test_in_a_line_a_worker_a_long_name_leaves_the_reason_some_room() -> None:
    row = ("12", f"{'x' * 40}-worker-12-1", "Running", "123401", "1", "UserError, 4m ago: ValueError")
    screen = Console(width=80, file=io.StringIO())
    shown = screen.render_lines(table(NARROW_COLUMNS, [row], 80))
    header, line = ("".join(part.text for part in each) for each in shown)
    assert header.split() == ["RANK", "POD", "STATE", "STEP", "RESTARTS", "LAST", "FAILURE"]
    assert len(line) <= 80 and line.rstrip().endswith("1         UserError, …")


@pytest.mark.parametrize(
    ("words", "put"),
    [
        ("-n a job list", "job list -n a"),
        ("job -n a list -A", "job list -n a -A"),
        ("--context=c -n a job status x", "job status --context=c -n a x"),
        ("-n a node-check history node-1", "node-check -n a history node-1"),
        ("job list -n a", "job list -n a"),
        ("--version", "--version"),
        ("-n", "-n"),
        ("", ""),
        ("-n a", "-n a"),
        ("job submit -f x", "job submit -f x"),
    ],
)
def test_options_of_the_cluster_may_stand_in_front_as_in_kubectl(words: str, put: str) -> None:
    assert with_options_behind(words.split()) == put.split()


def completed(words: str) -> list[str]:
    environment = {
        "_DLR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(application, [], env=environment, prog_name="dlr").output.split()


def test_names_of_jobs_nodes_namespaces_and_contexts_are_completed(server: ScriptedServer) -> None:
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
