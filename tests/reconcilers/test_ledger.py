from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState, LivedOn, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import MAX_EPISODE_MEMBERS, MAX_EPISODES, ElasticJobStatus, JobFailure, JobState
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.facts import Break
from reconcilers.failure.incidents import in_one_line
from reconcilers.goodput.goodput import goodput_now, seconds_by_state
from reconcilers.goodput.ledger import (
    REFRESH_SECONDS,
    REFRESH_SHARE,
    Moment,
    balanced,
    failed_at,
    in_short,
    refresh_seconds,
    with_account,
)
from reconcilers.observed.status_patch import merge_patch
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, job, later, report, worker

UNSCHEDULABLE = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": NOW}


@dataclass
class Life:
    """A job of two workers as the ledger sees it, look by look; every look may be another controller's."""

    job: ElasticJob = field(default_factory=lambda: submitted())
    workers: list[ElasticWorker] = field(default_factory=lambda: [worker(0), worker(1)])
    seconds: float = 0.0
    writes: int = 0

    def look(
        self,
        after: float = 0.0,
        world: Rendezvous | None = None,
        phase: JobPhase = JobPhase.RUNNING,
        broken_at: datetime | None = None,
        active_check: str | None = None,
        failure: JobFailure | None = None,
    ) -> None:
        self.seconds += after
        known = self.job.status
        update: dict[str, Any] = {
            "phase": phase,
            "rendezvous": world or known.world,
            "active_check": active_check,
            "last_failure": failure or known.last_failure,
        }
        status = known.model_copy(update=update)
        moment = Moment(self.job, status, Workers(self.workers), later(self.seconds), broken_at)
        account = balanced(moment)
        if account is not None:
            self.writes += 1
            status = status.model_copy(update={"goodput": account[0], "history": list(account[1])})
        stored = ElasticJobStatus.model_validate(status.to_wire())
        self.job = self.job.model_copy(update={"status": stored})

    def told(
        self,
        *rounds: RoundProgress,
        at: float = 0.0,
        state: AgentState = AgentState.RUNNING,
        lived_on: LivedOn | None = None,
    ) -> None:
        """Both agents run the newest of these rounds, and told its last step then.

        Args:
            lived_on: of worker 1.
        """
        progress = {"step": rounds[-1].last_step, "time": later(at)} if rounds else None
        self.workers = [
            worker(
                index,
                agent=report(
                    index, state, self.round, rounds=list(rounds), progress=progress, **lives
                ).to_wire(),
            )
            for index, lives in ((0, {}), (1, {"lived_on": lived_on} if lived_on else {}))
        ]

    @property
    def round(self) -> int:
        return self.job.status.rendezvous.round if self.job.status.rendezvous else 0

    @property
    def state(self) -> JobState:
        return self.job.status.goodput.state

    @property
    def spent(self) -> dict[str, float]:
        seconds = seconds_by_state(self.job.status.goodput, later(self.seconds))
        return {state.value: round(spent, 3) for state, spent in seconds.items()}

    @property
    def episodes(self) -> list[tuple[str, float, int, str]]:
        return [
            (e.state.value, (e.since - NOW).total_seconds(), e.round, e.members)
            for e in self.job.status.history
        ]


def submitted(**spec: Any) -> ElasticJob:
    found = job(**spec)
    return found.model_copy(
        update={"metadata": found.metadata.model_copy(update={"creation_timestamp": NOW})}
    )


def formed(round_: int, reason: str = "all workers are ready", size: int = 2) -> Rendezvous:
    return Rendezvous(
        round=round_,
        phase=RendezvousPhase.FORMED,
        members=[0, 1],
        incarnations=[1, 1],
        reason=reason,
        world_size=size,
    )


def reforming(round_: int, reason: str = "worker 1 was lost") -> Rendezvous:
    return formed(round_, reason).model_copy(update={"phase": RendezvousPhase.REFORMING})


def figures(round_: int, first: int, last: int, seconds: float = 0.0) -> RoundProgress:
    return RoundProgress(round=round_, first_step=first, last_step=last, stepping_seconds=seconds)


def formed_life() -> Life:
    """Submitted at 0, formed at 10."""
    life = Life()
    life.look(phase=JobPhase.PENDING)
    life.look(10, formed(1))
    return life


