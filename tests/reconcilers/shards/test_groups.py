"""One dealing of shards over all groups, whatever becomes of workers, groups and controllers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.grouping import MAX_GROUPS, group_of_worker, worker_number
from crds.intervals import count, union
from crds.shard_set import SetDefinition
from reconcilers.shards.plan import ShardsPlan, ShardsSeen, StoredSet, plan_shards
from reconcilers.shards.reconciler import stored_set
from reconcilers.shards.sets import Puller, SetState
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, report
from tests.reconcilers.shards.test_lease import check_sets, crash_in_place, work

NAME, WORKERS, MOST_GROUPS, UID = "llm", 2, 4, "uid-of-the-set"


@dataclass
class Worker:
    """An ElasticWorker of a group, its agent and its process."""

    group: int
    index: int
    definition: SetDefinition
    incarnation: int = 1
    has_ended: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)
    """What its agents have said of the set, the newest last."""
    holding: Holding = field(init=False)
    in_hand: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.holding = Holding(self.definition)

    def see(self, sets: tuple[SetState, ...]) -> None:
        """Its agent sees the ShardSet of the grouped job."""
        me = worker_number(self.group, self.index), self.incarnation
        mine = [held for each in sets for held in each.leases if (held.worker, held.incarnation) == me]
        self.holding.uid = UID if sets else ""
        self.holding.follow(mine[0] if mine else None)

    def report(self) -> None:
        said = self.holding.to_status(MAX_SHARDS_TEXT).to_wire()
        self.reports.append({"incarnation": self.incarnation, "shards": [said]})

    def die(self) -> None:
        """Its Pod ends, and what it did not report with it."""
        self.has_ended, self.in_hand = True, None

    def return_(self) -> None:
        if self.has_ended:
            self.incarnation, self.has_ended = self.incarnation + 1, False
            self.holding = Holding(self.definition)

    def stored(self, uid: str, lag: int) -> ElasticWorker:
        """The object, as a cache has it that lags by so many reports."""
        said = self.reports[max(0, len(self.reports) - 1 - lag)] if self.reports else {}
        agent = report(self.index, **said).to_wire() if said else None
        observed = {
            "observedIncarnation": self.incarnation,
            "podUid": f"uid-{self.index}-1",
            "phase": WorkerPhase.FAILED if self.has_ended else WorkerPhase.RUNNING,
            **({} if agent is None else {"agent": agent}),
        }
        name = f"{NAME}-group-{self.group}-worker-{self.index}"
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": f"{uid}-{self.index}",
            "resourceVersion": "1",
        }
        spec = {"jobName": f"{NAME}-group-{self.group}", "type": "worker", "index": self.index}
        return ElasticWorker.model_validate(
            {"metadata": metadata, "spec": spec | {"incarnation": self.incarnation}, "status": observed}
        )


@dataclass
class Group:
    index: int
    uid: str
    workers: list[Worker]
    is_over: bool = False


class Act(Enum):
    """What may happen at any moment, by how often it does."""

    WORK = 30.0
    REPORT = 20.0
    SEE = 15.0
    LOOK = 20.5
    KILLED_BEFORE_ITS_WRITE = 2.0
    LEADS_NO_MORE = 2.1
    LATE_WRITE = 2.2
    WORKER_DIES = 2.3
    WORKER_RETURNS = 8.0
    CRASH_IN_PLACE = 2.4
    NOBODY_PULLS = 2.5
    GROUP_DIES = 1.0
    GROUP_IS_DELETED = 0.8
    GROUP_ENDS = 0.3
    FEWER_GROUPS = 0.9
    MORE_GROUPS = 1.1
    GROUPS_ARE_AS_WANTED = 3.0


class Cluster:
    """An API server that takes a write of the ShardSet only from the version it was decided from."""

    def __init__(self, groups: int, definition: SetDefinition, poison: frozenset[int], seed: int) -> None:
        self.definition, self.poison, self.choose = definition, poison, random.Random(seed)
        self.count, self.made, self.moment = groups, 0, 0.0
        self.statuses: list[dict[str, Any]] = [{}]
        self.late: list[tuple[int, ShardsPlan]] = []
        self.groups: dict[int, Group] = {}
        self.done: list[int] = []
        self.last: ShardsPlan | None = None
        for index in range(groups):
            self.make(index)

    def make(self, index: int) -> None:
        self.made += 1
        workers = [Worker(index, worker, self.definition) for worker in range(WORKERS)]
        self.groups[index] = Group(index, f"uid-{self.made}", workers)

    @property
    def job(self) -> ElasticJob:
        policy = {"replicaGroups": {"workers": WORKERS, "min": 1}}
        return job(NAME, self.count * WORKERS, elasticPolicy=policy)

    def stored(self, version: int) -> tuple[StoredSet, ...]:
        metadata = {"name": "llm-shards-0", "uid": UID, "resourceVersion": str(version)}
        spec = {"jobName": NAME, "setName": "files"}
        return (stored_set({"metadata": metadata, "spec": spec, "status": self.statuses[version]}),)

    @property
    def sets(self) -> tuple[SetState, ...]:
        (found,) = self.stored(-1)
        return () if found.state is None else (found.state,)

    @property
    def workers(self) -> list[Worker]:
        return [worker for group in self.groups.values() for worker in group.workers]

    def pullers(self, lag: int = 0) -> list[Puller]:
        return [
            Puller(
                worker_number(group.index, worker.index),
                worker.stored(group.uid, self.choose.randint(0, lag)),
                goes=group.is_over or group.index >= self.count,
            )
            for group in self.groups.values()
            for worker in group.workers
            if worker.reports
        ]

    def plan(self, lag: int, version: int, **more: Any) -> ShardsPlan:
        self.moment += 0.5
        seen = ShardsSeen(self.job, self.stored(version), self.pullers(lag), **more)
        return plan_shards(seen, NOW + timedelta(seconds=self.moment))

    def look(self, lag: int = 0, write: str = "now") -> None:
        """A controller looks, on caches that may be old, and writes now, never, or late."""
        version = max(0, len(self.statuses) - 1 - (lag if write == "late" else 0))
        plan = self.plan(lag, version)
        if write == "late":
            self.late.append((version, plan))
        elif write == "now":
            self.write(version, plan)

    def write(self, version: int, plan: ShardsPlan) -> None:
        self.last = plan
        if version == len(self.statuses) - 1 and plan.sets:
            (write,) = plan.sets
            self.statuses.append(merged(self.statuses[version], write.patch))
            self.check()

    def be_as_wanted(self) -> None:
        """What the Groups reconciler does, whenever it comes to that."""
        self.groups = {index: each for index, each in self.groups.items() if index < self.count}
        for index in set(range(self.count)) - self.groups.keys():
            self.make(index)

    def check(self) -> None:
        check_sets(self.sets, self.done)
        for each in self.sets:
            holders = [held.worker for held in each.leases]
            assert len(set(holders)) == len(holders)

    def work(self, worker: Worker) -> None:
        if not worker.has_ended:
            work(worker, self.choose, self.poison, self.done)

    def act(self, act: Act) -> None:  # noqa: C901 (a list of what may happen)
        if not self.groups:
            return self.look()
        group = self.choose.choice(list(self.groups.values()))
        worker = self.choose.choice(group.workers)
        match act:
            case Act.WORK:
                self.work(worker)
            case Act.REPORT if not worker.has_ended:
                worker.report()
            case Act.SEE if not worker.has_ended:
                worker.see(self.sets)
            case Act.LOOK:
                self.look(self.choose.choice([0, 0, 3]))
            case Act.KILLED_BEFORE_ITS_WRITE:
                self.look(2, "never")
            case Act.LEADS_NO_MORE:
                self.look(2, "late")
            case Act.LATE_WRITE:
                for version, plan in self.late:
                    self.write(version, plan)
                self.late = []
            case Act.WORKER_DIES:
                worker.die()
            case Act.WORKER_RETURNS:
                worker.return_()
            case Act.CRASH_IN_PLACE:
                crash_in_place(worker)
            case Act.NOBODY_PULLS:
                worker.holding.leaving = not worker.holding.leaving
            case Act.GROUP_DIES:
                for each in group.workers:
                    each.die()
            case Act.GROUP_IS_DELETED:  # by somebody else, and its workers with it
                del self.groups[group.index]
                if self.choose.random() < 0.3:  # who makes it once more at once
                    self.make(group.index)
            case Act.GROUP_ENDS if group.index:  # the job needs one
                group.is_over = True
            case Act.FEWER_GROUPS:
                self.count = max(1, self.count - 1)
            case Act.MORE_GROUPS:
                self.count = min(MOST_GROUPS, self.count + 1)
            case Act.GROUPS_ARE_AS_WANTED:
                self.be_as_wanted()
        return None

    def quiet(self) -> None:
        """Without disturbances from here on, to the end."""
        self.be_as_wanted()
        for group in self.groups.values():
            group.is_over = False
        for _ in range(5_000):
            self.look()
            for worker in self.workers:
                worker.return_()
                worker.holding.leaving = False
                worker.see(self.sets)
                self.work(worker)
                worker.report()
            if self.sets and self.sets[0].is_over:
                return
        raise AssertionError(f"it never ends: {self.sets}")


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, MOST_GROUPS),
    size=st.integers(1, 60),
    poison=st.frozensets(st.integers(0, 59), max_size=2),
    acts=st.integers(0, 250),
    seed=st.integers(0, 2**32),
)
def test_every_element_is_done_or_named_whatever_becomes_of_workers_groups_and_controllers(
    groups: int, size: int, poison: frozenset[int], acts: int, seed: int
) -> None:
    cluster = Cluster(groups, SetDefinition("files", 0, size, "", 2, size), poison, seed)
    for _ in range(acts):
        cluster.act(cluster.choose.choices(list(Act), [act.value for act in Act])[0])
    cluster.quiet()
    (over,) = cluster.sets
    failed = {element for start, end in over.failed for element in range(start, end)}
    assert set(cluster.done) | failed == set(range(size)), "lost"
    assert over.done == size - len(failed)
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
    return {group_of_worker(held.worker) for each in cluster.sets for held in each.leases}


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
    held = union(*(lease.elements for lease in before.leases if group_of_worker(lease.worker) == 1))
    what(cluster)
    found = after_a_look(cluster)
    assert holders(cluster) == {0, 2}
    assert (count(found.waiting), found.done) == (count(before.waiting) + count(held) - WORKERS, WORKERS)


def test_leases_of_a_group_that_is_to_go_go_back_with_its_last_words() -> None:
    cluster = begun()
    cluster.count = 1
    found = after_a_look(cluster)
    assert holders(cluster) == {0}
    assert found.done == 2 * WORKERS


def test_leases_of_a_group_that_was_made_once_more_are_not_its_workers_though_a_write_is_not_due() -> None:
    cluster = begun()
    cluster.make(1)
    assert after_a_look(cluster).done == 0
    assert holders(cluster) == {0, 2}


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


def test_a_set_with_more_failures_than_may_be_is_the_end_of_the_job() -> None:
    cluster = Cluster(2, SetDefinition("files", 0, 20, "", 0, 0), frozenset({7}), 2)
    for _ in range(500):
        cluster.look()
        for worker in cluster.workers:
            worker.see(cluster.sets)
            cluster.work(worker)
            worker.report()
        if cluster.sets and cluster.sets[0].has_failed:
            break
    cluster.look()
    assert cluster.last is not None
    conditions = {each.type: each for each in cluster.last.conditions}
    assert conditions["FailureTarget"].reason == "ShardsFailed"
    assert "element 7" in conditions["FailureTarget"].message
    assert conditions["ShardsDone"].reason == "ElementsFailed"


@given(st.integers(0, MAX_GROUPS - 1), st.integers(0, 20_000))
def test_a_worker_has_one_number_among_those_of_all_groups(group: int, index: int) -> None:
    number = worker_number(group, index)
    assert (group_of_worker(number), number // MAX_GROUPS) == (group, index)
