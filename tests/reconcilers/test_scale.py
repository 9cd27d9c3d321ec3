"""ScalePlans and counts from their creation to their end, by the real reconcilers over objects in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.resources import PODS
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.runtime.refused import RETRY_SECONDS
from tests.reconcilers.build import in_lists
from tests.reconcilers.scale_stage import JOB, Stage

JSON = dict[str, Any]


async def training(replicas: int = 3, minimum: int | None = None, **spec: Any) -> Stage:
    """A job whose workers all train."""
    stage = Stage()
    stage.add_job(replicas, minimum, **spec)
    await stage.settle()
    assert stage.formed()[-1]["members"] == list(range(replicas))
    stage.worlds.clear()
    stage.events.clear()
    return stage


def members(stage: Stage) -> list[list[int]]:
    return [world["members"] for world in stage.formed()]


@pytest.mark.parametrize("code", [400, 418])
async def test_a_count_that_a_webhook_denies_ends_the_plan_whatever_code_it_has(code: int) -> None:
    stage = await training(3)
    stage.denied, stage.denied_with = "not today", code
    stage.add_plan(replicaResourceSpecs={"worker": {"replicas": 4}})
    await stage.settle()
    denial = "admission webhook denied the request: not today"
    assert stage.told() == ("Refused", f"the job's counts were refused: {denial}")


async def test_a_count_that_a_webhook_sets_back_at_once_ends_the_plan() -> None:
    stage = await training(3)
    stage.pinned = 3
    stage.add_plan(replicaResourceSpecs={"worker": {"replicas": 4}})
    await stage.settle()
    assert stage.told() == (
        "Refused",
        "the job's counts were refused: a webhook set spec.replicaSpecs[worker].replicas to 3 in place of the requested 4",
    )
    assert names.ANNOTATION_SCALE not in stage.job()["metadata"]["annotations"], "nothing of it is merged"


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("pinned", [4, 5])
async def test_nothing_of_a_request_is_merged_whose_count_a_webhook_changes_though_the_controller_dies(
    pinned: int, is_deleted: bool
) -> None:
    """It dies between the write of the request and its withdrawal; the plan may be deleted then."""
    stage = await training(4, 2)
    stage.pinned = pinned
    stage.add_plan(migratePods=[{"id": 1}], replicaResourceSpecs={"worker": {"replicas": 3}})
    stage.crash = lambda: names.ANNOTATION_SCALE in stage.job()["metadata"].get("annotations", {})
    stage.deliver_all()
    await stage.look()
    assert stage.crash()
    stage.crash = lambda: False
    if is_deleted:
        stage.remove(SCALEPLANS, "p")
    await stage.settle()
    assert is_deleted or stage.told()[0] == "Refused"
    assert names.ANNOTATION_SCALE not in stage.job()["metadata"]["annotations"]
    for count in (6, 4):
        stage.edit_job(replicas=count)
        await stage.settle()
    assert stage.job()["status"]["retired"] == {} and members(stage)[-1] == [0, 1, 2, 3]


async def test_any_number_of_rolls_goes_round_in_a_few_slots() -> None:
    """Each retired all slots for ever: the list outgrew the CRD, and no status could be written any more."""
    stage = await training(2)
    for number in range(1, 9):
        resource = {"worker": {"resource": {"memory": f"{number + 1}Gi"}}}
        stage.add_plan(f"p{number}", replicaResourceSpecs=resource)
        await stage.settle()
        assert stage.phase(f"p{number}") == "Applied"
    assert set(stage.memory().values()) == {"9Gi"}
    assert max(stage.memory()) <= 4 and stage.job()["status"]["migrations"] == {}


async def test_units_are_rolled_whole() -> None:
    stage = await training(4, 2, elasticPolicy={"nodeUnit": 2})
    stage.edit_job(
        template={
            "spec": {"containers": [{"name": "m", "image": "x", "resources": {"limits": {"memory": "3Gi"}}}]}
        }
    )
    await stage.settle()
    assert members(stage)[1:] == [[2, 3], [0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]
    assert stage.memory() == dict.fromkeys(range(4), "3Gi")


async def test_new_resources_reach_pods_that_could_not_be_scheduled_at_once() -> None:
    stage = Stage(unschedulable={0, 1})
    stage.add_job(2)
    await stage.settle()
    assert stage.job()["status"]["phase"] == "Pending"
    stage.add_plan(replicaResourceSpecs={"worker": {"resource": {"memory": "512Mi"}}})
    await stage.settle()
    assert stage.memory() == {0: "512Mi", 1: "512Mi"} and stage.phase() == "Applied"
    stage.unschedulable.clear()
    await stage.settle()
    assert members(stage) == [[0, 1]]


async def test_phase_is_scaling_until_the_world_has_the_size_and_not_after_a_loss() -> None:
    stage = await training(2, 1)
    stage.unschedulable |= {2, 3}
    stage.edit_job(replicas=4)
    await stage.settle()
    status = stage.job()["status"]
    scaled = next(c for c in status["conditions"] if c["type"] == "Scaled")
    assert (status["phase"], scaled["message"]) == ("Scaling", "the world has 2 of 4 workers")
    running = next(c for c in status["conditions"] if c["type"] == "Running")
    assert running["status"] == "True"
    stage.unschedulable.clear()
    await stage.settle()
    assert stage.job()["status"]["phase"] == "Running"


@pytest.mark.parametrize("looks", range(6))
async def test_of_plans_made_within_one_second_the_later_one_holds_whenever_the_job_is_looked_at(
    looks: int,
) -> None:
    """Seen together, one after the other, or one while the other's request waits in the job."""
    stage = await training(2, 1)
    stage.add_plan("b", replicaResourceSpecs={"worker": {"replicas": 4}})
    for _ in range(looks):
        stage.deliver_all()
        await stage.look()
    stage.add_plan("a", replicaResourceSpecs={"worker": {"replicas": 1}})
    await stage.settle()
    assert stage.phase("b") == ("Applied" if looks else "Superseded")
    if not looks:
        assert stage.told("b") == ("NewerPlan", "the ScalePlan a is newer")
        assert ("Superseded", "the ScalePlan a is newer") in stage.said()
    assert stage.phase("a") == "Applied" and members(stage)[-1] == [0]


