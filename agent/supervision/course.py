"""What an agent does about the training processes of its rounds, decided without I/O.

`AgentRounds.rounds` is a generator. It yields one order after the other, is sent what came of each, and
returns when the agent has nothing more to do. What comes in is frozen facts, what goes out is frozen orders,
so the same answers lead to the same orders. `elastic_agent` carries the orders out with torch's processes;
tests/played carries them out with processes that a seed decides about.

A recovery from a killed process, hop by hop:

1. `elastic_agent` sees the exit; `course` reports FAILED (`report/`) before it stops the other processes.
2. The controller's look at the job (`reconcilers/job/plan.py`) finds a broken member, judges the failure
   (`reconcilers/failure/`) and forms the next round (`reconcilers/world/`): job's status, then ElasticWorld.
3. Each agent's watch brings that world (`facts/world.py`: START). Agents whose processes train vote on a step
   to end with (`vote`), or stop them.
4. The members meet (`rendezvous/meeting.py`): addresses, and rank 0's decision which checkpoint counts
   (`slots/resume.py`).
5. Each forks its processes from a warm one (`warm/`); they load, and report their first step.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from agent.facts.world import AgentVerb, ExitReason, NextAction
from agent.membership import RoundStanding
from agent.monitor.hang import LOOK_SECONDS
from agent.supervision.leaving import HURRY_GRACE_SECONDS, VoteOutcome
from crds.agent_report import AgentState

T = TypeVar("T")

ENDING_SECONDS = 1.0
"""What processes get to end by themselves in a world that broke and has no successor yet: one that has just
left the others takes so long to shut Python down, and its exit code 0 explains why they failed."""

JUDGEMENT_SECONDS = 15.0
"""Longest time for which hanging processes are kept until the job has judged which of all was first. The
judgement takes 10 s at most, and less where all answer."""

LOST_SECONDS = 0.5
"""How long a collective that failed without news waits for news of who is gone."""

EXIT_BARRIER_SECONDS = 300.0
"""How long a finished agent waits for the job's end while the API server is away. As torch's exit barrier."""


# --- facts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobOrders:
    """What the job asks of this agent, at one moment."""

    now: float
    """Seconds of the monotonic clock."""
    action: NextAction
    standing: RoundStanding
    api_silent_seconds: float = 0.0
    """Time since the API server last answered."""


@dataclass(frozen=True)
class ProcessesSeen(JobOrders):
    """What one look at the processes finds, beside the news."""

    failed: bool = False
    """A process has failed of which nothing was reported yet."""
    all_ended: bool = False
    """No process runs any more, or each entrypoint function has returned."""
    alive: bool = True
    """A process runs."""
    hangs: bool = False
    """The limit has passed without a step."""
    may_hang: bool = False
    """So much of the limit has passed that a world which broke may have hung here."""
    lives_on: bool = False
    """A process runs that can live on into the next round."""
    lost: bool = False
    """Such a process has left its round by itself, since a collective has failed."""


class RoundStart(Enum):
    """What came of the start of a round."""

    STARTED = "its processes run"
    MOVED_ON = "another round is wanted"
    FAILED = "its processes cannot be started, which is reported"


class ProcessesEnd(Enum):
    """How the processes of a round ended."""

    NOT_YET = "they have not"
    WELL = "all ended with exit code 0"
    FAILED = "one failed"


# --- orders ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartRound:
    """Join the next world and start its processes. The answer is a `RoundStart`."""


@dataclass(frozen=True)
class AwaitChange:
    """Wait until the world or the processes have changed; the answer is `ProcessesSeen`."""

    seconds: float = LOOK_SECONDS
    """Longest time to wait."""


@dataclass(frozen=True)
class AwaitEnds:
    """Wait until no process runs, for so long at most. The answer is a `ProcessesSeen`."""

    seconds: float


@dataclass(frozen=True)
class AwaitNews:
    """Wait for news of the job, for so long at most. The answer is `JobOrders`."""

    seconds: float = 0.0


@dataclass(frozen=True)
class CollectEnds:
    """Take in how the processes have ended. The answer is a `ProcessesEnd`."""


@dataclass(frozen=True)
class WorksAlone:
    """Find out whether one process is left of several, and waits for nobody. The answer is a bool."""


class FailureSubject(Enum):
    """What a report of a failure is about."""

    DEVICE = "a fault of a device"
    PROCESSES = "processes that have failed"
    ENDING = "processes that fail just now, before they get a signal"
    EARLY_FINISH = "a process that ended well before the others"
    LOST = "a collective that has failed in a process that lives on"
    WAITED_FOR = "where the others are, if a collective of those that failed has timed out"
    HANG = "where processes hang"
    ASKED = "where processes are that are well, because the job asks"


@dataclass(frozen=True)
class ReportFailure:
    """Report a failure, if there is one. The answer is a bool: there was one.

    For `ENDING` it is that a failure of this round is reported, by now or before, that explains others.
    """

    subject: FailureSubject
    state: AgentState | None = None
    """The agent's state that is reported with it; None leaves it as it was."""


