"""Who takes part, from the groups' statuses to the ElasticWorld that their agents watch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.errors import ApiError, Conflict, Forbidden, TimedOut
from controller.reconciler import Request, Result
from crds.grouping import MAX_GROUPS
from crds.replica_groups import Membership
from reconcilers.groups.children import group_job
from reconcilers.groups.membership import decide
from reconcilers.groups.warnings import GROUPS_NOT_MADE
from reconcilers.job.published import world_spec
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORLDS
from reconcilers.runtime.refused import RETRY_SECONDS
from tests.reconcilers.api import Write, merged
from tests.reconcilers.build import job
from tests.reconcilers.groups.test_membership import able
from tests.reconcilers.worker_stage import NAMESPACE, Api, Controller

JOB = "big"
GROUPS = 3


class GroupsController(Controller):
    """A controller of grouped jobs."""

    async def look_at_job(self, *, late: bool = False) -> Result:
        """With what the cache has, or with all there is."""
        if not late:
            self.deliver()
        return await self.reconcile("replicagroups", Request(NAMESPACE, JOB))

    def deliver_worlds(self) -> None:
        """The watch of ElasticWorlds has caught up, and no other."""
        self.cache.catch_up(ELASTICWORLDS)


@pytest.fixture
def api() -> Api:
    return grouped(GROUPS, workers=2, least=2)


def grouped(groups: int, workers: int, least: int) -> Api:
    """A job whose groups all train."""
    api = Api()
    policy = {"replicaGroups": {"workers": workers, "min": least}}
    made = job(JOB, replicas=workers * groups, elasticPolicy=policy).to_wire()
    uids = [{"index": index, "uid": f"uid-group-{index}"} for index in range(groups)]
    api.put(ELASTICJOBS, merged(made, {"metadata": {"generation": 1}, "status": {"groups": uids}}))
    for index in range(groups):
        made = group_job(api.get(ELASTICJOBS, JOB), index)
        metadata = made["metadata"] | {"generation": 1, "uid": f"uid-group-{index}"}
        api.put(ELASTICJOBS, made | {"metadata": metadata})
        trains(api, index)
    return api


def trains(api: Api, index: int, round_: int = 1, **part: Any) -> None:
    """A group's world is formed, and its processes are ready."""
    world = {
        "round": round_,
        "phase": "Formed",
        "masterAddress": f"10.0.0.{index}",
        "masterPort": 29_400,
        "members": "0-1",
    }
    replica_group = {"round": round_, "ready": True} | part
    status = {"phase": "Running", "rendezvous": world, "replicaGroup": replica_group}
    group = api.get(ELASTICJOBS, f"{JOB}-group-{index}")
    api.put(ELASTICJOBS, merged(group, {"status": status}))


def published(api: Api) -> tuple[int, list[tuple[int, int]]]:
    replicas = api.get(ELASTICWORLDS, JOB)["spec"]["replicas"]
    return replicas["version"], [(each["index"], each["round"]) for each in replicas.get("groups", ())]


async def test_one_look_writes_status_and_world_and_the_next_writes_nothing(api: Api) -> None:
    controller = GroupsController(api)
    await controller.look_at_job()
    assert published(api) == (1, [(0, 1), (1, 1), (2, 1)])
    together = api.get(ELASTICWORLDS, JOB)["spec"]["replicas"]
    assert (together["address"], together["port"]) == ("10.0.0.0", 29_400)
    assert api.get(ELASTICJOBS, JOB)["status"]["phase"] == "Running"
    api.requests.clear()
    await controller.look_at_job()
    assert api.requests == []


async def test_a_look_that_costs_two_writes_leaves_out_a_group_whose_process_died(api: Api) -> None:
    controller = GroupsController(api)
    await controller.look_at_job()
    trains(api, 1, round_=2, ready=False)
    api.requests.clear()
    await controller.look_at_job()
    assert published(api) == (2, [(0, 1), (2, 1)])
    assert api.requests == [("patch", "ElasticJob"), ("patch", "ElasticWorld")]
    trains(api, 1, round_=2)
    await controller.look_at_job()
    assert published(api) == (3, [(0, 1), (1, 2), (2, 1)])
    trains(api, 0, brokenVersion=3)
    await controller.look_at_job()
    assert published(api) == (4, [(0, 1), (1, 2), (2, 1)]), "an exchange that broke is made again"


