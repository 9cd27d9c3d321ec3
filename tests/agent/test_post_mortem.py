from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agent.monitor.oom import OomWatch
from agent.monitor.progress import RankProgress, ScriptEnd
from agent.supervision import post_mortem as module
from agent.supervision.post_mortem import PostMortem, explains_more
from crds.agent_report import FailureCause
from crds.elasticworker import ExitClass
from reconcilers.observed.exit_class import classify_process
from tests.cli.scripted import Clock

OWN = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: the reason for all\n'
PEERS = OWN.replace(
    "ValueError: the reason for all", "RuntimeError: [gloo] Connection closed by peer [::1]:4"
)

time = Clock()
"""By which the agent goes here."""


class Processes:
    """Of which some have ended, and some do so when they are given the time."""

    def __init__(self, ended: dict[int, int | None], ending: dict[int, int]) -> None:
        self._codes = {rank: code for rank, code in ended.items() if code is not None}
        self._ending = ending
        self.pids = {rank: 1000 + rank for rank in ended}
        self.waited_for: set[int] = set()

    def collect_exits(self) -> dict[int, int]:
        return {}

    @property
    def exit_codes(self) -> dict[int, int]:
        return dict(self._codes)

    def alive(self) -> dict[int, int]:
        return {rank: pid for rank, pid in self.pids.items() if rank not in self._codes}

    def await_ends(self, ranks: Collection[int], patience_seconds: float) -> None:
        self.waited_for = set(ranks)
        self._codes |= {rank: code for rank, code in self._ending.items() if rank in ranks}