@dataclass(frozen=True)
class ReportSuccess:
    """Report that training has ended well, with its result."""


@dataclass(frozen=True)
class NoteGoodEnd:
    """Have the other agents of the round know that the processes here have ended well."""


@dataclass(frozen=True)
class LeaveByVote:
    """Leave by vote for a planned change, or because another agent asks. The answer is a `VoteOutcome`."""

    action: NextAction
    begun_at: float
    """When the grace began."""


@dataclass(frozen=True)
class EndVotes:
    """Take part in no more votes of the round."""


@dataclass(frozen=True)
class Grace:
    """The time that processes get from SIGTERM to SIGKILL. News of the job may shorten it.

    | the next world | the processes get |
    |---|---|
    | is formed, and a failure ended ours | `failure_seconds`: their peers are dead |
    | is formed, by plan | all of the grace: their peers are well |
    | is formed while they still stop | `HURRY_GRACE_SECONDS` in all: its other members wait |
    | is not formed yet, or is not ours | all of the grace |
    """

    seconds: float
    failure_seconds: float
    is_planned: bool = False
    """The next world was formed by plan before the signal was sent."""
    is_fixed: bool = False
    """No news changes it."""

    @classmethod
    def of(cls, action: NextAction, standing: RoundStanding, seconds: float, failure_seconds: float) -> Grace:
        """Return the grace of processes that get their signal now."""
        formed = action.verb is AgentVerb.START
        if formed and standing.peers_are_dead:
            return cls.after_failure(failure_seconds)
        return cls(seconds, failure_seconds, is_planned=formed)

    @classmethod
    def after_failure(cls, seconds: float) -> Grace:
        """Return the grace of processes whose peers are dead."""
        return cls(seconds, seconds, is_fixed=True)

    def after_news(self, action: NextAction, standing: RoundStanding) -> float | None:
        """Return the grace in all after news came; None if it stays as it was."""
        if self.is_fixed or action.verb is not AgentVerb.START:
            return None
        if self.is_planned and not standing.peers_are_dead:
            return None
        return max(HURRY_GRACE_SECONDS, self.failure_seconds)


@dataclass(frozen=True)
class StopProcesses:
    """Signal all processes, and kill what is left when the grace is over."""

    grace: Grace


@dataclass(frozen=True)
class KeepProcesses:
    """Have the processes that can live on leave the round, and keep them for the next; end all others."""

    grace_seconds: float
    """From SIGTERM to SIGKILL for the others."""


@dataclass(frozen=True)
class Kill:
    """End what is left of processes that have left or were stopped."""


@dataclass(frozen=True)
class StandBy:
    """Report that nothing runs here any more."""


@dataclass(frozen=True)
class EndLeftovers:
    """End what the processes of a good end have left behind."""


Order = (
    StartRound
    | AwaitChange
    | AwaitEnds
    | AwaitNews
    | CollectEnds
    | WorksAlone
    | ReportFailure
    | ReportSuccess
    | NoteGoodEnd
    | LeaveByVote
    | EndVotes
    | StopProcesses
    | KeepProcesses
    | Kill
    | StandBy
    | EndLeftovers
)
Steps = Generator[Order, Any, T]


class RoundEnd(Enum):
    """How a round, or the work of the agent, ended without a word of the job."""

    FAILED = "its processes failed"
    SUCCEEDED = "its processes ended well"
    UNHEARD = "its processes ended well, and the API server is away"
    MOVED_ON = "the world did"


# --- the course -----------------------------------------------------------------------------------------


