from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from agent.monitor import round_logs
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import (
    CHOSEN_BYTES,
    KEPT_ROUNDS,
    MIN_FILE_BYTES,
    Bounds,
    LogKeeper,
    RoundLogsSpecs,
    bounds_of,
    cut_middle,
    prune,
)
from agent.monitor.stacks import ENV_STACKS_FILE, StackFiles
from agent.monitor.stepping import Start
from agent.supervision.process_env import ProcessEnvironment, restart_counts
from agent.torch_compat.elastic import MAX_RESTARTS, RESTART_COUNT
from crds.progress_record import ENV_PROGRESS_FILE, ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET

MIB = 1 << 20


class Rounds:
    """Starts of processes, as torch's agent makes them."""

    def __init__(self, root: Path | str) -> None:
        self.number = 0
        progress = ProgressFiles()
        stacks = StackFiles(progress.directory / "stacks")
        self.specs = RoundLogsSpecs(DefaultLogsSpecs(log_dir=str(root), tee=Std.ERR), lambda: self.number)
        self.environment = ProcessEnvironment(progress, stacks, None, "/desk")

    def start(self, processes: int = 1) -> dict[int, dict[str, str]]:
        self.number += 1
        envs = {rank: {"TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank)} for rank in range(processes)}
        logs = self.specs.reify(envs)
        ours = self.environment.of_start(Start(self.number), list(range(processes)), logs, None)
        for rank, env in envs.items():
            env.update({**restart_counts(env, self.number), **ours[rank]})
        return envs

    def write(self, text: str) -> Path:
        log = Path(self.specs.latest.stderrs[0])
        log.write_text(text)
        return log


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


@pytest.mark.real
def test_the_log_of_a_failed_round_outlives_the_restart(rounds: Rounds) -> None:
    rounds.start()
    failed = rounds.write("out of luck")
    rounds.start()
    assert failed.read_text() == "out of luck"
    assert failed.parts[-3:] == ("attempt_1", "0", "stderr.log")
    assert Path(rounds.specs.latest.stderrs[0]).parts[-3] == "attempt_2"


@given(rounds=st.integers(1, 1000), failures=st.integers(0, 50), allowed=st.integers(0, 2**31 - 1))
def test_the_restart_count_is_alike_on_all_ranks_and_leaves_what_max_restarts_leaves(
    rounds: int, failures: int, allowed: int
) -> None:
    failures = min(failures, allowed)  # of this agent; another one has had others
    here, there = (
        restart_counts({RESTART_COUNT: str(failed), MAX_RESTARTS: str(allowed)}, rounds)
        for failed in (failures, 0)
    )
    count = int(here["TORCHELASTIC_RESTART_COUNT"])
    assert there["TORCHELASTIC_RESTART_COUNT"] == here["TORCHELASTIC_RESTART_COUNT"]
    assert (count > 0) == (rounds > 1)
    left = int(here["TORCHELASTIC_MAX_RESTARTS"]) - count
    assert left == min(allowed - failures, 2**31 - 1 - count)


@pytest.mark.real
def test_processes_learn_their_files_and_how_often_training_was_restarted(
    rounds: Rounds, tmp_path: Path
) -> None:
    envs = rounds.start(processes=2)
    assert [env["TORCHELASTIC_RESTART_COUNT"] for env in envs.values()] == ["0", "0"]
    envs = rounds.start(processes=2)
    assert [env["TORCHELASTIC_RESTART_COUNT"] for env in envs.values()] == ["1", "1"]
    assert envs[0][ENV_PROGRESS_FILE] != envs[1][ENV_PROGRESS_FILE]
    folder = Path(rounds.specs.latest.error_files[1]).parent
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == str(folder / "error.json")
    assert envs[1][ENV_STACKS_FILE] == str(folder / "stacks.txt")
    assert (envs[1][ENV_SHARDS_SOCKET], envs[1][ENV_ROUND]) == ("/desk", "2")
    assert rounds.specs.root_log_dir == str(tmp_path)


@pytest.mark.real
def test_without_log_files_processes_start_as_well() -> None:
    rounds = Rounds(os.devnull)
    assert Path(rounds.start()[0][ENV_STACKS_FILE]).parent.is_dir()
    assert rounds.start()[0]["TORCHELASTIC_ERROR_FILE"] == ""


@pytest.mark.real
def test_volume_that_fails_for_a_moment_does_not_end_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures, pruned = iter([errno.ESTALE, errno.EIO]), threading.Event()

    def prune_or_fail(folder: Path, _limit_bytes: int) -> None:
        if folder != tmp_path:
            return  # a keeper of an earlier test, whose thread is still at its first look
        if (code := next(failures, None)) is not None:
            raise OSError(code, os.strerror(code))
        pruned.set()

    monkeypatch.setattr(round_logs, "prune", prune_or_fail)
    monkeypatch.setattr(round_logs, "LOOK_SECONDS", 0.01)
    keeper = LogKeeper(Bounds(ended_bytes=1, running_bytes=None))
    keeper.start()
    keeper.keep(tmp_path, set())
    assert pruned.wait(300)
    assert caplog.text.count("not kept within bounds") == 1


@pytest.mark.real
def test_a_round_that_begins_just_when_a_look_is_due_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned = threading.Event()
    monkeypatch.setattr(round_logs, "prune", lambda folder, _: folder == tmp_path and pruned.set())
    keeper = LogKeeper(Bounds(ended_bytes=1, running_bytes=None))

    class News(threading.Event):
        """The first wait for it is over when it comes."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            if self.waits > 1:
                return super().wait(timeout)
            keeper.keep(tmp_path, set())
            return False

    keeper._news = News()
    keeper.start()
    assert pruned.wait(300)


def ended_rounds(folder: Path, *sizes: int) -> Path:
    """The folder of the round that runs after them."""
    for number, size in enumerate(sizes, start=1):
        log = folder / f"attempt_{number}" / "0" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"x" * size)
    running = folder / f"attempt_{len(sizes) + 1}"
    running.mkdir()
    return running


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("attempt_")) for path in folder.iterdir())


def test_the_last_rounds_are_kept(tmp_path: Path) -> None:
    (tmp_path / "attempt_of_mine").mkdir()
    prune(ended_rounds(tmp_path, *([10] * 12)), MIB)
    (tmp_path / "attempt_of_mine").rmdir()
    assert numbers(tmp_path) == list(range(13 - KEPT_ROUNDS, 14))


def test_ended_rounds_keep_to_a_number_of_bytes_but_for_the_newest(tmp_path: Path) -> None:
    prune(ended_rounds(tmp_path, 10, MIB, MIB // 4, MIB // 2), MIB)
    assert numbers(tmp_path) == [3, 4, 5]
    prune(tmp_path / "attempt_5", 1000)
    assert numbers(tmp_path) == [4, 5]


def test_a_log_that_is_written_loses_its_middle_and_nobody_notices(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    with log.open("w") as writer, log.open() as reader:
        writer.write("first\n" + "x" * (8 * MIB) + "\n")
        writer.flush()
        reader.read()
        cut_middle(log, MIB)
        assert log.stat().st_blocks * 512 <= MIB
        writer.write("last\n")
        writer.flush()
        assert reader.read() == "last\n"
    lines = log.read_bytes().splitlines()
    assert (lines[0], lines[-1]) == (b"first", b"last")


def test_a_log_within_its_bounds_stays_whole(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("x" * 1000)
    cut_middle(log, MIB)
    assert log.read_text() == "x" * 1000
    cut_middle(tmp_path / "none", MIB)


def test_a_processs_log_is_bounded_while_it_runs(tmp_path: Path) -> None:
    log = tmp_path / "attempt_1" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (4 * MIB))
    keeper = LogKeeper(Bounds(ended_bytes=MIB, running_bytes=MIB))
    keeper.keep(tmp_path / "attempt_1", {log, Path(os.devnull)})
    keeper.look(is_new_round=True)
    assert log.stat().st_blocks * 512 <= max(MIB // 2, MIN_FILE_BYTES)


def test_where_files_have_no_holes_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_holes(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(round_logs, "_punch_hole", no_holes)
    running = ended_rounds(tmp_path, *([10] * 12))
    log = running / "stderr.log"
    log.write_bytes(b"x" * (4 * MIB))
    keeper = LogKeeper(Bounds(ended_bytes=MIB, running_bytes=MIB))
    keeper.keep(running, {log})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            keeper.look(is_new_round=True)
    assert [record.message.partition(", because")[0] for record in caplog.records] == [
        f"the logs of training processes grow without bound in {running}"
    ]
    assert len(numbers(tmp_path)) == KEPT_ROUNDS + 1


def test_bounds_are_tight_only_where_nobody_chose_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounds_of(tmp_path) == Bounds(CHOSEN_BYTES, None)
    monkeypatch.setattr(round_logs.tempfile, "gettempdir", lambda: str(tmp_path))
    own = tmp_path / "torchelastic_abc"
    own.mkdir()
    assert bounds_of(own).running_bytes == 64 * MIB