class Round:
    """What three processes left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.oom_events = directory / "memory.events"
        self.oom_events.write_text("oom_kill 0\n")
        logs = LogsDest(
            stderrs={rank: str(directory / f"stderr.{rank}") for rank in range(3)},
            error_files={rank: str(directory / f"error.{rank}") for rank in range(3)},
        )
        self.ends: dict[int, ScriptEnd] = {}
        """How the scripts of processes have ended, by local rank."""
        files: Any = SimpleNamespace(
            read_rank=lambda rank: RankProgress(step=40 + rank), script_end=self.ends.get
        )
        tracked: Any = SimpleNamespace(latest=logs)
        self.post_mortem = PostMortem(tracked, files, OomWatch(directory))

    def stderr(self, rank: int, text: str, *, seconds_ago: float = 0.0) -> None:
        path = self.directory / f"stderr.{rank}"
        path.write_text(text)
        at = time.time() - seconds_ago
        os.utime(path, (at, at))

    def last(
        self, ended: dict[int, int | None], ending: dict[int, int] | None = None
    ) -> tuple[Any, list[ProcessFailure]]:
        processes: Any = Processes(ended, ending or {})
        return processes, self.post_mortem.failures_before_stop(processes)

    def describe(self, failed: list[ProcessFailure]) -> Any:
        return self.post_mortem.describe(failed, {0: 4, 1: 5, 2: 6}, round_=7, sequence=3)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Round:
    monkeypatch.setattr(module, "time", time)
    return Round(tmp_path)


def test_who_has_just_raised_is_given_the_time_to_end(left: Round) -> None:
    left.stderr(0, PEERS)
    left.stderr(1, OWN)
    left.stderr(2, OWN, seconds_ago=60)
    processes, failed = left.last({0: 1, 1: None, 2: None}, {1: 1, 2: 1})
    assert processes.waited_for == {1}, "not for what was logged long ago"
    failure = left.describe(failed)
    assert (failure.rank, failure.exit_code, failure.step) == (5, 1, 41)
    assert failure.message.startswith("ValueError: the reason for all")


def test_whose_script_has_just_ended_is_given_the_time_to_end(left: Round) -> None:
    """`sys.exit(3)` leaves no word in the log, and a peer may have died of it already."""
    now = time.monotonic()
    left.ends |= {1: ScriptEnd(3, False, now - 0.1), 2: ScriptEnd(3, False, now - 60.0)}
    processes, failed = left.last({0: 1, 1: None, 2: None}, {1: 3})
    assert processes.waited_for == {1}, "not for what ended long ago and does not come to its end"
    failure = left.describe([f for f in failed if f.local_rank == 1])
    assert (failure.rank, failure.exit_code) == (5, 3)


def test_a_script_that_raised_is_reported_however_long_its_process_takes_to_end(left: Round) -> None:
    """It has closed its connections, and its peers and their reports were faster than this agent."""
    left.stderr(1, OWN, seconds_ago=60)
    left.ends[1] = ScriptEnd(1, True, time.monotonic() - 60.0)
    processes, failed = left.last({0: None, 1: None})
    assert processes.waited_for == {1}
    assert [each.local_rank for each in failed] == [1]


def test_death_of_a_peer_is_not_waited_for(left: Round) -> None:
    left.stderr(1, PEERS)
    processes, failed = left.last({0: 0, 1: None, 2: None}, {1: 1})
    assert processes.waited_for == set()
    assert failed == []


def test_an_error_file_about_a_peer_is_waited_for_no_more_than_a_log(left: Round) -> None:
    for text, expected in ((PEERS, set()), (OWN, {1})):
        (left.directory / "error.1").write_text(json.dumps({"message": {"message": text}}))
        processes, _ = left.last({0: 0, 1: None, 2: None}, {1: 1})
        assert processes.waited_for == expected


def test_only_an_exception_that_nobody_caught_counts_of_a_process_that_lives_on(left: Round) -> None:
    left.stderr(0, OWN)
    assert left.last({0: None})[1] == [], "the script may have logged it, and gone on"
    left.stderr(0, "".join(f"[rank4]: {line}\n" for line in OWN.splitlines()))
    (failed,) = left.last({0: None})[1]
    assert (failed.local_rank, failed.exitcode) == (0, 1)
    left.describe([failed])
    assert left.last({0: None})[1] == [], "it is told once"


@pytest.mark.parametrize(
    ("place", "hangs"), [("train.py", True), ("site-packages/torch/distributed/d.py", False)]
)
def test_a_rank_that_nccl_ended_where_it_waits_for_nobody_hung(
    left: Round, place: str, *, hangs: bool
) -> None:
    """NCCL ends all ranks of a group, in a thread of its own, once a collective of one has timed out."""
    left.stderr(
        1,
        "Received a dump signal due to a collective timeout from rank 0\nFatal Python error: Aborted\n\n"
        f'Thread 0x00a (most recent call first):\n  File "/app/x.py", line 2 in pin\n\n'
        f'Thread 0x00b (most recent call first):\n  File "/app/{place}", line 31 in wait_for_the_lock\n',
    )
    failure = left.describe(left.last({0: None, 1: -6, 2: None})[1])
    assert failure.cause is (FailureCause.HANG if hangs else FailureCause.TIMED_OUT)
    if hangs:
        assert failure.message.startswith(
            "rank 5, after step 41, was at app/train.py:31 in wait_for_the_lock\n"
        )
        assert [(each.rank, each.in_collective) for each in failure.stacks] == [(5, False)]


def test_a_script_that_has_raised_is_over_though_its_process_lives(left: Round) -> None:
    left.stderr(0, OWN)
    left.ends[0] = ScriptEnd(1, True, time.monotonic())
    processes, failed = left.last({0: None, 1: None})
    assert [each.exitcode for each in failed] == [1], "nobody has caught it"
    assert left.post_mortem.with_scripts(processes) == {1: 1001}
    assert left.post_mortem.exit_codes(processes) == {0: 1}


def test_who_waited_until_its_time_was_up_is_described_before_who_lost_it(left: Round) -> None:
    waited = OWN.replace("ValueError: the reason for all", "RuntimeError: gloo/a.cc:1] Timed out waiting 9ms")
    left.stderr(0, PEERS)
    left.stderr(1, waited)
    assert left.describe(left.last({0: 1, 1: 1})[1]).cause is FailureCause.TIMED_OUT
    left.stderr(2, waited)
    left.ends |= {rank: ScriptEnd(1, True, time.monotonic()) for rank in (0, 2)}
    processes: Any = Processes({0: None, 1: None, 2: None}, {})
    assert left.post_mortem.timed_out(processes) == [2], "its process is just ending"


def test_each_failure_is_told_once_until_the_next_start(left: Round) -> None:
    _, failed = left.last({0: 1, 1: -9, 2: 0})
    assert sorted(f.exitcode for f in failed) == [-9, 1]
    left.describe(failed)
    assert left.last({0: 1, 1: -9, 2: 0})[1] == []
    left.post_mortem.begin()
    assert len(left.last({0: 1, 1: -9, 2: 0})[1]) == 2


def test_kill_for_memory_is_told_as_such(left: Round) -> None:
    (failed,) = left.last({0: -9})[1]
    assert left.describe([failed]).cause is None, "somebody else's SIGKILL"
    left.oom_events.write_text("oom_kill 1\n")
    (left.directory / "memory.max").write_text(str(512 << 20))
    failure = left.describe([failed])
    assert failure.cause is not None
    assert failure.cause.value == "OOM"
    assert failure.message == "out of memory (limit 512 MiB): the process was killed by SIGKILL"
    left.stderr(
        1,
        OWN.replace(
            "ValueError: the reason for all",
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        ),
    )
    (loader,) = left.last({1: 1})[1]
    assert left.describe([loader]).cause is failure.cause, "one of its own children's is its too"
    (other,) = left.last({2: 1})[1]
    assert left.describe([other]).cause is None


@pytest.mark.parametrize(
    ("chain", "signal", "killed"),
    [
        (["DataLoader worker (pid 7) is killed by signal: Killed. "], "SIGKILL", True),
        (
            [
                "DataLoader worker (pid 7) is killed by signal: Segmentation fault. ",
                "DataLoader worker (pid(s) 7) exited unexpectedly",
            ],
            "SIGSEGV",
            False,
        ),
        (["Command '['cc']' died with <Signals.SIGTERM: 15>."], "SIGTERM", False),
    ],
)
def test_a_failure_names_the_signal_that_ended_a_process_of_the_failed_one(
    left: Round, chain: list[str], signal: str, *, killed: bool
) -> None:
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    left.stderr(1, link.join(f"{traceback}RuntimeError: {text}\n" for text in chain))
    (failed,) = left.last({1: 1})[1]
    failure = left.describe([failed])
    sender = " from outside (dlr did not send it)" if killed else ""
    headline = failure.message.partition("\n")[0]
    assert (
        headline == f"a process that it had started was killed by {signal}{sender}: RuntimeError: {chain[-1]}"
    )
    assert classify_process(failure) is (ExitClass.KILLED if killed else ExitClass.USER_ERROR)


def test_a_data_loader_that_exited_without_a_signal_is_an_error_of_the_script(left: Round) -> None:
    left.stderr(
        1,
        OWN.replace("ValueError: the", "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly; the"),
    )
    (failed,) = left.last({1: 1})[1]
    failure = left.describe([failed])
    assert failure.message.startswith("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly")
    assert classify_process(failure) is ExitClass.USER_ERROR


def test_a_data_loaders_bus_error_is_reported_with_its_remedy_whatever_exception_is_the_last(
    left: Round,
) -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    first = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. Out of shared memory?"
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    last = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
    left.stderr(1, f"{traceback}{first}\n{link}{traceback}{last}\n")
    (failed,) = left.last({1: 1})[1]
    failure = left.describe([failed])
    assert failure.message.startswith(f"a process that it had started was killed by SIGBUS: {last}\n")
    assert "mount an emptyDir with `medium: Memory` at /dev/shm" in failure.message


def test_signal_that_dlr_did_not_send_is_told_as_such(left: Round) -> None:
    (failed,) = left.last({0: -9})[1]
    assert left.describe([failed]).message == (
        "the process was killed by SIGKILL from outside (dlr did not send it)"
    )
    (failed,) = left.last({1: -11})[1]
    assert "from outside" not in left.describe([failed]).message, "that is its own crash"


def test_process_that_ended_well_before_the_others_is_told_with_its_step(left: Round) -> None:
    left.stderr(1, "the data is at its end\n")
    early = left.post_mortem.describe_early_finish({0: 1, 1: 0}, {0: 4, 1: 5, 2: 6}, 3, 1)
    assert early is not None
    assert early.message.startswith("rank 5 finished early, at step 41; the others cannot go on\n")
    assert (early.rank, early.exit_code, early.round, early.log_tail) == (5, 0, 3, "the data is at its end\n")
    assert not early.is_consequence
    assert left.post_mortem.describe_early_finish({0: 1}, {0: 4}, 3, 1) is None


def test_a_reason_is_told_after_a_consequence_and_not_the_other_way_round(left: Round) -> None:
    left.stderr(0, PEERS)
    left.stderr(1, OWN)
    consequence, reason = (left.describe(left.last({rank: 1})[1]) for rank in (0, 1))
    assert explains_more(reason, consequence)
    assert not explains_more(consequence, reason)
    assert not explains_more(replace(reason, rank=9), reason), "the first to be seen stays"
    waited = replace(consequence, cause=FailureCause.TIMED_OUT)
    assert explains_more(waited, consequence) and explains_more(reason, waited)
    assert not explains_more(consequence, waited)
    assert explains_more(consequence, replace(reason, round=6))
    assert explains_more(consequence, None)
