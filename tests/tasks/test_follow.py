"""What `dlr map` says of its lines at the end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crds.intervals import Intervals
from crds.leases import Lease
from crds.shard_set import SetDefinition
from dlr.commands.errors import CommandError
from dlr.commands.map.follow import conclude, interrupted, progress_line
from dlr.commands.map.submission import Submitted
from dlr.tasks.lines import Lines
from dlr.tasks.task import LineTask
from reconcilers.shards.sets import SetState, Tried

NOW = datetime(2026, 11, 23, tzinfo=UTC)
LINES = Lines(b"".join(b"line %d\n" % number for number in range(1, 21)))


def a_job(
    phase: str,
    failed: Intervals = (),
    waiting: Intervals = (),
    leased: Intervals = (),
    tried: Intervals = (),
    **status: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    leases = (Lease(0, 1, 1, leased),) if leased else ()
    histories = (Tried((0,), tried),) if tried else ()
    known = SetState(
        SetDefinition("lines", 0, 20, "", 2, 99),
        waiting,
        leases,
        histories,
        failed=failed,
        reason="line 3, exit code 1",
    )
    job = {
        "metadata": {"name": "map"},
        "spec": {"replicaSpecs": {"worker": {"replicas": 2}}},
        "status": {"phase": phase, **status},
    }
    return job, [{"status": known.to_status().to_wire()}]


def made(lines: Lines | None = LINES) -> Submitted:
    return Submitted(
        {"metadata": {"name": "map", "namespace": "default"}}, LineTask("echo", 20, "", 1, 2, 99), lines
    )


def test_nothing_is_left_when_all_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conclude(made(), *a_job("Succeeded"), tmp_path)
    assert capsys.readouterr().err == "dlr: all 20 lines are done.\n"
    assert not list(tmp_path.iterdir())


def test_lines_that_failed_are_named_and_can_be_run_again(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as told:
        conclude(made(), *a_job("Succeeded", failed=((2, 4), (19, 20))), tmp_path)
    assert str(told.value) == (
        "3 of 20 lines failed (numbers 3-4,20); the first: line 3, exit code 1; they are in "
        f"{tmp_path}/map.left, which `dlr map` takes."
    )
    assert (tmp_path / "map.left").read_bytes() == b"line 3\nline 4\nline 20\n"


def test_of_a_job_that_failed_all_that_is_not_done_is_left(tmp_path: Path) -> None:
    reason = {"type": "Failed", "status": "True", "reason": "ShardsFailed", "message": "too many"}
    job = a_job("Failed", ((2, 3),), ((10, 12),), ((15, 16),), ((17, 18),), conditions=[reason])
    with pytest.raises(
        CommandError, match=r"1 of 20 lines failed .*the job 'map' failed: too many; 5 of 20 lines are not"
    ):
        conclude(made(), *job, tmp_path)
    assert (tmp_path / "map.left").read_bytes().split() == b"line 3 line 11 line 12 line 16 line 18".split()


def test_after_ctrl_c_it_says_that_the_job_goes_on() -> None:
    assert "goes on; `dlr map --attach map -n default` shows it again" in str(interrupted(made()))


def test_how_far_it_is_in_one_line() -> None:
    job, sets = a_job("Running", failed=((2, 3),), waiting=((10, 20),), leased=((8, 10),))
    assert progress_line(job, sets, [], 20) == "35%, 7 of 20 lines, 1 failed, 2 workers"
    stuck = {
        **job,
        "status": {"phase": "Pending", "reason": "Unschedulable", "message": "no node has 9 GPUs"},
    }
    assert progress_line(stuck, [], [], 20) == "0 of 20 lines, 2 workers, Unschedulable: no node has 9 GPUs"
