"""Groups of processes that train by the protocol, their agents and their controller, over a false network.

Parameters are whole numbers, and a step is a function of them and of the groups that contributed. What the shell does
with torch, threads and sockets is done by callbacks here; all decisions are the product's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from agent.replicas.facts import GroupsView, VersionGroups
from agent.replicas.roster import EndConnection, Roster, Send
from crds import replica_groups
from crds.agent_report import ReplicasReport
from crds.phases import JobPhase, RendezvousPhase
from dlr.replicas import protocol
from dlr.replicas.agreement import GroupStanding, agree, agree_on_round
from dlr.replicas.news import BROKEN_SECONDS, Awaiting, ReportLeftOut
from dlr.replicas.patience import QUIET_SECONDS
from dlr.replicas.protocol import (
    Applied,
    Commit,
    Computed,
    Do,
    Event,
    Healed,
    Loaded,
    LoopStarted,
    Meet,
    Met,
    NotMet,
    Quorum,
    ReplicaState,
    ReportPosition,
    TrainingEnded,
    Voted,
)
from reconcilers.groups.membership import GroupView, decide
from tests.played.network import Faults, connect, request
from tests.played.schedule import Schedule, Timer
from tests.replicas.waits import PlayedWait
from tests.replicas.wires import Exchange, Span, Transfer


@dataclass(frozen=True)
class Parameters:
    """What a group trains."""

    steps: int
    value: int
    inner_steps: int = 0

    @property
    def made(self) -> int:
        """Number of the script's steps in them."""
        return max(self.steps, self.inner_steps)

    def after(self, groups: tuple[int, ...], inner_steps: int) -> Parameters:
        """Return them after the step to which these groups contributed."""
        return Parameters(self.steps + 1, hash((self.value, self.steps, groups, inner_steps)), inner_steps)


@dataclass(frozen=True)
class Gradient:
    """What one group contributes: the parameters that it was computed of."""

    group: int
    of: Parameters
    inner_steps: int
    contributing: tuple[int, ...]
    """The contributors that its data were dealt to."""


@dataclass(frozen=True)
class Settings:
    """How a job trains."""

    groups: int = 3
    size: int = 1
    minimum: int = 1
    total: int | None = None
    """Number of steps; None to train until some time after the last disturbance."""
    sync_every: int | None = None
    saves: bool = False
    """Whether there are checkpoints."""
    lives: bool = False
    """Whether processes live on where a peer of their group dies, and its memory has a checkpoint."""


