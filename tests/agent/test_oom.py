from __future__ import annotations

from pathlib import Path

import pytest

from agent.monitor.oom import OomWatch
from agent.node_check.duties import excused
from crds.agent_report import ProbeEnding
from healthcheck.probes.report import ProbeReport

V1 = ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n")
V2 = ("memory.events", "low 0\nhigh 0\nmax 3\noom 3\noom_kill {}\noom_group_kill 9\n")


@pytest.mark.parametrize(("name", "content"), [V1, V2], ids=["v1", "v2"])
def test_kill_since_the_start_is_noticed(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content.format(4))
    watch = OomWatch(tmp_path)
    assert not watch.has_killed()
    (tmp_path / name).write_text(content.format(5))
    assert watch.has_killed()
    watch.reset()
    assert not watch.has_killed(), "that was in the round before"


def test_probe_that_was_killed_for_the_containers_memory_says_nothing_of_the_node(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 1\n")
    watch = OomWatch(tmp_path)
    killed = ProbeReport(ProbeEnding.CRASHED, "ended by SIGKILL", signal="SIGKILL", probe="gemm", seconds=1.0)
    assert excused(killed, watch) is killed, "somebody else killed it"
    events.write_text("oom_kill 2\n")
    reason = "gemm was killed: the container had no memory left"
    assert excused(killed, watch) == ProbeReport(ProbeEnding.UNAVAILABLE, reason, probe="gemm", seconds=1.0)
    crashed = ProbeReport(
        ProbeEnding.CRASHED, "ended by SIGSEGV", signal="SIGSEGV", probe="gemm", seconds=1.0
    )
    assert excused(crashed, watch) is crashed