async def test_plan_without_moves_gives_up_those_of_the_one_it_supersedes() -> None:
    stage = await training(2)
    stage.unschedulable |= {2}
    stage.add_plan("a", migratePods=[{"id": 0}])
    await stage.settle()
    assert stage.job()["status"]["migrations"] == {"worker": {"sources": "0", "targets": "2"}}
    stage.add_plan("b", replicaResourceSpecs={"worker": {"replicas": 2}})
    await stage.settle()
    assert stage.phase("b") == "Applied" and stage.job()["status"]["migrations"] == {}
    assert [worker["spec"]["index"] for worker in stage.workers()] == [0, 1]


async def test_plan_whose_count_is_overridden_by_an_edit_says_which_count_holds() -> None:
    """The controller dies between the request and the verdict, and the edit comes then."""
    stage = await training(4, 1)
    stage.add_plan(migratePods=[{"id": 1}], replicaResourceSpecs={"worker": {"replicas": 3}})
    stage.crash = lambda: "annotations" in stage.job()["metadata"]
    stage.deliver_all()
    await stage.look()
    assert stage.crash() and stage.phase() == "None"
    stage.crash = lambda: False
    stage.edit_job(replicas=6)
    await stage.settle()
    assert stage.phase() == "Applied" and members(stage)[-1] == [0, 2, 3, 4, 5, 6]
    why = "the job's spec was changed: 6 of type worker in place of 3"
    assert stage.told() == (
        "Applied",
        f"written into the job j, but {why}; the job's condition Scaled has the progress",
    )


async def test_plan_edited_after_its_verdict_changes_nothing() -> None:
    stage = await training(2, 1)
    stage.add_plan(replicaResourceSpecs={"worker": {"replicas": 3}})
    await stage.settle()
    stage.patch(SCALEPLANS, "p", {"spec": {"replicaResourceSpecs": {"worker": {"replicas": 2}}}})
    await stage.settle()
    assert stage.phase() == "Applied" and members(stage)[-1] == [0, 1, 2]


async def test_plan_that_is_deleted_when_its_request_is_in_the_job_is_applied_as_ever() -> None:
    stage = await training(3, 1)
    stage.add_plan(migratePods=[{"id": 0}], replicaResourceSpecs={"worker": {"replicas": 2}})
    while "annotations" not in stage.job()["metadata"]:
        stage.deliver_all()
        await stage.look()
    stage.remove(SCALEPLANS, "p")
    await stage.settle()
    assert members(stage)[-1] == [1, 2] and stage.job()["status"]["retired"] == {"worker": "0"}
    assert stage.job()["status"]["scaling"]["by"] == "ScalePlan p"


