"""An agent of a played cluster: the decisions of the product, over processes, an API server and a clock of a seed.

What the product's threads do side by side are acts here: the reports (`Outbox`), the Lease, the news of the world and the
agent's main thread, which is a generator. It yields until when it sleeps, unless something wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from agent.facts.world import AgentVerb, AgentWorld, ExitReason, NextAction, WorldView
from agent.link import first_report
from agent.membership import WorldMembership
from agent.monitor import hang
from agent.monitor.hang import LOOK_SECONDS
from agent.monitor.progress import RankProgress
from agent.report.elasticworker import sequence_after
from agent.report.outbox import Outbox, changed
from agent.report.refusal import final_refusal
from agent.report.report import AgentFacts, ReportBody, fitting, whole
from agent.supervision import course
from agent.supervision.failure_reporter import FailureReporter
from agent.supervision.leaving import Graces, StopLate, VoteOutcome, WaitForVote, decide, may_stay
from controller.errors import NotFound
from crds.agent_report import (
    Accelerators,
    AgentState,
    Departure,
    FailureCause,
    RankStack,
    RoundProgress,
    StepProgress,
)
from crds.checkpoint_files import KeptIn
from crds.failure_texts import ASKED, early_finish_text
from tests.played.hosts import API_SERVER, Neighbours
from tests.played.schedule import Timer
from tests.played.training import KILLED, STOPPED, Processes, Training
from tests.played.voting import Votes

if TYPE_CHECKING:
    from tests.played.cluster import Cluster

JSON = dict[str, Any]
Act = Generator[float | None, None, Any]
"""What the main thread does: it yields until when it sleeps; None: until something wakes it."""

JOIN_SECONDS = 600.0
STOP_GRACE_SECONDS = 27.0
FAILURE_GRACE_SECONDS = 1.0
FLUSH_SECONDS = 10.0
TERMINATED = 143
EXITS = {ExitReason.JOB_SUCCEEDED: 0, ExitReason.JOB_FAILED: 1}


@dataclass
class News:
    """The newest view of the job that has come to an agent."""

    newest: WorldView | None = None

    def view(self) -> WorldView | None:
        return self.newest

    take = view


class Reporter:
    """Writes the reports of an `Outbox` as requests, one after the other, until they are taken."""

    def __init__(self, agent: Agent, first: ReportBody, sequence: int) -> None:
        self._agent, self._first = agent, first
        self._outbox = Outbox(first, agent.me.heartbeat_seconds, sequence)
        self._facts = AgentFacts(20_000, agent.processes, Accelerators("cpu", 2, "a CPU"))
        self._is_sending = self._is_refused = self._has_begun = False
        self._failures = 0
        self._timer: Timer | None = None

    @property
    def latest(self) -> ReportBody:
        return self._outbox.latest

    @property
    def is_empty(self) -> bool:
        return self._outbox.first() is None or self._is_refused

    def begin(self) -> None:
        self._has_begun = True
        self._send()

    def report(
        self, state: AgentState, observed_round: int | None = None, failure: LocalFailure | None = None
    ) -> None:
        agent = self._agent
        last = replace(self.latest, **agent.figures())
        self._outbox.put(changed(last, state, observed_round, failure, agent.cluster.time()), agent.now)
        self._send()

    def note_departure(self, departure: Departure) -> None:
        self._outbox.latest = replace(self.latest, departure=departure)

    def progress(self) -> None:
        self._outbox.progress(None)
        self._send()

    def tell(self) -> None:
        """Report what has changed outside of training."""
        self._outbox.progress(0.0)
        self._send()

    def _send(self) -> None:
        agent, outbox = self._agent, self._outbox
        if self._is_sending or self._is_refused or not agent.lives or not self._has_begun:
            return
        if outbox.is_progress_due(agent.now):
            outbox.put(replace(self.latest, **agent.figures()), agent.now)
        report = outbox.first()
        if report is None:
            if self._timer is not None:
                self._timer.cancel()
            if (due_at := outbox.progress_due_at) is not None:
                self._timer = agent.cluster.schedule.at(due_at, f"{agent} has progress", self._send)
            return
        self._is_sending = True
        silent = agent.neighbours.silent() if agent.neighbours is not None else ()
        sections = {"silent_peers": silent or None}
        status = fitting(whole(agent.me, self._facts, report, outbox.next_sequence(), sections))
        agent.patch_status({"agent": status}, lambda result: self._answered(report, result))

    def _answered(self, report: ReportBody, result: Any) -> None:
        self._is_sending = False
        self._is_refused = isinstance(result, Exception) and bool(final_refusal(result, self._agent.me))
        if isinstance(result, Exception):
            self._failures += 1
            seconds = self._agent.cluster.random.uniform(0.05, min(0.1 * 2.0**self._failures, 2.0))
            if not self._is_refused:
                self._agent.after(seconds, "reports again", self._send)
            return
        self._failures = 0
        self._outbox.written(report, self._agent.now)
        self._send()
        self._agent.wake()  # it may wait for the last one


class Guard:
    """Watches the processes for hangs, as `HangGuard` does, by what they have told."""

    def __init__(self, agent: Agent, predecessor: Mapping[str, Any], view: WorldView) -> None:
        members = view.world.members if view.world else ()
        self._agent = agent
        self._reporting = hang.step_reporting_of_slot(predecessor, agent.me.worker_index, members)
        self._first = False
        self.liveness = hang.begin(self._reporting, first=False, now=agent.now)

    def begin(self, *, first: bool) -> None:
        self._first = first
        self.liveness = hang.begin(self._reporting, first=first, now=self._agent.now)

    def look(self, part: Processes) -> None:
        now = self._agent.now
        progress = RankProgress(part.step, part.stepped_at, None, reports_steps=True)
        looked_every_second = replace(self.liveness, looked_at=now)
        self.liveness = hang.look(looked_every_second, [progress], now)
        if self.liveness.last_step_at is not None:
            self._reporting = self._reporting.with_step(first=self._first)

    def hangs_at(self, limit_seconds: float) -> float | None:
        """When the next look could find a hang, if no step comes."""
        limit = self.liveness.limit_seconds(limit_seconds)
        return None if limit is None else self.liveness.alive_at + limit + 0.001

    def may_hang(self, limit_seconds: float, *, asked: bool) -> bool:
        return self.liveness.may_hang(limit_seconds, self._agent.now, asked=asked)

    def describe(
        self, alive: list[int], _: object, sequence: int, limit_seconds: float, *, hangs: bool = True
    ) -> LocalFailure | None:
        agent = self._agent
        part, training = agent.part, agent.training
        if part is None or training is None or not alive:
            return None
        rank, waits = part.ranks[alive[0]], training.hangs_at != agent.me.member
        where = "waits in all_reduce" if waits else "is in read_cache"
        message = f"no step for {self.liveness.stalled_seconds(agent.now):.0f} s: rank {rank} {where}"
        stack = RankStack(rank=rank, step=part.step, in_collective=waits, frames=where, offered=True)
        return LocalFailure(
            sequence=sequence,
            round=part.world.round,
            rank=rank,
            local_rank=alive[0],
            exit_code=None,
            message=message if hangs else f"{message}\n{ASKED}",
            time=agent.cluster.time(),
            cause=FailureCause.HANG if hangs else None,
            step=part.step,
            stacks=(stack,),
        )


class PostMortem:
    """Why processes ended, as `agent.supervision.post_mortem` has it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._seen: set[int] = set()

    def begin(self) -> None:
        self._seen.clear()

    def excuse(self, local_ranks: list[int]) -> None:
        self._seen.update(local_ranks)

    def new_failures(self, part: Processes) -> list[int]:
        return [local for local, code in part.exit_codes.items() if code and local not in self._seen]

    failures_before_stop = new_failures

    def with_scripts(self, part: Processes) -> list[int]:
        return part.alive()

    def timed_out(self, _: Processes) -> list[int]:
        return []

    def exit_codes(self, part: Processes) -> Mapping[int, int]:
        return part.exit_codes

    def describe(
        self, failed: list[int], ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure:
        self._seen.update(failed)
        part = self._agent.part
        found = [self._failure(part, local, ranks, round_, sequence) for local in failed]
        return min(found, key=lambda failure: (failure.is_consequence, failure.local_rank))

    def describe_early_finish(
        self, codes: Mapping[int, int], ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure | None:
        local = min((local for local, code in codes.items() if code == 0), default=None)
        if local is None:
            return None
        failure = self._failure(self._agent.part, local, ranks, round_, sequence)
        step = self._agent.part.step if self._agent.part else None
        return replace(failure, exit_code=0, message=early_finish_text(f"rank {ranks[local]}", step))

    def _failure(
        self, part: Processes | None, local: int, ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure:
        code = part.exit_codes.get(local, 1) if part else 1
        message = part.errors.get(local, f"the process ended with {code}") if part else "it cannot be started"
        step, time = (part.step if part else None), self._agent.cluster.time()
        rank = ranks.get(local, -1)
        return LocalFailure(
            sequence=sequence,
            round=round_,
            rank=rank if rank >= 0 else None,
            local_rank=local,
            exit_code=code,
            message=message,
            time=time,
            cause=FailureCause.TIMED_OUT if "Timed out" in message else None,
            step=step,
        )


class Agent:
    """One agent, from the start of its container until its end.

    Args:
        account: ServiceAccount of its Pod, which is its job's.
        end: is called once, with the exit code of the container.
    """

    def __init__(self, cluster: Cluster, me: Environment, account: str, end: Callable[[int], object]) -> None:
        self.cluster, self.me, self.account, self._end = cluster, me, account, end
        self.lives = True
        self.processes = 1
        self.part: Processes | None = None
        """The processes of the round that runs, or ran last."""
        self.kept = 0
        """Number of processes that wait for the next round."""
        self.training: Training | None = None
        self.votes: Votes | None = None
        self.neighbours: Neighbours | None = None
        self.callers: dict[int, list[Votes]] = {}
        """Callers of ballots that are not open yet, by round."""
        self.stores: dict[int, set[int]] = {}
        """The meetings at this agent, by round: the ranks that are here."""
        self.news = News()
        self._fed_at = 0.0
        self._rounds: list[RoundProgress] = []
        self._is_awake = self._has_news = False
        self._timer: Timer | None = None
        self._thread: Act = self._life()
        self.is_terminating = False
        self.after(cluster.random.uniform(0.0, cluster.delays.container), "begins", self.wake)

    def __repr__(self) -> str:
        return self.me.pod_name

    @property
    def now(self) -> float:
        return self.cluster.schedule.now

    @property
    def host(self) -> str:
        return self.me.node_name

    # The main thread.

    def wake(self) -> None:
        """Something has changed: have the main thread look again, soon."""
        self._has_news = True
        self._rouse()

    def look_around(self) -> None:
        """Something has changed between hosts, or an agent has ended."""
        if self.lives and self.neighbours is not None:
            self.neighbours.look_soon()

    def _rouse(self) -> None:
        if self.lives and not self._is_awake:
            self._is_awake = True
            self.cluster.soon(f"{self} looks", self._go_on)

    def after(self, seconds: float, name: str, act: Callable[[], object]) -> Timer:
        """Have this agent do something, if it still lives then."""
        return self.cluster.schedule.after(seconds, f"{self} {name}", lambda: act() if self.lives else None)

    def _go_on(self) -> None:
        self._is_awake = False
        if not self.lives:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            until = next(self._thread)
        except StopIteration as stop:
            self._die()
            self._end(stop.value)
            return
        if until is not None:
            self._timer = self.cluster.schedule.at(max(until, self.now), f"{self} goes on", self._rouse)

    def terminate(self) -> None:
        """Send SIGTERM; whatever the main thread does is cut short."""
        if self.lives and not self.is_terminating:
            self.is_terminating = True
            self._thread.close()
            self._thread = self._shut_down()
            self.wake()

    def kill(self) -> None:
        """End agent and processes with SIGKILL, or with their node."""
        if self.lives:
            self._die()
            if self.part is not None and self.part.alive():
                self.part.end(self.part.alive(), KILLED)
                self._lose()

    def vanish(self) -> None:
        """End with a host that loses its power: no peer sees an end."""
        if self.lives:
            self._die()
            if self.part is not None:
                self.part.end(self.part.alive(), KILLED)

    def _die(self) -> None:
        self.lives = False
        self.stores.clear()
        self._end_votes()
        self.cluster.wake_agents()

    # What it has of the API server.

    def feed(self, world: JSON | None) -> None:
        """An event of the world's watch is on its way here."""
        self._fed_at = max(self._fed_at, self.now + self.cluster.lag())
        view = WorldView.parse(world or {})
        self.cluster.schedule.at(self._fed_at, f"{self} sees the world", lambda: self._take_in(view))

    def _take_in(self, view: WorldView) -> None:
        if not self.cluster.hosts.reach(self.host, API_SERVER):
            return  # it lists again when it is there
        if self.lives and view != self.news.newest:
            self.news.newest = view
            self.wake()

    def patch_status(self, body: JSON, answer: Callable[[Any], object]) -> None:
        """Patch the status of this agent's ElasticWorker."""

        def act() -> Any:
            return self.cluster.serve_agent(self.me, body)

        self.cluster.request(
            f"{self} reports {body.get('agent', {}).get('state', '')}",
            act,
            lambda result: answer(result) if self.lives else None,
            self.host,
        )

    def _renew(self) -> None:
        if not self.lives or self.cluster.is_over:
            return
        self.cluster.request(
            f"{self} renews", lambda: self.cluster.renew(self.me), lambda result: None, self.host
        )
        self.after(self.me.heartbeat_seconds, "renews", self._renew)

    # Its life.

    def _sleep(self, seconds: float) -> Act:
        until = self.now + seconds
        while self.now < until:
            yield until

    def _answer(self) -> Generator[float | None, None, JSON]:
        """Patch nothing, as the real one does to read its own last report, until there is an answer."""
        answers: list[Any] = []

        def take(result: Any) -> None:
            answers.append(result)
            self.wake()

        while True:
            self.patch_status({}, take)
            while not answers:
                yield None
            result = answers.pop()
            if isinstance(result, NotFound) or final_refusal(result, self.me):
                return {}
            if not isinstance(result, Exception):
                found: JSON = (result.get("status") or {}).get("agent") or {}
                return found
            yield from self._sleep(self.cluster.random.uniform(0.1, 2.0))

    def _life(self) -> Act:
        cluster, me = self.cluster, self.me
        self._renew()
        predecessor = yield from self._answer()
        cluster.show_world(self)
        while self.news.view() is None:
            yield None
        view = self.news.newest or WorldView()
        first = first_report(predecessor, me, view, cluster.time())
        self.reporter = Reporter(self, first, sequence_after(predecessor, me))
        self.membership = WorldMembership(me.member, self.news, self.reporter)  # type: ignore[arg-type]
        self.guard = Guard(self, predecessor, view)
        self.post_mortem: Any = PostMortem(self)
        no_devices: Any = SimpleNamespace(take=lambda: None)
        logs: Any = SimpleNamespace(latest=SimpleNamespace(stderrs={}))
        self.failures = FailureReporter(
            self.membership,
            self.reporter,  # type: ignore[arg-type]
            self.post_mortem,
            self.guard,  # type: ignore[arg-type]
            no_devices,
            logs,
        )
        yield from self._sleep(cluster.random.uniform(0.0, cluster.delays.warm_parent))
        self.reporter.begin()
        rounds = course.AgentRounds(
            stops_at_first_failure=True,
            restarts=None,
            stop_grace_seconds=STOP_GRACE_SECONDS,
            failure_grace_seconds=FAILURE_GRACE_SECONDS,
        ).rounds()
        end = yield from self._run(rounds)
        code = EXITS.get(end, TERMINATED) if isinstance(end, ExitReason) else 0
        yield from self._stop_for_good()
        return (yield from self._leave(code))

    def _run(self, rounds: course.Steps[Any]) -> Act:
        """Carry out the orders of the course, one after the other."""
        answer: Any = None
        while True:
            try:
                order = rounds.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield from self._carry_out(order)
            if isinstance(answer, ExitReason):  # as JobEndedError from the rendezvous
                return answer

    def _carry_out(self, order: course.Order) -> Act:
        match order:
            case course.StartRound():
                return (yield from self._start_round())
            case course.AwaitChange(seconds):
                hangs_at = self.guard.hangs_at(self.membership.view.hang_timeout_seconds)
                vote_at = self.votes.ballot.wake_at if self.votes is not None else None
                news_at = self.now + seconds + 0.001 if seconds < LOOK_SECONDS else None
                times = (hangs_at, vote_at, news_at)
                yield from self._await_change(min((at for at in times if at), default=None))
                return self._see()
            case course.AwaitEnds(seconds):
                until = self.now + seconds
                while self.running.alive() and self.now < until:
                    yield until
                return self._see()
            case course.AwaitNews(seconds):
                if seconds > 0:
                    yield from self._await_change(self.now + seconds)
                return course.JobOrders(self.now, self.membership.next_action(), self.membership.standing)
            case course.ReportFailure(subject, state):
                yield from self._sleep(self.cluster.random.choice((0.0, 0.0, 0.3)))
                return self._report_failure(subject, state or self.reporter.latest.state)
            case course.LeaveByVote(action, begun_at):
                return (yield from self._vote(action, begun_at))
            case course.StopProcesses(grace):
                return (yield from self._stop(grace))
            case course.KeepProcesses(seconds):
                return (yield from self._keep(seconds))
        return self._act(order)

    def _act(self, order: course.Order) -> Any:
        match order:
            case course.CollectEnds():
                return (
                    course.ProcessesEnd.FAILED
                    if any(self.running.exit_codes.values())
                    else course.ProcessesEnd.WELL
                )
            case course.WorksAlone():
                return False
            case course.ReportSuccess():
                self.reporter.report(AgentState.SUCCEEDED)
            case course.Kill():
                self.running.end(self.running.alive(), KILLED)
            case course.StandBy():
                self.membership.stand_by()
            case course.EndVotes():
                self._end_votes()
        return None

    def _await_change(self, until: float | None) -> Act:
        if not self._has_news:
            yield until
        self._has_news = False

    # A round.

    def _start_round(self) -> Act:
        self.part = None
        while True:
            world = self.membership.next_world()
            while world is None:
                yield None
                world = self.membership.next_world()
            if isinstance(world, ExitReason):
                return world
            met = yield from self._meet(world)
            if met:
                break
            if met is None:
                self.membership.stand_by(world.round)
                self.failures.report_processes(self._ranks(world), [0], AgentState.FAILED)
                return course.RoundStart.FAILED
        if self.neighbours is not None:
            self.neighbours.is_over = True
        self.neighbours = Neighbours(self, world) if len(world.members) > 1 else None
        self.membership.join(world)
        yield from self._sleep(self.cluster.random.choice((0.0, 0.1)))
        if not self.membership.is_settled():
            return course.RoundStart.MOVED_ON
        if self.cluster.store_of(world, self) is None:  # torch's exchange of ranks breaks
            self.membership.stand_by()
            return course.RoundStart.MOVED_ON
        self.post_mortem.begin()
        self.training = self.cluster.training(self.account, world)
        self.part = Processes(world, self.me.member, self._ranks(world), self)
        self.part.is_able = self.kept > 0 or self.cluster.random.random() < 0.5
        self.kept = 0
        self.training.join(self.part)
        self.votes = Votes(self, world, world.members.index(self.me.member))
        self.guard.begin(first=0 in self.part.ranks.values())
        self.failures.last_failure = None
        return course.RoundStart.STARTED

    def _meet(self, world: AgentWorld) -> Act:
        """Meet the other members at rank 0's agent: True; False if the world moved on; None if they do not come."""
        deadline, rank = self.now + JOIN_SECONDS, world.members.index(self.me.member)
        still_to_start = NextAction(AgentVerb.START, world.round)
        if rank == 0:
            self.stores.setdefault(world.round, set())
            self.cluster.wake_agents()
        while self.membership.next_action() == still_to_start:
            here = self.cluster.store_of(world, self)
            if here is not None and rank not in here:
                yield from self._sleep(self.cluster.random.choice((0.0, 0.05)))
                here.add(rank)
                self.cluster.wake_agents()
            elif here is not None and len(here) == len(world.members):
                return True
            elif self.now >= deadline:
                return None
            else:
                yield deadline
        return False

    def _ranks(self, world: AgentWorld) -> dict[int, int]:
        first = world.members.index(self.me.member) * self.processes
        return {local: first + local for local in range(self.processes)}

    @property
    def running(self) -> Processes:
        assert self.part is not None
        return self.part

    def see_step(self, part: Processes) -> None:
        """A step has ended. The real agent looks every second: it never takes the time of many steps for that of one."""
        self.guard.look(part)

    def _see(self) -> course.ProcessesSeen:
        part, limit_seconds = self.running, self.membership.view.hang_timeout_seconds
        action = self.membership.next_action()
        self.guard.look(part)
        standing, liveness = self.membership.standing, self.guard.liveness
        return course.ProcessesSeen(
            self.now,
            action,
            standing,
            failed=bool(self.post_mortem.new_failures(part)),
            all_ended=part.all_exited,
            alive=bool(part.alive()),
            hangs=liveness.hangs(limit_seconds, self.now),
            may_hang=self.guard.may_hang(limit_seconds, asked=standing.asks_where_it_hangs),
            lives_on=part.lives_on,
            lost=part.lost,
        )

    def _report_failure(self, subject: course.FailureSubject, state: AgentState) -> bool:
        part: Any = self.running
        failures, ranks = self.failures, part.ranks
        match subject:
            case course.FailureSubject.DEVICE:
                return False
            case course.FailureSubject.PROCESSES:
                failed = self.post_mortem.new_failures(part) or [r for r, c in part.exit_codes.items() if c]
                failures.report_processes(ranks, failed, state, part)
            case course.FailureSubject.LOST:
                failures.report_processes(ranks, part.alive(), state, part)
            case course.FailureSubject.ENDING:
                failures.report_ending_processes(ranks, part)
            case course.FailureSubject.EARLY_FINISH:
                return failures.report_early_finish(ranks, part, state)
            case course.FailureSubject.WAITED_FOR:
                return failures.report_who_was_waited_for(ranks, part, state)
            case _:
                return failures.report_hang(part, state, hangs=subject is course.FailureSubject.HANG)
        last = failures.last_failure
        return last is not None and not last.is_consequence

    def _vote(self, action: NextAction, begun_at: float) -> Act:
        standing = self.membership.standing
        tier = standing.planned_tier(action, None)
        if self.votes is not None:
            newest = standing.newest if action.verb is AgentVerb.START else None
            next_size = None if newest is None else len(newest.members)
            can = may_stay(action, len(self.running.world.members), next_size)
            self.votes.stay = can and self.running.lives_on
        called = self.votes is not None and self.votes.look() and action.verb is AgentVerb.WAIT
        if not called and tier is None:
            return VoteOutcome.OFF
        outcome = yield from self._leave_by_vote(tier, begun_at)
        left = self.votes.vote(begun_at, wish=False).have_left if self.votes is not None else []
        self.post_mortem.excuse(left)
        return VoteOutcome.ENDED if outcome is VoteOutcome.LEFT and not left else outcome

    def _leave_by_vote(self, tier: KeptIn | None, begun_at: float) -> Act:
        votes = self.votes
        if votes is None or (tier is not None and not votes.read().take_part):
            self._note_young()
            return VoteOutcome.OFF
        if tier is not None:
            votes.look()
            votes.ask(tier)
        while True:
            votes.look()
            found = votes.vote(begun_at, wish=tier is not None)
            decision = decide(found, Graces(STOP_GRACE_SECONDS, FAILURE_GRACE_SECONDS))
            if isinstance(decision, WaitForVote):
                yield from self._await_change(self.now + decision.seconds + 0.001)
                self.membership.next_action()
                continue
            if isinstance(decision, StopLate):
                yield from self._stop(course.Grace.after_failure(decision.grace_seconds))
                return VoteOutcome.STOPPED
            if decision in (VoteOutcome.LEFT, VoteOutcome.STAYED):
                votes.note_left()
                if found.have_left and found.agreed is not None:
                    departure = Departure(self.running.world.round, found.agreed.step)
                    self.reporter.note_departure(departure)
            return decision

    def _end_votes(self) -> None:
        if self.votes is not None:
            self.votes.close()
        self.votes = None

    def _stop(self, grace: course.Grace) -> Act:
        part, begun_at = self.running, self.now
        deadline = begun_at + grace.seconds
        self._note_young()
        if part.alive() and not self.cluster.random.random() < 0.3:  # else it sits in C, deaf to SIGTERM
            seconds = self.cluster.random.uniform(0.0, self.cluster.lengths.save)
            self.cluster.schedule.after(seconds, f"{self} has stopped", lambda: self._stopped(part))
        while part.alive():
            if (
                hurry := grace.after_news(self.membership.next_action(), self.membership.standing)
            ) is not None:
                deadline = min(deadline, begun_at + hurry)
            if self.now >= deadline:
                part.end(part.alive(), KILLED)
                break
            yield deadline
        self._lose()

    def _keep(self, seconds: float) -> Act:
        """Have the processes leave the round, which is the end of their part in it, and keep those that answer."""
        part = self.running
        if part.has_stayed:
            self.kept = len(part.alive())
            part.end(part.alive(), STOPPED)
            return
        answers = self.cluster.random.random() < 0.8
        yield from self._sleep(self.cluster.random.uniform(0.0, 0.1) if answers else 1.0 + seconds)
        self.kept = len(part.alive()) if answers and part.is_able else 0
        part.end(part.alive(), STOPPED if self.kept else KILLED)
        self._lose()

    def _note_young(self) -> None:
        """Take note of processes that stop before their first step, and so by no vote."""
        if self.running.step is None and self.training is not None:
            self.training.is_young = True

    def _stopped(self, part: Processes) -> None:
        if part.alive():
            part.end(part.alive(), STOPPED)

    def _lose(self) -> None:
        if self.training is not None:
            self.training.lose(self.me.member)

    # Its end.

    def _stop_for_good(self) -> Act:
        part, begun_at, self.kept = self.part, self.now, 0
        if part is None:
            return
        if part.alive():
            tier = self.membership.standing.tier_of_a_stop(None)
            if self.votes is not None:
                self.votes.stay = False
            yield from self._leave_by_vote(tier, begun_at)
        self._end_votes()
        if part.alive():
            seconds = STOP_GRACE_SECONDS - (self.now - begun_at)
            yield from self._stop(course.Grace.after_failure(max(seconds, 0.0)))

    def _shut_down(self) -> Act:
        yield from self._stop_for_good()
        return (yield from self._leave(TERMINATED))

    def _leave(self, code: int) -> Act:
        reporter = getattr(self, "reporter", None)
        if reporter is None:
            return code
        if reporter.latest.state is AgentState.SUCCEEDED:
            code = 0
        else:
            reporter.report(AgentState.STOPPED)
        until = self.now + FLUSH_SECONDS
        while not reporter.is_empty and self.now < until:
            yield until
        return code

    def figures(self) -> JSON:
        """How far training is."""
        part = self.part
        if part is None or part.step is None:
            return {}
        return {"progress": StepProgress(step=part.step, time=self.cluster.time())}