class World:
    """One job."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.schedule, self.settings = Schedule(seed), settings
        self.random = self.schedule.random
        self.faults = Faults(delay_seconds=0.2)
        """Of reports and of the connections to agents."""
        self.wrong: list[str] = []
        """What went wrong, with the name of the invariant in front."""
        self.store_seconds = 0.02
        """Longest answer of a version's store."""
        self.agents = {index: Agent(self, index) for index in range(settings.groups)}
        self.statuses: dict[int, Status] = {}
        self.published = replica_groups.Membership()
        self.members: list[frozenset[tuple[int, int]]] = [frozenset()]
        """Index and round of the groups of each version."""
        self.exchanges: dict[tuple[int, int], Exchange] = {}
        self.stores: dict[int, dict[str, int]] = {}
        """Numbers in the store of each version; a lead that is gone has none."""
        self.line: dict[int, tuple[int, tuple[int, ...] | None]] = {}
        """The parameters after so many steps, with the last one's contributors."""
        self.storage = Parameters(0, 0)
        self.is_calm = False
        """Whether all disturbances are over."""
        self.ends_at: int | None = None
        """Step with which `until` ends training."""
        for agent in self.agents.values():
            agent.start()

    # --- what the test does ------------------------------------------------------------------------------

    def pause(self, longest: float) -> float:
        return self.random.uniform(0.0, longest)

    def processes(self) -> list[Process]:
        return [each for agent in self.agents.values() for each in agent.processes if each.lives]

    def is_over(self) -> bool:
        """Whether training has ended, and nobody trains any more."""
        living = [agent for agent in self.agents.values() if agent.is_wanted]
        if all(agent.is_done for agent in living):
            return True
        return any(agent.is_done for agent in living) and not self.published.groups

    def scale(self, number: int) -> None:
        """Have so many groups from now on."""
        for index, agent in self.agents.items():
            if agent.is_wanted and index >= number and not agent.is_done:
                agent.remove()
            elif not agent.is_wanted and index < number:
                agent.is_wanted = True
                agent.start()

    # --- the controller ----------------------------------------------------------------------------------

    def take(self, index: int, status: Status | None) -> None:
        """Take in a group's status; None of one that is deleted."""
        if status is None:
            self.statuses.pop(index, None)
        else:
            self.statuses[index] = status
        self.schedule.soon("controller looks", self.look)

    def look(self) -> None:
        views = [status.view(index) for index, status in sorted(self.statuses.items())]
        decided = decide(self.published, views, self.settings.minimum)
        if decided is self.published:
            return
        if decided.version != self.published.version:
            self.members.append(frozenset((each.index, each.round) for each in decided.groups))
            self.stores[decided.version] = {}
        self.published = decided
        groups = tuple((each.index, each.round) for each in decided.groups)
        seen = GroupsView(decided.version, groups, "lead", 1)
        for agent in self.agents.values():
            late = max(self.pause(0.3), agent.watch_from - self.schedule.now)
            self.schedule.after(late, "watch", partial(agent.see, seen))

    # --- invariants --------------------------------------------------------------------------------------

    def is_left_out(self, process: Process) -> bool:
        """Whether the others may have gone on without a process since the last version that it has met."""
        return self.goes_on_without(process, 0 if process.at.quorum is None else process.at.quorum.version)

    def goes_on_without(self, process: Process, version: int) -> bool:
        """Whether the others may have gone on without a process since a version."""
        return any(members and process.place not in members for members in self.members[version + 1 :])

    def note(self, process: Process, at: Parameters, groups: tuple[int, ...] | None) -> None:
        """Take in that a process with the state of the job has these parameters."""
        known = self.line.get(at.steps)
        if self.is_left_out(process) or (known and known[0] == at.value and groups in (None, known[1])):
            return
        for other in self.processes():
            has_it = other.trained is not None and other.trained.steps >= at.steps
            gave_up = self.goes_on_without(other, other.trained_in)
            if has_it and other is not process and not gave_up and (known or groups is None):
                self.fail(
                    f"(a, c) one state: {process.name} makes step {at.steps} by {groups}, not by {known}, "
                    f"which {other.name} has"
                )
        self.line = {steps: each for steps, each in self.line.items() if steps < at.steps}
        self.line[at.steps] = at.value, groups

    def fail(self, text: str) -> None:
        self.wrong.append(f"{text} (at {self.schedule.now - 1_000:.1f} s)")

    def exchange(self, version: int, rank: int, size: int) -> Exchange:
        key = version, rank
        if key not in self.exchanges:
            self.exchanges[key] = Exchange(self, version, size)
        return self.exchanges[key]


@dataclass(frozen=True)
class Status:
    """A group's ElasticJob, as the controller sees it."""

    round: int
    is_formed: bool
    phase: JobPhase
    report: ReplicasReport | None

    def view(self, index: int) -> GroupView:
        report = self.report or ReplicasReport(0)
        return GroupView(
            index=index,
            phase=self.phase,
            round=self.round,
            world=RendezvousPhase.FORMED if self.is_formed else RendezvousPhase.FORMING,
            ready_round=report.round,
            version=report.version,
            broken_version=report.broken_version,
            left_out_version=report.left_out_version,
            late_version=report.late_version,
            late_groups=frozenset(report.late_groups),
        )