async def test_suspended_job_has_nothing_to_move_and_a_plan_for_it_is_refused() -> None:
    stage = await training(2)
    stage.unschedulable |= {2}
    stage.add_plan(migratePods=[{"id": 0}])
    await stage.settle()
    stage.patch(ELASTICJOBS, JOB, {"spec": {"suspend": True}})
    stage.add_plan("late", migratePods=[{"id": 1}])
    await stage.settle()
    assert (stage.phase("late"), stage.told("late")[0]) == ("Refused", "JobSuspended")
    assert stage.job()["status"]["migrations"] == {}


async def test_plan_that_came_with_its_job_waits_for_it() -> None:
    stage = Stage()
    stage.add_job(2, 1)
    stage.add_plan(replicaResourceSpecs={"worker": {"replicas": 3}})
    stage.deliver(SCALEPLANS)
    await stage.look()
    await stage.settle()
    assert stage.phase() == "Applied" and members(stage)[-1] == [0, 1, 2]


async def test_members_that_fail_in_place_during_a_roll_do_not_stop_it() -> None:
    stage = await training(3, 2)
    stage.add_plan(replicaResourceSpecs={"worker": {"resource": {"memory": "2Gi"}}})
    while len(stage.formed()) < 2:
        stage.deliver_all()
        await stage.look()
        stage.act()
    round_ = stage.formed()[-1]["round"]
    stage.patch(
        ELASTICWORKERS,
        "j-worker-1",
        {"status": {"agent": {"state": "Failed", "observedRound": round_}}},
        "status",
    )
    await stage.settle()
    assert stage.phase() == "Applied" and stage.memory() == dict.fromkeys(range(3), "2Gi")
    assert {world["phase"] for world in stage.worlds} == {"Formed"}


# --- killed anywhere ----------------------------------------------------------------------------------------

KINDS: dict[str, JSON] = {
    "count up": {"replicaResourceSpecs": {"worker": {"replicas": 5}}},
    "count down": {"replicaResourceSpecs": {"worker": {"replicas": 2}}},
    "created": {"createPods": [{"type": "worker"}, {}]},
    "moved, with a count": {"migratePods": [{"id": 0}], "replicaResourceSpecs": {"worker": {"replicas": 2}}},
    "moved": {"migratePods": [{"id": 1}, {"rankIndex": 2}]},
    "resources": {"replicaResourceSpecs": {"worker": {"resource": {"memory": "2Gi"}}}},
    "all": {
        "replicaResourceSpecs": {"worker": {"resource": {"memory": "2Gi"}}},
        "createPods": [{}],
        "migratePods": [{"id": 2}],
    },
}


def outcome(stage: Stage) -> JSON:
    job = stage.job()
    status = job["status"]
    return {
        "replicas": job["spec"]["replicaSpecs"]["worker"]["replicas"],
        "plans": {p["metadata"]["name"]: p["status"]["phase"] for p in stage.list(SCALEPLANS)},
        "members": in_lists(status["rendezvous"])["members"],
        "memory": stage.memory(),
        "retired": status["retired"],
        "moves": status["migrations"],
        "phase": status["phase"],
        "merged": status.get("scaleRequest"),
        "scaling": status["scaling"]["by"],
    }


def check_worlds(stage: Stage, minimum: int) -> None:
    """One member list a round, rounds in order, none below the minimum, and training never stopped."""
    seen: dict[int, list[int]] = {}
    for world in stage.worlds:
        assert world["phase"] == "Formed" and len(world["members"]) >= minimum
        assert seen.setdefault(world["round"], world["members"]) == world["members"]
    assert list(seen) == sorted(seen)


CHAOS = st.lists(
    st.sampled_from(
        ["job", "job", "plans", "job cache", "worker cache", "plan cache", "pod cache", "agents", "die"]
    ),
    max_size=60,
)
CACHES = {
    "job cache": ELASTICJOBS,
    "worker cache": ELASTICWORKERS,
    "plan cache": SCALEPLANS,
    "pod cache": PODS,
}


async def play(stage: Stage, story: list[str]) -> None:
    """What happens, in any order; `die` kills the controller at its next write, before or after it."""
    deadly: list[bool] = []
    stage.crash = lambda: deadly.pop(0) if deadly else False
    for number, what in enumerate(story):
        stage.seconds += 1
        if what == "job":
            await stage.reconcile_job()
        elif what == "plans":
            await stage.reconcile_plans()
        elif what in CACHES:
            stage.deliver(CACHES[what])
        elif what == "agents":
            stage.act()
        else:
            deadly = [False] * (number % 4) + [True]
    deadly = []


BELOW_THREE = {"count down", "moved, with a count"}


