"""Whoever is told to be first was: hangs that all ranks are asked about, ranks that finish early, kills."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.elasticworker import ExitClass
from crds.failure_texts import ASKED
from crds.job_status import JobWarning
from crds.model import Condition, ConditionStatus
from crds.phases import JobPhase
from reconcilers.conditions.life import WORKERS_READY, WORLD_FORMED
from reconcilers.conditions.pods import WORKERS_UNSCHEDULED
from reconcilers.conditions.scaled import SCALED
from reconcilers.conditions.slow import SLOW
from reconcilers.failure.hangs import ANSWER_SECONDS
from reconcilers.failure.policy import Assessment
from reconcilers.observed.conditions import ConditionState, with_condition
from tests.reconcilers.build import NOW, failure, job, report
from tests.reconcilers.failure_life import FORMED, REFORMING, Life
from tests.reconcilers.judging import judge, warnings, with_status

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
ALL_REDUCE = "torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()\ntrain.py:14 in main"
BARRIER = "torch/distributed/distributed_c10d.py:5160 in barrier: work.wait()\ntrain.py:9 in main"
LOCK = "train.py:31 in wait_for_the_lock: with lock:"


def hang(
    rank: int, *, waits: bool, step: int | None = 11, frames: str = "", offered: bool = True
) -> dict[str, Any]:
    """What the agent of a rank tells that hangs."""
    frames = frames or (ALL_REDUCE if waits else LOCK)
    where = f"rank {rank}, after step {step}, {'waits for others' if waits else 'is'} at {frames}"
    return {
        "exit_code": None,
        "cause": "Hang",
        "step": step,
        "stacks": [{"rank": rank, "step": step, "inCollective": waits, "frames": frames, "offered": offered}],
        "message": f"no step for 11 s (the limit is 10 s): {where}",
    }


def training(replicas: int = 4, **spec: Any) -> Life:
    life = Life.of(replicas, **spec)
    life.train()
    return life


def answer(life: Life, rank: int, **told: Any) -> Assessment:
    """An agent that is asked, or has found out by itself, says what it knows of round 1, and is looked at."""
    first = life.world.phase is FORMED and life.world.round == 1
    said = failure(rank, seconds=(life.now - NOW).total_seconds(), **told)
    life.say(rank, AgentState.FAILED if first else AgentState.READY, 1, failure=said)
    return life.look()


def finish(life: Life, rank: int, round_: int = 1, step: int = 11) -> None:
    rounds = [{"round": round_, "firstStep": 0, "lastStep": step}]
    life.say(rank, AgentState.SUCCEEDED, round_, rounds=rounds)


def blamed(life: Life) -> Any:
    return life.job.status.last_failure


def told_of_a_broken_world(life: Life) -> list[str]:
    return [message for _, reason, message in life.events if reason == "WorldBroken"]


# --- a hang -----------------------------------------------------------------------------------------------


def test_hang_that_ends_the_job_is_judged_when_all_have_said_where_they_are() -> None:
    life = training(worker={"restartCount": 0})
    assert answer(life, 0, **hang(0, waits=True)).incident is None, "the first to tell waits for others"
    assert not life.ended and life.world.phase is REFORMING and life.world.hang_since == life.now
    assert life.world.why == (
        "worker 0 reports a hang; the next world waits up to 10 s for all ranks to say where they hang"
    )
    answer(life, 3, **hang(3, waits=True))
    answer(life, 1, **hang(1, waits=False))
    assert not life.ended and told_of_a_broken_world(life) == []
    answer(life, 2, **hang(2, waits=True))
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-1", {"Hang": 1})
    assert life.ended.endswith(f"digits-worker-1 rank 1: {hang(1, waits=False)['message']}")
    assert life.world.hang_since is None, "nothing waits"
    assert life.world.reason == f"digits-worker-1 rank 1: {hang(1, waits=False)['message']}"


@pytest.mark.parametrize("phase", [JobPhase.FAILED, JobPhase.SUCCEEDED])
def test_what_is_over_looks_over_in_conditions_too(phase: JobPhase) -> None:
    known: list[Condition] = []
    known = with_condition(known, WORLD_FORMED, ConditionStatus.TRUE, "Then", "so it is", NOW)
    known = with_condition(known, SCALED, ConditionStatus.FALSE, "Then", "a Pod waits", NOW)
    troubles = [
        JobWarning(type=type_, reason="Unschedulable", message="a Pod waits", since=NOW)
        for type_ in (SLOW, WORKERS_UNSCHEDULED)
    ]
    of = with_status(job(), conditions=known, warnings=troubles)
    told, events = judge(of, phase=phase, end=ConditionState(ConditionStatus.TRUE, "Ended"))
    at_end = {c.type: (c.status.value, c.message) for c in told.status.conditions}
    assert at_end[WORLD_FORMED] == ("False", "the job has ended")
    assert at_end[SCALED] == ("False", "the job has ended; a Pod waits")
    assert at_end[WORKERS_READY] == ("False", "WorkersUnscheduled (Unschedulable)")
    assert warnings(told).keys() == {WORKERS_UNSCHEDULED}, "it may be why the job has ended"
    assert at_end[phase.value] == ("True", "") and not events, "the end has an Event of its own"


def test_rank_that_never_answers_is_waited_for_so_long_and_blamed_if_all_others_wait_for_it() -> None:
    life = training(worker={"restartCount": 0})
    for rank in (0, 1, 3):
        answer(life, rank, **hang(rank, waits=True))
    rest = ANSWER_SECONDS - (life.now - life.world.hang_since).total_seconds()  # type: ignore[operator]
    found = life.look(rest - 0.1)
    assert not life.ended and 0 < (found.seconds_to_judgement(life.now) or 0) < 0.2
    life.look(0.2)
    assert (blamed(life).worker, blamed(life).rank, blamed(life).exit_class) == ("digits-worker-2", 2, "Hang")
    assert (
        "digits-worker-2 rank 2: never answered where it hangs, before its first step: its agent did not report "
        in (life.ended)
    )


def test_word_that_comes_after_that_time_takes_the_blame_over() -> None:
    life = training()
    for rank in (0, 1, 3):
        answer(life, rank, **hang(rank, waits=True))
    life.look(ANSWER_SECONDS)
    assert blamed(life).worker == "digits-worker-2"
    late = failure(2, **hang(2, waits=True, step=10))
    life.say(2, AgentState.READY, 1, failure=late)
    life.look()
    assert (blamed(life).worker, blamed(life).step) == ("digits-worker-2", 10), "it is behind the others"
    assert life.job.status.restarts == {"Hang": 1}


def test_rank_that_does_not_say_where_it_is_comes_before_those_that_wait_and_after_those_that_do_not() -> (
    None
):
    mute = hang(1, waits=False, step=None, offered=False)
    life = training()
    for rank in (0, 2, 3):
        answer(life, rank, **hang(rank, waits=True))
    answer(life, 1, **mute)
    assert blamed(life).worker == "digits-worker-1"
    life = training()
    for rank in (0, 2, 3):
        answer(life, rank, **hang(rank, waits=rank != 3))
    answer(life, 1, **mute)
    assert blamed(life).worker == "digits-worker-3"


WELL = {"cause": None, "message": f"does not hang: its last sign of life is 0 s old\n{ASKED}"}


def test_rank_that_answers_that_it_does_not_hang_is_neither_waited_for_nor_blamed() -> None:
    life = training()
    for rank in (0, 1, 2):
        answer(life, rank, **hang(rank, waits=True))
    answer(life, 3, **hang(3, waits=False, step=10) | WELL)
    assert life.world.round == 2
    assert (blamed(life).worker, blamed(life).message) == ("digits-worker-0", hang(0, waits=True)["message"])


def test_who_waits_for_a_worker_whose_pod_is_lost_is_no_failure() -> None:
    life = training()
    answer(life, 0, **hang(0, waits=True))
    life.lose(2)
    for rank in (1, 3):
        answer(life, rank, **hang(rank, waits=True))
    assert (blamed(life).worker, blamed(life).exit_class) == ("digits-worker-2", "NodeLost")
    assert life.job.status.restarts == {} and life.world.hang_since is None


def test_break_that_was_told_is_not_told_again_when_a_late_hang_is_judged() -> None:
    life = training()
    answer(life, 0, message=GLOO)
    (told,) = told_of_a_broken_world(life)
    assert told.endswith(f": {GLOO} (Unknown, follows from another's end)")
    for rank in (3, 2, 1):
        answer(life, rank, **hang(rank, waits=rank != 1))
    first = f"round 1: digits-worker-1 rank 1: {hang(1, waits=False)['message']} (Hang) was first"
    assert [line.partition(", and not ")[0] for line in told_of_a_broken_world(life)] == [told, first]
    assert life.world.round == 2


@pytest.mark.parametrize(("late_by", "waits"), [(2.0, ANSWER_SECONDS - 2.0), (ANSWER_SECONDS + 1, 0.0)])
def test_a_late_hang_is_waited_for_from_the_break_on(late_by: float, waits: float) -> None:
    """Who saw the break said then what it knew, and is not asked again."""
    life = training(elasticPolicy={"shrinkAfterSeconds": 600})
    answer(life, 0, exit_code=1, message=GLOO)
    broken_at = life.world.reforming_since
    assert broken_at is not None and life.world.hang_since is None
    life.say(1, AgentState.READY, 1, failure=failure(1, **hang(1, waits=False)))
    found = life.look(late_by)
    left = found.inquiry.until - broken_at if found.inquiry else None
    assert (left.total_seconds() - late_by if left else 0.0) == pytest.approx(waits)
    assert blamed(life).worker == ("digits-worker-0" if waits else "digits-worker-1")


def test_who_was_stopped_before_a_late_hang_was_told_is_not_blamed_for_its_silence() -> None:
    """Agents that saw the break before may stop their processes for all of their grace, and are not asked."""
    life = training()
    answer(life, 3, message=GLOO)
    answer(life, 0, **hang(0, waits=True))
    life.look(ANSWER_SECONDS)
    assert (blamed(life).worker, blamed(life).message) == ("digits-worker-0", hang(0, waits=True)["message"])
    assert life.job.status.restarts == {"Hang": 1} and life.world.hang_since is None


def test_who_waited_takes_no_blame_from_who_lost_a_peer_where_a_pod_is_lost_or_the_next_world_is_formed() -> (
    None
):
    """An agent that hears late of the break has waited all that time for the peer that is gone."""
    life = training()
    answer(life, 3, message=GLOO)
    life.say(0, AgentState.RUNNING, 1, failure=failure(0, **hang(0, waits=True)))
    life.lose(1)
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-1", {}), "both in one look"
    life = training()
    answer(life, 3, message=GLOO)
    life.look(2.0)
    assert life.world.round == 2
    for rank in (0, 2):
        answer(life, rank, **hang(rank, waits=True))
        assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-3", {"Unknown": 1})
    life.lose(1)
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-1", {})
    life = training()
    answer(life, 3, message=GLOO)
    life.look(2.0)
    answer(life, 2, **hang(2, waits=False))
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-2", {"Hang": 1}), (
        "it waits for nobody"
    )


# --- a hang that a collective's own time-out is ahead of ---------------------------------------------------

TIMED_OUT = {
    "cause": "TimedOut",
    "message": "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv",
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1), (0, 3, 2, 1)])
def test_rank_that_hangs_is_blamed_and_not_those_whose_collective_timed_out(order: tuple[int, ...]) -> None:
    """Rank 1 hangs, whether its agent is the first to answer or the last."""
    life = training(worker={"restartCount": 0})
    for rank in order:
        assert not life.ended
        if rank in (0, 2):
            answer(life, rank, **TIMED_OUT)
        else:
            answer(life, rank, **hang(rank, waits=rank == 3))
    assert (blamed(life).worker, blamed(life).exit_class) == ("digits-worker-1", "Hang")
    first, second = blamed(life).message.splitlines()[:2]
    assert LOCK in first and second.startswith("It was waited for: digits-worker-")
    assert life.job.status.restarts == {"Hang": 1} and life.ended


def test_members_are_asked_before_a_collective_that_timed_out_is_judged() -> None:
    life = training()
    assert answer(life, 0, **TIMED_OUT).incident is None
    assert life.world.phase is REFORMING and life.world.hang_since == life.now
    assert life.world.why.startswith("a collective of worker 0 timed out; the next world waits up to 10 s")
    life.lose(1)
    for rank in (2, 3):
        answer(life, rank, message=GLOO)
    assert (blamed(life).exit_class, life.job.status.restarts) == ("NodeLost", {}), "that explains it"


def test_collectives_that_time_out_with_nobody_to_blame_are_hangs_of_the_program() -> None:
    """As where ranks call different collectives: all wait, or have lost who gave up first."""
    life = training(worker={"restartCount": 1})
    for round_ in (1, 2):
        for rank in (2, 0, 1, 3):
            told = failure(rank, round=round_, **TIMED_OUT if rank == 2 else {"message": GLOO})
            life.say(rank, AgentState.FAILED if rank == 2 else AgentState.READY, round_, failure=told)
            life.look()
        if round_ == 1:
            assert blamed(life).message.splitlines()[1] == (
                "No rank was found that hangs by itself; "
                "each rank waits for another: do all call the same collectives? If they do, test the nodes: "
                "a link may be at fault"
            )
            assert life.look().incident is None, "it is counted once"
            life.recover()
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-2", {"Hang": 2})
    assert life.ended.startswith("training failed 2 times by Hang without getting further")


def test_collective_that_timed_out_in_a_world_of_one_is_a_hang() -> None:
    life = training(replicas=1)
    answer(life, 0, **TIMED_OUT)
    assert (blamed(life).rank, life.job.status.restarts) == (0, {"Hang": 1})


def test_rank_that_is_busy_while_a_collective_times_out_is_named() -> None:
    life = training(replicas=2)
    answer(life, 0, **TIMED_OUT)
    answer(life, 1, **hang(1, waits=False) | WELL)
    assert "itself; digits-worker-1 does not hang: its last sign of life is" in blamed(life).message


def test_silence_after_a_collective_timed_out_blames_nobody_until_it_is_known_why() -> None:
    """The node of the member may be dead; or its agent is slow, and what it says then counts."""
    life = training()
    for rank in (0, 3):
        answer(life, rank, **TIMED_OUT)
    answer(life, 2, **hang(2, waits=True))
    life.look(ANSWER_SECONDS)
    assert (blamed(life).worker, blamed(life).exit_class) == ("digits-worker-0", "Unknown")
    assert life.budget.spent == {} and life.look().incident is None
    life.say(1, AgentState.READY, 1, failure=failure(1, **hang(1, waits=False)))
    life.look()
    assert (blamed(life).worker, life.job.status.restarts) == ("digits-worker-1", {"Hang": 1})


def test_rule_answers_who_was_first_and_not_who_waited() -> None:
    rules = {"rules": [{"action": "FailJob", "onMessagePattern": "all_reduce"}]}
    life = training(failurePolicy=rules)
    for rank in range(4):
        answer(life, rank, **hang(rank, waits=rank != 3))
    assert not life.ended and life.world.round == 2


# --- who finished early -----------------------------------------------------------------------------------


@pytest.mark.parametrize("finisher_tells_first", [True, False])
def test_rank_that_finished_early_is_blamed_and_not_who_lost_it(finisher_tells_first: bool) -> None:
    life = training()
    if finisher_tells_first:
        finish(life, 1)
    answer(life, 0, message=GLOO)
    if not finisher_tells_first:
        finish(life, 1)
        life.look()
    assert (blamed(life).worker, blamed(life).rank, blamed(life).exit_code) == ("digits-worker-1", 1, 0)
    assert blamed(life).message.startswith("rank 1 finished early, at step 11; the others cannot go on\n")
    assert life.job.status.restarts == {"UserError": 1} and life.world.round == 2


def test_who_finished_early_explains_a_hang_of_those_who_wait_but_no_error_and_no_lost_pod() -> None:
    life = training()
    finish(life, 1)
    for rank in (0, 2, 3):
        answer(life, rank, **hang(rank, waits=True))
    assert blamed(life).worker == "digits-worker-1"
    life = training()
    finish(life, 1)
    answer(life, 2)
    assert (blamed(life).worker, blamed(life).exit_code) == ("digits-worker-2", 1)
    life = training()
    finish(life, 1)
    life.say(0, AgentState.FAILED, 1, failure=failure(0, message=GLOO))
    life.lose(2)
    assert blamed(life).worker == "digits-worker-2" and life.job.status.restarts == {}


def test_worker_of_several_processes_that_finished_early_is_told_with_all_its_ranks() -> None:
    life = training(2)
    rounds = [{"round": 1, "firstStep": 0, "lastStep": 7}]
    life.say(1, AgentState.SUCCEEDED, 1, rounds=rounds, local_world_size=2)
    said = report(0, AgentState.FAILED, 1, failure=failure(0, message=GLOO), local_world_size=2)
    status = life.workers[0].status.model_copy(update={"agent": said})
    life.workers[0] = life.workers[0].model_copy(update={"status": status})
    life.look()
    assert blamed(life).message.startswith("ranks 2-3 finished early, at step 7;")


# --- kills ------------------------------------------------------------------------------------------------

KILLED = {"exit_code": -9, "message": "the process was killed by SIGKILL from outside (dlr did not send it)"}


def test_kills_right_after_the_start_wait_longer_each_time_and_say_why() -> None:
    life = training()
    waits = []
    for _ in range(4):
        life.fail(1, **KILLED)
        until = life.budget.held_until
        waits.append((until - life.now).total_seconds() if until else 0.0)
        reason = life.world.why
        life.recover()
    assert waits == [0, 1, 2, 4]
    killed = "digits-worker-1 rank 1: the process was killed by SIGKILL from outside (dlr did not send it)"
    assert reason.startswith(f"{killed}; the next world waits ")
    assert reason.endswith("because training was killed from outside 4 times in a row, each time within 5 s")
    life.look(6)
    life.fail(1, **KILLED)
    assert life.world.phase is FORMED, "that one had trained for a while"


# --- any of them ------------------------------------------------------------------------------------------

FIRST = ("lock", "behind", "elsewhere", "error", "killed", "device", "early", "silent")
FOLLOWING = ("waits", "loses")


@st.composite
def rounds_that_break(draw: st.DrawFn) -> tuple[str, int, list[tuple[int, str]]]:
    """Why, by which rank, and in which order the others tell what they saw of it."""
    why, guilty = draw(st.sampled_from(FIRST)), draw(st.integers(0, 3))
    # Who only lost a connection says nothing of where it is; where nothing else tells, that is not enough.
    alike = why in ("behind", "elsewhere", "silent", "lock")
    others = [
        (rank, "waits" if alike else draw(st.sampled_from(FOLLOWING))) for rank in range(4) if rank != guilty
    ]
    return why, guilty, draw(st.permutations([*others, (guilty, why)]))


TELLS: dict[str, Any] = {
    "lock": lambda rank: hang(rank, waits=False),
    "behind": lambda rank: hang(rank, waits=True, step=10),
    "elsewhere": lambda rank: hang(rank, waits=True, frames=BARRIER),
    "error": lambda rank: {},
    "killed": lambda rank: KILLED,
    "device": lambda rank: {"exit_code": None, "cause": "Device", "message": "Xid 79"},
    "waits": lambda rank: hang(rank, waits=True),
    "loses": lambda rank: {"message": GLOO},
}


@given(rounds_that_break(), st.sampled_from([0, 3]))
def test_first_is_found_whatever_it_did_and_whoever_tells_first(
    broken: tuple[str, int, list[tuple[int, str]]], restart_count: int
) -> None:
    why, guilty, order = broken
    life = training(worker={"restartCount": restart_count})
    for rank, does in order:
        if life.ended:
            break
        if does == "early":
            finish(life, rank)
            life.look()
        elif does != "silent":
            answer(life, rank, **TELLS[does](rank))
    if why == "silent":
        life.look(ANSWER_SECONDS + 1)
    assert blamed(life).worker == f"digits-worker-{guilty}"
    assert sum(life.job.status.restarts.values()) == 1, "it is counted once"
    spends = blamed(life).exit_class not in (ExitClass.KILLED, ExitClass.UNKNOWN)
    assert bool(life.ended) is (spends and restart_count == 0)
    assert not life.ended or f"digits-worker-{guilty}" in life.ended
