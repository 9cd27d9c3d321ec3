"""One dealing of shards over all groups, whatever becomes of workers, groups and controllers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.grouping import MAX_GROUPS, worker_number
from crds.intervals import count, union
from crds.shard_set import SetDefinition
from reconcilers.shards.plan import ShardsSeen, plan_shards
from reconcilers.shards.sets import SetState
from tests.reconcilers.build import NOW
from tests.reconcilers.shards.play import MOST_GROUPS, WORKERS, Act, Cluster


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, MOST_GROUPS),
    workers=st.integers(1, 4),
    size=st.integers(1, 60),
    retries=st.integers(0, 3),
    poison=st.frozensets(st.integers(0, 59), max_size=3),
    acts=st.integers(0, 300),
    in_order=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_element_is_done_or_named_whatever_becomes_of_workers_groups_and_controllers(
    groups: int,
    workers: int,
    size: int,
    retries: int,
    poison: frozenset[int],
    acts: int,
    in_order: bool,
    seed: int,
) -> None:
    definition = SetDefinition("files", 0, size, "", retries, size)
    cluster = Cluster(groups, definition, poison, seed, workers=workers, in_order=in_order)
    for _ in range(acts):
        cluster.act(cluster.choose.choices(list(Act), [act.value for act in Act])[0])
    cluster.quiet()
    (over,) = cluster.sets
    failed = {element for start, end in over.failed for element in range(start, end)}
    assert set(cluster.done) | failed == set(range(size)), "lost"
    assert over.done == size - len(failed)
    assert not failed & set(cluster.done) or len(failed) <= 3 * len(poison), "named though it was done"
    assert not failed or poison


def begun(groups: int = 3) -> Cluster:
    """All workers of all groups hold leases, and have reported what they have done of them: one element."""
    cluster = Cluster(groups, SetDefinition("files", 0, 1_000, "", 2, 0), frozenset(), 1)
    for _ in range(3):
        for worker in cluster.workers:
            worker.report()
        cluster.look()
        for worker in cluster.workers:
            worker.see(cluster.sets)
    for worker in cluster.workers:
        worker.in_hand = worker.holding.take(1)
        cluster.work(worker)
        worker.report()
    assert holders(cluster) == set(range(groups))
    return cluster


def holders(cluster: Cluster) -> set[int]:
    """The groups whose workers hold leases."""
    return {held.worker % MAX_GROUPS for each in cluster.sets for held in each.leases}


def after_a_look(cluster: Cluster) -> SetState:
    cluster.look()
    (found,) = cluster.sets
    return found


def lose(cluster: Cluster) -> None:
    for worker in cluster.groups[1].workers:
        worker.die()


def end(cluster: Cluster) -> None:
    cluster.groups[1].is_over = True


@pytest.mark.parametrize("what", [lose, end])
def test_leases_of_a_group_that_is_lost_or_over_go_back_without_what_it_reported(what: Any) -> None:
    cluster = begun()
    (before,) = cluster.sets
    held = union(*(lease.elements for lease in before.leases if lease.worker % MAX_GROUPS == 1))
    what(cluster)
    found = after_a_look(cluster)
    assert holders(cluster) == {0, 2}
    assert (count(found.waiting), found.done) == (count(before.waiting) + count(held) - WORKERS, WORKERS)


def test_a_write_of_leases_waits_for_its_turn_unless_a_worker_goes() -> None:
    cluster = begun()
    version = len(cluster.statuses) - 1
    pullers, now = cluster.pullers() * 100, NOW + timedelta(seconds=9)
    seen = ShardsSeen(cluster.job, cluster.stored(version), pullers, age_seconds=0.2)
    plan = plan_shards(seen, now)
    assert not plan.sets and plan.look_again_seconds == pytest.approx(0.4)
    cluster.count = 2
    seen = ShardsSeen(cluster.job, cluster.stored(version), cluster.pullers() * 100, age_seconds=0.2)
    assert plan_shards(seen, now).sets


@given(st.integers(0, MAX_GROUPS - 1), st.integers(0, 20_000))
def test_a_worker_has_one_number_among_those_of_all_groups(group: int, index: int) -> None:
    number = worker_number(group, index)
    assert divmod(number, MAX_GROUPS) == (index, group)