@pytest.fixture
def training() -> Life:
    """Submitted at 0, formed at 10, trains from 15 on; a step a second."""
    life = formed_life()
    life.told(figures(1, 1, 1), at=15)
    life.look(5.1)
    return life


def test_a_life_from_its_submission_to_its_end(training: Life) -> None:
    training.told(figures(1, 1, 21, 20.0), at=35, state=AgentState.FAILED)
    training.look(19.9, formed(2, "training processes of worker 1 failed"), broken_at=later(35))
    training.told(figures(1, 1, 21, 20.0), figures(2, 11, 11), at=40)
    training.look(5.2)
    training.told(figures(1, 1, 21, 20.0), figures(2, 11, 31, 20.0), at=60, state=AgentState.SUCCEEDED)
    training.look(20, phase=JobPhase.SUCCEEDED)
    training.look(1_000, phase=JobPhase.SUCCEEDED)

    assert training.episodes == [
        ("Pending", 0, 0, ""),
        ("Forming", 10, 1, "0-1"),
        ("Training", 15, 1, "0-1"),
        ("Recovering", 35, 2, "0-1"),
        ("Training", 40, 2, "0-1"),
    ]
    assert training.job.status.history[3].reason == "training processes of worker 1 failed"
    assert training.job.status.history[4].reason == "from step 11 on"
    goodput = training.job.status.goodput
    assert goodput.seconds == {"Pending": 10, "Forming": 5, "Training": 40.2, "Recovering": 5}
    assert (goodput.first_step, goodput.last_step, goodput.steps_redone) == (1, 31, 11)
    assert goodput.ratio == pytest.approx(31 / 60.2, rel=1e-4)


@pytest.mark.parametrize(("ran", "trained"), [(3, False), (300, True)])
def test_a_script_that_failed_at_once_and_told_no_step_has_not_trained(ran: float, trained: bool) -> None:
    life = formed_life()
    life.workers = [worker(i, agent=report(i, AgentState.RUNNING, 1).to_wire()) for i in (0, 1)]
    life.look(1)
    assert life.state is JobState.TRAINING, "as long as it runs"
    life.look(ran, formed(2), broken_at=later(11 + ran))
    assert ("Training" in [state for state, *_ in life.episodes]) is trained
    assert (life.spent.get("Training", 0) > 0) is trained


def test_recovery_has_the_culprit_as_its_reason(training: Life) -> None:
    told = {"worker": "digits-worker-1", "rank": 1, "exitClass": "UserError", "message": "…\nValueError: bad"}
    failure = JobFailure.model_validate(told | {"time": later(20)})
    training.look(5, formed(2, "training processes of worker 1 failed"), broken_at=later(20), failure=failure)
    assert training.job.status.history[-1].reason == in_one_line(failure)
    training.look(5, formed(3, "worker 0 was lost"), broken_at=later(25))
    assert training.job.status.history[-1].reason == "worker 0 was lost"


def test_who_takes_the_blame_over_leaves_the_history_of_earlier_rounds_as_it_was(training: Life) -> None:
    told = {"worker": "digits-worker-1", "exitClass": "Unknown", "message": "lost"}
    for round_ in (1, 2):  # with the same text
        lost = JobFailure.model_validate(told | {"round": round_, "time": later(20 * round_)})
        training.look(5, reforming(round_), broken_at=later(20 * round_), failure=lost)
        training.look(5, formed(round_ + 1))
        training.told(figures(round_ + 1, 1, 1), at=20 * round_ + 10)
        training.look(5)
    first = JobFailure.model_validate(told | {"worker": "digits-worker-0", "round": 2, "time": later(40)})
    training.look(1, failure=first)
    broken = [e for e in training.job.status.history if e.reason in (in_one_line(lost), in_one_line(first))]
    assert [(e.round, e.reason) for e in broken] == [(1, in_one_line(lost)), (2, in_one_line(first))]


def test_what_a_lost_worker_had_told_is_kept_with_the_change_of_state(training: Life) -> None:
    training.told(figures(1, 1, 9, 8.0), at=23)
    training.look(10, reforming(1), broken_at=later(25))
    training.workers = [worker(0), worker(1)]  # new Pods
    training.look(10, formed(2))
    assert training.job.status.goodput.last_step == 9


