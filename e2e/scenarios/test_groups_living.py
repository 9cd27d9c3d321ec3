"""Replica groups whose processes live on when a peer of their group dies.

DLR_TORCH_NEXT_PYTHON names the `python3` of an environment that has torch 2.14 or newer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

import pytest

from crds.names import ENV_JOINS
from e2e import processes
from e2e.cluster import Capability, Cluster
from e2e.exact_groups import ExactGroups
from e2e.observation import Observation

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.NODE_PROCESSES)
GROUPS, WORKERS = 2, 3
STEPS, ROUNDS = 30, 6

Place = tuple[int, int]
"""Group and rank."""


def kill(run: ExactGroups, *victims: Place, more: int = STEPS) -> tuple[dict[int, list[int]], float]:
    """Kill processes at once after some more steps of all groups; return the processes of all, and when."""
    run.wait_for_steps(more)
    before, now = run.wait_until(GROUPS), time.monotonic()
    for group, rank in victims:
        os.kill(before[group][rank], signal.SIGKILL)
    return before, now


def await_others(run: ExactGroups, before: dict[int, list[int]], victims: Collection[Place]) -> None:
    """Wait until all groups train again, and check that all other processes are those from before."""

    def is_whole() -> bool:
        after = run.train()
        return len(after) == GROUPS and all(
            after[group][rank] != before[group][rank] for group, rank in victims
        )

    run.wait_for("all groups to train", is_whole)
    after = run.wait_until(GROUPS)
    everybody = {(group, rank) for group in range(GROUPS) for rank in range(len(before[group]))}
    changed = {(group, rank) for group, rank in everybody if after[group][rank] != before[group][rank]}
    assert changed == set(victims)


@pytest.mark.parametrize(("kind", "workers", "loaders"), [("ddp", 2, 2), ("tp", 4, 0)])
def test_a_killed_process_costs_its_group_no_other_process_and_the_other_group_nothing(
    cluster: Cluster, observation: Observation, kind: str, workers: int, loaders: int
) -> None:
    """The last time one of each group is killed: the state is that of their checkpoints in memory."""
    run = ExactGroups(
        cluster,
        observation,
        "living",
        GROUPS,
        workers,
        minimum=1,
        lives=True,
        KIND=kind,
        LOADERS=str(loaders),
    )
    run.wait_until(GROUPS)
    for victims in ([(1, 0)], [(0, 1)], [(0, 0), (1, 1)]):
        before, killed = kill(run, *victims)
        group = victims[0][0]
        run.wait_for_steps(STEPS, 1 - group)
        await_others(run, before, victims)
        own, other = (run.longest_step_seconds(each, killed) for each in (group, 1 - group))
        print(f"longest step of group {group} {own:.2f} s, of the other {other:.2f} s")
    run.wait_for_steps(STEPS)
    print(f"{run.assert_equal_to_a_replay(loaders)} steps")


def test_a_newcomer_that_dies_and_a_pod_that_goes_by_plan_cost_nobody_else(
    cluster: Cluster, observation: Observation
) -> None:
    run = ExactGroups(cluster, observation, "newcomers", GROUPS, minimum=1, lives=True, grace_seconds=30)
    run.wait_until(GROUPS)
    before, _ = kill(run, (1, 1))
    victim = observation.wait_for("the newcomer", lambda: newcomer(run, (1, 1)))
    os.kill(victim, signal.SIGKILL)
    await_others(run, before, [(1, 1)])
    run.wait_for_steps(STEPS)
    before = run.wait_until(GROUPS)
    cluster.delete_pod(observation.namespace, run.pod_of(0, 1))
    await_others(run, before, [(0, 1)])
    run.wait_for_steps(STEPS)
    print(f"{run.assert_equal_to_a_replay()} steps")


def newcomer(run: ExactGroups, place: Place) -> int | None:
    """Return the first process that joins others in that place, and no child of it."""
    found = [pid for (group, rank, _), pid in run.living().items() if (group, rank) == place]
    return next((pid for pid in found if ENV_JOINS in processes.environment(pid)), None)