class AgentRounds:
    """The rounds of one agent.

    Args:
        stops_at_first_failure: one failed process ends its round; False for functions, whose results torch
            collects together.
        restarts: number of failures after which the agent goes on; None for any number.
        stop_grace_seconds: from SIGTERM to SIGKILL for processes that stop.
        failure_grace_seconds: the same for processes whose peer has failed.
    """

    def __init__(
        self,
        *,
        stops_at_first_failure: bool,
        restarts: int | None,
        stop_grace_seconds: float,
        failure_grace_seconds: float,
    ) -> None:
        self._stops_at_first_failure = stops_at_first_failure
        self.restarts_left = restarts
        """Number of failures after which the agent still goes on; None for any number."""
        self._grace_seconds = stop_grace_seconds
        self._failure_grace_seconds = failure_grace_seconds

    def rounds(self) -> Steps[RoundEnd | ExitReason]:
        """Run one round after the other, until the last has ended or the job has no place for this agent."""
        while True:
            start: RoundStart = yield StartRound()
            end: RoundEnd | ExitReason = RoundEnd.MOVED_ON
            if start is RoundStart.STARTED:
                end = yield from self._supervise()
            elif start is RoundStart.FAILED:
                end = RoundEnd.FAILED
            yield EndVotes()
            if isinstance(end, ExitReason):
                return end
            if end is RoundEnd.FAILED:
                if self.restarts_left == 0:
                    return end
                if self.restarts_left is not None:
                    self.restarts_left -= 1
            elif end is RoundEnd.SUCCEEDED and (last := (yield from self._await_job_end())) is not None:
                return last

    def _supervise(self) -> Steps[RoundEnd | ExitReason]:
        """Watch the processes until they end, or until the world does and they have been stopped."""
        wait_seconds, news_due_at = LOOK_SECONDS, math.inf
        while True:
            seen: ProcessesSeen = yield AwaitChange(wait_seconds)
            broken = seen.action.verb is not AgentVerb.WAIT
            if seen.lost:
                news_due_at = min(news_due_at, seen.now + LOST_SECONDS)
                wait_seconds = max(news_due_at - seen.now, 0.0)
            end = yield from self._end_by_themselves(seen, broken=broken)
            if end is RoundEnd.FAILED:  # the driver may tell why a moment later than the process
                yield ReportFailure(FailureSubject.DEVICE)
            if end is not None:
                return end
            outcome: VoteOutcome = yield LeaveByVote(seen.action, seen.now)
            if outcome is VoteOutcome.ENDED:
                found: ProcessesSeen = yield AwaitEnds(0.0)
                return (yield from self._end_of_processes(found, broken=False)) or RoundEnd.MOVED_ON
            if outcome is VoteOutcome.STAYED:
                yield KeepProcesses(self._failure_grace_seconds)
            if outcome in (VoteOutcome.LEFT, VoteOutcome.STAYED, VoteOutcome.STOPPED):
                return (yield from self._leave(seen.action))
            if broken:
                return (yield from self._stop(seen))
            if seen.now >= news_due_at:
                yield ReportFailure(FailureSubject.LOST, AgentState.FAILED)
                return (yield from self._fail(seen))

    def _end_by_themselves(self, seen: ProcessesSeen, *, broken: bool) -> Steps[RoundEnd | None]:
        """Return how the round ended here: by a device, by its processes or by a hang; None if it goes on."""
        if not broken and (yield ReportFailure(FailureSubject.DEVICE, AgentState.FAILED)):
            return (yield from self._fail(None))
        end = yield from self._end_of_processes(seen, broken=broken)
        if end is not None or broken or not seen.hangs:
            return end
        if (yield WorksAlone()) or not (yield ReportFailure(FailureSubject.HANG, AgentState.FAILED)):
            return None
        yield from self._await_judgement()
        return (yield from self._fail(None))

    def _end_of_processes(self, seen: ProcessesSeen, *, broken: bool) -> Steps[RoundEnd | None]:
        """Return how they ended, if one failed or all have ended; in a `broken` world failures wait."""
        if seen.failed and broken:
            return None
        if seen.failed and self._stops_at_first_failure:
            # Report first, and then stop the others: the controller forms the next round meanwhile.
            yield ReportFailure(FailureSubject.PROCESSES, AgentState.FAILED)
            yield ReportFailure(FailureSubject.ENDING)
            if (yield ReportFailure(FailureSubject.WAITED_FOR)):
                yield from self._await_judgement()
                return (yield from self._fail(None))
            return (yield from self._fail(seen))
        ended: ProcessesEnd = (yield CollectEnds()) if seen.all_ended else ProcessesEnd.NOT_YET
        if ended is ProcessesEnd.FAILED:
            yield ReportFailure(FailureSubject.PROCESSES, AgentState.FAILED)
            return RoundEnd.FAILED
        if ended is ProcessesEnd.WELL:
            yield ReportSuccess()
            yield NoteGoodEnd()  # last: it waits for rank 0's agent, whose node may be gone
            return RoundEnd.SUCCEEDED
        return None

    def _fail(self, seen: ProcessesSeen | None) -> Steps[RoundEnd]:
        """End the round here after a failure was reported.

        Args:
            seen: how things stand; None where no process is to live on, as what ails it is not known.
        """
        if seen is not None and seen.lives_on and self.restarts_left != 0:
            yield KeepProcesses(self._failure_grace_seconds)
        else:
            yield StopProcesses(Grace.after_failure(self._failure_grace_seconds))
        return RoundEnd.FAILED

    def _leave(self, action: NextAction) -> Steps[RoundEnd | ExitReason]:
        """Go on after the processes have left by vote."""
        yield Kill()
        if action.verb is AgentVerb.EXIT:
            return action.reason or ExitReason.REPLACED
        if action.verb is AgentVerb.WAIT:
            yield StandBy()
        return RoundEnd.MOVED_ON

    def _stop(self, seen: ProcessesSeen) -> Steps[RoundEnd | ExitReason]:
        """Report what broke the world, as far as it shows here, and stop or keep the processes."""
        begun_at, lives_on = seen.now, seen.lives_on
        yield EndVotes()
        news: JobOrders = yield AwaitNews()
        seconds = self._grace_seconds - (news.now - begun_at)
        standing, exits = news.standing, news.action.verb is AgentVerb.EXIT
        if news.action.verb is AgentVerb.STAND_BY and standing.peers_are_dead and not lives_on:
            seen = yield AwaitEnds(ENDING_SECONDS)
            end = yield from self._end_of_processes(seen, broken=True)
            if end is not None:
                return end
        yield from self._report_what_broke_the_world(leaving=exits)
        news = yield AwaitNews()
        if not exits and news.standing.asks_where_it_hangs:
            yield from self._await_judgement()
            yield StopProcesses(Grace.after_failure(self._failure_grace_seconds))
            return RoundEnd.MOVED_ON
        if lives_on and not exits and news.standing.peers_are_dead and news.action.verb is not AgentVerb.EXIT:
            yield KeepProcesses(self._failure_grace_seconds)
            return RoundEnd.MOVED_ON
        yield StopProcesses(Grace.of(news.action, news.standing, seconds, self._failure_grace_seconds))
        return (news.action.reason or ExitReason.REPLACED) if exits else RoundEnd.MOVED_ON

    def _report_what_broke_the_world(self, *, leaving: bool) -> Steps[None]:
        """Report what shows here of a world that is broken already, by our processes perhaps.

        Others may have failed, or waited, because of ours. The controller judges who was first, by what all
        have reported of the round.

        Args:
            leaving: the agent is about to leave, so that a hang is nobody's business any more.
        """
        yield ReportFailure(FailureSubject.DEVICE)
        if (
            (yield ReportFailure(FailureSubject.ENDING))
            or leaving
            or (yield ReportFailure(FailureSubject.EARLY_FINISH))
        ):
            return
        seen: ProcessesSeen = yield AwaitEnds(0.0)
        asked, broke = seen.standing.asks_where_it_hangs, not seen.standing.is_ended_by_plan
        if seen.alive and broke and (seen.may_hang or asked):  # who is asked and is silent is taken to hang
            yield ReportFailure(FailureSubject.HANG if seen.may_hang else FailureSubject.ASKED)

    def _await_judgement(self) -> Steps[None]:
        """Wait until all ranks have reported where they hang: the end of one moves its peers."""
        news: JobOrders = yield AwaitNews()
        deadline = news.now + JUDGEMENT_SECONDS
        while news.standing.awaits_judgement(news.action) and news.now < deadline:
            news = yield AwaitNews(deadline - news.now)

    def _await_job_end(self) -> Steps[RoundEnd | None]:
        """Wait after a success until the job has ended; None when a newer round wants this agent.

        This is torch's exit barrier.
        """
        seconds = 0.0
        while True:
            news: JobOrders = yield AwaitNews(seconds)
            if news.action.verb is AgentVerb.EXIT:
                return RoundEnd.SUCCEEDED
            if news.action.verb is AgentVerb.START:
                yield EndLeftovers()
                return None
            seconds = EXIT_BARRIER_SECONDS - news.api_silent_seconds
            if seconds <= 0:
                return RoundEnd.UNHEARD