def test_the_object_that_all_agents_of_all_groups_watch_stays_small() -> None:
    views = [able(index, 10_000, address="10.244.131.17") for index in range(MAX_GROUPS)]
    membership = decide(Membership(version=99_999), views, 1).to_wire()
    named = {"name": JOB, "namespace": NAMESPACE, "uid": "u"}
    world = world_spec(
        {"metadata": named, "spec": {}, "status": {"phase": "Running", "membership": membership}}
    )
    assert len(world["replicas"]["groups"]) == MAX_GROUPS
    assert len(json.dumps(world, separators=(",", ":"))) < 30 * MAX_GROUPS


async def test_a_controller_that_is_behind_writes_no_older_membership(api: Api) -> None:
    """It sees the newer ElasticWorld and the older job, with whose groups the older membership agrees."""
    controller, other = GroupsController(api), GroupsController(api)
    await controller.look_at_job()
    other.deliver()
    trains(api, 1, round_=2, ready=False)
    await controller.look_at_job()
    other.deliver_worlds()
    with pytest.raises(Conflict):
        await other.look_at_job(late=True)
    assert published(api) == (2, [(0, 1), (2, 1)])
    await other.look_at_job()
    assert published(api) == (2, [(0, 1), (2, 1)])


async def test_a_crash_between_status_and_world_is_made_up_for_by_the_next_look(api: Api) -> None:
    controller = GroupsController(api)
    await controller.look_at_job()
    world = api.get(ELASTICWORLDS, JOB)
    trains(api, 2, round_=2)
    await controller.look_at_job()
    api.put(
        ELASTICWORLDS, merged(api.get(ELASTICWORLDS, JOB), {"spec": {"replicas": world["spec"]["replicas"]}})
    )
    assert published(api)[0] == 1
    await GroupsController(api).look_at_job()
    assert published(api) == (2, [(0, 1), (1, 1), (2, 2)])


async def test_an_elasticjob_of_another_namespace_or_name_is_no_group_whatever_it_says(api: Api) -> None:
    """Its author may name any owner."""
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    forged = group_job(api.get(ELASTICJOBS, JOB), 1)
    for name, namespace in ((f"{JOB}-group-1", "elsewhere"), ("mine", NAMESPACE)):
        metadata = forged["metadata"] | {"name": name, "namespace": namespace, "generation": 1}
        status = api.get(ELASTICJOBS, f"{JOB}-group-0")["status"]
        api.put(ELASTICJOBS, forged | {"metadata": metadata, "status": status})
    controller = GroupsController(api)
    await controller.look_at_job()
    assert published(api) == (1, [(0, 1), (2, 1)])


async def test_a_false_group_of_the_right_name_owner_and_annotation_is_deleted_and_the_true_one_made(
    api: Api,
) -> None:
    """Its author takes the name while the true one is deleted, or before there is one."""
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    forged = group_job(api.get(ELASTICJOBS, JOB), 1)
    forged["metadata"] |= {"generation": 1, "uid": "uid-forged"}
    api.put(ELASTICJOBS, forged)
    trains(api, 1)
    controller = GroupsController(api)
    await controller.look_at_job()
    assert published(api) == (1, [(0, 1), (2, 1)])
    assert [event.reason for event in api.events].count("FalseGroupDeleted") == 1
    assert api.find(ELASTICJOBS, f"{JOB}-group-1") is None
    await controller.look_at_job()
    true = merged(api.get(ELASTICJOBS, f"{JOB}-group-1"), {"metadata": {"generation": 1}})
    api.put(ELASTICJOBS, true)
    recorded = api.get(ELASTICJOBS, JOB)["status"]["groups"]
    assert [each["uid"] for each in recorded] == ["uid-group-0", true["metadata"]["uid"], "uid-group-2"]
    trains(api, 1)
    await GroupsController(api).look_at_job()
    assert published(api) == (2, [(0, 1), (1, 1), (2, 1)])
    assert "deletionTimestamp" not in api.get(ELASTICJOBS, f"{JOB}-group-1")["metadata"]


async def test_an_elasticjob_that_the_job_owns_without_controlling_it_is_named_as_in_the_way(
    api: Api,
) -> None:
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    forged = group_job(api.get(ELASTICJOBS, JOB), 1)
    (owner,) = forged["metadata"]["ownerReferences"]
    forged["metadata"] |= {"generation": 1, "ownerReferences": [owner | {"controller": False}]}
    api.put(ELASTICJOBS, forged)
    with pytest.raises(Forbidden, match=f"{JOB}-group-1 is no group of this job: delete it"):
        await GroupsController(api).look_at_job()
    assert published(api) == (1, [(0, 1), (2, 1)]), "the others train"
    (told,) = (event.message for event in api.events if event.reason == "WriteRefused")
    assert f"{JOB}-group-1 is no group of this job: delete it" in told