def test_training_between_two_looks_is_not_lost_with_the_failure_that_ended_it() -> None:
    life = formed_life()
    life.told(figures(1, 1, 31, 30.0), at=45, state=AgentState.FAILED)
    life.look(60, formed(2), broken_at=later(46))
    assert life.spent == {"Pending": 10, "Forming": 5, "Training": 31, "Recovering": 24}
    assert life.episodes[1:] == [
        ("Forming", 10, 1, "0-1"),
        ("Training", 15, 1, "0-1"),
        ("Recovering", 46, 2, "0-1"),
    ]


@pytest.mark.parametrize("late", [False, True])
def test_the_time_until_the_next_step_is_reforming_where_processes_lived_on(
    training: Life, late: bool
) -> None:
    lives, first = LivedOn(2, 3), figures(1, 1, 46, 45.0)
    told = {"worker": "digits-worker-1", "exitClass": "Killed", "round": 1, "time": later(60)}
    killed = JobFailure.model_validate(told)
    training.told(first, at=60)
    training.look(44.9, reforming(1), broken_at=later(60), failure=killed)
    assert training.state is JobState.RECOVERING
    training.look(0.5, formed(2, size=4))
    if not late:
        training.told(first, at=60, lived_on=lives)
        training.look(0.1)
        assert training.state is JobState.REFORMING, "the round has not made its first step"
        training.look(0.1)
        assert training.state is JobState.REFORMING
    training.told(first, figures(2, 46, 46), at=61, lived_on=None if late else lives)
    training.look(0.5 if late else 0.3)
    if late:
        assert training.spent["Recovering"] == pytest.approx(1.0, abs=0.5)
        training.told(first, figures(2, 46, 46), at=61, lived_on=lives)
        training.look()
    assert training.state is JobState.TRAINING
    assert "Recovering" not in {state for state, spent in training.spent.items() if spent}
    assert training.spent["Reforming"] == pytest.approx(1.0, abs=0.5)
    assert sum(training.spent.values()) == pytest.approx(training.seconds, abs=0.01)
    broken, again, _ = training.job.status.history[-3:]
    assert (broken.state, broken.lived_on, broken.failure is not None) == ("Reforming", None, True)
    assert (again.state, again.lived_on, again.processes) == ("Reforming", 3, 4)
    writes = training.writes
    training.look(1)
    assert training.writes == writes


def test_a_failure_before_the_first_step_of_those_who_lived_on_is_an_outage_of_its_own(
    training: Life,
) -> None:
    training.look(40, formed(2, size=4), broken_at=later(55))
    training.told(figures(1, 1, 40, 39.0), at=54, lived_on=LivedOn(2, 3))
    training.look(1)
    training.look(1, formed(3, size=4), broken_at=later(56.5))
    assert training.state is JobState.RECOVERING
    training.told(figures(1, 1, 40, 39.0), figures(3, 41, 41), at=60)
    training.look(4)
    assert training.spent["Reforming"] > 0 < training.spent["Recovering"]
    assert training.job.status.history[-2].lived_on is None


def test_a_script_that_tells_no_steps_trains_while_all_its_processes_run() -> None:
    life = formed_life()
    life.look(1)
    assert life.state is JobState.FORMING
    life.told()
    life.look(1)
    assert life.state is JobState.TRAINING
    life.look(100, formed(2), broken_at=later(111))
    life.told()
    life.look(1)
    assert life.state is JobState.TRAINING
    assert life.spent == {"Pending": 10, "Forming": 2, "Training": 99, "Recovering": 2}


def test_until_the_first_step_of_all_is_told_the_script_was_only_thought_to_train() -> None:
    life = formed_life()
    life.told()
    life.look(1)
    assert life.state is JobState.TRAINING
    life.told(figures(1, 1, 3, 2.0), at=32)
    life.look(22)
    assert life.spent == {"Pending": 10, "Forming": 20, "Training": 3}
    assert life.episodes == [("Pending", 0, 0, ""), ("Forming", 10, 1, "0-1"), ("Training", 30, 1, "0-1")]
    assert life.job.status.history[-1].reason == "from step 1 on"


