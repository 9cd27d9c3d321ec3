"""Standby workers (docs/elasticity.md): who may train beside those who do, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.elasticworker import WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.status import replica_statuses, worker_pods
from reconcilers.job.workers import SPARE_POD_SECONDS, needs_standby_update, plan_relaunches, standing_by
from reconcilers.observed.slots import present_slots, slot_count
from reconcilers.observed.workers import Workers
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.world.decision import Constraints
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.vetting import Claim
from tests.reconcilers.build import NOW, bounds, decide, in_lists, job, later, participant, report, worker
from tests.reconcilers.job_stage import at
from tests.reconcilers.life import Run, beginning, edit, lose_pod, submit
from tests.reconcilers.scale_stage import JOB, Stage
from tests.reconcilers.test_rendezvous import formed, running
from tests.reconcilers.test_scale import CHAOS, KINDS, play

FORMED, REFORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING
LIMITS = bounds(2, standby=1)


def lost(index: int) -> Participant:
    return participant(index, None, alive=False, gone_because="no heartbeat")


# --- the world ----------------------------------------------------------------------------------------


def test_who_was_in_the_broken_world_comes_before_who_stands_by() -> None:
    broken = formed(1, 2).model_copy(update={"phase": REFORMING, "reforming_since": NOW})
    world = decide(broken, [participant(0), participant(1), participant(2)], LIMITS, NOW).rendezvous
    assert world.members == [1, 2]


@st.composite
def situations(draw: st.DrawFn) -> tuple[Rendezvous, list[Participant], Bounds]:
    """A world of full size that some members may have left, and others beside it, in any state."""
    desired, standby = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    indices = range(desired + standby)
    members = sorted(draw(st.permutations(indices))[:desired])
    people = []
    for index in indices:
        state = draw(st.sampled_from([None, *AgentState]))
        spoken = None if state is None else report(index, state, draw(st.integers(0, 2)))
        joined = draw(st.floats(0, 60))
        people.append(Participant(index, 1, draw(st.booleans()), report=spoken, seconds_since_joined=joined))
    return formed(*members), people, bounds(desired, draw(st.integers(1, desired)), standby=standby)


@given(situations())
def test_a_loss_with_enough_ready_standbys_forms_the_next_round_in_that_very_decision(
    situation: tuple[Rendezvous, list[Participant], Bounds],
) -> None:
    """Invariant: the world is of full size again, and who did not leave it is still in it."""
    world, people, limits = situation
    decision = decide(world, people, limits, NOW)
    ready = {p.index for p in people if p.joinable}
    if not decision.broken or len(ready) < limits.desired:
        return
    new = decision.rendezvous
    assert (new.phase, new.round, len(new.members)) == (FORMED, world.round + 1, limits.desired)
    assert ready.intersection(world.members) <= set(new.members)


@given(situations())
def test_no_round_is_ever_made_for_a_standbys_sake(
    situation: tuple[Rendezvous, list[Participant], Bounds],
) -> None:
    """Invariant: a world of full size whose members are well stays, whoever comes and goes beside it."""
    world, people, limits = situation
    well = [replace(p, alive=True, report=report(p.index, AgentState.RUNNING, 1)) for p in people]
    mixed = [w if p.index in world.members else p for p, w in zip(people, well, strict=True)]
    assert decide(world, mixed, limits, later(1_000)).rendezvous == world


@given(st.integers(0, 6), st.integers(0, 4), st.sets(st.integers(0, 9), max_size=4))
def test_there_are_as_many_slots_as_replicas_and_standby(
    replicas: int, standby: int, retired: set[int]
) -> None:
    """Invariant: whichever were retired; a job of no workers has nobody to stand by either."""
    status = {"retired": {"worker": sorted(retired)}}
    wanting = job(replicas=replicas, worker={"standby": standby}, status=status)
    slots = present_slots(wanting, "worker")
    assert len(slots) == (replicas + standby if replicas else 0) and not retired.intersection(slots)
    assert len(slots) == slot_count(wanting.spec.replica_specs["worker"])


# --- what is said of it -------------------------------------------------------------------------------


def test_who_stands_by_is_counted_and_told_as_such() -> None:
    wanting = job(replicas=2, worker={"standby": 2})
    running = (at(i, "a", state=AgentState.RUNNING, observed_round=1) for i in (0, 1))
    crew = Workers([*running, at(2, "b", observed_round=1), worker(3)])
    standing = standing_by(wanting, crew, formed(0, 1))
    assert standing == {2}, "the other is not ready yet"
    assert [w.spec.index for w in needs_standby_update(crew, standing)] == [2]
    counts = replica_statuses(wanting, crew, len(standing))["worker"]
    assert (counts.desired, counts.active, counts.standby) == (2, 3, 1)
    assert worker_pods(wanting, crew) == 2
    assert worker_pods(wanting, Workers(crew[:1])) == 1


def test_a_newcomer_of_a_job_without_standby_does_not_stand_by() -> None:
    crew = [at(i, "a", observed_round=1) for i in range(3)]
    assert standing_by(job(replicas=3), crew, formed(0, 1)) == frozenset()


# --- checks -------------------------------------------------------------------------------------------


def test_who_stands_by_is_checked_beside_the_world_and_not_again_when_it_steps_in() -> None:
    api = beginning()
    submit(api, nodeCheck={"enabled": True})
    asyncio.run(Run(api).settle())
    edit(api, {"replicaSpecs": {"worker": {"standby": 1}}})
    asyncio.run(Run(api).settle())
    assert api.get(ELASTICJOBS, JOB)["status"]["rendezvous"]["round"] == 1, "training goes on"
    lose_pod(api, 1)
    asyncio.run(Run(api).settle())
    world = in_lists(api.get(ELASTICJOBS, JOB)["status"]["rendezvous"])
    assert (world["round"], world["members"]) == (2, [0, 2, 3])
    assert [check["spec"]["workers"] for check in api.list(NODECHECKS)] == [[0, 1, 2], [3], [1]]


def test_a_loss_while_one_who_stands_by_is_tested_takes_another_or_waits_for_the_check() -> None:
    tested = Constraints(claim=Claim("c", frozenset({2})))
    people = [*running(0), lost(1), participant(2)]
    assert decide(formed(0, 1), people, LIMITS, NOW, tested).rendezvous.phase is REFORMING
    limits = bounds(2, standby=2)
    world = decide(formed(0, 1), [*people, participant(3)], limits, NOW, tested).rendezvous
    assert (world.phase, world.round, world.members) == (FORMED, 2, [0, 3])


# --- with the real reconcilers ------------------------------------------------------------------------


async def training(replicas: int, standby: int, minimum: int | None = None) -> Stage:
    stage = Stage()
    stage.add_job(replicas, minimum)
    stage.edit_job(standby=standby)
    await stage.settle()
    assert len(stage.workers()) == replicas + standby
    assert members(stage) == [list(range(replicas))]
    return stage


def members(stage: Stage) -> list[list[int]]:
    return [world["members"] for world in stage.formed()]


def standbys(stage: Stage) -> list[int]:
    return [w["spec"]["index"] for w in stage.workers() if w["status"].get("standby")]


def phases(stage: Stage) -> set[str]:
    return {world["phase"] for world in stage.worlds if world["round"]}


async def test_new_memory_goes_through_the_standby_first_and_no_world_is_ever_smaller() -> None:
    stage = await training(3, 1, minimum=2)
    stage.add_plan(replicaResourceSpecs={"worker": {"resource": {"memory": "2Gi"}}})
    await stage.settle()
    assert stage.phase() == "Applied"
    assert {len(world) for world in members(stage)} == {3} and phases(stage) == {"Formed"}
    assert len(members(stage)) == 1 + 3, "one round a member"
    assert stage.memory() == dict.fromkeys(range(4), "2Gi")


async def test_new_memory_goes_on_without_a_standby_that_finds_no_node() -> None:
    stage = await training(3, 0, minimum=2)
    stage.unschedulable.add(3)
    stage.edit_job(standby=1)
    await stage.settle()
    stage.add_plan(replicaResourceSpecs={"worker": {"resource": {"memory": "2Gi"}}})
    await stage.settle()
    assert members(stage)[-1] == [0, 1, 2] and stage.memory() == dict.fromkeys(range(4), "2Gi")
    assert len(members(stage)) == 1 + 2 * 3, "a unit at a time, down first"


async def test_suspension_takes_the_standby_along_and_resumption_brings_it_back() -> None:
    stage = await training(2, 1)
    stage.patch(ELASTICJOBS, JOB, {"spec": {"suspend": True}})
    await stage.settle()
    assert standbys(stage) == []
    stage.patch(ELASTICJOBS, JOB, {"spec": {"suspend": False}})
    await stage.settle()
    assert members(stage)[-1] == [0, 1] and standbys(stage) == [2]


async def test_a_failure_that_asks_for_a_new_pod_has_a_standby_step_in_meanwhile() -> None:
    stage = await training(2, 1)
    report = stage.workers()[1]["status"]["agent"]
    failure = {
        "sequence": 1,
        "round": 1,
        "rank": 1,
        "exitCode": -9,
        "cause": "OOM",
        "message": "out of memory",
        "time": later(stage.seconds).isoformat(),
    }
    failed = {"status": {"agent": report | {"state": "Failed", "failure": failure}}}
    stage.patch(ELASTICWORKERS, "j-worker-1", failed, "status")
    await stage.settle()
    assert members(stage) == [[0, 1], [0, 2]] and standbys(stage) == [1]
    assert stage.memory() == {0: "1Gi", 1: "2Gi", 2: "1Gi"}


async def test_a_standby_whose_pods_keep_failing_is_given_up_and_the_job_is_not() -> None:
    stage = await training(2, 1)
    fail_for_good(stage, 2)
    await stage.settle()
    assert (members(stage), standbys(stage), stage.job()["status"]["phase"]) == ([[0, 1]], [], "Running")
    assert stage.workers()[2]["spec"]["incarnation"] == 1
    told = (
        "not started again, since there are enough others: j-worker-2 failed 3 times in a row by the same error "
        "without getting further: j-worker-2: no such file"
    )
    assert given_up(stage) == told
    assert [said for said in stage.said() if said[0] == "WorkersGivenUp"] == [("WorkersGivenUp", told)]

    stage.remove(ELASTICWORKERS, "j-worker-2")  # somebody has mended what was wrong
    await stage.settle()
    assert standbys(stage) == [2] and given_up(stage) is None


async def test_a_member_that_is_given_up_has_its_place_taken_by_a_standby() -> None:
    stage = await training(2, 1)
    fail_for_good(stage, 0)
    await stage.settle()
    assert members(stage) == [[0, 1], [1, 2]] and given_up(stage)


async def test_the_job_fails_when_more_are_given_up_than_stand_by() -> None:
    stage = await training(2, 1)
    fail_for_good(stage, 2)
    await stage.settle()
    fail_for_good(stage, 1)
    await stage.settle()
    failed = next(c for c in stage.job()["status"]["conditions"] if c["type"] == "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "SameErrorRepeated")


@pytest.mark.parametrize("asked", [{"replicas": 3}, {"resource": {"memory": "2Gi"}}])
async def test_a_plan_does_not_wait_for_who_was_given_up(asked: dict[str, Any]) -> None:
    stage = await training(2, 1)
    fail_for_good(stage, 2)
    await stage.settle()
    stage.add_plan(replicaResourceSpecs={"worker": asked})
    await stage.settle()
    assert stage.phase() == "Applied" and given_up(stage)
    assert members(stage)[-1] == ([0, 1, 3] if "replicas" in asked else [3, 4])


def given_up(stage: Stage) -> str | None:
    """Message of the warning; None without one."""
    warnings = stage.job()["status"].get("warnings", ())
    return next((str(w["message"]) for w in warnings if w["type"] == "WorkersGivenUp"), None)


def fail_for_good(stage: Stage, index: int) -> None:
    """Its Pod has ended in the same way for the third time."""
    worker_ = next(w for w in stage.workers() if w["spec"]["index"] == index)
    end = {
        "incarnation": worker_["spec"]["incarnation"],
        "exitClass": "UserError",
        "message": "no such file",
        "time": later(stage.seconds).isoformat(),
    }
    budget = {"spent": {"UserError": 3}, "exitClass": "UserError", "signature": "no such file", "alike": 3}
    failed = {"phase": "Failed", "lastExit": end, "failureBudget": budget}
    stage.patch(ELASTICWORKERS, worker_["metadata"]["name"], {"status": failed}, "status")


def lose(stage: Stage, index: int) -> None:
    """Its Pod is gone."""
    worker_ = next((w for w in stage.workers() if w["spec"]["index"] == index), None)
    if worker_ is None or worker_.get("status", {}).get("phase") != "Running":
        return
    end = {
        "incarnation": worker_["spec"]["incarnation"],
        "exitClass": "NodeLost",
        "time": later(stage.seconds).isoformat(),
    }
    gone = {"status": {"phase": "Failed", "lastExit": end, "message": "lost"}}
    stage.patch(ELASTICWORKERS, worker_["metadata"]["name"], gone, "status")


# --- when the lost Pod is replaced -------------------------------------------------------------------------


async def look(stage: Stage) -> None:
    stage.deliver_all()
    await stage.reconcile_job()


def incarnations(stage: Stage) -> list[int]:
    return [w["spec"]["incarnation"] for w in stage.workers()]


async def test_a_lost_pod_is_replaced_when_the_world_that_a_standby_completes_trains() -> None:
    stage = await training(2, 1)
    lose(stage, 1)
    await look(stage)
    assert members(stage) == [[0, 1], [0, 2]] and incarnations(stage) == [1, 1, 1]
    for _ in range(3):
        await look(stage)
    assert incarnations(stage) == [1, 1, 1], "its agents have not begun"
    stage.act()
    for _ in range(2):
        await look(stage)
    assert incarnations(stage) == [1, 2, 1], "they have, and no time has passed"


async def test_a_standby_takes_the_place_of_rank_0_once_its_agent_has_reported_the_end() -> None:
    """Its Pod is deleted, and saves in its grace; another Pod of its slot would have its report refused."""
    stage = await training(2, 1)
    stage.act()
    await look(stage)
    lose(stage, 0)
    (first, *_) = stage.workers()
    end = first["status"]["lastExit"] | {"exitClass": "Killed", "inGoodOrder": True}
    leaves = {"lastExit": end, "leavingPods": [first["status"]["podName"]]}
    stage.patch(ELASTICWORKERS, first["metadata"]["name"], {"status": leaves}, "status")
    await look(stage)
    assert stage.job()["status"]["rendezvous"]["waitsFor"] == "processes of worker 0 still run"
    assert incarnations(stage) == [1, 1, 1]
    stopped = {"status": {"agent": first["status"]["agent"] | {"state": "Stopped"}}}
    stage.patch(ELASTICWORKERS, first["metadata"]["name"], stopped, "status")
    await look(stage)
    assert members(stage) == [[0, 1], [1, 2]]


async def test_a_controller_that_has_just_started_waits_no_longer_than_another() -> None:
    """Though the clock of the one before may have been hours ahead: it is compared with none."""
    stage = await training(2, 1)
    lose(stage, 1)
    await look(stage)
    world = stage.job()["status"]["rendezvous"] | {"formedAt": later(3 * 3600).isoformat()}
    stage.patch(ELASTICJOBS, JOB, {"status": {"rendezvous": world}}, "status")
    stage.restart()
    await look(stage)
    assert incarnations(stage) == [1, 1, 1]
    stage.seconds += SPARE_POD_SECONDS
    await look(stage)
    assert incarnations(stage) == [1, 2, 1]


@pytest.mark.parametrize("standby", [0, 1])
async def test_a_pod_that_the_next_world_needs_is_replaced_in_the_very_look(standby: int) -> None:
    """There is no standby, or it is lost as well."""
    stage = await training(2, standby)
    for index in range(standby + 1):
        lose(stage, index)
    await look(stage)
    assert stage.job()["status"]["rendezvous"]["phase"] == "Reforming"
    assert incarnations(stage)[: standby + 1] == [2] * (standby + 1)


@given(
    st.lists(st.sampled_from(WorkerPhase), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.sampled_from(RendezvousPhase),
    st.floats(0, SPARE_POD_SECONDS),
)
def test_each_pod_that_has_ended_is_replaced_now_or_a_look_is_due_no_later_than_the_wait(
    phases_: list[WorkerPhase], members_: set[int], phase: RendezvousPhase, wait: float
) -> None:
    """Invariant: nobody is forgotten, and members do not wait."""
    last = {"incarnation": 1, "exitClass": "Killed", "time": NOW}
    crew = [worker(i, p, lastExit=last if p is WorkerPhase.FAILED else None) for i, p in enumerate(phases_)]
    world = Rendezvous(round=1, phase=phase, members=sorted(members_), incarnations=[1] * len(members_))
    at_once = {r.worker.spec.index for r in plan_relaunches(crew, world, NOW).relaunches}
    plan = plan_relaunches(crew, world, NOW, spare_pod_wait_seconds=wait)
    now = {r.worker.spec.index for r in plan.relaunches}
    stays = set() if phase is RendezvousPhase.REFORMING else members_  # whose next world waits for leavers
    assert now == (at_once if wait == 0 else at_once & stays)
    assert plan.look_again_seconds == (None if now == at_once else wait)


CHANGES = st.one_of(
    st.tuples(st.just("lose"), st.integers(0, 6)),
    st.tuples(st.just("replicas"), st.integers(2, 4)),
    st.tuples(st.just("standby"), st.integers(0, 2)),
    st.tuples(st.just("plan"), st.sampled_from(["moved", "resources"])),
)


@given(st.lists(st.tuples(CHANGES, CHAOS), max_size=6), st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_whatever_happens_there_are_replicas_in_the_world_and_standby_beside_it(
    story: list[tuple[tuple[str, Any], list[str]]], standby: int
) -> None:
    """Invariants: no world larger than any count asked for; in the end, replicas train and standby stand by."""

    async def run() -> Stage:
        stage, most = await training(3, standby, minimum=2), 3
        for number, ((what, value), chaos) in enumerate(story):
            if what == "lose":
                lose(stage, value)
            elif what == "plan":
                stage.seconds += 1
                stage.add_plan(f"p{number}", **KINDS[value])
            else:
                stage.edit_job(**{what: value})
                most = max(most, value if what == "replicas" else 0)
            await play(stage, chaos)
        await stage.settle()
        assert all(len(world["members"]) <= most for world in stage.worlds)
        return stage

    stage = asyncio.run(run())
    spec = stage.job()["spec"]["replicaSpecs"]["worker"]
    world = in_lists(stage.job()["status"]["rendezvous"])
    assert (world["phase"], len(world["members"])) == ("Formed", spec["replicas"])
    assert len(standbys(stage)) == spec["standby"]
    assert sorted([*world["members"], *standbys(stage)]) == [w["spec"]["index"] for w in stage.workers()]
    assert stage.job()["status"]["phase"] == "Running"
