"""One run of a fleet: what fails and when is drawn here, by a seed; what follows is in `crew.py`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from crds.elasticjob import ElasticJob
from reconcilers.cordon.policy import VerdictReason
from simulator import objects
from simulator.account import Account, Part
from simulator.arrivals import Fault, begin, follow
from simulator.bag import Bag
from simulator.clock import Clock
from simulator.crew import Crew
from simulator.fleet import Fleet
from simulator.nodes import Nodes, name_of
from simulator.planned import PlannedJob

DAY = 86_400.0
SHOWN = 12
"""Members that are shown, beside those who stand by; smaller jobs are shown whole."""
TICKS = 100
"""How often progress is told."""


@dataclass(frozen=True)
class Told:
    """One line of what happened, for comparison with a real cluster."""

    seconds: float
    round: int
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    blamed: str
    """Worker and class of the failure that is looked at first; empty if there is none."""


@dataclass
class Outcome:
    seconds: float
    account: Account
    faults: Counter[str]
    """By kind, of nodes that the job used."""
    interruptions: int
    """How often training stopped for a fault, or a start was cut short by one."""
    rounds: int
    looks: int
    cordons: int
    cordons_held: int
    repairs: int
    ended: str
    """Why the job failed before the time was over; empty if it did not."""
    story: tuple[Told, ...]
    cordoned: tuple[str, ...]

    @property
    def goodput(self) -> float:
        """As docs/goodput.md has it: steps that are kept, at the seconds that a step took, over the time."""
        stepping = (Part.USEFUL, Part.SAVING, Part.SLOWED, Part.MISSING)
        return sum(self.account.seconds[part] for part in stepping) / self.seconds

    @property
    def full_speed(self) -> float:
        """Share of what as many nodes would do that never fail, save and wait."""
        return self.account.seconds[Part.USEFUL] / self.seconds


def least_of(fleet: Fleet) -> int:
    """With how many nodes a world trains on."""
    if fleet.policies.group_nodes is not None:
        return fleet.policies.group_nodes
    return fleet.nodes if fleet.min_nodes is None else fleet.min_nodes


def job_of(fleet: Fleet, members: int, hidden: int) -> ElasticJob:
    """The job as its user writes it, less those who are hidden."""
    policies = fleet.policies
    wanted = members if fleet.max_nodes is None else members + fleet.max_nodes - fleet.nodes
    worker = {
        "replicas": wanted,
        "minReplicas": max(least_of(fleet) - hidden, fleet.node_unit),
        "standby": policies.standby if policies.group_nodes is None else 0,
        "restartCount": policies.restart_count,
    }
    elastic = {
        "nodeUnit": fleet.node_unit,
        "shrinkAfterSeconds": policies.shrink_after_seconds,
        "heartbeatTimeoutSeconds": policies.heartbeat_timeout_seconds,
        "hangTimeoutSeconds": policies.hang_timeout_seconds,
    }
    check = {"enabled": policies.node_check_after, "excludeStragglers": policies.exclude_stragglers}
    return objects.new_job(worker, {"elasticPolicy": elastic, "nodeCheck": check})


@dataclass
class Simulation:
    fleet: Fleet
    seed: int = 0
    shown: int = SHOWN
    clock: Clock = field(default_factory=Clock)
    account: Account = field(default_factory=Account)
    faults: Counter[str] = field(default_factory=Counter)
    interruptions: int = 0
    rounds: int = 0
    looks: int = 0
    story: list[Told] = field(default_factory=list)
    crew_of: dict[int, Crew] = field(default_factory=dict)
    """By node that is in use."""
    active: list[Crew] = field(default_factory=list)
    """Those of which something is shown."""
    down: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    """Nodes that were taken away, and come back."""
    convicted: dict[int, VerdictReason] = field(default_factory=dict)
    ended: str = ""
    cordoned: list[str] = field(default_factory=list)
    _left_at: float = 0.0
    _stalled_until: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.nodes = Nodes.of(self.fleet, random.Random(f"{self.seed}, nodes"))
        policies, times = self.fleet.policies, self.fleet.times
        size = policies.group_nodes
        self.alone = size is None
        self.groups = 1 if size is None else self.fleet.nodes // size
        self._interval = self.fleet.memory_interval
        share = times.save_memory_seconds / self._interval if self._interval else 0.0
        self._saving = min(share + times.save_storage_seconds / policies.storage_checkpoint_seconds, 1.0)
        self._extra = (self.fleet.max_nodes or self.fleet.nodes) - self.fleet.nodes

    def at(self) -> datetime:
        return objects.at(self.clock.now)

    # --- the run --------------------------------------------------------------------------------------------

    def run(
        self,
        days: float,
        script: Sequence[Fault] | None = None,
        work_days: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Outcome:
        """All of it.

        Args:
            days: how long the simulation lasts.
            script: what fails, instead of what is drawn.
            work_days: it ends with so many days of training at full size, if that is sooner.
            progress: told the share that is done.
        """
        seconds = days * DAY
        self._begin()
        begin(self) if script is None else follow(self, script)
        for tick in range(1, TICKS + 1):
            self.clock.run(seconds * tick / TICKS, self._passes)
            if progress is not None:
                progress(tick / TICKS)
            if work_days is not None and self.account.work >= work_days * DAY:
                break
        return self._outcome()

    def _outcome(self) -> Outcome:
        return Outcome(
            seconds=self.clock.now,
            account=self.account,
            faults=self.faults,
            interruptions=self.interruptions,
            rounds=self.rounds,
            looks=self.looks,
            cordons=self.nodes.cordons,
            cordons_held=self.nodes.held,
            repairs=self.nodes.repairs,
            ended=self.ended,
            story=tuple(self.story),
            cordoned=tuple(self.cordoned),
        )

    def _begin(self) -> None:
        fleet, policies = self.fleet, self.fleet.policies
        size = policies.group_nodes or fleet.nodes
        shown = min(-(-self.shown // fleet.node_unit) * fleet.node_unit, size)
        hidden = size - shown
        least = least_of(fleet)
        job = job_of(fleet, shown, hidden)
        prototype = _prototype(job, least, hidden) if hidden or not self.alone else None
        if policies.node_check_before:
            for node in self.nodes.screened():
                self.repair(node)
        first = self._taken(fleet.nodes + self._extra + (policies.standby if self.alone else 0))
        for number in range(self.groups):
            if self.alone:
                crew = Crew(self, PlannedJob(job, least, hidden), Bag(first[:hidden]), prototype=prototype)
                self.active.append(crew)
                self.clock.after(self._checked_before(), partial(self._first_look, crew, first[hidden:]))
            else:
                assert prototype is not None
                theirs = Bag(first[number * size : (number + 1) * size])
                crew = Crew(self, prototype, theirs, prototype=prototype, is_quiet=True, trains=True)
            self.crew_of.update(dict.fromkeys(crew.nodes, crew))

    def _first_look(self, crew: Crew, first: Sequence[int]) -> None:
        """The first Pods get these nodes, so that they are the same for each number that is shown."""
        spares = self._taken(len(self.nodes.free))
        for node in first:
            self.nodes.free.add(node)
        self.nodes.in_order = True
        crew.look()
        self.nodes.in_order = False
        for node in spares:
            self.nodes.free.add(node)

    def _checked_before(self) -> float:
        policies = self.fleet.policies
        return self.fleet.times.check_seconds if policies.node_check_before else 0.0

    def _taken(self, count: int) -> list[int]:
        taken = [node for node, _ in zip(self.nodes.free, range(count), strict=False)]
        for node in taken:
            self.nodes.free.discard(node)
        return taken

    # --- time -----------------------------------------------------------------------------------------------

    def _passes(self, seconds: float) -> None:
        """Time goes by, and into the account."""
        if seconds <= 0:
            return
        account = self.account
        if self.ended:
            account.seconds[Part.ENDED] += seconds
        elif self.alone:
            (crew,) = self.active
            if crew.trains:
                present = 1 - (crew.job.missing - self._extra) / self.fleet.nodes
                account.trains(seconds, self._saving, crew.pace, present)
            else:
                account.seconds[crew.part] += seconds
        else:
            self._groups_pass(seconds)

    def _groups_pass(self, seconds: float) -> None:
        share, idle = seconds / self.groups, 0
        for crew in self.active:
            if not crew.trains:
                idle += 1
                self.account.seconds[crew.part] += share
        working = (self.groups - idle) * share
        if self.clock.now < self._stalled_until:
            self.account.seconds[Part.STALLED] += working
        else:
            slowest = min((crew.pace for crew in self.active if crew.trains), default=1.0)
            self.account.trains(working, self._saving, slowest, 1.0)

    def saved_work(self, *, memory: bool, limit: float | None) -> float:
        """How much work the newest checkpoint has that training can go on from.

        Args:
            memory: what agents hold has survived.
            limit: nothing that was saved beyond this is any good.
        """
        policies = self.fleet.policies
        work = self.account.work if limit is None else min(self.account.work, limit)
        every = policies.storage_checkpoint_seconds
        saved = work // every * every
        if memory and self._interval is not None:
            saved = max(saved, work // self._interval * self._interval)
        if self._left_at <= work and (memory or self._interval is None):
            saved = max(saved, self._left_at)
        return saved

    def interrupted(self) -> None:
        self.interruptions += 1
        if not self.alone:
            stall = self.fleet.times.group_stall_seconds
            self._stalled_until = max(self._stalled_until, self.clock.now + stall)
            self.clock.after(stall, lambda: None)

    def left_in_good_order(self) -> None:
        """All have left after the same step, and saved it."""
        self._left_at = self.account.work

    def told(self, crew: Crew) -> None:
        """A new world is published."""
        self.rounds += 1
        world, blamed = crew.job.world, crew.job.job.status.last_failure
        if crew.prototype is None:
            who = f"{blamed.worker} {blamed.exit_class}" if blamed is not None else ""
            told = Told(self.clock.now, world.round, tuple(world.members), tuple(world.incarnations), who)
            self.story.append(told)

    def end(self, crew: Crew) -> None:
        """The controller has given the job up."""
        if not self.ended:
            status = crew.job.job.status
            why = next((c for c in status.conditions if c.type == "Failed"), None)
            told = f"{why.reason}: {why.message}" if why is not None else str(status.phase)
            self.ended = f"after {self.clock.now / DAY:.1f} days: {told}"

    # --- nodes ----------------------------------------------------------------------------------------------

    def left(self, node: int) -> None:
        """No Pod uses it any more."""
        if node in self.down or node in self.away:
            return
        reason = self.convicted.pop(node, None)
        if reason is None and node in self.nodes.ill:
            reason = VerdictReason.HARDWARE_ERROR
        if reason is not None and self.nodes.may_cordon(node, self.at(), reason):
            self.cordoned.append(name_of(node))
            self.repair(node)
            return
        if node in self.nodes.ill:
            self.nodes.turns_bad(node)
        self.nodes.release(node)
        self.freed()

    def convict(self, node: int, reason: VerdictReason) -> None:
        """A check has found it faulty: whoever is there leaves it."""
        self.convicted[node] = reason

    def repair(self, node: int) -> None:
        """It is out of service until then."""

        def back() -> None:
            self.down.discard(node)
            if node not in self.crew_of:
                self.nodes.repaired(node)
                self.freed()

        self.clock.after(self.nodes.repair_seconds(node), back)

    def fall_silent(self, nodes: Sequence[int], seconds: float | None) -> None:
        """They lose power or network; for so long, or until each is repaired."""
        self.down.update(nodes)
        crews: dict[int, tuple[Crew, list[int]]] = {}
        for node in nodes:
            crew = self.crew_of.get(node)
            if crew is not None:
                crews.setdefault(id(crew), (crew, []))[1].append(node)
            self.nodes.free.discard(node)
        for crew, theirs in crews.values():
            crew.settle()
            crew.nodes_fall_silent(theirs)

        def back(node: int) -> None:
            self.down.discard(node)
            if node not in self.crew_of:
                self.nodes.repaired(node)
                self.freed()

        for node in nodes:
            if seconds is None:
                self.repair(node)
            else:
                self.clock.after(seconds, partial(back, node))

    def take_away(self, node: int, seconds: float | None) -> None:
        """A preemption, with a notice; it is there again after so long, or never."""
        crew = self.crew_of.get(node)
        if crew is None:
            return
        self.away.add(node)
        crew.settle()
        crew.preempted(node)

        def back() -> None:
            self.away.discard(node)
            self.nodes.release(node)
            self.freed()

        if seconds is not None:
            self.clock.after(seconds, back)
        else:
            self.nodes.forget(node)

    def freed(self) -> None:
        """Pods that wait get what is free."""
        for crew in [crew for crew in self.active if crew.pending]:
            while self.nodes.free and crew.place_pending():
                pass


def _prototype(job: ElasticJob, least: int, hidden: int) -> PlannedJob:
    """The job as it trains when nothing has ever happened to it."""
    made = PlannedJob(job, least, hidden)
    for index in made.look(objects.EPOCH).new_pods:
        now = objects.at(1.0)
        worker = objects.with_pod(made.workers[index], f"{objects.JOB}-{index}", now)
        made.put(objects.ready(worker, now))
    if job.spec.node_check.enabled:
        _checked(made)
    made.look(objects.at(2.0))
    made.run_round(1, objects.at(3.0))
    made.look(objects.at(3.0))
    return made


def _checked(job: PlannedJob) -> None:
    """A first check has found all of its nodes healthy."""
    body = job.look(objects.at(1.5)).check
    if body is not None:
        workers = job.workers
        verdicts = {
            "nodes": [workers[i].status.node_name for i in workers],
            "workers": list(workers),
            "incarnations": [1] * len(workers),
        }
        job.end_check(body, verdicts, objects.at(1.8))
