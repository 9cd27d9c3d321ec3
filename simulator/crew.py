"""Crew: nodes that train in one world, with their incidents and the reactions of their Pods and agents.

The plan decides the controller's reaction (`PlannedJob.look`), `Times` the durations.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from crds import ranges
from crds.findings import Verdict
from crds.phases import JobPhase, RendezvousPhase
from simulator import objects
from simulator.account import TimeUse, part_of
from simulator.bag import Bag
from simulator.fleet import DiagnosisChances, Restart
from simulator.nodes import name_of, number_of
from simulator.planned import Looked, PlannedJob
from simulator.state import SimulationState

MOMENT = 0.001
"""Seconds between simultaneous events, so that ages are never 0."""
SOON_SECONDS = 60.0
"""Delay below which the controller looks again even while the job trains."""
REVEALED = 8
"""Number of nodes to show if no shown node simply runs."""


@dataclass
class Crew:
    state: SimulationState[Crew]
    job: PlannedJob
    nodes: Bag
    """All nodes of the crew, shown or not."""
    slot_of: dict[int, int] = field(default_factory=dict)
    """Slots of the nodes that are simulated individually."""
    node_of: dict[int, int] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    """Slots whose Pod has no node."""
    trains: bool = False
    noticed: bool = True
    """Whether the world has been given up since training last stopped."""
    survives: bool = True
    """Whether checkpoints in memory have survived since training last stopped."""
    fresh: bool = True
    """Whether a member of the next world has a new Pod."""
    slow: dict[int, float] = field(default_factory=dict)
    """Slowdown factor of steps, by slow node."""
    begun_work: float = 0.0
    begun_at: float = 0.0
    best_step: int = 0
    number: int = 0
    """Index of the replica group."""
    is_quiet: bool = False
    """Whether all of it trains and none of it is shown: `job` is the prototype."""
    prototype: PlannedJob | None = None
    """The job in its undisturbed state; None if all nodes are shown."""
    _wake: float = float("inf")

    # --- looks ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Run one reconcile of the controller, with the effects of its acts."""
        state, job = self.state, self.job
        before = job.world
        looked = job.look(state.at())
        for index in looked.gone:
            self._leave_node(index)
        for index in looked.new_pods:
            self.place(index)
        if looked.check is not None:
            state.clock.after(state.fleet.times.check_seconds, lambda: self._end_check(looked))
            self._stop_idle()
        if job.world.round != before.round and job.is_formed:
            self._begin_round()
        elif before.phase is RendezvousPhase.FORMED and not job.is_formed:
            self.noticed = True
            if self.trains:
                self.stop_training(planned=True)
            self._stop_idle()
        state.look_at_group(self.number, job.job)
        if job.job.status.phase in (JobPhase.FAILED, JobPhase.SUCCEEDED):
            if state.is_single_group:
                state.end(job.job)
            return
        self._wake_in(looked.plan.look_again_seconds)

    def _wake_in(self, seconds: float | None) -> None:
        self._wake = float("inf")
        if seconds is None or (self.trains and seconds > SOON_SECONDS):
            return  # while a job trains, only its account would change
        self._wake = when = self.state.clock.now + max(seconds, MOMENT)
        self.state.clock.after(when - self.state.clock.now, lambda: self._woken(when))

    def _woken(self, when: float) -> None:
        if when == self._wake:
            self.look()

    def _stop_idle(self) -> None:
        if not self.job.is_formed:
            self.job.stop(self.state.at())

    # --- worlds ---------------------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        state, fleet = self.state, self.state.fleet
        if self.trains:
            self.stop_training(planned=True)
        self.noticed = True
        everybody = fleet.policies.restart is Restart.EVERYBODY
        memory = self.survives and fleet.policies.memory_checkpoint_seconds is not None
        seconds = fleet.times.round_start(
            len(self.nodes), fresh=self.fresh or everybody, from_memory=memory, heals=self._others_train
        )
        if everybody and fleet.times.restart_seconds is None:
            seconds += fleet.times.pod_seconds
        round_ = self.job.world.round
        state.record_world(self.job, recorded=self.prototype is None)
        state.clock.after(seconds, lambda: self._first_step(round_))

    def _first_step(self, round_: int) -> None:
        state, job = self.state, self.job
        if job.world.round != round_ or not job.is_formed or self.noticed is False:
            return  # something has happened since
        living = [index for index in job.members() if self.node_of.get(index) not in state.down]
        if len(living) < len(job.world.members):
            return  # a member is gone, and the controller does not know yet
        self.trains, self.survives, self.fresh = True, True, False
        self.begun_work, self.begun_at = state.account.work, state.clock.now
        job.run_round(self.step, state.at())
        self.look()

    @property
    def step(self) -> int:
        return 1 + int(self.state.account.work / self.state.fleet.times.step_seconds)

    def stop_training(self, *, planned: bool, survives: bool = True, limit: float | None = None) -> None:
        """Stop all members; unsaved work is lost, unless the stop was planned.

        Args:
            survives: whether checkpoints in memory survive.
            limit: work beyond which checkpoints are useless.
        """
        state = self.state
        if self.trains:
            self._report_steps()
            self._be_awaited()
        self.trains = False
        self.noticed = planned
        in_place = state.fleet.policies.restart is Restart.IN_PLACE
        self.survives = self.survives and survives and in_place  # memory belongs to the Pods
        if planned:
            state.note_orderly_stop()
        elif not self._others_train:
            kept = state.saved_work(memory=self.survives, limit=limit)
            state.account.falls_back(kept)

    def _be_awaited(self) -> None:
        """Let the other replica groups wait for this one until their patience ends."""
        state, groups = self.state, self.state.groups
        if groups is None or not groups.takes_part(self.number):
            return
        round_ = groups.round_of(self.number)

        def end_of_patience() -> None:
            idle = {crew.number for crew in state.active if not crew.trains}
            members = (number for number in groups.numbers if groups.takes_part(number))
            waiting = next((number for number in members if number not in idle), None)
            if not self.trains and groups.round_of(self.number) == round_ and waiting is not None:
                state.leave_out(self.number, waiting)

        state.clock.after(groups.patience_seconds, end_of_patience)

    @property
    def _others_train(self) -> bool:
        """Whether another replica group has the newest state."""
        groups, active = self.state.groups, self.state.active
        return groups is not None and (
            len(active) < groups.count or any(each.trains for each in active if each is not self)
        )

    def _report_steps(self) -> None:
        first = 1 + int(self.begun_work / self.state.fleet.times.step_seconds)
        last = max(self.step - 1, first)
        self.best_step = max(self.best_step, last)
        self.job.report_steps(first, last, self.state.clock.now - self.begun_at, self.state.at())

    @property
    def part(self) -> TimeUse:
        """Use of its time while it does not train."""
        goodput = self.job.job.status.goodput
        job_state = goodput.state if goodput is not None and self.noticed else None
        return part_of(job_state, noticed=self.noticed, formed=self.job.is_formed)

    @property
    def pace(self) -> float:
        members = {self.node_of.get(index) for index in self.job.world.members} if self.slow else set()
        return 1 / max((factor for node, factor in self.slow.items() if node in members), default=1.0)

    # --- Pods and nodes -------------------------------------------------------------------------------------

    def place(self, index: int) -> None:
        """Place the next Pod of a slot on a free node, if there is one."""
        state, worker = self.state, self.job.workers.get(index)
        if worker is None:
            return
        self._leave_node(index)
        forbidden = {number_of(name) for name in worker.spec.faulty_nodes}
        avoided = {number_of(name) for name in (*worker.spec.excluded_nodes, *worker.spec.lost_nodes)}
        node = state.nodes.take_free(forbidden, avoided)
        if node is None:
            self.pending.add(index)
            self.job.put(objects.waiting(self.job.job, worker, state.at(), unschedulable=True))
            return
        self.pending.discard(index)
        self._use(index, node)
        incarnation = worker.spec.incarnation
        state.clock.after(state.fleet.times.pod_seconds, lambda: self._pod_runs(index, incarnation, node))

    def _use(self, index: int, node: int) -> None:
        self.nodes.add(node)
        self.slot_of[node], self.node_of[index] = index, node
        self.state.crew_of[node] = self

    def _leave_node(self, index: int) -> None:
        node = self.node_of.pop(index, None)
        if node is None:
            return
        del self.slot_of[node]
        self.nodes.discard(node)
        self.slow.pop(node, None)
        self.state.crew_of.pop(node, None)
        self.state.left(node)

    def _pod_runs(self, index: int, incarnation: int, node: int) -> None:
        worker = self.job.workers.get(index)
        if worker is None or worker.spec.incarnation != incarnation or self.node_of.get(index) != node:
            return
        if node in self.state.down:
            return  # nothing starts there
        now = self.state.at()
        self.job.put(objects.ready(objects.with_pod(self.job.job, worker, name_of(node), now), now))
        self.fresh = self.fresh or not self.trains
        self.look()

    def place_pending(self) -> bool:
        """Place one waiting Pod; return whether a node was free."""
        for index in sorted(self.pending):
            self.place(index)
            return index not in self.pending
        return False

    def show(self, node: int) -> int:
        """Return the slot of this node; a node that was not shown replaces one that is."""
        if self.is_quiet:
            self.is_quiet = False
            self.job = self.job.copy()
            for index, shown in zip(sorted(self.job.workers), list(self.nodes), strict=False):
                self.slot_of[shown], self.node_of[index] = index, shown
            self._label()
            self.state.active.append(self)
        if node in self.slot_of:
            return self.slot_of[node]
        quiet = [i for i in self.job.quiet() if self._is_well(i)]
        if len(quiet) < 2:
            return self._reveal(node)
        index = quiet[-1]
        del self.slot_of[self.node_of[index]]
        self.slot_of[node], self.node_of[index] = index, node
        self.job.label(index, name_of(node))
        return index

    def _is_well(self, index: int) -> bool:
        """Return whether its node is undisturbed."""
        node, state = self.node_of.get(index), self.state
        return node is not None and not any(
            node in troubled for troubled in (state.down, state.away, state.nodes.ill, self.slow)
        )

    def _reveal(self, node: int) -> int:
        """Show this node and some others; return its slot."""
        others = [other for other in self.nodes if other not in self.slot_of and other != node]
        unit = self.state.fleet.node_unit
        count = min(-(-REVEALED // unit) * unit, len(others) + 1)
        for index, shown in zip(self.job.reveal(count), [node, *others], strict=False):
            self.slot_of[shown], self.node_of[index] = index, shown
            self.job.label(index, name_of(shown))
        return self.slot_of[node]

    def settle(self) -> None:
        """Reset the job to its prototype once all of it trains beyond its best step.

        Earlier failures have no effect by then: budgets restart with new progress.
        """
        if self.prototype is None or self.is_quiet or not self.trains or not self.is_settled:
            return
        if self.state.groups is not None:
            self.state.groups.forget(self.number, self.prototype.job)
            self.job, self.is_quiet = self.prototype, True
            self.slot_of, self.node_of = {}, {}
            self.state.active.remove(self)
            return
        members = set(self.job.world.members)
        kept = sorted(self.prototype.workers)
        shown = [self.node_of[index] for index in sorted(self.node_of, key=lambda i: (i not in members, i))]
        self._report_steps()
        self.job.reset(self.prototype)
        beside = shown[len(members) :]  # standby nodes stay, and as many members are shown as before
        shown = shown[: len(kept) - len(beside)] + beside
        self.slot_of = {node: index for index, node in zip(kept, shown, strict=False)}
        self.node_of = {index: node for node, index in self.slot_of.items()}
        self._label()

    def _label(self) -> None:
        for index, node in self.node_of.items():
            self.job.label(index, name_of(node))

    @property
    def is_settled(self) -> bool:
        job = self.job
        whole = not job.missing and not self.pending and not self.slow
        idle = all(job.lives(index) for index in job.workers)
        return whole and idle and not job.has_active_check and self.step > self.best_step + 1

    # --- node checks ----------------------------------------------------------------------------------------

    def _end_check(self, looked: Looked) -> None:
        assert looked.check is not None
        idle = {
            index: self.node_of[index]
            for index in looked.check["spec"]["workers"]
            if index in self.node_of and self.job.is_idle(index)
        }
        state = self.state
        faulty, slow = judged(
            state.fleet.diagnosis, state.nodes.ill, set(self.slow), idle.values(), state.rng
        )
        state.convicted |= set(faulty)
        nodes = list(idle.values())
        place = {node: at for at, node in enumerate(nodes)}
        sets = {Verdict.FAULTY: faulty, Verdict.STRAGGLER: slow}
        places = {kind.value: sorted(place[node] for node in found) for kind, found in sets.items()}
        verdicts = {
            "nodes": [name_of(node) for node in nodes],
            "workers": list(idle),
            "incarnations": [self.job.workers[index].spec.incarnation for index in idle],
            "nodeSets": {kind: ranges.to_text(found) for kind, found in places.items()},
        }
        self.job.end_check(looked.check, verdicts, state.at())
        self.look()


# --- node checks, drawn from the confusion matrix that benchmarks/diagnosis.py measured ---------------------


def judged(
    diagnosis: DiagnosisChances,
    ill: Collection[int],
    slow: Collection[int],
    tested: Iterable[int],
    rng: random.Random,
) -> tuple[list[int], list[int]]:
    """Return the tested nodes that a check calls faulty, and those that it calls slow."""
    tested = list(tested)
    faulty = [node for node in tested if _happens(_chance(diagnosis, node in ill, rng), rng)]
    slower = (node for node in tested if node in slow and node not in faulty)
    return faulty, [node for node in slower if _happens(diagnosis.straggler_found, rng)]


def _happens(chance: float, rng: random.Random) -> bool:
    """Draw an event. Certain events draw nothing, so that the number of healthy nodes changes no other
    draw."""
    return chance >= 1 or (chance > 0 and rng.random() < chance)


def _chance(diagnosis: DiagnosisChances, is_ill: bool, rng: random.Random) -> float:
    """Return the probability that a node is called faulty."""
    if not is_ill:
        return diagnosis.healthy_blamed
    is_intermittent = _happens(diagnosis.intermittent, rng)
    return diagnosis.intermittent_found if is_intermittent else diagnosis.faulty_found