async def test_groups_that_are_made_beside_one_that_is_refused_stay(api: Api) -> None:
    """Somebody's ElasticJob has the name of one; a quota refuses as well."""
    for index in range(GROUPS):
        api.remove(ELASTICJOBS, f"{JOB}-group-{index}")
    api.put(ELASTICJOBS, merged(api.get(ELASTICJOBS, JOB), {"status": {"groups": []}}))
    api.put(ELASTICJOBS, job(f"{JOB}-group-1").to_wire())
    controller = GroupsController(api)
    with pytest.raises(Forbidden):
        await controller.look_at_job()
    made = [api.get(ELASTICJOBS, f"{JOB}-group-{index}")["metadata"]["uid"] for index in (0, 2)]
    for again in (controller, GroupsController(api)):
        api.seconds += RETRY_SECONDS
        with pytest.raises(Forbidden):
            await again.look_at_job()
        stored = api.get(ELASTICJOBS, JOB)["status"]
        assert [each["uid"] for each in stored["groups"]] == made
        assert [api.get(ELASTICJOBS, f"{JOB}-group-{index}")["metadata"]["uid"] for index in (0, 2)] == made
    (warning,) = stored["warnings"]
    assert f"{JOB}-group-1 is no group of this job: delete it" in warning["message"]
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    api.seconds += RETRY_SECONDS
    await controller.look_at_job()
    await controller.look_at_job()
    assert api.get(ELASTICJOBS, JOB)["status"]["warnings"] == []
    assert [event.reason for event in api.events].count("FalseGroupDeleted") == 0


QUOTA = Forbidden(403, "Forbidden", "exceeded quota: jobs, used: 3")


@pytest.fixture
async def refused(api: Api) -> GroupsController:
    """A controller that was refused a group a moment ago, and the job has the warning."""
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    api.refusals[ELASTICJOBS] = QUOTA
    controller = GroupsController(api)
    with pytest.raises(Forbidden):
        await controller.look_at_job()
    await controller.look_at_job()
    return controller


def warning_since(api: Api) -> str:
    (warning,) = api.get(ELASTICJOBS, JOB)["status"]["warnings"]
    assert warning["type"] == GROUPS_NOT_MADE and str(QUOTA) in warning["message"]
    return str(warning["since"])


async def test_a_refused_group_is_tried_again_after_a_while_and_by_no_other_look(
    api: Api, refused: GroupsController
) -> None:
    api.requests.clear()
    trains(api, 2, round_=2)
    result = await refused.look_at_job()
    assert result.requeue_after_seconds == RETRY_SECONDS and ("create", "ElasticJob") not in api.requests
    warning_since(api)
    api.seconds += RETRY_SECONDS
    with pytest.raises(Forbidden):
        await refused.look_at_job()


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "changed"), TimedOut("no answer")])
async def test_an_error_that_is_no_refusal_does_not_end_the_warning(
    api: Api, refused: GroupsController, error: ApiError
) -> None:
    since = warning_since(api)
    api.seconds += RETRY_SECONDS
    api.refusals[ELASTICJOBS] = error
    for _ in range(2):
        with pytest.raises(type(error)):
            await refused.look_at_job()
    assert warning_since(api) == since
    assert [event.reason for event in api.events].count(GROUPS_NOT_MADE) == 1


async def test_a_refusal_is_told_though_the_job_changes_before_the_uids_are_written(api: Api) -> None:
    """One group is made beside one whose name somebody else's ElasticJob has."""
    api.remove(ELASTICJOBS, f"{JOB}-group-0")
    api.remove(ELASTICJOBS, f"{JOB}-group-1")
    api.put(ELASTICJOBS, job(f"{JOB}-group-1").to_wire())
    controller = GroupsController(api)
    note = controller.before_write

    def change_job(write: Write) -> None:
        note(write)
        if (write.verb, write.name) == ("create", f"{JOB}-group-0"):
            api.put(ELASTICJOBS, merged(api.get(ELASTICJOBS, JOB), {"metadata": {"labels": {"a": "b"}}}))

    controller.before_write = change_job
    with pytest.raises(Conflict):
        await controller.look_at_job()
    assert [event.reason for event in api.events].count("WriteRefused") == 1
    await controller.look_at_job()
    assert [each["type"] for each in api.get(ELASTICJOBS, JOB)["status"]["warnings"]] == [GROUPS_NOT_MADE]


async def test_the_most_groups_are_looked_at_beside_the_event_loop(beside: list[str]) -> None:
    api = grouped(MAX_GROUPS, workers=1, least=1)
    await GroupsController(api).look_at_job()
    assert len(published(api)[1]) == MAX_GROUPS and len(beside) == 1