class Agent:
    """The agent of a group, whose processes all run at it."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.roster = Roster(index)
        self.round = 0
        self.processes: list[Process] = []
        self.spans: dict[int, Span] = {}
        """What the ranks of this round agree upon among themselves, by its number."""
        self.log: list[object] = []
        """What all ranks of this round have gone through."""
        self.memory = Parameters(0, 0)
        """The checkpoint in the memory of its Pods."""
        self.found: dict[int, Parameters] = {}
        """Checkpoints that its ranks have loaded in this round, by their number."""
        self.is_wanted, self.is_formed, self.is_reporting = True, False, False
        self.watch_from = 0.0
        """Time from which on its watch delivers again."""
        self.reported: object = ()
        """What the controller has got; None of a group that is deleted."""

    @property
    def is_done(self) -> bool:
        return bool(self.processes) and all(each.is_done for each in self.processes)

    @property
    def status(self) -> Status:
        phase = JobPhase.SUCCEEDED if self.is_done else JobPhase.RUNNING
        report = self.roster.summary()
        return Status(self.round, self.is_formed, phase, report and replace(report, version=0, step=0))

    def start(self, left: Mapping[int, Process] | None = None) -> None:
        """Start the group's processes.

        Args:
            left: those that have left the round before and live on if they can, by rank.
        """
        if not self.is_wanted or self.is_formed:
            return
        living = left if left and self.world.settings.lives and self.memory.steps else {}
        self.round, self.is_formed = self.round + 1, True
        self.spans, self.log, self.found = {}, [], {}
        self.carry_out(self.roster.begin(self.round, self.world.settings.size))
        ranks = range(self.world.settings.size)
        self.processes = [Process(self, rank, living.get(rank)) for rank in ranks]
        self.report()

    def see(self, groups: GroupsView) -> None:
        self.carry_out(self.roster.see(groups))

    def carry_out(self, acts: Sequence[Any]) -> None:
        for act in acts:
            if isinstance(act, Send):
                act.key.send(act.membership)
            elif isinstance(act, EndConnection):
                act.key.close()
                self.roster.leave(act.key)
            else:
                self.report()

    def take(self, process: Process, message: dict[str, Any]) -> None:
        if "join" not in message:
            self.carry_out(self.roster.take(process.desk, message))
        elif message["join"] == self.round and process.lives:
            self.carry_out(self.roster.join(process.desk, process.rank, self.round))

    def report(self) -> None:
        """Report what is new, and again what got lost."""
        sent = self.status if self.is_wanted else None
        if self.is_reporting or sent == self.reported:
            return
        self.is_reporting, world = True, self.world

        def answered(answer: object) -> None:
            self.is_reporting = False
            self.reported = () if isinstance(answer, ConnectionError) else sent
            self.report()

        request(world.schedule, world.faults, "report", lambda: world.take(self.index, sent), answered)

    def kill(self, rank: int, with_pod: bool = False) -> None:
        """Kill a process; the rest of the group follows, and is started again."""
        if not self.is_formed or self.is_done or not self.processes[rank].lives:
            return
        self.processes[rank].die()
        round_ = self.round
        if with_pod:
            self.memory = Parameters(0, 0)
            for version, members in enumerate(self.world.members):
                if members and min(members)[0] == self.index:
                    self.world.stores.pop(version, None)
        self.world.schedule.after(
            self.world.pause(0.2),
            "agent sees a death",
            lambda: self.is_formed and self.round == round_ and self.bury(),
        )

    def bury(self) -> None:
        """End the round: who lives and answers leaves it."""
        world, left = self.world, dict[int, Process]()
        for process in self.processes:
            if process.lives and process.still_until <= world.schedule.now:
                left[process.rank] = process
            process.die()  # what it does in the round
        self.is_formed = False
        self.report()
        world.schedule.after(world.pause(2.0), "start", partial(self.start, left))

    def remove(self) -> None:
        self.is_wanted = False
        if self.is_formed:
            for process in self.processes:
                process.die()
            self.is_formed = False
        self.processes = []
        self.report()


# --- a process -------------------------------------------------------------------------------------------


class Process:
    """A rank in a round: carries out what the protocol asks for, as `dlr.replicas` does with torch and threads.

    Args:
        before: the same process in the round before; None for a new one.
    """

    def __init__(self, agent: Agent, rank: int, before: Process | None = None) -> None:
        self.agent, self.world, self.rank = agent, agent.world, rank
        self.place = agent.index, agent.round
        self.name = f"group {agent.index} rank {rank} of round {agent.round}"
        settings = self.world.settings
        self.lives, self.is_done = True, False
        self.still_until = 0.0
        """Time until which it is stopped."""
        self.held = deque[Callable[[], object]]()
        """What waits until it runs again, in its order."""
        self.hangs_seconds = 0.0
        """Time for which it hangs in its next step."""
        self.parameters = Parameters(0, hash((agent.index, agent.round)))
        self.trained: Parameters | None = None
        """Its parameters once the script has applied all that is committed; None without the job's state."""
        self.trained_in = 0
        """The version in which they were the job's for sure."""
        self.at = ReplicaState(
            GroupStanding.at_start(0, has_checkpoints=settings.saves), settings.sync_every, settings.total
        )
        if before is not None:
            self.parameters, self.at = before.parameters, before.at.in_next_round()
        self.gradient: Gradient | None = None
        self.mean: tuple[Gradient, ...] | None = None
        """Gradients that the script has in hand, its own or the mean of some; None for none."""
        self.sums: tuple[Gradient, ...] | None = None
        """Those of the step, as they have been averaged last."""
        self.membership: VersionGroups | None = None
        self.awaiting: Awaiting | None = None
        self.absences = Awaiting(0).absences
        self.spans, self.loads = count(), 0
        self.collectives = count()
        self.exchange: Exchange | None = None
        self.logged = 0
        self.wait: Callable[[Any], None] | None = None
        """Takes in how a wait for other groups ends: None if that fails."""
        self.long: PlayedWait | None = None
        self.desk, self.line = connect(
            self.world.schedule,
            Faults(delay_seconds=0.05),
            ("desk", lambda message: self.agent.take(self, message), self.leave_desk),
            ("process", lambda membership: self.run(partial(self.see, membership)), lambda: None),
        )
        agent.roster.admit(self.desk)
        self.after(3.0, "join", self.look if settings.saves else self.join)

    # --- machinery ---------------------------------------------------------------------------------------

    def run(self, act: Callable[[], object]) -> None:
        """Do something once the process runs, and after all that waits for that already."""
        if not self.lives:
            return
        if not self.held and self.still_until <= self.world.schedule.now:
            act()
            return
        self.held.append(act)
        if len(self.held) == 1:
            self.world.schedule.at(self.still_until, "runs again", self.run_held)

    def run_held(self) -> None:
        while self.held and self.lives:
            if self.still_until > self.world.schedule.now:
                self.world.schedule.at(self.still_until, "runs again", self.run_held)
                return
            self.held.popleft()()

    def after(self, longest: float, name: str, act: Callable[[], object]) -> Timer:
        return self.world.schedule.after(self.world.pause(longest), name, lambda: self.run(act))

    def die(self) -> None:
        if not self.lives:
            return
        self.lives = False
        self.line.close()
        if self.exchange is not None and self.world.schedule.chance(0.9):
            self.exchange.cut()

    def leave_desk(self) -> None:
        self.agent.roster.leave(self.desk)
        self.agent.report()

    def log(self, what: object) -> None:
        """Check that the ranks of the group go through the same."""
        log = self.agent.log
        if self.logged == len(log):
            log.append(what)
        elif log[self.logged] != what:
            self.world.fail(f"(d) ranks agree: {self.name} has {what}, another one {log[self.logged]}")
        self.logged += 1

    def span(self, *numbers: int, then: Callable[[list[int], list[int]], None]) -> None:
        number, agent = next(self.spans), self.agent
        if self.world.settings.size == 1:
            then([*numbers], [*numbers])
            return
        span = agent.spans.setdefault(number, Span())
        span.numbers[self.rank] = numbers
        span.callbacks[self.rank] = lambda low, high: self.run(lambda: then(low, high))
        if len(span.numbers) == self.world.settings.size:
            columns = [*zip(*span.numbers.values(), strict=True)]
            low, high = [min(each) for each in columns], [max(each) for each in columns]
            for callback in span.callbacks.values():
                self.world.schedule.after(self.world.pause(0.02), "span", partial(callback, low, high))

    # --- news --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask who takes part, and load a checkpoint if nobody does."""
        membership = self.agent.roster.look(self.place[1])

        def then(low: list[int], high: list[int]) -> None:
            if high[1] == 0:
                self.load(partial(begin, low[0]))
            else:
                self.join()

        def begin(version: int, step: int | None) -> None:
            self.at = self.at.after_loading(step, version)
            self.join()

        self.span(membership.version, len(membership.others), then=then)

    def load(self, then: Callable[[int | None], None]) -> None:
        """Load what the first rank that comes to it finds."""
        world, agent = self.world, self.agent

        def loaded(_: list[int], high: list[int]) -> None:
            found = agent.found.setdefault(
                high[0], max(world.storage, agent.memory, key=lambda each: each.made)
            )
            is_newer = found.made > self.at.steps_of_state
            self.parameters = found if is_newer else self.parameters
            then(found.made if is_newer else None)

        self.loads += 1
        self.span(self.loads, then=loaded)

    def join(self) -> None:
        self.line.send({"join": self.place[1]})
        self.go_on(LoopStarted())

    def tell(self, message: dict[str, Any]) -> None:
        self.line.send(message)

    def see(self, membership: VersionGroups) -> None:
        self.membership = membership
        if self.awaiting is not None:
            self.await_membership()
        elif self.is_overtaken and self.wait is not None:
            self.finish(None)

    @property
    def newest(self) -> int:
        return 0 if self.membership is None else self.membership.version

    @property
    def is_overtaken(self) -> bool:
        return self.exchange is not None and self.newest > self.exchange.version

    def await_membership(self) -> None:
        assert self.awaiting is not None
        self.awaiting, found = self.awaiting.after(self.membership, lambda: self.world.schedule.now)
        self.absences = self.awaiting.absences
        if isinstance(found, VersionGroups):
            self.awaiting = None
            self.meet(found)
        elif isinstance(found, ReportLeftOut):
            self.tell({"left_out": found.version})
            self.await_membership()
        elif found.seconds < 1e9:
            awaiting = self.awaiting
            again = lambda: self.await_membership() if self.awaiting is awaiting else None  # noqa: E731
            self.world.schedule.after(found.seconds, "pause ends", lambda: self.run(again))

    # --- waits for other groups --------------------------------------------------------------------------

    def collect(self, what: object, data: Any, then: Callable[[Any], None]) -> None:
        """Come to a collective of all groups; `then` gets what they have given, or None if it fails."""
        exchange, quorum_place = self.exchange, self.seat
        assert exchange is not None
        if exchange.size == 1:
            then([data])
            return
        number = next(self.collectives)
        wait = self.await_others(then)
        exchange.submit(
            number, quorum_place, what, data, lambda result: self.run(lambda: self.end_wait(wait, result))
        )
        if self.is_overtaken:
            self.finish(None)

    def await_others(self, then: Callable[[Any], None]) -> object:
        self.wait = then
        self.waits_since = self.world.schedule.now
        exchange = self.exchange
        assert exchange is not None
        self.world.schedule.after(
            QUIET_SECONDS, "long wait", lambda: self.wait is then and self.run(lambda: self.wait_long(then))
        )
        return then

    def wait_long(self, then: Callable[[Any], None]) -> None:
        if self.wait is then:
            self.long = PlayedWait(self)

    def end_wait(self, wait: object, result: Any) -> None:
        if self.wait is wait:
            self.finish(result, is_broken=result is None)

    def finish(self, result: Any, is_broken: bool = False) -> None:
        then, self.wait = self.wait, None
        assert then is not None and self.exchange is not None
        if self.long is not None:
            self.long.end()
            self.long = None
        if not is_broken or self.is_overtaken:
            then(result)
            return

        def later(_: Any) -> None:
            then(None)

        def report() -> None:
            if self.wait is later:
                self.tell({"broken": self.meeting.version})
                self.finish(None)

        self.wait = later  # a newer version ends it sooner
        self.world.schedule.after(BROKEN_SECONDS, "broken", lambda: self.run(report))

    # --- what the protocol asks for ----------------------------------------------------------------------

    def go_on(self, event: Event) -> None:
        self.at, (*acts, last) = protocol.after(self.at, event)
        self.log((type(event).__name__, self.at.quorum and self.at.quorum.version, self.at.applied, last))
        for act in acts:
            self.do(act)
        self.ask(last)

    def do(self, act: protocol.Act) -> None:
        match act:
            case Do.TAKE_MEAN:
                self.mean = self.sums
            case Do.DROP_GRADIENTS:
                self.mean = None
            case Do.BEGIN_HEAL:
                self.begin_heal()
            case Do.END_HEAL:
                self.end_heal()
            case Do.DISCONNECT if self.exchange is not None:
                self.exchange.cut()
            case Commit(step, groups):
                self.commit(step, groups)
            case ReportPosition(version, applied):
                self.tell({"at": {"version": version, "step": applied}})

    def ask(self, act: protocol.Act) -> None:
        match act:
            case Meet(newest):
                self.awaiting = Awaiting(newest, self.at.quorum is not None, self.absences)
                self.await_membership()
            case Do.MEET_AGAIN:
                self.come_together()
            case Do.LOAD:
                version = self.meeting.version
                self.load(lambda step: self.go_on(Loaded(step, version)))
            case Do.HEAL:
                self.heal()
            case Do.COMPUTE:
                self.compute()
            case Do.VOTE:
                self.vote()
            case Do.APPLY:
                self.after(0.1, "apply", self.apply)
            case Do.END:
                self.end()
            case Do.LEAVE:
                self.leave()

    def meet(self, membership: VersionGroups) -> None:
        def then(low: list[int], high: list[int]) -> None:
            if low != high:
                self.go_on(NotMet(high[0]))
                return
            assert membership.place is not None
            self.meeting, self.seat = membership, membership.place
            self.exchange = self.world.exchange(membership.version, self.rank, len(membership.groups))
            self.collectives, self.transfer = count(), None
            self.come_together()

        self.span(membership.version, then=then)

    def come_together(self) -> None:
        version = self.meeting.version
        if self.is_overtaken:
            self.agreed(None)
        else:
            self.collect("meet", self.at.as_member(version), self.agreed)

    def agreed(self, met: Any) -> None:
        quorum, numbers = None, [-1] * 5
        if met is not None:
            rule = agree if self.at.sync_every is None else agree_on_round
            quorum = Quorum(self.meeting, rule(met))
            numbers = quorum.agreement.to_numbers()

        def then(low: list[int], high: list[int]) -> None:
            if quorum is None or low != high:
                self.go_on(NotMet(self.meeting.version + 1))
                return
            self.go_on(Met(quorum))
            if quorum.agreement.is_first and not quorum.agreement.loads_first:
                self.check_first(quorum)

        self.span(*numbers, then=then)

    def check_first(self, quorum: Quorum) -> None:
        """Check what training begins with where nobody has a state."""
        if quorum.place == quorum.agreement.leader and not self.world.is_left_out(self):
            memories = (self.world.agents[index].memory.steps for index, _ in quorum.membership.groups)
            survives = max(self.world.storage.steps, *memories)
            if self.parameters.steps < survives:
                self.world.fail(f"(g) {self.name} begins at {self.parameters.steps}, {survives} survive")

    # --- heals -------------------------------------------------------------------------------------------

    def begin_heal(self) -> None:
        quorum, exchange = self.at.quorum, self.exchange
        assert quorum is not None and exchange is not None
        if self.mean is not None and self.at.sync_every is None and not quorum.is_behind:
            self.world.fail(f"(a) {self.name} has gradients to apply when a heal begins")
        if exchange.heal is None:
            agreement = quorum.agreement
            exchange.heal = Transfer(exchange, (agreement.leader, *sorted(agreement.behind)))
        self.transfer = exchange.heal
        self.transfer.begin(quorum.place, self.parameters)
        if exchange.is_cut:
            self.transfer.cut()

    def wait_for_heal(self, then: Callable[[bool], None]) -> None:
        """Wait until the state is there, if it is on its way."""
        transfer, place = self.transfer, self.seat
        if transfer is None:
            then(True)
            return
        if place == transfer.places[0]:
            transfer.complete()
        if place in transfer.ended:
            self.wait = lambda result: then(result is not None)
            self.finish(transfer.ended[place] or None, is_broken=not transfer.ended[place])
            return
        wait = self.await_others(lambda result: then(result is not None))
        transfer.waits[place] = lambda: self.run(lambda: self.end_wait(wait, transfer.ended[place] or None))
        if self.is_overtaken:
            self.finish(None)

    def heal(self) -> None:
        quorum = self.at.quorum
        assert quorum is not None

        def healed(ok: bool) -> None:
            self.span(ok, then=lambda low, _: self.go_on(Healed(bool(low[0]))))

        if not quorum.heals:
            healed(True)
            return
        self.begin_heal()
        if self.is_overtaken:
            healed(False)
        else:
            self.wait_for_heal(healed)

    def end_heal(self) -> None:
        transfer, quorum = self.transfer, self.at.quorum
        self.transfer = None
        assert quorum is not None
        if transfer is not None and quorum.is_behind:
            assert transfer.sent is not None
            self.check_own_steps(transfer.sent)
            self.parameters = transfer.sent

    def check_own_steps(self, taken: Parameters) -> None:
        """Check that this group gives up no step that it has, unless the others went on without it."""
        if self.trained is None or taken.steps >= self.trained.steps:
            return
        if not self.world.goes_on_without(self, self.trained_in):
            self.world.fail(f"(b) {self.name} goes back from {self.trained.steps} to {taken.steps}")

    # --- commits -----------------------------------------------------------------------------------------

    def compute(self) -> None:
        self.note_state()
        if self.mean is not None:
            self.world.fail(f"(a) {self.name} computes before it has applied")
        seconds, self.hangs_seconds = self.world.random.uniform(0.1, 0.4) + self.hangs_seconds, 0.0
        self.world.schedule.after(seconds, "compute", lambda: self.run(self.computed))

    def computed(self) -> None:
        inner = 0
        if self.at.sync_every is not None:
            inner = self.at.inner_steps + self.at.sync_every
            inner = min(inner, self.at.total or inner)
        self.gradient = Gradient(self.place[0], self.parameters, inner, self.at.contributing)
        self.mean = (self.gradient,)
        self.go_on(Computed(inner))

    def vote(self) -> None:
        quorum, step = self.at.quorum, self.at.applied
        assert quorum is not None and self.exchange is not None

        def voted(ok: bool, has_all: bool, ends: bool) -> None:
            self.span(ok, has_all, ends, self.newest, then=then)

        def then(low: list[int], high: list[int]) -> None:
            self.go_on(Voted(bool(low[0]), bool(low[1]), bool(high[2]), high[3]))

        def averaged(result: Any) -> None:
            if result is None:
                voted(False, False, False)
                return
            self.sums = tuple(each for each in result if each is not None)
            self.wait_for_heal(
                lambda ok: (
                    self.collect(("vote", step), self.until(), finish) if ok else voted(False, False, False)
                )
            )

        def finish(result: Any) -> None:
            voted(result is not None, True, self.until() if result is None else any(result))

        if self.is_overtaken:
            voted(False, False, False)
            return
        self.sums = None
        mine = self.gradient if quorum.counts(step) else None
        self.collect(("average", step), mine, averaged)

    def until(self) -> bool:
        """Whether training ends with this step, as one rank sees it."""
        ends_at = self.world.ends_at
        return (
            ends_at is not None and self.at.applied >= ends_at and self.rank == self.world.settings.size - 1
        )

    def commit(self, step: int, groups: tuple[int, ...]) -> None:
        if self.at.applied != step + 1:
            self.world.fail(f"(a) {self.name} counts {self.at.applied} after step {step}")
        if self.at.member.trained:
            before, gradients = self.parameters, self.mean or ()
            if tuple(each.group for each in gradients) != groups or any(
                each.of != before for each in gradients
            ):
                self.world.fail(f"(a) {self.name} has the gradients {gradients} of {groups} for {before}")
            if len({(each.inner_steps, each.contributing) for each in gradients}) > 1:
                self.world.fail(f"(d) groups learn from different data: {gradients}")
            inner = gradients[0].inner_steps if gradients else 0
            after = before.after(groups, inner)
            self.trained, self.trained_in = after, self.at.member.applied_in
            self.world.note(self, after, groups)
            if self.at.sync_every is not None:
                self.parameters, self.mean = after, None
            self.save(after, groups)
        elif self.mean is not None:
            self.world.fail(f"(a) {self.name} applies a step without the state")

    def save(self, after: Parameters, groups: tuple[int, ...]) -> None:
        if self.world.settings.saves and self.rank == 0:
            self.agent.memory = after
            if groups[0] == self.place[0] and after.steps % 3 == 0 and after.steps > self.world.storage.steps:
                self.world.storage = after

    def apply(self) -> None:
        if self.mean is not None:
            groups = tuple(each.group for each in self.mean)
            self.parameters, self.mean = self.parameters.after(groups, self.mean[0].inner_steps), None
            if self.parameters != self.trained:
                self.world.fail(f"(a) {self.name} applied what is not committed")
        self.go_on(Applied())

    def note_state(self) -> None:
        """Take in that it begins a step with the job's state."""
        member = self.at.member
        if member.trained:
            # A round whose makers died is lost: a checkpoint counts outer steps by inner ones.
            if self.parameters.steps != member.applied and self.at.sync_every is None:
                self.world.fail(f"(a) {self.name} counts {member.applied} steps, and has {self.parameters}")
            self.trained, self.trained_in = self.parameters, max(member.applied_in, self.meeting.version - 1)
            self.world.note(self, self.parameters, None)

    def end(self) -> None:
        def ended(ok: bool, has_state: bool) -> None:
            self.span(ok, has_state, self.newest, then=then)

        def then(low: list[int], high: list[int]) -> None:
            self.go_on(TrainingEnded(bool(low[0]), bool(low[1]), high[2]))

        def healed(ok: bool) -> None:
            if ok:
                self.collect(("end", self.at.applied), None, lambda result: ended(result is not None, True))
            else:
                ended(False, False)

        if self.is_overtaken:
            ended(False, False)
        else:
            self.wait_for_heal(healed)

    def leave(self) -> None:
        self.is_done = True
        self.trained = self.parameters
        self.world.note(self, self.parameters, None)
        for other in self.world.processes():
            if (
                other.trained
                and other.trained.steps > self.parameters.steps
                and not self.world.goes_on_without(other, other.trained_in)
            ):
                self.world.fail(f"(a) {self.name} leaves with {self.parameters}, and {other.name} has more")
        self.agent.report()
