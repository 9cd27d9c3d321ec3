"""Replica groups whose gradients go over NCCL, through kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas import scripts
from tests.replicas.fleet import Fleet
from tests.replicas.test_training import digests_of, run


@pytest.mark.parametrize(("groups", "kills", "steps"), [(3, 3, 300)])
def test_every_step_over_nccl_is_the_same_in_all_groups_and_in_a_replay(
    groups: int, kills: int, steps: int, tmp_path: Path
) -> None:
    fleet = Fleet(
        tmp_path, scripts.train, groups, minimum=2, steps=steps, seconds=0.02, device="cuda", width=256
    )
    run(fleet, kills, seed=groups, pause_seconds=3.0)
    lines = fleet.lines()
    digests = digests_of(lines)
    assert sorted(digests) == list(range(steps))
    assert all(len(each) == 1 for each in digests.values())
    groups_of = {line["step"]: line["groups"] for line in lines if line["groups"]}
    (seed,) = {line["origin"] for line in lines}
    replayed = scripts.replay(steps, groups_of, seed, width=256, device="cuda")
    assert [digests[step].pop() for step in range(steps)] == replayed
    for killed_at, group, _ in fleet.kills:
        next_ = min(at for at, index, _, _ in fleet.commits if at > killed_at and index != group)
        print(f"the others' next step {next_ - killed_at:.3f} s after a kill")
