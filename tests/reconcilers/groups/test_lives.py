"""Ten thousand deaths, and hangs, in virtual time: membership, groups' worlds, late watches, crashes of the controller.

The API server has the job's status, its ElasticWorld and the groups' statuses, with all that they were. Two
controllers may act at once, on caches that lag behind, and may crash between two writes. The job and its groups
are objects of one kind, so one watch brings them in the order in which they were written; the ElasticWorld has
a watch of its own. Processes see the ElasticWorld late, and not each of its versions.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pytest

from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import Membership
from reconcilers.groups.membership import GroupView, decide

GROUPS, MINIMUM = 5, 2
KILLS = 10_000
V = TypeVar("V")
FORMING = RendezvousPhase.FORMING
Believed = tuple[tuple[int, int], ...]


@dataclass
class Stored(Generic[V]):
    """An object of the API server: what it was, and the moments of the writes."""

    past: list[V]
    moments: list[int] = field(default_factory=lambda: [0])

    @property
    def now(self) -> V:
        return self.past[-1]

    @property
    def newest(self) -> int:
        return len(self.past) - 1

    def write(self, value: V, moment: int) -> None:
        self.past.append(value)
        self.moments.append(moment)

    def at(self, moment: int) -> int:
        """Its version, as a watch has it that has caught up to a moment."""
        return bisect_right(self.moments, moment) - 1


@dataclass
class Group:
    """The status of a group's ElasticJob, and the processes that are there."""

    status: Stored[GroupView]
    processes: int = 0
    """Round of the processes that run; 0 while there are none."""
    heard: int = 0
    """Version of the ElasticWorld that its processes have seen."""
    told_broken: int = 0
    hangs: bool = False

    @property
    def view(self) -> GroupView:
        return self.status.now


