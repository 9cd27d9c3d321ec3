"""What benchmarks/recovery.py makes of what it sees."""

from pathlib import Path

import pytest

from benchmarks.recovery_breakdown import Arrivals, Join, stages
from benchmarks.recovery_contender import Recovery, Stage, Trial
from benchmarks.recovery_dlr import SLOW_KUBELETS
from benchmarks.recovery_events import Start, Timeline
from benchmarks.recovery_report import Yardsticks, kubelets_share, ratios, table

STARTS = (Start(2, 7, 10.4, 10.5, 10.6), Start(2, 8, 10.3, 10.55, 10.6))
RECOVERY = Recovery(struck_at=10.0, stepped_at=10.9, starts=STARTS)


def test_the_parts_of_a_recovery_are_one_after_the_other_and_its_whole() -> None:
    arrivals = Arrivals(reported=(9.0, 10.05, 10.2), published={1: 5.0, 2: 10.1})
    joins = [Join(1, 5.0, 5.0), Join(2, 10.12, 10.2), Join(2, 10.11, 10.11)]

    parts = stages(RECOVERY, arrivals, joins)

    expected = [0.05, 0.05, 0.02, 0.08, 0.2, 0.15, 0.05, 0.3]
    assert list(parts.values()) == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(RECOVERY.seconds)


def test_a_round_that_came_to_nothing_counts_as_waiting_for_the_one_that_trains() -> None:
    arrivals = Arrivals(reported=(10.05,), published={2: 10.1, 3: 10.25, 4: 11.5})
    parts = stages(RECOVERY, arrivals, [Join(2, 10.11, 10.11), Join(3, 10.26, 10.26)])
    assert parts[Stage.PUBLISH] == pytest.approx(0.2)


def test_nothing_is_told_where_a_part_was_not_seen() -> None:
    assert stages(RECOVERY, Arrivals((), {2: 10.1}), [Join(2, 10.2, 10.2)]) == {}
    assert stages(RECOVERY, Arrivals((10.05,), {2: 10.1}), []) == {}


def test_a_world_counts_from_the_first_step_of_its_last_rank(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_text("1 7 1 5.0\n2 8 1 7.5\n3 9 1 8.0\n3 9")
    (tmp_path / "rank-1").write_text("1 7 1 5.1\n3 9 1 8.2\n")
    assert Timeline(tmp_path).recovered_after(1) == (3, 8.2)
    assert Timeline(tmp_path).recovered_after(3) is None


def test_hung_trials_are_counted_and_left_out_of_the_figures() -> None:
    trials = {"dlr": [Trial(0.2), Trial(None), Trial(0.4)], "torchrun (c10d)": [Trial(None)]}
    shown = table(trials, Yardsticks(import_torch_seconds=1.2, bare_pod_seconds=1.5))
    assert "| dlr | 3 | 0.30 s | 0.40 s | 0.40 s | 0.25 | 1 |" in shown
    assert "| torchrun (c10d) | 1 | – | – | – | – | 1 |" in shown


def test_what_a_bare_pod_takes_is_the_kubelets_and_the_rest_is_ours() -> None:
    yardsticks = Yardsticks(import_torch_seconds=1.2, bare_pod_seconds=1.5)
    share = kubelets_share({SLOW_KUBELETS: [Trial(3.9)]}, yardsticks)
    assert "The rest, 2.40 s, is dlr's: 2.00 times" in share
    assert kubelets_share({"dlr": [Trial(3.9)]}, yardsticks) == ""


def test_the_ratio_is_to_the_better_peer() -> None:
    trials = {"dlr": [Trial(0.5)], "torchrun (c10d)": [Trial(10.0)], "DLRover 0.6.1": [Trial(7.0)]}
    assert ratios(trials) == "Times faster than the better peer, DLRover 0.6.1, by the median: dlr 14.0."
    assert ratios({"dlr": [Trial(0.5)], "torchrun (c10d)": [Trial(None)]}) == ""
