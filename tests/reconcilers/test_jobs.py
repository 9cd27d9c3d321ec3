"""Jobs and checks by all real reconcilers over an API in memory: what leads to what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from controller.errors import ApiError, Conflict, Forbidden, WebhookUnavailable
from controller.resources import LEASES, NODES, PODS, ROLEBINDINGS, ROLES, SECRETS, SERVICEACCOUNTS, Resource
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.played import Played
from tests.reconcilers.process import Lag, Process

pytestmark = pytest.mark.played

JSON = dict[str, Any]


def failure(time: str, round_: int = 1) -> JSON:
    return {
        "sequence": 1,
        "round": round_,
        "rank": 1,
        "exitCode": 1,
        "message": "ValueError: bad",
        "time": time,
    }


def terminated(code: int) -> JSON:
    ended = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    return ended | {"state": {"terminated": {"exitCode": code, "reason": "Error", "message": "no such file"}}}


def events(played: Played, name: str) -> list[str]:
    return [event.reason for event in played.api.events if event.name == name]


async def test_deadline_fails_the_job_and_ttl_removes_it(played: Played) -> None:
    await played.submit("late", runPolicy={"activeDeadlineSeconds": 5})
    status = await played.phase("late", "Failed")
    assert any(c["reason"] == "DeadlineExceeded" for c in status["conditions"])
    brief = {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 1}}}
    await played.client.patch(ELASTICJOBS, "late", brief, NAMESPACE)
    await played.settle(5.0)
    assert played.api.find(ELASTICJOBS, "late") is None and await played.pods("late") == []


async def test_a_job_resumed_before_its_pods_are_gone_has_new_ones_and_no_world_with_the_old(
    played: Played,
) -> None:
    await played.train("hasty")
    for index in (0, 1):
        await played.bind(f"hasty-worker-{index}-1", "node-0")  # so that Pods take time to go
    await played.client.patch(ELASTICJOBS, "hasty", {"spec": {"suspend": True}}, NAMESPACE)
    await played.phase("hasty", "Suspended")
    await played.client.patch(ELASTICJOBS, "hasty", {"spec": {"suspend": False}}, NAMESPACE)
    status = await played.phase("hasty", "Restarting")
    assert status["rendezvous"]["phase"] == "Forming", "their agents leave: they said so before"
    for index in (0, 1):
        await played.run_agent(f"hasty-worker-{index}", incarnation=2)
    assert (await played.formed("hasty", 2))["incarnations"] == [2, 2]
    assert not (await played.status("hasty")).get("restarts"), "no failure"


async def test_node_that_dies_before_its_agent_is_heard_a_second_time_is_lost_in_time(played: Played) -> None:
    await played.submit("young", 1, elasticPolicy={"heartbeatTimeoutSeconds": 5})
    await played.bind("young-worker-0-1", "node-that-is-gone")
    await played.pod_status("young-worker-0-1", {"phase": "Running"})
    await played.settle()
    await played.beat("young-worker-0")
    await played.settle(0.5)
    await played.run_agent("young-worker-0")

    async def lost() -> bool:
        worker = await played.client.get(ELASTICWORKERS, "young-worker-0", NAMESPACE)
        return worker["status"].get("restarts") == {"NodeLost": 1}

    await played.until("it to be lost", lost)
    assert 5.0 <= played.api.seconds < 10.0


async def test_a_container_that_cannot_start_is_told_on_the_job_until_it_does(played: Played) -> None:
    await played.submit("image", replicas=1)
    await played.until("its Pod", lambda: played.client.get(PODS, "image-worker-0-1", NAMESPACE))
    waits = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    waits |= {"state": {"waiting": {"reason": "ErrImagePull", "message": "registry/x: not found"}}}
    await played.pod_status("image-worker-0-1", {"containerStatuses": [waits]})
    said = await played.warning("image", "WorkersNotStarted")
    assert (
        "1 Pod cannot start: main: ErrImagePull: registry/x: not found (the Pod has no pull secret) (image-worker-0, since 2026-"
        in said
    )
    assert "ImagePullBackOff" in events(played, "image")
    await played.run_agent("image-worker-0")
    await played.settle(5.0)
    assert not (await played.status("image")).get("warnings")


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "over quota"),
        WebhookUnavailable('failed calling webhook "quotas": it is over quota', status=500),
    ],
    ids=["refused", "webhook away"],
)
async def test_a_job_whose_workers_are_refused_says_so_once_and_gets_them_when_that_is_over(
    played: Played, error: ApiError
) -> None:
    """The ElasticWorkers themselves: by a policy, a quota for objects, or a webhook that does not answer."""
    asked = 0

    def refuse(write: Write) -> None:
        nonlocal asked
        if (write.verb, write.resource) == ("create", ELASTICWORKERS):
            asked += 1
            raise error

    process = played.begin()
    process.before_write = refuse
    await played.submit("barred", replicas=1)
    await played.settle()
    for number in range(10):
        patch = {"metadata": {"annotations": {"look": str(number)}}}
        await played.client.patch(ELASTICJOBS, "barred", patch, NAMESPACE)
        await played.settle()
    (told,) = (event for event in played.api.events if event.reason == "WriteRefused")
    assert told.message.startswith("the API server refuses what the job needs: ")
    assert "over quota" in told.message and asked == 1
    status = (await played.client.get(ELASTICJOBS, "barred", NAMESPACE))["status"]
    assert status["reason"] == "WriteRefused" and "over quota" in status["message"]
    process.before_write = lambda write: None
    await played.until("its Pod", lambda: played.client.get(PODS, "barred-worker-0-1", NAMESPACE))


async def test_what_was_done_is_told_though_another_act_is_refused(played: Played) -> None:
    def refuse(write: Write) -> None:
        if write.name == "partly-worker-1" and "incarnation" in write.body.get("spec", {}):
            raise Conflict(409, "Conflict", "changed")

    await played.train("partly", 3)
    played.begin().before_write = refuse
    for index in (1, 2):
        await played.delete_pod(f"partly-worker-{index}-1")
    await played.settle()
    relaunched = [event.message for event in played.api.events if event.reason == "WorkerRelaunched"]
    assert len(relaunched) == 1 and relaunched[0].startswith("partly-worker-2")
    assert "WorldBroken" in events(played, "partly")


async def test_a_job_whose_check_is_refused_trains_without(played: Played) -> None:
    def refuse(write: Write) -> None:
        if (write.verb, write.resource) == ("create", NODECHECKS):
            raise Forbidden(403, "Forbidden", "no")

    played.begin().before_write = refuse
    await played.train("unchecked", nodeCheck={"enabled": True})
    assert "CheckRefused" in events(played, "unchecked")


async def test_a_worker_costs_four_writes_until_it_is_ready_and_none_after(played: Played) -> None:
    """ElasticWorker, Lease, Pod and one status; key, rights, status and world of the job are shared by all."""
    workers, writes = 10, Counter[str]()
    played.begin().before_write = lambda write: writes.update([f"{write.verb} {write.resource.plural}"])
    await played.submit("counted", replicas=workers)
    for index in range(workers):
        await played.run_agent(f"counted-worker-{index}")
    await played.formed("counted", 1)
    assert writes["create elasticworlds"] == 1
    others = ("elasticjobs", "elasticworlds", "networkpolicies")
    assert {what: count for what, count in writes.items() if not what.endswith(others)} == {
        **dict.fromkeys(
            ["create elasticworkers", "create leases", "create pods", "patch elasticworkers"], workers
        ),
        **dict.fromkeys(
            ["create secrets", "create serviceaccounts", "create roles", "create rolebindings"], 1
        ),
    }


async def test_a_masters_replicas_are_ignored_whatever_they_say(played: Played) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    specs = {"worker": {"replicas": 1, "template": template}, "dlrover-master": {"template": {}}}
    await played.submit("mastered", replicaSpecs=specs, resourceLimits={"cpu": "1"})
    await played.run_agent("mastered-worker-0")
    await played.formed("mastered", 1)
    assert [w["type"] for w in (await played.status("mastered"))["warnings"]] == ["MasterReplicaIgnored"]
    assert len(await played.pods("mastered")) == 1


# --- checks -------------------------------------------------------------------------------------------------


async def check(played: Played, name: str, **spec: Any) -> JSON:
    return await played.client.create(NODECHECKS, {"metadata": {"name": name}, "spec": spec})


async def test_a_checks_worker_gets_its_pod_lease_and_rights_and_goes_with_it(played: Played) -> None:
    await played.client.create(NODES, {"metadata": {"name": "node-0"}})
    uid = (await check(played, "lab", nodes=["node-0"]))["metadata"]["uid"]
    pod = await played.until("its Pod", lambda: played.client.get(PODS, "lab-check-0-1", NAMESPACE))
    account = f"dlr-{uid}"
    assert pod["spec"]["serviceAccountName"] == account
    kinds = ((kind, account) for kind in (SERVICEACCOUNTS, ROLES, ROLEBINDINGS))
    for resource, name in (*kinds, (SECRETS, f"dlr-key-{uid}")):
        found = await played.client.get(resource, name, NAMESPACE)
        assert [owner["name"] for owner in found["metadata"]["ownerReferences"]] == ["lab"]
        assert found["metadata"]["labels"][names.LABEL_CHECK] == "lab"
    assert (await played.client.get(LEASES, "lab-check-0", NAMESPACE))["metadata"]["labels"][
        names.LABEL_CHECK
    ] == "lab"
    await played.client.delete(NODECHECKS, "lab", NAMESPACE)
    await played.settle()
    left = [obj["metadata"]["name"] for objects in played.api.objects.values() for obj in objects.values()]
    assert sorted(left) == [NAMESPACE, "node-0"]


async def test_a_checks_pod_that_ended_is_not_replaced_and_one_that_never_started_goes_with_its_end(
    played: Played,
) -> None:
    for node in ("node-0", "node-1"):
        await played.client.create(NODES, {"metadata": {"name": node}})
    await check(played, "once", nodes=["node-0", "node-1"])
    for index in (0, 1):
        name = f"once-check-{index}-1"
        await played.until(name, lambda name=name: played.client.get(PODS, name, NAMESPACE))
    await played.pod_status(
        "once-check-0-1", {"phase": "Failed", "reason": "Evicted", "message": "low on disk"}
    )
    await played.settle()
    status = (await played.client.get(ELASTICWORKERS, "once-check-0", NAMESPACE))["status"]
    assert (status["phase"], status["lastExit"]["exitClass"]) == ("Failed", "Preempted")

    async def has_finished() -> bool:
        return (await played.client.get(NODECHECKS, "once", NAMESPACE))["status"]["phase"] == "Succeeded"

    await played.until("the end of the check", has_finished)
    await played.settle(60.0)
    assert [pod["metadata"]["name"] for pod in played.api.list(PODS)] == ["once-check-0-1"]


@pytest.mark.parametrize("by", ["name", "label", "job"])
async def test_what_was_made_a_moment_before_its_check_is_waited_for(played: Played, by: str) -> None:
    played.begin(Lag(1, (NODES, ELASTICJOBS)))
    if by == "job":
        await played.submit("young")
        await check(played, "new", jobName="young")
    else:
        await played.client.create(NODES, {"metadata": {"name": "young", "labels": {"new": by}}})
        await check(
            played, "new", **({"nodes": ["young"]} if by == "name" else {"nodeSelector": {"new": by}})
        )
    await played.settle(10.0)
    status = (await played.client.get(NODECHECKS, "new", NAMESPACE))["status"]
    (running,) = (c for c in status["conditions"] if c["type"] == "Running")
    assert status.get("phase") != "Failed"
    assert running["reason"].startswith("WaitingFor") if by == "job" else status["nodes"] == ["young"]


AWAY = WebhookUnavailable('failed calling webhook "checks": connection refused', status=500)


def away_for(process: Process, resource: Resource, verb: str = "create") -> list[float]:
    """Let a webhook not answer for these writes; return the times of the attempts."""
    attempts = list[float]()

    def refuse(write: Write) -> None:
        if (write.verb, write.resource) == (verb, resource):
            attempts.append(process.api.seconds)
            raise AWAY

    process.before_write = refuse
    return attempts


async def test_a_job_whose_check_a_webhook_keeps_from_being_made_says_so_and_trains(played: Played) -> None:
    process = played.begin()
    assert away_for(process, NODECHECKS) == []
    await played.train("unchecked", 2, nodeCheck={"enabled": True})
    conditions = (await played.status("unchecked"))["conditions"]
    (checked,) = (c for c in conditions if c["type"] == "NodesChecked")
    assert checked["reason"] == "CheckRefused"
    assert checked["message"] == f"no node check can be created; training goes on: {AWAY}"


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (ELASTICWORKERS, f"waits: its workers are refused: {AWAY}"),
        (
            PODS,
            f"waits for the agents on its nodes; n1: its Pod could not be placed (PodRefused): Pod c-check-0-1 was refused: {AWAY}",
        ),
    ],
    ids=["workers", "Pods"],
)
async def test_a_check_for_which_a_webhook_is_away_says_so_and_goes_on_after_that(
    played: Played, resource: Resource, message: str
) -> None:
    process = played.begin()
    attempts = away_for(process, resource)
    await played.client.create(NODES, {"metadata": {"name": "n1"}})
    await check(played, "c", nodes=["n1"])
    await played.settle(20.0)
    status = (await played.client.get(NODECHECKS, "c", NAMESPACE))["status"]
    (waits,) = (c for c in status["conditions"] if c["type"] == "Running")
    assert waits["message"] == message and len(attempts) <= 2
    process.before_write = lambda write: None
    await played.until("its Pod", lambda: played.client.get(PODS, "c-check-0-1", NAMESPACE), 60.0)


async def test_a_check_that_cannot_be_deleted_for_a_webhook_has_an_event(played: Played) -> None:
    process = played.begin()
    away_for(process, NODECHECKS, "delete")
    await check(played, "old", nodes=["nowhere"], ttlSecondsAfterFinished=3600)
    await played.settle(3_700.0)
    messages = {event.message for event in played.api.events if event.reason == "WriteRefused"}
    assert messages == {f"the API server refuses what the NodeCheck needs: {AWAY}"}
    process.before_write = lambda write: None
    await played.settle(120.0)
    assert played.api.find(NODECHECKS, "old") is None


async def test_a_job_that_shrinks_while_a_lost_pod_recovers_keeps_the_pod_with_the_newest_step(
    played: Played,
) -> None:
    await played.train("smaller", 2)
    await played.run_agent("smaller-worker-1", state="Running", observed_round=1, memory={"step": 28})
    ended = {"phase": "Failed", "containerStatuses": [terminated(1)]}
    await played.pod_status("smaller-worker-0-1", ended)
    await played.until("its next Pod", lambda: played.client.get(PODS, "smaller-worker-0-2", NAMESPACE))
    fewer = {"spec": {"replicaSpecs": {"worker": {"replicas": 1}}}}
    await played.client.patch(ELASTICJOBS, "smaller", fewer, NAMESPACE)
    await played.settle(1.0)
    assert await played.pods("smaller") == ["smaller-worker-1-1"]
    await played.run_agent("smaller-worker-1", observed_round=1, memory={"step": 28})
    world = await played.formed("smaller", 2)
    assert world["members"] == [1]
