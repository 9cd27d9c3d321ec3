"""Processes whose scripts are over: when they are named, when they are ended, and as what they count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent.monitor import dump, stacks
from agent.monitor.progress import RankProgress, ScriptEnd
from agent.monitor.stacks import Capture
from agent.supervision.lingering import (
    FAILED_SECONDS,
    SAY_SECONDS,
    Lingering,
    LingeringStage,
    stage_of,
    what_keeps_it,
)

LIMIT = 1800.0
WELL, RAISED = ScriptEnd(0, False, 100.0), ScriptEnd(1, True, 100.0)
STEPPED = RankProgress(step=30, last_report_at=99.0)
LIBRARY = "/usr/lib/python3.11"
JOINS = f'''  File "{LIBRARY}/threading.py", line 1590 in _shutdown'''
THREADS = f"""Thread 0x0000000000000abc (most recent call first):
  File "{LIBRARY}/queue.py", line 171 in get
  File "/app/logger.py", line 8 in upload_the_curves
  File "{LIBRARY}/threading.py", line 982 in run

Thread 0x0000000000000def (most recent call first):
  File "/app/monitor.py", line 3 in a_daemon

Current thread 0x0000000000000111 (most recent call first):
{{main}}
"""


@pytest.mark.parametrize(
    ("end", "progress", "limit", "seconds", "stage"),
    [
        (WELL, STEPPED, LIMIT, SAY_SECONDS, LingeringStage.WAIT),
        (WELL, STEPPED, LIMIT, SAY_SECONDS + 1, LingeringStage.SAY),
        (WELL, STEPPED, LIMIT, LIMIT + 1, LingeringStage.END),
        (WELL, STEPPED, 12.0, 7.0, LingeringStage.SAY),
        (WELL, RankProgress(31, LIMIT), LIMIT, LIMIT + 1, LingeringStage.SAY),  # a thread trains
        (WELL, RankProgress(busy_until=2 * LIMIT), LIMIT, LIMIT + 1, LingeringStage.WAIT),  # dlr.busy
        (RAISED, STEPPED, LIMIT, FAILED_SECONDS, LingeringStage.WAIT),
        (RAISED, STEPPED, LIMIT, FAILED_SECONDS + 1, LingeringStage.END),
        (ScriptEnd(7, False, 100.0), STEPPED, LIMIT, FAILED_SECONDS + 1, LingeringStage.END),
    ],
)
def test_a_process_has_the_limit_for_hangs_after_its_script_and_less_after_a_failure(
    end: ScriptEnd, progress: RankProgress, limit: float, seconds: float, stage: LingeringStage
) -> None:
    assert stage_of(end, progress, limit, end.at + seconds) is stage


class Played:
    """One agent's processes, of which some have ended scripts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, main: str, **ends: ScriptEnd) -> None:
        self.ends = {int(rank.removeprefix("r")): end for rank, end in ends.items()}
        files: Any = SimpleNamespace(script_end=self.ends.get, read_rank=lambda _: STEPPED)
        text = THREADS.format(main=main)
        capture = Capture(text, dump.main_thread(text))
        monkeypatch.setattr(stacks, "capture", lambda pids, *_: dict.fromkeys(pids, capture))
        self.lingering = Lingering(files, SimpleNamespace(files={}, signal=0))  # type: ignore[arg-type]
        self.ended: list[tuple[int, int]] = []

    def look(self, now: float, *alive: int) -> bool:
        def end(local: int, code: int) -> bool:
            self.ended.append((local, code))
            return True

        pids = {local: 1000 + local for local in alive}
        return self.lingering.look(pids, {0: 4, 1: 5}, LIMIT, end, now)


def test_the_thread_that_keeps_a_process_is_named_and_the_process_ended_with_its_scripts_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = ScriptEnd(0, False, 100.0, {0xABC: "Thread-1 (upload_the_curves)"})
    job = Played(monkeypatch, JOINS, r1=over)
    assert not job.look(101.0, 0, 1) and job.lingering.to_status() is None
    assert job.look(121.0, 0, 1) and not job.look(122.0, 0, 1), "it is said once"
    keeps = "thread Thread-1 (upload_the_curves) keeps it, at app/logger.py:8 in upload_the_curves"
    assert job.lingering.to_status() == f"rank 5: the script has ended, its process has not: {keeps}"
    assert job.look(1901.0, 0, 1) and job.ended == [(1, 0)]
    assert not job.look(1901.5, 0, 1) and job.ended == [(1, 0)], "it takes a moment to end"
    assert not job.look(1902.0, 0)
    assert job.lingering.to_status() == f"rank 5: its process was ended 1801 s after the script: {keeps}"
    job.lingering.begin()
    assert job.lingering.to_status() is None


def test_a_process_that_comes_to_its_end_after_all_is_not_named_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Played(monkeypatch, JOINS, r0=WELL, r1=WELL)
    assert job.look(121.0, 0, 1)
    assert (job.lingering.to_status() or "").endswith("; and 1 more of its processes")
    assert job.look(122.0) and job.lingering.to_status() is None and job.ended == []


def test_no_thread_is_blamed_that_has_ended_while_the_interpreter_takes_its_objects_apart() -> None:
    raised = ScriptEnd(1, True, 100.0, {0xDEF: "dlr-copy_0"})
    finalizing = "Thread 0x0000000000000abc (most recent call first):\n  <no Python frame>\n"
    assert "its threads have ended" in what_keeps_it(raised, Capture(finalizing))


@pytest.mark.parametrize(
    ("main", "keeps"),
    [
        ('  File "/app/train.py", line 20 in flush_all', "at its exit it is at app/train.py:20 in flush_all"),
        (
            f'  File "{LIBRARY}/multiprocessing/process.py", line 149 in join\n'
            f'  File "{LIBRARY}/multiprocessing/util.py", line 360 in _exit_function',
            "it waits for a process that it has started with multiprocessing",
        ),
    ],
)
def test_what_keeps_a_process_at_its_exit_is_named(
    monkeypatch: pytest.MonkeyPatch, main: str, keeps: str
) -> None:
    job = Played(monkeypatch, main, r0=WELL)
    job.look(121.0, 0)
    assert (job.lingering.to_status() or "").endswith(f": {keeps}")
