"""The first moments of `dlr run`, before it is an agent."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from agent.launch import HUGE_PAGES, prefer_huge_pages
from crds.names import ENV_MEMORY_BYTES
from tests.agent.conftest import Agent, Agents

SECONDS = 300.0


@pytest.mark.real
def test_sigterm_ends_it_while_it_imports_torch_even_as_a_container_s_first_process(agents: Agents) -> None:
    """A first process only gets signals that it has handlers for (pid_namespaces(7))."""
    process = agents.start(0, agents.script(""), warm=True, forked=False)
    await_handler(process, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM


def test_jobs_with_checkpoints_in_memory_have_huge_pages_unless_their_user_decides_otherwise() -> None:
    asked = {ENV_MEMORY_BYTES: "1"}
    without: dict[str, str] = {}
    refused = {**asked, HUGE_PAGES: "0"}
    for environ in (without, asked, refused):
        prefer_huge_pages(environ)
    assert (without, asked[HUGE_PAGES], refused[HUGE_PAGES]) == ({}, "1", "0")


def await_handler(process: Agent, number: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not has_handler(process.pid, number):
        assert process.poll() is None and time.monotonic() < deadline, "it has no handler"
        time.sleep(0.001)


def has_handler(pid: int, number: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