def test_a_check_is_its_own_state_and_recovery_goes_on_after_it(training: Life) -> None:
    training.look(10, reforming(1), broken_at=later(24))
    training.look(1, active_check="digits-check-2")
    assert training.state is JobState.CHECKING
    assert training.job.status.history[-1].reason == "check digits-check-2"
    training.look(10, formed(2))
    assert training.state is JobState.RECOVERING
    training.look(1, reforming(2), broken_at=later(36.5), active_check="digits-check-3")
    training.look(10, formed(3))
    assert training.state is JobState.RECOVERING
    assert [e[0] for e in training.episodes[3:]] == [
        "Recovering",
        "Checking",
        "Recovering",
        "Checking",
        "Recovering",
    ]


def test_a_job_is_down_when_too_few_are_left_and_nobody_is_on_the_way(training: Life) -> None:
    training.look(10, reforming(1), broken_at=later(25))
    assert training.state is JobState.RECOVERING
    training.workers[1] = worker(1, WorkerPhase.PENDING, 2, conditions=[UNSCHEDULABLE])
    training.look(5)
    assert training.state is JobState.DOWN
    training.workers[1] = worker(1, WorkerPhase.PENDING, 2)
    training.look(60)
    assert training.state is JobState.RECOVERING, "there is room again"
    assert training.spent["Down"] == 60


def test_suspension_and_what_follows_it_are_no_recovery(training: Life) -> None:
    dissolved = Rendezvous(round=1, phase=RendezvousPhase.FORMING, reason="the job is suspended")
    training.look(10, dissolved, phase=JobPhase.SUSPENDED)
    training.look(100, phase=JobPhase.PENDING)
    training.look(10, formed(2))
    assert [(e[0], e[3]) for e in training.episodes[3:]] == [
        ("Suspended", ""),
        ("Pending", ""),
        ("Forming", "0-1"),
    ]
    assert training.job.status.history[-2].reason == "resumed"
    assert training.spent["Suspended"] == 100


def test_a_clock_that_is_wrong_never_makes_more_or_less_time_of_it(training: Life) -> None:
    training.look(10, formed(2), broken_at=NOW - timedelta(days=1))
    training.told(figures(2, 1, 9, 9e6), at=-9e6)
    training.look(10)
    training.look(10, formed(3), broken_at=later(9e6))
    assert sum(training.spent.values()) == pytest.approx(training.seconds)


@pytest.mark.parametrize("wrong", [-86_400, -10, 3_600])
def test_training_time_does_not_depend_on_the_workers_clocks(wrong: float) -> None:
    life = formed_life()
    life.told(figures(1, 1, 31, 30.0), at=45 + wrong)
    life.look(35)
    life.told(figures(1, 1, 61, 60.0), at=75 + wrong, state=AgentState.FAILED)
    life.look(30, formed(2), broken_at=later(75 + wrong))
    life.told(figures(2, 61, 91, 30.0), at=110 + wrong)
    life.look(35)
    assert life.spent == {"Pending": 10, "Forming": 5, "Training": 90, "Recovering": 5}


def failed_report(index: int, at: float, **failure: Any) -> Break:
    told = {"sequence": 1, "round": 1, "time": later(at)} | failure
    said = report(index, AgentState.FAILED, 1, failure=told)
    return Break(index, "failed", said)


def test_the_world_failed_when_its_first_member_did() -> None:
    breaks = (failed_report(0, 9), failed_report(1, 7), Break(2, "leaves", departed=True, trains_on=True))
    assert failed_at(breaks, 1, [], later(10)) == later(7)
    assert failed_at(breaks[2:], 1, [], later(10)) is None
    assert failed_at((), 1, [], later(10)) is None


def test_what_is_found_out_by_waiting_has_failed_since_the_last_step() -> None:
    life = Life()
    life.look(0, formed(1))
    life.told(figures(1, 1, 9, 8.0), at=50)
    hang = (failed_report(0, 1850, cause="Hang"),)
    assert failed_at(hang, 1, life.workers, later(1860)) == later(50)
    end = {"incarnation": 1, "exitClass": "NodeLost", "time": later(80)}
    lost = [*life.workers[:1], worker(1, WorkerPhase.FAILED, lastExit=end)]
    silent = (Break(1, "worker 1 was lost"),)
    assert failed_at(silent, 1, lost, later(81)) == later(50)
    deleted = [*life.workers[:1], worker(1, WorkerPhase.FAILED, lastExit=end | {"exitClass": "Killed"})]
    assert failed_at(silent, 1, deleted, later(81)) == later(80)
    leaves = (Break(1, "worker 1 leaves", stops_in_good_order=True),)
    assert failed_at(leaves, 1, deleted, later(81)) is None, "as when the world shrinks"


