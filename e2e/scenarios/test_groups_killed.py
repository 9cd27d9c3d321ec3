"""Replica groups through many kills: all have the same parameters, and one process can repeat the run."""

from __future__ import annotations

import os
import random
import signal

import pytest

from e2e.cluster import Capability, Cluster
from e2e.exact_groups import ExactGroups
from e2e.observation import Observation

GROUPS = 3
KILLS = int(os.environ.get("DLR_KILLS", "40"))
"""Number of processes that are killed; docs/groups.md has a run of 300."""
CONTROLLER_EVERY = 10
"""Number of kills after each of which the controller is killed too."""


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.timeout(300 + 10 * KILLS)
@pytest.mark.needs(Capability.STORAGE)
@pytest.mark.needs(Capability.CONTROL_PLANE)
@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_no_step_is_lost_or_made_twice_or_differs_through_many_kills(
    cluster: Cluster, observation: Observation, lives: bool
) -> None:
    run = ExactGroups(cluster, observation, "killed", GROUPS, minimum=2, lives=lives)
    chance, kills = random.Random(7), 0
    run.wait_until(GROUPS)
    while kills < KILLS:
        several = chance.random() < 0.3
        able = run.wait_until(GROUPS if several else 2)
        for group in chance.sample(sorted(able), 2 if several else 1):
            pid = chance.choice(able[group])
            os.kill(pid, signal.SIGKILL)
            kills += 1
            if kills % CONTROLLER_EVERY == 0:
                run.replace_controller()
    run.wait_until(GROUPS)
    print(f"{kills} kills, {run.assert_equal_to_a_replay()} steps")
