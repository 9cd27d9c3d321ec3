from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from agent.monitor import progress
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import (
    KEPT_ROUNDS,
    MIN_FILE_BYTES,
    LogKeeper,
    LogLimits,
    RoundLogsSpecs,
    cut_middle,
    prune,
)
from agent.monitor.stacks import ENV_STACKS_FILE, StackFiles
from agent.monitor.stepping import ProcessStart
from agent.supervision.process_env import ProcessEnvironment, restart_counts
from agent.torch_compat.elastic import MAX_RESTARTS, RESTART_COUNT
from crds.progress_record import ENV_PROGRESS_FILE, ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET
from tests.cli.scripted import Clock

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
        ours = self.environment.of_start(ProcessStart(self.number), list(range(processes)), logs, None)
        for rank, env in envs.items():
            env.update({**restart_counts(env, self.number), **ours[rank]})
        return envs

    def write(self, text: str) -> Path:
        log = Path(self.specs.latest.stderrs[0])
        log.write_text(text)
        return log


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    monkeypatch.setattr(progress, "time", Clock())
    monkeypatch.setattr(LogKeeper, "start", lambda _: None)
    return Rounds(tmp_path)


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
    assert envs[1]["PYTHONFAULTHANDLER"] == "1"
    assert (envs[1][ENV_SHARDS_SOCKET], envs[1][ENV_ROUND]) == ("/desk", "2")
    assert rounds.specs.root_log_dir == str(tmp_path)


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


def test_a_processs_log_is_bounded_while_it_runs(tmp_path: Path) -> None:
    log = tmp_path / "attempt_1" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (4 * MIB))
    keeper = LogKeeper(LogLimits(ended_bytes=MIB, running_bytes=MIB))
    keeper.keep(tmp_path / "attempt_1", {log, Path(os.devnull)})
    keeper.look(is_new_round=True)
    assert log.stat().st_blocks * 512 <= max(MIB // 2, MIN_FILE_BYTES)