@dataclass
class Controller:
    """What its caches have."""

    jobs: int = 0
    """Moment up to which it has seen the job and its groups."""
    world: int = 0
    """Version of the ElasticWorld that it has seen."""


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.moment = 0
        self.job, self.world = Stored([Membership()]), Stored([Membership()])
        self.groups = [
            Group(Stored([GroupView(index, JobPhase.RUNNING, address=f"10.0.0.{index}", port=1)]))
            for index in range(GROUPS)
        ]
        self.controllers = [Controller(), Controller()]
        self.believed: dict[int, Believed] = {}
        """What any process has ever believed of a version."""
        self.kills = 0

    def write(self, group: Group, **changes: Any) -> None:
        """Write a group's status."""
        self.moment += 1
        group.status.write(replace(group.view, **changes), self.moment)

    # --- what happens ------------------------------------------------------------------------------------

    def kill(self, group: Group) -> None:
        """A process dies, and the group's next look says so; or it is not even seen until the next world."""
        self.kills += 1
        group.processes, group.hangs = 0, False
        if self.random.random() < 0.8:
            self.tell_of_death(group)

    def tell_of_death(self, group: Group) -> None:
        self.write(group, world=FORMING, broken_round=group.view.round, ready_round=0)

    def go_on(self, group: Group) -> None:
        """The group's next world, then its processes, then their word that they are ready."""
        view = group.view
        if view.world is RendezvousPhase.FORMED and not group.processes and view.ready_round:
            self.tell_of_death(group)
        elif view.world is not RendezvousPhase.FORMED:
            self.write(group, world=RendezvousPhase.FORMED, round=view.round + 1)
            group.processes, group.heard, group.told_broken = view.round + 1, 0, 0
        elif group.processes and not view.ready_round:
            self.write(group, ready_round=view.round)
        elif not group.processes:
            self.tell_of_death(group)

    def hear(self, group: Group) -> None:
        """Its processes see a newer ElasticWorld; they may miss some. Without their group in it, they report that
        they are back."""
        if group.processes and not group.hangs and group.heard < self.world.newest:
            group.heard = self.random.randint(group.heard + 1, self.world.newest)
            membership = self.world.past[group.heard]
            groups = tuple((place.index, place.round) for place in membership.groups)
            assert self.believed.setdefault(membership.version, groups) == groups, membership.version
        if group.processes and not group.hangs and group.view.ready_round:
            membership = self.world.past[group.heard]
            is_in = any(place.index == group.view.index for place in membership.groups)
            if not is_in and group.view.left_out_version < membership.version:
                self.write(group, left_out_version=membership.version)

    def hang(self, group: Group) -> None:
        """Its processes come to no exchange any more, until they go on or are killed."""
        group.hangs = bool(group.processes) and not group.hangs
        if group.hangs and self.random.random() < 0.2:
            self.kill(group)

    def wait_in_vain(self, group: Group) -> None:
        """Its processes name those that do not come to their version, and now and then one that does."""
        self.hear(group)
        membership = self.world.past[group.heard]
        members = {place.index for place in membership.groups}
        if group.processes and not group.hangs and group.view.ready_round and group.view.index in members:
            late = {each.view.index for each in self.groups if each.hangs or self.random.random() < 0.1}
            late = frozenset(late & members - {group.view.index})
            self.write(group, late_version=membership.version, late_groups=late)

    def exchange(self, group: Group) -> None:
        """Its processes are in a version of which one is dead: they report that it is broken."""
        membership = self.world.past[group.heard]
        alive = {(each.view.index, each.processes) for each in self.groups}
        members = {(place.index, place.round) for place in membership.groups}
        is_in = (group.view.index, group.processes) in members
        may_fail = not members <= alive or self.random.random() < 0.02
        if (
            group.processes
            and not group.hangs
            and is_in
            and may_fail
            and group.told_broken < membership.version
        ):
            group.told_broken = membership.version
            if group.view.ready_round:
                self.write(group, broken_version=membership.version)

    def watch(self, controller: Controller) -> None:
        """One of its watches catches up, some or all of the way."""
        if self.random.random() < 0.5:
            controller.jobs = self.random.randint(controller.jobs, self.moment)
        else:
            controller.world = self.random.randint(controller.world, self.world.newest)

    def look(self, controller: Controller, crashes: float = 0.1) -> None:
        """The look of ReplicaGroupsReconciler: the status, unless it has changed, and then the ElasticWorld."""
        version = self.job.at(controller.jobs)
        seen, seen_world = self.job.past[version], self.world.past[controller.world]
        views = [group.status.past[group.status.at(controller.jobs)] for group in self.groups]
        decided = decide(seen, views, MINIMUM)
        if decided == seen == seen_world or version != self.job.newest:
            return
        if decided != seen:
            self.moment += 1
            self.job.write(decided, self.moment)
        if (
            self.random.random() >= crashes
            and decided != seen_world
            and controller.world == self.world.newest
        ):
            self.world.write(decided, self.moment)

    # --- what must hold ----------------------------------------------------------------------------------

    def check(self) -> None:
        for stored in (self.job, self.world):
            versions = [membership.version for membership in stored.past]
            assert versions == sorted(set(versions)), "versions only rise"
            newest: dict[int, int] = {}
            for place in (place for membership in stored.past for place in membership.groups):
                assert place.round >= newest.get(place.index, 0), "no earlier round comes back"
                newest[place.index] = place.round
            for membership in stored.past:
                late = {each.index for each in membership.late}
                assert not late & {place.index for place in membership.groups}
                if any(each.version == membership.version for each in membership.late):
                    assert len(membership.groups) >= MINIMUM, "a late group is worth a wait then"

    def settle(self) -> None:
        """Nobody dies or hangs any more, and all watches catch up in the end."""
        for _ in range(100):
            for group in self.groups:
                group.hangs = False
                self.go_on(group)
                self.hear(group)
            for controller in self.controllers:
                controller.jobs, controller.world = self.moment, self.world.newest
                self.look(controller, crashes=0.0)


@pytest.mark.parametrize("seed", range(10))
def test_through_all_kills_versions_mean_one_thing_and_in_the_end_all_groups_train_together(
    seed: int,
) -> None:
    life = Life(seed)
    while life.kills < KILLS // 10:
        group = life.random.choice(life.groups)
        controller = life.random.choice(life.controllers)
        happens = life.random.random()
        if happens < 0.03:
            life.kill(group)
            if life.random.random() < 0.2:
                life.kill(life.random.choice(life.groups))
        elif happens < 0.2:
            life.go_on(group)
        elif happens < 0.35:
            life.hear(group)
        elif happens < 0.45:
            life.exchange(group)
        elif happens < 0.49:
            life.hang(group)
        elif happens < 0.57:
            life.wait_in_vain(group)
        elif happens < 0.77:
            life.watch(controller)
        else:
            life.look(controller)
    life.check()
    trained = {tuple(place.index for place in each.groups) for each in life.world.past}
    assert len(trained) > GROUPS, "groups have come and gone"
    late = [each for membership in life.world.past for each in membership.late]
    assert len({(each.index, each.version) for each in late}) > GROUPS, "some were late"
    life.settle()
    life.check()
    newest = life.world.now
    assert newest == life.job.now
    alive = [(group.view.index, group.processes) for group in life.groups]
    assert [(place.index, place.round) for place in newest.groups] == alive, "all train, in one version"
    assert {group.heard for group in life.groups} == {life.world.newest}
