"""What an agent does about its processes, order by order; whole lives are in tests/played."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agent.facts.world import WAIT, AgentVerb, AgentWorld, ExitReason, Member, NextAction
from agent.membership import RoundStanding
from agent.monitor.hang import LOOK_SECONDS
from agent.supervision import course
from agent.supervision.course import (
    LOST_SECONDS,
    FailureSubject,
    Grace,
    JobOrders,
    KeepProcesses,
    ProcessesEnd,
    ProcessesSeen,
    ReportFailure,
    RoundStart,
    StopProcesses,
)
from agent.supervision.failure_reporter import FailureReporter
from agent.supervision.leaving import HURRY_GRACE_SECONDS, VoteOutcome
from crds.agent_report import AgentState
from crds.phases import RendezvousPhase

ME = Member(0, 1)
JOINED = AgentWorld(1, RendezvousPhase.FORMED, (ME,), 1)
NEXT = AgentWorld(2, RendezvousPhase.FORMED, (ME,), 1)
BROKEN = AgentWorld(1, RendezvousPhase.REFORMING, (ME,), 1, broken_round=1)
HANGS = AgentWorld(1, RendezvousPhase.REFORMING, (ME,), 1, broken_round=1, hangs=True)
START, STAND_BY = NextAction(AgentVerb.START, 2), NextAction(AgentVerb.STAND_BY, 1)


def seen(action: NextAction = WAIT, newest: AgentWorld = JOINED, **more: Any) -> ProcessesSeen:
    return ProcessesSeen(0.0, action, RoundStanding(ME, JOINED, newest), **more)


def orders(look: ProcessesSeen, **answers: Any) -> list[Any]:
    """What is ordered from a look on, until the next round is joined, or the agent leaves."""
    return watched([look], **answers)[1]


def watched(looks: Sequence[ProcessesSeen], **answers: Any) -> tuple[list[float], list[Any]]:
    """What is ordered where the looks find this, one after the other, and the waits for each."""
    given: dict[str, Any] = {
        "ReportFailure": False,
        "WorksAlone": False,
        "LeaveByVote": VoteOutcome.OFF,
    } | answers
    rounds = course.AgentRounds(
        stops_at_first_failure=True,
        restarts=answers.get("restarts"),
        stop_grace_seconds=30.0,
        failure_grace_seconds=1.0,
    ).rounds()
    next(rounds)
    answer, found, waits = RoundStart.STARTED, list[Any](), list[float]()
    while True:
        try:
            order = rounds.send(answer)
        except StopIteration as stop:
            return waits, [*found, stop.value]
        if isinstance(order, course.StartRound):
            return waits, found
        look = looks[max(min(len(waits), len(looks)) - 1, 0)]
        match order:
            case course.AwaitChange(seconds):
                answer = looks[min(len(waits), len(looks) - 1)]
                waits.append(seconds)
            case course.AwaitEnds():
                answer = look
            case course.AwaitNews():
                answer = JobOrders(look.now, look.action, look.standing)
            case course.ReportFailure(subject):
                found.append(order)
                answer = subject is given.get("found")
            case _:
                found.append(order)
                answer = given.get(type(order).__name__)


def kinds(found: list[Any]) -> list[Any]:
    told = [it.subject if isinstance(it, ReportFailure) else it for it in found]
    return [
        it
        for it in told
        if it is not FailureSubject.DEVICE and not isinstance(it, course.EndVotes | course.LeaveByVote)
    ]


def test_a_failure_is_reported_before_its_peers_are_stopped() -> None:
    ordered, stop = orders(seen(failed=True)), StopProcesses(Grace.after_failure(1.0))
    told = [FailureSubject.PROCESSES, FailureSubject.ENDING, FailureSubject.WAITED_FOR]
    assert kinds(ordered) == [*told, stop]
    late = ordered[ordered.index(stop) :]
    assert ReportFailure(FailureSubject.DEVICE) in late, "the driver may report its fault a moment later"


def test_a_failure_in_a_world_that_is_broken_is_told_with_the_state_as_it_is() -> None:
    found = orders(seen(STAND_BY, BROKEN, failed=True), found=FailureSubject.ENDING)
    assert kinds(found) == [FailureSubject.ENDING, StopProcesses(Grace(30.0, 1.0))]
    assert ReportFailure(FailureSubject.ENDING) in found
    assert ReportFailure(FailureSubject.PROCESSES, AgentState.FAILED) not in found


def test_who_can_live_on_is_kept_through_a_failure_here_and_elsewhere() -> None:
    found = kinds(orders(seen(failed=True, lives_on=True)))
    assert found[0] is FailureSubject.PROCESSES and found[-1] == KeepProcesses(1.0)
    for action, newest in ((STAND_BY, BROKEN), (START, replace(NEXT, broken_round=1))):
        found = kinds(orders(seen(action, newest, lives_on=True)))
        assert found[-1] == KeepProcesses(1.0)
        assert not any(isinstance(it, StopProcesses) for it in found)


@pytest.mark.parametrize(
    ("look", "answers"),
    [
        (seen(START, NEXT, lives_on=True), {}),
        (seen(NextAction(AgentVerb.EXIT, reason=ExitReason.JOB_FAILED), BROKEN, lives_on=True), {}),
        (replace(seen(STAND_BY, HANGS, lives_on=True), now=math.inf), {}),
        (seen(hangs=True, newest=NEXT, lives_on=True), {"found": FailureSubject.HANG}),
        (seen(newest=NEXT, lives_on=True), {"found": FailureSubject.DEVICE}),
        (seen(newest=NEXT, failed=True, lives_on=True), {"found": FailureSubject.WAITED_FOR}),
    ],
    ids=["plan", "exit", "a hang elsewhere", "a hang", "a device", "waited for"],
)
def test_nobody_is_kept_by_a_plan_at_the_end_or_where_what_is_wrong_may_be_here(
    look: ProcessesSeen, answers: dict[str, Any]
) -> None:
    found = [type(it) for it in orders(look, **answers)]
    assert StopProcesses in found and KeepProcesses not in found


def test_the_last_failure_that_is_allowed_keeps_nobody() -> None:
    found = [type(it) for it in orders(seen(failed=True, lives_on=True), restarts=0)]
    assert StopProcesses in found and KeepProcesses not in found


def test_a_collective_that_fails_without_news_is_reported_half_a_second_later() -> None:
    looks = [
        seen(lives_on=True),
        seen(lives_on=True, lost=True),
        replace(seen(lives_on=True, lost=True), now=0.4),
        replace(seen(lives_on=True, lost=True), now=0.5),
    ]
    waits, found = watched(looks)
    assert waits == [LOOK_SECONDS, LOOK_SECONDS, LOST_SECONDS, pytest.approx(0.1)]
    assert kinds(found) == [FailureSubject.LOST, KeepProcesses(1.0)]
    assert ReportFailure(FailureSubject.LOST, AgentState.FAILED) in found
    found = watched([looks[1], seen(STAND_BY, BROKEN, lives_on=True, lost=True)])[1]
    assert FailureSubject.LOST not in kinds(found), "the news tell who is gone"
    found = watched([looks[1], seen(failed=True, lives_on=True, lost=True)])[1]
    assert kinds(found)[0] is FailureSubject.PROCESSES, "a process here is gone"


def test_a_good_end_counts_though_the_others_cannot_go_on() -> None:
    look = seen(STAND_BY, BROKEN, all_ended=True, alive=False)
    found = kinds(orders(look, CollectEnds=ProcessesEnd.NOT_YET))
    assert course.CollectEnds() in found
    end = orders(
        seen(NextAction(AgentVerb.EXIT, reason=ExitReason.JOB_SUCCEEDED), all_ended=True),
        CollectEnds=ProcessesEnd.WELL,
    )
    assert end[-1] is course.RoundEnd.SUCCEEDED
    reports = [it for it in end if isinstance(it, course.ReportSuccess | course.NoteGoodEnd)]
    assert reports == [course.ReportSuccess(), course.NoteGoodEnd()], "the others learn of it last"


def test_a_rank_that_works_on_after_all_others_have_ended_hangs_for_nobody() -> None:
    hangs = kinds(orders(seen(hangs=True, newest=NEXT), found=FailureSubject.HANG))
    assert hangs[-2:] == [FailureSubject.HANG, StopProcesses(Grace.after_failure(1.0))]
    looks = [seen(hangs=True), seen(START, NEXT)]
    assert FailureSubject.HANG not in kinds(watched(looks, WorksAlone=True)[1])


def test_who_is_asked_where_it_hangs_says_so_though_it_is_well() -> None:
    assert FailureSubject.HEALTHY in kinds(orders(_asked(may_hang=False)))
    assert FailureSubject.HANG in kinds(orders(_asked(may_hang=True)))


def test_a_process_that_only_lost_its_peer_does_not_hide_another_that_hangs() -> None:
    """`ENDING` is answered by a failure that explains others, and only then nobody is asked any further."""
    standing = RoundStanding(ME, JOINED, HANGS)
    look = ProcessesSeen(float("inf"), STAND_BY, standing, failed=True, may_hang=True)
    assert FailureSubject.HANG in kinds(orders(look))
    assert FailureSubject.HANG not in kinds(orders(look, found=FailureSubject.ENDING))


def test_who_made_no_step_for_a_while_does_not_hang_where_a_planned_change_ends_its_round() -> None:
    assert FailureSubject.HANG in kinds(orders(seen(STAND_BY, BROKEN, may_hang=True)))
    scaled = AgentWorld(1, RendezvousPhase.REFORMING, (ME,), 1)
    for planned in (seen(START, NEXT, may_hang=True), seen(STAND_BY, scaled, may_hang=True)):
        assert FailureSubject.HANG not in kinds(orders(planned))


@pytest.mark.parametrize(
    ("newest", "is_early"), [(JOINED, True), (BROKEN, True), (HANGS, True), (NEXT, False)]
)
def test_who_ended_well_before_the_others_is_reported_unless_a_planned_change_took_them(
    newest: AgentWorld, is_early: bool
) -> None:
    early = SimpleNamespace(message="rank 0 finished early")
    reports: list[Any] = []
    reporter: Any = SimpleNamespace(
        latest=SimpleNamespace(observed_round=1, failures=0),
        report=lambda state, failure: reports.append((state, failure)),
    )
    membership: Any = SimpleNamespace(standing=RoundStanding(ME, JOINED, newest))
    post_mortem: Any = SimpleNamespace(exit_codes=lambda _: {0: 0}, describe_early_finish=lambda *_: early)
    none: Any = None
    failures = FailureReporter(membership, reporter, post_mortem, none, none, none)
    assert failures.report_early_finish({0: 0}, none, AgentState.RUNNING) is is_early
    assert reports == [(AgentState.RUNNING, early)] * is_early


def _asked(*, may_hang: bool) -> ProcessesSeen:
    """The world is already given up when it is looked at again, so that nothing waits for a judgement."""
    standing = RoundStanding(ME, JOINED, HANGS)
    return ProcessesSeen(float("inf"), STAND_BY, standing, may_hang=may_hang)


def test_a_world_that_moves_on_stops_the_processes_within_the_grace_of_the_next() -> None:
    (stop,) = (it for it in orders(seen(START, NEXT)) if isinstance(it, StopProcesses))
    assert stop.grace == Grace(30.0, 1.0, is_planned=True)
    lost = AgentWorld(2, RendezvousPhase.FORMED, (ME,), 1, broken_round=1)
    (stop,) = (it for it in orders(seen(START, lost)) if isinstance(it, StopProcesses))
    assert stop.grace == Grace.after_failure(1.0)


def test_the_grace_is_cut_once_others_wait() -> None:
    grace = Grace.of(STAND_BY, RoundStanding(ME, JOINED, BROKEN), 30.0, 1.0)
    assert grace.after_news(STAND_BY, RoundStanding(ME, JOINED, BROKEN)) is None
    assert grace.after_news(START, RoundStanding(ME, JOINED, NEXT)) == HURRY_GRACE_SECONDS
    planned = Grace.of(START, RoundStanding(ME, JOINED, NEXT), 30.0, 1.0)
    assert planned.after_news(START, RoundStanding(ME, JOINED, NEXT)) is None
    assert (
        Grace.of(STAND_BY, RoundStanding(ME, JOINED, BROKEN), 30.0, 300.0).after_news(
            START, RoundStanding(ME, JOINED, NEXT)
        )
        == 300.0
    )


def test_who_has_left_by_vote_is_neither_stopped_nor_reported() -> None:
    found = kinds(orders(seen(START, NEXT), LeaveByVote=VoteOutcome.LEFT))
    assert found == [course.Kill()]
    assert kinds(orders(seen(WAIT), LeaveByVote=VoteOutcome.LEFT)) == [course.Kill(), course.StandBy()]
    stayed = kinds(orders(seen(WAIT, lives_on=True), LeaveByVote=VoteOutcome.STAYED))
    assert stayed == [KeepProcesses(1.0), course.Kill(), course.StandBy()]
    leaves = orders(
        seen(NextAction(AgentVerb.EXIT, reason=ExitReason.JOB_SUSPENDED)), LeaveByVote=VoteOutcome.LEFT
    )
    assert leaves[-1] is ExitReason.JOB_SUSPENDED


def test_who_has_ended_well_leaves_without_a_word_of_the_job_once_the_api_server_is_long_away() -> None:
    rounds = course.AgentRounds(
        stops_at_first_failure=True, restarts=None, stop_grace_seconds=30.0, failure_grace_seconds=1.0
    ).rounds()
    standing, silent_seconds = (
        RoundStanding(ME, JOINED, JOINED),
        iter((0.0, 100.0, course.EXIT_BARRIER_SECONDS)),
    )
    answer: Any = None
    waits: list[float] = []
    with pytest.raises(StopIteration) as stop:
        while True:
            match rounds.send(answer):
                case course.StartRound():
                    answer = RoundStart.STARTED
                case course.AwaitChange():
                    answer = seen(all_ended=True, alive=False)
                case course.CollectEnds():
                    answer = ProcessesEnd.WELL
                case course.AwaitNews(seconds):
                    waits.append(seconds)
                    answer = JobOrders(0.0, WAIT, standing, next(silent_seconds))
                case _:
                    answer = False
    assert stop.value.value is course.RoundEnd.UNHEARD
    assert waits == [0.0, course.EXIT_BARRIER_SECONDS, course.EXIT_BARRIER_SECONDS - 100.0]
