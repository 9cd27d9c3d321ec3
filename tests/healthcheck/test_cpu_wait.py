"""A probe that waits for a CPU is no evidence against its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from crds.agent_report import ProbeEnding
from healthcheck.probes.cpu_wait import seconds_without_cpu
from healthcheck.probes.runner import no_end


def add_process(proc: Path, pid: int, session: int, waits: list[str]) -> None:
    for number, wait in enumerate(waits):
        task = proc / f"{pid}/task/{pid + number}"
        task.mkdir(parents=True)
        (task / "schedstat").write_text(wait)
    (proc / str(pid) / "stat").write_text(f"{pid} (a name) 1 ) S 1 {pid} {session} 0 -1")


def test_the_thread_of_the_session_that_waited_longest_counts(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 10, ["5000000000 1000000000 3\n"])
    add_process(tmp_path, 20, 10, ["0 2000000000 3\n", "0 7500000000 3\n"])
    add_process(tmp_path, 30, 30, ["0 90000000000 3\n"])
    add_process(tmp_path, 40, 10, ["nothing"])
    assert seconds_without_cpu(10, tmp_path) == 7.5
    assert seconds_without_cpu(77, tmp_path) == 0.0


@pytest.mark.parametrize(
    ("waited", "gone", "ending"),
    [
        (0.0, True, ProbeEnding.TIMED_OUT),
        (59.0, True, ProbeEnding.TIMED_OUT),
        (60.0, True, ProbeEnding.UNAVAILABLE),
        (119.0, False, ProbeEnding.TIMED_OUT),
    ],
)
def test_without_an_end_it_is_the_cpu_or_a_hang(waited: float, gone: bool, ending: ProbeEnding) -> None:
    report = no_end(120.0, waited, gone=gone)
    assert report.ending is ending
    assert ("too busy" in report.reason) == (ending is ProbeEnding.UNAVAILABLE)
