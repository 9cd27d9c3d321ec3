"""Whose eviction is announced, since when, and what it costs to see that."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cache import Cache
from controller.resources import NODES
from crds.elasticjob import ElasticJob
from reconcilers.evictions import notices as module
from reconcilers.evictions.notices import BY_ANNOUNCED, Notices, announced_keys
from reconcilers.observed.announced import announcement
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.setup import add_indexes
from tests.reconcilers.build import NOW, job, later, worker
from tests.reconcilers.caches import shaped_cache

JSON = dict[str, Any]
WORLD = {"rendezvous": {"round": 1, "phase": "Formed", "members": "0"}}


@dataclass
class Town:
    """Nodes, and workers of two jobs on them."""

    cache: Cache = field(default_factory=shaped_cache)
    seconds: float = 0.0
    version: int = 0

    def __post_init__(self) -> None:
        add_indexes(self.cache)
        self.cache.add_index(NODES, BY_ANNOUNCED, announced_keys)
        clock = Clock(lambda: NOW + timedelta(seconds=self.seconds), lambda: self.seconds)
        self.notices = Notices(self.cache, clock)

    def node(self, number: int, *, cordoned: bool) -> None:
        self.version += 1
        metadata = {"name": f"node-{number}", "uid": f"n{number}", "resourceVersion": str(self.version)}
        node = {"metadata": metadata, "spec": {"unschedulable": cordoned}}
        self.cache.store(NODES).apply(node)
        self.notices.remember(node)

    def worker(self, owner: str, index: int, node: int) -> None:
        self.version += 1
        lives = [{"incarnation": 1, "createdAt": later(self.seconds)}]
        found = worker(index, nodeName=f"node-{node}", history=lives).to_wire()
        found["metadata"] |= {"name": f"{owner}-worker-{index}", "uid": f"{owner}{index}"}
        found["metadata"] |= {"resourceVersion": str(self.version), "ownerReferences": [_owner(owner)]}
        found["spec"]["jobName"] = owner
        self.cache.store(ELASTICWORKERS).apply(found)

    def of(self, owner: str) -> dict[int, float]:
        """Ages of the notices by worker."""
        return {each.index: each.age_seconds for each in self.notices.of(_job(owner))}


def _job(name: str) -> ElasticJob:
    return job(name, status=WORLD, elasticPolicy={"evictionPatienceSeconds": 30})


def _owner(name: str) -> JSON:
    kind = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "name": name}
    return {**kind, "uid": f"uid-{name}", "controller": True}


@given(
    cordoned=st.sets(st.integers(0, 9)),
    places=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=12),
)
def test_exactly_the_jobs_own_workers_on_such_nodes_have_notices(
    cordoned: set[int], places: list[tuple[str, int]]
) -> None:
    town = Town()
    for index, (owner, node) in enumerate(places):
        town.worker(owner, index, node)
    town.seconds = 5.0
    for number in range(10):
        town.node(number, cordoned=number in cordoned)
    town.seconds = 7.0
    for owner in "ab":
        own = {i: 2.0 for i, (of, node) in enumerate(places) if of == owner and node in cordoned}
        assert town.of(owner) == own


def test_who_comes_in_spite_of_it_has_no_notice_and_another_announcement_counts_for_all() -> None:
    town = Town()
    town.worker("a", 0, 0)
    town.seconds = 10.0
    for number in (0, 1):
        town.node(number, cordoned=True)
    town.seconds = 10.5
    town.worker("a", 1, 1)
    town.seconds = 20.0
    assert town.of("a") == {0: 10.0}
    for cordoned in (False, True):
        town.node(1, cordoned=cordoned)
    assert town.of("a") == {0: 10.0, 1: 0.0}


@pytest.mark.parametrize(("announced", "workers", "size"), [(300, 2, 2), (2, 300, 2), (300, 300, 300)])
def test_a_look_is_as_large_as_what_it_walks(announced: int, workers: int, size: int) -> None:
    """By that a thread reads the notices of a large job, whose nodes are all drained."""
    town = Town()
    for number in range(300):
        town.worker("a" if number < workers else "b", number, number)
        town.node(number, cordoned=number < announced)
    assert town.notices.look_size(_job("a")) == size


def test_a_notice_that_is_read_late_does_not_bring_an_announcement_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread still has the Node as it was before its end of it was noted."""
    town = Town()
    town.worker("a", 0, 0)
    town.seconds = 5.0
    town.node(0, cordoned=True)

    def ended_meanwhile(node: JSON) -> str:
        monkeypatch.undo()
        town.node(0, cordoned=False)
        return announcement(node)

    monkeypatch.setattr(module, "announcement", ended_meanwhile)
    assert town.of("a").keys() == {0}
    town.seconds = 50.0
    town.node(0, cordoned=True)
    town.seconds = 60.0
    assert town.of("a") == {0: 10.0}
