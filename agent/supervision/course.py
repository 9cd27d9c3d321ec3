"""Decides, without I/O, what an agent does with the training processes of its rounds.

`AgentRounds.rounds` is a generator. It yields one order after the other, is sent the result of each, and
returns when the agent has nothing more to do. Orders and results are frozen, and the same results lead to the
same orders. `elastic_agent` carries the orders out with torch's processes; tests/played does so with
simulated processes, driven by a seed.

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
"""Time for processes to end by themselves in a broken world without a successor: a process that has just left
the others needs it to shut Python down, and its exit code 0 explains their failure."""

JUDGEMENT_SECONDS = 15.0
"""Time limit for keeping hanging processes until the controller has judged which of all hung first. The
judgement takes 10 s at most, and less where all answer."""

LOST_SECONDS = 0.5
"""Time to wait, after a collective failed, for the controller to report who is gone."""

EXIT_BARRIER_SECONDS = 300.0
"""Time that a finished agent waits for the job's end while the API server is away; torch's exit barrier."""


# --- facts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobOrders:
    """The job's orders for this agent at one moment."""

    now: float
    """Seconds of the monotonic clock."""
    action: NextAction
    standing: RoundStanding
    api_silent_seconds: float = 0.0
    """Time since the API server last answered."""


@dataclass(frozen=True)
class ProcessesSeen(JobOrders):
    """State of the processes at one look, with the job's orders."""

    failed: bool = False
    """A process has failed, and its failure was not reported yet."""
    all_ended: bool = False
    """No process runs any more, or each entrypoint function has returned."""
    alive: bool = True
    """A process runs."""
    hangs: bool = False
    """The limit for hangs has passed without a step."""
    may_hang: bool = False
    """Enough of the limit has passed that this may be the hang that broke the world."""
    lives_on: bool = False
    """A process runs that can live on into the next round."""
    lost: bool = False
    """A process that can live on has left its round by itself, since a collective failed."""


class RoundStart(Enum):
    """Result of the start of a round."""

    STARTED = "its processes run"
    MOVED_ON = "another round is wanted"
    FAILED = "its processes cannot be started, which is reported"


class ProcessesEnd(Enum):
    """Outcome of the processes of a round."""

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
    """Wait at most this long until no process runs. The answer is a `ProcessesSeen`."""

    seconds: float


@dataclass(frozen=True)
class AwaitNews:
    """Wait at most this long for news of the job. The answer is `JobOrders`."""

    seconds: float = 0.0


@dataclass(frozen=True)
class CollectEnds:
    """Collect the results of the processes. The answer is a `ProcessesEnd`."""


@dataclass(frozen=True)
class WorksAlone:
    """Find out whether one process is left of several and waits for no other. The answer is a bool."""


class FailureSubject(Enum):
    """Subject of a failure report."""

    DEVICE = "a fault of a device"
    PROCESSES = "processes that have failed"
    ENDING = "processes that are just failing, before they get a signal"
    EARLY_FINISH = "a process that ended well before the others"
    LOST = "a failed collective in a process that lives on"
    WAITED_FOR = "where the other processes are, after a collective of the failed ones timed out"
    HANG = "where processes hang"
    HEALTHY = "where healthy processes are, at the job's request"


@dataclass(frozen=True)
class ReportFailure:
    """Report a failure, if there is one. The answer is a bool: there was one.

    For `ENDING` the answer is whether a failure that explains others has been reported for this round.
    """

    subject: FailureSubject
    state: AgentState | None = None
    """The agent's state in the report; None leaves it unchanged."""


@dataclass(frozen=True)
class ReportSuccess:
    """Report the success of the training, with its result."""


@dataclass(frozen=True)
class NoteGoodEnd:
    """Inform the other agents of the round that the processes here have ended well."""


@dataclass(frozen=True)
class LeaveByVote:
    """Leave by vote for a planned change or at another agent's request. The answer is a `VoteOutcome`."""

    action: NextAction
    begun_at: float
    """Start of the grace period."""


@dataclass(frozen=True)
class EndVotes:
    """Take part in no more votes of the round."""


