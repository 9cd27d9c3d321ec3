"""Groups of real processes over gloo that are killed with -9, against a replay in one process."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.replicas import scripts
from tests.replicas.fleet import Fleet

pytestmark = pytest.mark.real

WITHIN_SECONDS = 600
STEPS_AFTER = 40
"""Number of steps that all groups make after the last kill."""


def run(fleet: Fleet, kills: int, seed: int, pause_seconds: float = 0.3) -> None:
    """Run to the end; now and then a process is killed, while at least two groups have the state.

    Scripts without a number of steps end once all groups train after the last kill.
    """
    chance = random.Random(seed)

    def ends() -> bool:
        return fleet.is_over or any(group.done for group in fleet.groups.values())

    try:
        for _ in range(kills):
            at = time.monotonic() + chance.uniform(0.3, 1.0) * pause_seconds
            fleet.run_until(lambda at=at: time.monotonic() > at or ends(), WITHIN_SECONDS)
            fleet.run_until(
                lambda: sum(g.trains for g in fleet.groups.values()) >= 2 or ends(), WITHIN_SECONDS
            )
            if ends():
                break
            group = chance.choice([g for g in fleet.groups.values() if g.is_ready and not g.is_killed])
            fleet.kill(group.index, chance.randrange(len(group.processes)))
        fleet.run_until(
            lambda: ends() or all(g.trains_for(STEPS_AFTER) for g in fleet.groups.values()), WITHIN_SECONDS
        )
        (fleet.folder / "end").touch()
        fleet.run_until(lambda: fleet.is_over, WITHIN_SECONDS)
    finally:
        fleet.stop()


def digests_of(lines: list[dict[str, Any]]) -> dict[int, set[str]]:
    """What each step's parameters were, by step; for a rank of its own where a group has several."""
    found: dict[int, set[str]] = defaultdict(set)
    for line in lines:
        found[line["step"]].add(line["digest"])
    return found


def test_every_step_is_the_same_in_all_groups_and_in_a_replay(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, scripts.train, 3, minimum=2, steps=None, seconds=0.02)
    run(fleet, kills=4, seed=3)
    lines = fleet.lines()
    digests = digests_of(lines)
    steps = max(digests) + 1
    assert sorted(digests) == list(range(steps)), "no step is missing"
    differ = [line for line in lines if len(digests[line["step"]]) > 1]
    assert not differ, "all groups have the same parameters"
    groups_of = {line["step"]: line["groups"] for line in lines if line["groups"]}
    (seed,) = {line["origin"] for line in lines}
    replayed = scripts.replay(steps, groups_of, seed)
    assert [digests[step].pop() for step in range(steps)] == replayed
    assert fleet.version > 4


def test_groups_of_fsdp2_go_on_through_a_kill(tmp_path: Path) -> None:
    """The scenarios of e2e have groups of DDP."""
    fleet = Fleet(tmp_path, scripts.train_sharded, 2, 2, minimum=1)
    run(fleet, 1, seed=1)
    lines = fleet.lines()
    by_rank: dict[tuple[int, int], set[str]] = defaultdict(set)
    for line in lines:
        by_rank[line["step"], line["rank"]].add(line["digest"])
    assert all(len(each) == 1 for each in by_rank.values())
    back = {(line["group"], line["round"]) for line in lines}
    assert len(back) == 3, "the group that was killed came back and trained"