events = st.sampled_from(["form", "fail", "lose", "step", "live", "check", "suspend", "wait"])


@given(st.lists(st.tuples(events, st.floats(0, 100)), max_size=120))
def test_all_time_since_submission_is_in_some_state_and_the_history_stays_bounded(
    script: list[tuple[str, float]],
) -> None:
    life, step = Life(), 0
    life.look(phase=JobPhase.PENDING)
    for what, seconds in script:
        now = life.seconds + seconds
        match what:
            case "form":
                life.look(seconds, formed(life.round + 1))
            case "fail":
                life.look(seconds, formed(life.round + 1), broken_at=later(now - seconds / 2))
            case "lose":
                life.look(seconds, reforming(life.round), broken_at=later(now))
            case "step":
                step += 1
                life.told(figures(life.round, step, step), at=now - seconds / 3)
                life.look(seconds)
            case "live":
                life.told(figures(life.round, step, step), at=now, lived_on=LivedOn(max(life.round, 1), 1))
                life.look(seconds)
            case "check":
                life.look(seconds, active_check="c")
            case "suspend":
                life.look(seconds, Rendezvous(round=life.round), phase=JobPhase.SUSPENDED)
            case "wait":
                life.look(seconds)
        assert sum(life.spent.values()) == pytest.approx(life.seconds, abs=0.01)
        assert min(life.spent.values(), default=0) >= 0
        since = [e.since for e in life.job.status.history]
        assert since == sorted(since) and len(since) <= MAX_EPISODES
        assert life.job.status.history[-1].state is life.state


@given(st.sets(st.integers(0, 2_000)))
def test_members_are_told_as_ranges_as_far_as_there_is_room(indices: set[int]) -> None:
    text = in_short(sorted(indices))
    assert len(text) <= MAX_EPISODE_MEMBERS
    named = set()
    for part in text.removesuffix("…").rstrip(",").split(",") if text else ():
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == indices if not text.endswith("…") else named < indices


def written(life: Life, age_seconds: float, **status: Any) -> dict[str, Any]:
    stored = life.job.status.to_wire()
    moment = Moment(
        life.job, life.job.status.model_copy(update=status), Workers(life.workers), later(life.seconds)
    )
    differs = bool(merge_patch(stored, moment.status.to_wire()))
    return merge_patch(stored, with_account(moment, differs, age_seconds).to_wire())


def test_in_between_it_goes_with_other_writes_at_most_once_a_minute(training: Life) -> None:
    training.told(figures(1, 1, 101, 100.0), at=115)
    training.seconds = 116.0
    assert written(training, 0) == {}
    assert written(training, 0, replicas=2).keys() == {"replicas"}
    patch = written(training, REFRESH_SECONDS, replicas=2)
    assert patch["goodput"]["lastStep"] == 101
    assert patch["goodput"]["ratio"] == pytest.approx(101 / 116, rel=1e-4)
    assert "since" not in patch["goodput"] and "history" not in patch
    now = goodput_now(training.job, training.workers, later(training.seconds))
    stored = training.job.status.model_copy(update={"goodput": now})
    training.job = training.job.model_copy(update={"status": stored})
    assert written(training, 0, replicas=2).keys() == {"replicas"}


def test_an_old_ratio_is_written_for_itself_where_it_has_moved(training: Life) -> None:
    """`kubectl get` shows what is written: 0.017 beside 73 % in `dlr job status`."""
    training.told(figures(1, 1, 986, 985.0), at=1_000)
    training.seconds = 1_000.0
    assert refresh_seconds(training.job, later(1_000)) == 200
    assert written(training, 199) == {}
    assert written(training, 200)["goodput"]["ratio"] == pytest.approx(0.986, abs=1e-3)


@given(st.floats(0, 1), st.floats(60, 1e6), st.floats(0, 1))
def test_a_written_ratio_is_never_far_from_the_present_one(ratio: float, age: float, share: float) -> None:
    """Whatever the job does meanwhile: it trains all the time, or a share of it."""
    waits = refresh_seconds(submitted(), later(age))
    since = age - waits
    if age > REFRESH_SECONDS / REFRESH_SHARE:  # after the first minutes
        present = (ratio * since + share * waits) / age
        assert abs(present - ratio) <= REFRESH_SHARE + 1e-6