@pytest.mark.parametrize(
    ("kind", "minimum"), [(k, m) for k in KINDS for m in (2, 3) if m == 2 or k not in BELOW_THREE]
)
def test_killed_anywhere_a_plan_comes_to_the_same_end(kind: str, minimum: int) -> None:
    undisturbed = asyncio.run(training(3, minimum))
    undisturbed.add_plan(**KINDS[kind])
    asyncio.run(undisturbed.settle())
    expected = outcome(undisturbed)
    assert expected["plans"] == {"p": "Applied"} and expected["phase"] == "Running"
    check_worlds(undisturbed, minimum)

    @given(CHAOS)
    @settings(max_examples=3, deadline=None)
    def killed_anywhere(story: list[str]) -> None:
        async def run() -> Stage:
            stage = await training(3, minimum)
            stage.add_plan(**KINDS[kind])
            await play(stage, story)
            await stage.settle()
            return stage

        stage = asyncio.run(run())
        assert outcome(stage) == expected
        check_worlds(stage, minimum)

    killed_anywhere()


@given(CHAOS, CHAOS, st.sampled_from(["count up", "count down", "moved", "resources"]))
@settings(max_examples=12, deadline=None)
def test_newer_plan_wins_whenever_it_comes(before: list[str], after: list[str], first: str) -> None:
    async def run() -> Stage:
        stage = await training(3, 1)
        stage.add_plan("a", **KINDS[first])
        await play(stage, before)
        stage.seconds += 1
        stage.add_plan("b", replicaResourceSpecs={"worker": {"replicas": 4}})
        await play(stage, after)
        await stage.settle()
        return stage

    stage = asyncio.run(run())
    assert stage.phase("b") == "Applied" and stage.phase("a") in ("Superseded", "Applied")
    assert len(stage.formed()[-1]["members"]) == 4 and stage.job()["status"]["scaling"]["by"] == "ScalePlan b"
    check_worlds(stage, 1)


@given(CHAOS, CHAOS, st.sampled_from(["count up", "count down", "moved, with a count"]))
@settings(max_examples=12, deadline=None)
def test_count_edited_after_a_plan_wins_whenever_it_comes(
    before: list[str], after: list[str], first: str
) -> None:
    """Once the plan's request is in the job: before, it is decided from whatever there is then."""

    async def run() -> tuple[Stage, bool]:
        stage = await training(3, 1)
        stage.add_plan(**KINDS[first])
        await play(stage, before)
        begun = names.ANNOTATION_SCALE in stage.job()["metadata"].get("annotations", {})
        stage.edit_job(replicas=6)
        await play(stage, after)
        await stage.settle()
        return stage, begun

    stage, begun = asyncio.run(run())
    assert stage.phase() == "Applied"
    count = stage.job()["spec"]["replicaSpecs"]["worker"]["replicas"]
    assert count == 6 or not begun
    assert len(stage.formed()[-1]["members"]) == count
    assert stage.job()["status"]["replicaStatuses"]["worker"]["desired"] == count
    check_worlds(stage, 1)


AWAY = 'failed calling webhook "quotas": connection refused'


async def test_a_plan_waits_for_a_webhook_that_is_away_and_says_so() -> None:
    """Each plan, worker and job triggers a look: these do not call the webhook again within 30 s."""
    stage = await training(3)
    stage.denied, stage.denied_with = AWAY, 500
    stage.add_plan(replicaResourceSpecs={"worker": {"replicas": 4}})
    for _ in range(5):
        stage.deliver_all()
        await stage.reconcile_plans()
    reason, message = stage.told()
    assert reason == "WriteRefused" and AWAY in message and "phase" not in stage.plan()["status"]
    assert [reason for reason, _ in stage.said("p")] == ["WriteRefused"]
    stage.denied = ""
    stage.seconds += RETRY_SECONDS
    await stage.settle()
    assert stage.phase() == "Applied" and stage.formed()[-1]["members"] == [0, 1, 2, 3]


async def test_a_newer_plan_takes_the_place_of_one_that_waits_for_a_webhook() -> None:
    stage = await training(3)
    stage.denied, stage.denied_with = AWAY, 500
    stage.add_plan("a", replicaResourceSpecs={"worker": {"replicas": 4}})
    stage.deliver_all()
    await stage.reconcile_plans()
    stage.denied = ""
    stage.seconds += 1
    stage.add_plan("b", replicaResourceSpecs={"worker": {"replicas": 2}})
    await stage.settle()
    assert (stage.phase("a"), stage.phase("b")) == ("Superseded", "Applied")
    assert stage.formed()[-1]["members"] == [0, 1]
