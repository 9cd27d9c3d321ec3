"""What a look at a job makes of its failures, driven as the reconciler drives it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from controller.events import Correlator, InvolvedObject, Occurrence
from crds.agent_report import AgentState
from crds.elasticworker import WorkerPhase
from tests.reconcilers.build import NOW, failure, worker
from tests.reconcilers.failure_life import FORMED, REFORMING, Life

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
MEMORY = {
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}]}
}


def rule(action: str, **matchers: Any) -> dict[str, Any]:
    return {"rules": [{"action": action} | (matchers or {"onMessagePattern": "bad"})]}


# --- in place ---------------------------------------------------------------------------------------


def test_first_failure_is_restarted_at_once_and_told_with_its_culprit() -> None:
    life = Life.of()
    life.train()
    found = life.fail(1)
    assert (life.world.phase, life.world.round) == (FORMED, 2)
    assert (found.count.restarts, life.budget.spent) == ({"UserError": 1}, {"UserError": 1})
    assert (
        "Warning",
        "WorldBroken",
        "round 1: digits-worker-1 rank 1: ValueError: bad (UserError)",
    ) in life.events
    assert not life.look().incident, "it is counted once"


def test_second_failure_without_new_ground_waits_and_says_why() -> None:
    life = Life.of()
    for _ in range(2):
        life.train()
        life.fail(0, message=f"Error{life.world.round}: x {'y' * life.world.round}")
    assert life.world.phase is REFORMING and life.world.round == 2
    assert (
        "waits until 12:00:01 UTC because training failed 2 times without getting further" in life.world.why
    )
    life.look(0.5)
    assert life.world.phase is REFORMING
    life.look(0.6)
    assert (life.world.phase, life.world.round) == (FORMED, 3)
    assert life.world.reason == "digits-worker-0 rank 0: Error2: x yy"


def test_error_that_comes_for_ever_fails_the_job_in_seconds_with_its_one_line() -> None:
    life = Life.of(4)
    while not life.ended:
        life.train()
        life.fail(2, message=f"ValueError: bad {life.world.round}\nTraceback (most recent call last): …")
        if not life.ended:
            life.recover()
    assert life.ended == (
        "training failed 3 times in a row by the same error without getting further: "
        "digits-worker-2 rank 2: ValueError: bad 3"
    )
    assert life.now - NOW < timedelta(seconds=5)
    assert life.events[-1][1] == "SameErrorRepeated"
    assert "Traceback" in life.job.status.last_failure.message  # type: ignore[union-attr]


def test_the_example_in_the_docs() -> None:
    """docs/failures.md, "An example"."""
    life = Life.of(4, elasticPolicy={"shrinkAfterSeconds": 0})
    budget, wait = [], []
    for step, message in ((119, "bad batch 7"), (149, "bad batch 7"), (129, "bad batch 9")):
        life.train()
        life.fail(2, step=step, message=f"ValueError: {message}\nTraceback …")
        until = life.budget.held_until
        budget.append((life.budget.step, life.budget.spent["UserError"], life.budget.alike))
        wait.append(until - life.now if until else timedelta())
        life.recover()
    life.lose(0, "Preempted")
    life.workers[0] = worker(0)
    life.say(0, AgentState.READY, life.world.round)
    life.recover()
    life.fail(2, step=129, message="ValueError: bad batch 8")
    assert budget == [(119, 1, 1), (149, 1, 1), (149, 2, 2)]
    assert wait == [timedelta(), timedelta(), timedelta(seconds=1)]
    assert life.ended.endswith("without getting further: digits-worker-2 rank 2: ValueError: bad batch 8")


def test_training_whose_steps_say_nothing_may_get_further_and_only_its_budget_ends_it() -> None:
    """SGD keeps no number of steps: after each start they are counted from 1."""
    life = Life.of(worker={"restartCount": 5})
    while not life.ended:
        life.train()
        count = {"firstStep": 1, "lastStep": 110, "counted": True, "startUnknown": life.world.round > 1}
        steps = [count | {"round": life.world.round}]
        life.say(1, AgentState.RUNNING, life.world.round, rounds=steps)
        life.fail(0)
        if not life.ended:
            life.recover()
    assert life.job.status.restarts == {"UserError": 6} and life.events[-1][1] == "RestartLimitExceeded"
    assert life.ended.startswith(
        "training failed 6 times by UserError without known progress (StartUnknown), with restartCount 5: "
    )


@pytest.mark.parametrize("figures", [{"counted": True}, {}, None])
def test_the_same_error_ends_the_job_where_its_steps_are_known_or_there_are_none(figures: Any) -> None:
    life = Life.of(worker={"restartCount": 5})
    while not life.ended:
        life.train()
        if figures is not None:
            steps = [{"round": life.world.round, "firstStep": 1, "lastStep": 9, **figures}]
            life.say(1, AgentState.RUNNING, life.world.round, rounds=steps)
        life.fail(0)
        if not life.ended:
            life.recover()
    assert life.job.status.restarts == {"UserError": 3} and life.events[-1][1] == "SameErrorRepeated"


def test_steps_of_the_broken_round_that_are_told_only_later_are_no_new_ground() -> None:
    life = Life.of()
    life.train()
    life.fail(0, step=10)
    life.train()
    late = [{"round": 1, "firstStep": 0, "lastStep": 12}]
    life.say(1, AgentState.RUNNING, 2, rounds=late)
    life.fail(0, step=11)
    assert life.budget.spent == {"UserError": 2} and life.budget.step == 12


# --- consequences and late word -----------------------------------------------------------------------


def test_a_mere_consequence_waits_a_second_for_who_was_first_and_gives_it_the_blame() -> None:
    life = Life.of()
    life.train()
    life.fail(0, message=GLOO)
    assert life.world.phase is REFORMING and life.job.status.restarts == {"Unknown": 1}
    said = f"round 1: digits-worker-0 rank 0: {GLOO} (Unknown, follows from another's end)"
    assert life.events[-1][1:] == ("WorldBroken", said)
    life.fail(1, state=AgentState.READY)
    assert life.job.status.restarts == {"UserError": 1}
    assert (life.budget.consequences, life.budget.spent) == (0, {"UserError": 1})
    assert (life.world.phase, life.world.round) == (FORMED, 2)
    assert life.events[-2][1:] == (
        "WorldBroken",
        "round 1: digits-worker-1 rank 1: ValueError: bad (UserError) was first, and not digits-worker-0",
    )


def test_a_lost_pod_of_which_its_peers_told_first_is_named_in_the_world_and_in_an_event() -> None:
    life = Life.of()
    life.train()
    life.fail(0, message=GLOO)
    assert life.world.why.startswith("training processes of worker 0 failed; the next world waits ")
    life.lose(1, "Killed")
    assert life.world.phase is REFORMING
    assert life.world.why == "worker 1 was lost: gone; 1 of at least 2 workers are ready"
    assert life.job.status.restarts == {}
    said = "round 1: worker 1 was lost: gone; what digits-worker-0 reported follows from that"
    assert life.events[-1] == ("Warning", "WorldBroken", said)
    life.look()
    assert life.events[-1][2] == said, "it is told once"


def test_a_pod_that_has_time_to_stop_leaves_and_is_no_failure() -> None:
    life = Life.of()
    life.train()
    life.lose(1, "Killed", in_good_order=True)
    told = ("Normal", "WorldChanged", "round 1: worker 1 leaves; 1 of at least 2 workers are ready")
    assert life.events[-1] == told
    assert (life.world.phase, life.world.broken_round, life.job.status.restarts) == (REFORMING, 0, {})


def test_a_pod_that_is_lost_in_the_next_world_did_not_break_the_one_before() -> None:
    life = Life.of()
    life.train()
    life.fail(0, message=GLOO)
    life.recover()
    assert (life.world.phase, life.world.round) == (FORMED, 2)
    before, counted = len(life.events), life.job.status.restarts
    life.look(120)
    life.lose(1, "Killed")
    assert life.job.status.restarts == counted != {}, "what that one cost stays"
    told = [message for _, reason, message in life.events[before:] if reason == "WorldBroken"]
    assert len(told) == 1 and told[0].startswith("round 2: worker 1 was lost")


def test_a_node_without_power_is_a_member_of_the_next_world_and_still_broke_the_one_before() -> None:
    life = Life.of()
    life.train()
    life.fail(0, message=GLOO)
    life.look(2)
    silent = life.workers[1]
    life.recover()
    assert 1 in life.world.members and life.job.status.restarts == {"Unknown": 1}
    life.workers[1] = silent  # its agent has never said that it takes part
    life.lose(1)
    assert life.job.status.restarts == {}


def test_ten_preemptions_with_survivors_that_tell_first_do_not_fail_the_job() -> None:
    life = Life.of(worker={"restartCount": 0}, elasticPolicy={"shrinkAfterSeconds": 0})
    for _ in range(10):
        life.workers[1] = worker(1)
        life.say(1, AgentState.READY, life.world.round)
        life.look()
        life.recover()
        life.fail(0, message=GLOO)
        life.lose(1, "Preempted")
        assert (life.budget.consequences, life.job.status.restarts) == (0, {})
        assert life.job.status.last_failure.exit_class == "Preempted"  # type: ignore[union-attr]
    assert not life.ended


# --- rules --------------------------------------------------------------------------------------------


def test_fail_job_ends_it_at_once() -> None:
    life = Life.of(failurePolicy=rule("FailJob"))
    life.train()
    life.fail(1)
    assert life.ended == "a rule of failurePolicy fails the job: digits-worker-1 rank 1: ValueError: bad"
    assert life.events[-1][1] == "FailurePolicy"


def test_replace_gives_the_culprit_a_new_pod_once_its_failure_is_written() -> None:
    life = Life.of(failurePolicy=rule("Replace"))
    life.train()
    found = life.fail(1)
    assert found.waits_for_renewal and not found.renewals and life.world.phase is REFORMING
    found = life.look()
    assert found.renewals["w1"].avoids_node and life.world.phase is REFORMING
    assert found.renewals["w1"].reason == (
        "a rule of failurePolicy replaces it: digits-worker-1 rank 1: ValueError: bad"
    )
    assert found.count.restarts == {"UserError": 1}


@pytest.mark.parametrize(
    ("spec", "told", "renewed"),
    [
        ({}, {"cause": "Device", "message": "Xid 79"}, {"avoids_node": True}),
        ({"nodeCheck": {"enabled": True}}, {"cause": "Device", "message": "Xid 79"}, None),
        (
            {"failurePolicy": rule("Restart", onExitCodes={"operator": "In", "values": [201]})},
            {"exit_code": 201},
            None,
        ),
        ({"template": MEMORY}, {"cause": "OOM"}, {"avoids_node": False}),
        ({}, {"cause": "OOM"}, None),
        ({"template": MEMORY, "resourceLimits": {"memory": "2Gi"}}, {"cause": "OOM"}, None),
        ({"template": MEMORY, "resourceLimits": {"memory": "3Gi"}}, {"cause": "OOM"}, {"avoids_node": False}),
        ({"template": MEMORY}, {}, None),
    ],
)
def test_device_faults_and_want_of_memory_get_a_new_pod_unless_something_better_is_to_be_done(
    spec: dict[str, Any], told: dict[str, Any], renewed: dict[str, bool] | None
) -> None:
    life = Life.of(**spec)
    life.train()
    life.fail(0, **told)
    renewals = life.look().renewals
    found = {uid: {"avoids_node": renewal.avoids_node} for uid, renewal in renewals.items()}
    assert found == ({"w0": renewed} if renewed else {})


def test_culprit_that_tells_late_is_replaced_while_the_next_world_is_young() -> None:
    life = Life.of(template=MEMORY)
    life.train()
    life.fail(0, message=GLOO)
    life.recover()
    killed = failure(1, exit_code=-9, cause="OOM")
    life.say(1, AgentState.RUNNING, 2, failure=killed)
    assert life.look().incident is not None
    assert {uid: renewal.exit_class for uid, renewal in life.look().renewals.items()} == {"w1": "OOM"}
    assert life.look(60).renewals == {}, "later it trains, and is left alone"


# --- Pods ---------------------------------------------------------------------------------------------


def test_a_worker_whose_pods_fail_by_the_same_error_fails_the_job_with_that_error() -> None:
    life = Life.of()
    spent = {"spent": {"UserError": 3}, "exitClass": "UserError", "signature": "no such file", "alike": 3}
    end = {"incarnation": 1, "exitClass": "UserError", "message": "no such file\nmore", "time": NOW}
    life.workers[1] = worker(1, WorkerPhase.FAILED, failureBudget=spent, lastExit=end)
    found = life.look()
    assert found.ending is not None and found.ending.reason == "SameErrorRepeated"
    assert life.ended == (
        "digits-worker-1 failed 3 times in a row by the same error without getting further: "
        "digits-worker-1: no such file"
    )


def test_pod_end_that_a_rule_answers_with_fail_job_fails_it() -> None:
    life = Life.of()
    end = {"incarnation": 1, "exitClass": "Preempted", "message": "gone", "time": NOW, "action": "FailJob"}
    life.workers[1] = worker(1, WorkerPhase.FAILED, lastExit=end)
    assert life.look().ending.reason == "FailurePolicy"  # type: ignore[union-attr]


# --- held worlds --------------------------------------------------------------------------------------


# --- a storm ------------------------------------------------------------------------------------------


def events_of(told: Iterable[tuple[str, str, str]]) -> int:
    """How many Event objects the recorder makes of them."""
    subject, correlator = InvolvedObject("v1", "ElasticJob", "ns", "digits", "u"), Correlator()
    series = [correlator.observe(Occurrence(subject, *event), float(n)) for n, event in enumerate(told)]
    return len({id(s) for s in series if s is not None})


def test_hundreds_of_identical_failures_make_few_events_and_a_small_job() -> None:
    life = Life.of(8, failurePolicy=rule("Ignore"))
    text = "ValueError: bad\n" + "x" * 4_000
    for _ in range(200):
        life.train()
        life.fail(0, message=GLOO)
        life.fail(3, state=AgentState.READY, message=text)
        life.recover()
    assert life.job.status.restarts == {"UserError": 200} and life.world.round >= 200
    assert events_of(life.events) < 20
    assert len(life.job.model_dump_json()) < 100_000