@dataclass(frozen=True)
class Grace:
    """Time of processes between SIGTERM and SIGKILL. News of the job may shorten it.

    | the next world | time of the processes |
    |---|---|
    | is formed after a failure | `failure_seconds`: their peers are dead |
    | is formed by plan | the whole grace: their peers are well |
    | is formed while they stop | `HURRY_GRACE_SECONDS` in all: its other members wait |
    | is not formed yet, or is without this agent | the whole grace |
    """

    seconds: float
    failure_seconds: float
    is_planned: bool = False
    """The next world was formed by plan before the signal was sent."""
    is_fixed: bool = False
    """News does not change it."""

    @classmethod
    def of(cls, action: NextAction, standing: RoundStanding, seconds: float, failure_seconds: float) -> Grace:
        """Return the grace of processes that get SIGTERM now."""
        formed = action.verb is AgentVerb.START
        if formed and standing.peers_are_dead:
            return cls.after_failure(failure_seconds)
        return cls(seconds, failure_seconds, is_planned=formed)

    @classmethod
    def after_failure(cls, seconds: float) -> Grace:
        """Return the grace of processes whose peers are dead."""
        return cls(seconds, seconds, is_fixed=True)

    def after_news(self, action: NextAction, standing: RoundStanding) -> float | None:
        """Return the total grace after news; None if it is unchanged."""
        if self.is_fixed or action.verb is not AgentVerb.START:
            return None
        if self.is_planned and not standing.peers_are_dead:
            return None
        return max(HURRY_GRACE_SECONDS, self.failure_seconds)


@dataclass(frozen=True)
class StopProcesses:
    """Send all processes SIGTERM, and SIGKILL to those that run after the grace."""

    grace: Grace


@dataclass(frozen=True)
class KeepProcesses:
    """Keep the processes that can live on for the next round, and end all others."""

    grace_seconds: float
    """Time of the others between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Kill:
    """Kill the remains of processes that have left or were stopped."""


@dataclass(frozen=True)
class StandBy:
    """Report that no training process runs here any more."""


@dataclass(frozen=True)
class EndLeftovers:
    """End the orphans of processes that ended well."""


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
    """End of a round, or of the agent, that the job did not order."""

    FAILED = "its processes failed"
    SUCCEEDED = "its processes ended well"
    UNHEARD = "its processes ended well, and the API server is away"
    MOVED_ON = "another world is wanted"


# --- the course -----------------------------------------------------------------------------------------


class AgentRounds:
    """The rounds of one agent.

    Args:
        stops_at_first_failure: one failed process ends its round; False for functions, whose results torch
            collects together.
        restarts: number of failures after which the agent goes on; None for any number.
        stop_grace_seconds: time between SIGTERM and SIGKILL for processes that stop.
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
        """Number of further failures after which the agent goes on; None for any number."""
        self._grace_seconds = stop_grace_seconds
        self._failure_grace_seconds = failure_grace_seconds

    def rounds(self) -> Steps[RoundEnd | ExitReason]:
        """Run one round after the other, until the last ends or the job has no place for this agent."""
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
        """Watch the processes until they end, or until their world ends and they are stopped."""
        wait_seconds, news_due_at = LOOK_SECONDS, math.inf
        while True:
            seen: ProcessesSeen = yield AwaitChange(wait_seconds)
            broken = seen.action.verb is not AgentVerb.WAIT
            if seen.lost:
                news_due_at = min(news_due_at, seen.now + LOST_SECONDS)
                wait_seconds = max(news_due_at - seen.now, 0.0)
            end = yield from self._end_by_themselves(seen, broken=broken)
            if end is RoundEnd.FAILED:  # the driver may report its fault a moment after the process failed
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
        """Return the round's end by a device fault, by its processes or by a hang; None if it goes on."""
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
        """Return the outcome if one failed or all ended, else None; in a `broken` world failures wait."""
        if seen.failed and broken:
            return None
        if seen.failed and self._stops_at_first_failure:
            # Report before stopping the others: meanwhile the controller forms the next round.
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
            seen: state of the processes; None if none may live on, since the fault is not understood.
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
        """Report local causes of the broken world, and stop or keep the processes."""
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
        yield from self._report_local_causes(leaving=exits)
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

    def _report_local_causes(self, *, leaving: bool) -> Steps[None]:
        """Report what may have broken the world here.

        Other processes may have failed or waited because of ours. The controller judges from all reports of
        the round which was first.

        Args:
            leaving: the agent is about to leave, so that a hang does not matter any more.
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
        if seen.alive and broke and (seen.may_hang or asked):  # no answer to a request counts as a hang
            yield ReportFailure(FailureSubject.HANG if seen.may_hang else FailureSubject.HEALTHY)

    def _await_judgement(self) -> Steps[None]:
        """Wait until all ranks have reported where they hang: once one ends, its peers move on."""
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
