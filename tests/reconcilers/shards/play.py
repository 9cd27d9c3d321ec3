"""Shard sets that are dealt to all workers of all groups, whatever becomes of workers, groups, controllers and checkpoints."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.grouping import worker_number
from crds.intervals import count, minus, of_numbers, to_text, union, whole
from crds.shard_set import SetDefinition
from reconcilers.shards.plan import ShardsPlan, ShardsSeen, StoredSet, plan_shards
from reconcilers.shards.reconciler import stored_set
from reconcilers.shards.sets import Puller, SetState, Tried
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, report

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
    restoration: int = 0
    """The set's last one, as far as the agent knows."""
    waits_for: int = 0
    """Before the set has had this one, its process is given nothing."""
    seen: int = 0
    """Reports up to the newest one that was looked at."""

    def __post_init__(self) -> None:
        self.holding = Holding(self.definition)

    def see(self, sets: tuple[SetState, ...]) -> None:
        """Its agent sees the ShardSet of the grouped job."""
        for each in sets:
            if each.restoration != self.restoration:
                self.restoration, self.holding = each.restoration, Holding(self.definition)
                self.in_hand = None
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
            self.holding, self.restoration, self.waits_for = Holding(self.definition), 0, 0

    def crash_in_place(self) -> None:
        """Its process dies, and starts again in the same Pod."""
        if self.in_hand is not None:
            self.holding.put_back(self.in_hand)
            self.in_hand = None

    def stored(self, uid: str, lag: int, *, in_order: bool = False) -> ElasticWorker:
        """The object, as a cache has it that lags by so many reports.

        Args:
            in_order: by no more than it did before.
        """
        at = max(0, len(self.reports) - 1 - lag)
        at = self.seen = max(at, self.seen) if in_order else at
        said = self.reports[at] if self.reports else {}
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

    def __init__(
        self,
        groups: int,
        definition: SetDefinition,
        poison: frozenset[int],
        seed: int,
        *,
        workers: int = WORKERS,
        in_order: bool = False,
    ) -> None:
        self.size, self.in_order = workers, in_order
        self.definition, self.poison, self.choose = definition, poison, random.Random(seed)
        self.count, self.made, self.moment = groups, 0, 0.0
        self.statuses: list[dict[str, Any]] = [{}]
        self.late: list[tuple[int, ShardsPlan]] = []
        self.groups: dict[int, Group] = {}
        self.done: list[int] = []
        self.saved: list[int] = []
        """What was done when the last checkpoint was saved."""
        self.round = 0
        self.failures: dict[int, list[int]] = {}
        """By element, the workers on which it failed."""
        self.last: ShardsPlan | None = None
        for index in range(groups):
            self.make(index)

    def make(self, index: int) -> None:
        self.made += 1
        workers = [Worker(index, worker, self.definition) for worker in range(self.size)]
        self.groups[index] = Group(index, f"uid-{self.made}", workers)

    @property
    def job(self) -> ElasticJob:
        policy = {"replicaGroups": {"workers": self.size, "min": 1}}
        return job(NAME, self.count * self.size, elasticPolicy=policy)

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
                worker.stored(group.uid, self.choose.randint(0, lag), in_order=self.in_order),
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
        """No element is in two places at a time, none is lost, and none has failed more often than it was tried."""
        for each in self.sets:
            leased = [held.elements for held in each.leases]
            parts = [each.waiting, *leased, *(tried.elements for tried in each.tried), each.failed]
            together = union(*parts)
            assert sum(map(count, parts)) == count(together), "in two places"
            lost = minus(minus(whole(each.definition.size), together), of_numbers(self.done))
            assert not lost or each.restoration < self.round, f"lost: {lost}"
            holders = [held.worker for held in each.leases]
            assert len(set(holders)) == len(holders)
            failed = Tried((0,) * (each.definition.retries + 1), each.failed)
            for counted in (*each.tried, *each.again, failed) if self.in_order else ():
                for element in (e for start, end in counted.elements for e in range(start, end)):
                    tries = len(self.failures.get(element, ()))
                    assert len(counted.workers) <= tries, f"{element} has failed {tries} times"

    def work(self, worker: Worker) -> None:
        """It takes elements in hand, or comes to the end of those in hand."""
        if worker.has_ended or worker.waits_for > worker.restoration:
            return
        if worker.in_hand is None:
            worker.in_hand = worker.holding.take(self.choose.choice([1, 1, 3]))
            return
        part, worker.in_hand = worker.in_hand, None
        if poisoned := [element for element in range(*part) if element in self.poison]:
            worker.holding.fail(part, f"element {poisoned[0]} is bad")
            for element in range(*part):
                self.failures.setdefault(element, []).append(worker_number(worker.group, worker.index))
            return
        self.done += range(*part)
        worker.holding.finish(part)

    def go_back(self, lost: Worker) -> None:
        """A worker is lost, and all go back to the last checkpoint."""
        lost.die()
        lost.return_()
        self.done, self.round = list(self.saved), self.round + 1
        for worker in self.workers:
            worker.crash_in_place()
            self.ask_for_restoration(worker)

    def ask_for_restoration(self, worker: Worker) -> None:
        worker.waits_for = self.round
        undone = to_text(minus(whole(self.definition.size), of_numbers(self.saved)))
        worker.holding.ask_for_restoration(self.round, undone)

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
                worker.crash_in_place()
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
                if worker.waits_for > worker.restoration:  # as a process that comes later
                    self.ask_for_restoration(worker)
                self.work(worker)
                worker.report()
            if self.sets and self.sets[0].is_over:
                return
        raise AssertionError(f"it never ends: {self.sets}")
