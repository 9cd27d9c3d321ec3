"""The reconcilers on the real API server, with hollow Pods and agents: what leads to what."""

from __future__ import annotations

import asyncio
import re
import signal
from functools import partial
from typing import Any

import pytest

from controller.client import Client
from controller.errors import Invalid, NotFound
from controller.manager import Manager
from controller.resources import EVENTS, LEASES, PODS
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import add_indexes, add_jobs
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real


async def reasons(hollow: Hollow, name: str) -> set[str]:
    events = await hollow.client.list(EVENTS, NAMESPACE)
    return {e["reason"] for e in events["items"] if e["involvedObject"]["name"] == name}


async def test_job_gets_workers_pods_and_leases_all_its_own(hollow: Hollow) -> None:
    await hollow.submit("plain", replicas=3)
    await hollow.until("three Pods", lambda: _count(hollow, "plain", 3))
    assert await hollow.pods("plain") == [f"plain-worker-{i}-1" for i in range(3)]
    lease = await hollow.client.get(LEASES, "plain-worker-0", NAMESPACE)
    assert lease["metadata"]["ownerReferences"][0]["kind"] == "ElasticWorker"


async def test_failed_process_makes_the_next_round_with_the_same_members(hollow: Hollow) -> None:
    await hollow.train("inplace")
    failure = {
        "sequence": 1,
        "round": 1,
        "rank": 1,
        "exitCode": 1,
        "message": "ValueError: bad",
        "time": "2026-01-01T00:00:00Z",
    }
    await hollow.say("inplace-worker-1", {"state": "Failed", "failure": failure})
    world = await hollow.formed("inplace", 2)
    assert (world["members"], world["incarnations"]) == ([0, 1], [1, 1])
    status = await hollow.status("inplace")
    assert status["restarts"] == {"UserError": 1}
    assert status["lastFailure"]["worker"] == "inplace-worker-1"
    assert "ValueError: bad" in status["lastFailure"]["message"]
    await hollow.until("Events", lambda: _has(hollow, "inplace", {"WorldBroken", "WorldFormed"}))


async def test_deleted_pod_is_replaced_and_joins_the_next_round(hollow: Hollow) -> None:
    await hollow.train("gone")
    await hollow.delete_pod("gone-worker-0-1")
    await hollow.run_agent("gone-worker-0", incarnation=2)
    world = await hollow.formed("gone", 2)
    assert (world["members"], world["incarnations"]) == ([0, 1], [2, 1])
    worker = await hollow.client.get(ELASTICWORKERS, "gone-worker-0", NAMESPACE)
    assert worker["status"]["restarts"] == {"Killed": 1}
    assert (await hollow.status("gone"))["restarts"] == {} or "restarts" not in await hollow.status("gone")


async def test_job_succeeds_when_all_members_have_and_keeps_its_pods(hollow: Hollow) -> None:
    await hollow.train("done")
    for index in (0, 1):
        await hollow.say(f"done-worker-{index}", {"state": "Succeeded"})
    status = await hollow.phase("done", "Succeeded")
    assert {"Succeeded": "True", "Running": "False"}.items() <= _conditions(status).items()
    assert len(await hollow.pods("done")) == 2


async def test_job_fails_with_the_errors_text_when_its_budget_is_spent(hollow: Hollow) -> None:
    await hollow.submit("doomed", replicas=1, worker={"restartCount": 1})
    for incarnation in (1, 2):
        pod = f"doomed-worker-0-{incarnation}"
        await hollow.until(pod, lambda pod=pod: hollow.client.get(PODS, pod, NAMESPACE))
        terminated = {"exitCode": 7, "reason": "Error", "message": "no such file: data.csv"}
        container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        container["state"] = {"terminated": terminated}
        await hollow.pod_status(pod, {"phase": "Failed", "containerStatuses": [container]})
    status = await hollow.phase("doomed", "Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "RestartLimitExceeded" and "no such file: data.csv" in failed["message"]
    assert status["lastFailure"]["exitCode"] == 7


async def test_deadline_fails_the_job_and_ttl_removes_it(hollow: Hollow) -> None:
    await hollow.submit("late", runPolicy={"activeDeadlineSeconds": 1})
    status = await hollow.phase("late", "Failed")
    assert any(c["reason"] == "DeadlineExceeded" for c in status["conditions"])
    brief = {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 1}}}
    await hollow.client.patch(ELASTICJOBS, "late", brief, NAMESPACE)

    async def gone() -> bool:
        try:
            await hollow.job("late")
        except NotFound:
            return True
        return False

    await hollow.until("the job to be deleted", gone)
    await hollow.until("its Pods to be collected", lambda: _count(hollow, "late", 0))


async def test_suspended_job_loses_its_pods_keeps_its_round_and_resumes(hollow: Hollow) -> None:
    await hollow.train("pause")
    await hollow.client.patch(ELASTICJOBS, "pause", {"spec": {"suspend": True}}, NAMESPACE)
    await hollow.phase("pause", "Suspended")
    for pod in await hollow.pods("pause"):
        await hollow.delete_pod(pod)  # the kubelet's part: the processes have ended
    await hollow.until("no Pods", lambda: _count(hollow, "pause", 0))
    for index in (0, 1):
        await hollow.until("a worker without a Pod", partial(_without_pod, hollow, f"pause-worker-{index}"))
    assert (await hollow.world("pause"))["round"] == 1
    await hollow.client.patch(ELASTICJOBS, "pause", {"spec": {"suspend": False}}, NAMESPACE)
    for index in (0, 1):
        await hollow.run_agent(f"pause-worker-{index}")
    world = await hollow.formed("pause", 2)
    assert world["incarnations"] == [1, 1]


async def test_a_job_resumed_before_its_pods_are_gone_has_new_ones_and_no_world_with_the_old(
    server: ApiServer,
) -> None:
    async with connected(server) as hollow:
        async with controllers(server):
            await hollow.train("hasty")

        async with controllers(server, register=only_jobs):  # so that the Pods are still there
            await hollow.client.patch(ELASTICJOBS, "hasty", {"spec": {"suspend": True}}, NAMESPACE)
            await hollow.phase("hasty", "Suspended")
            await hollow.client.patch(ELASTICJOBS, "hasty", {"spec": {"suspend": False}}, NAMESPACE)
            status = await hollow.phase("hasty", "Restarting")
            assert status["rendezvous"]["phase"] == "Forming", "their agents leave: they said so before"

        async with controllers(server):
            for index in (0, 1):
                await hollow.run_agent(f"hasty-worker-{index}", incarnation=2)
            world = await hollow.formed("hasty", 2)
            assert world["incarnations"] == [2, 2]
            await hollow.until("the old Pods to go", lambda: _count(hollow, "hasty", 2))
            assert not (await hollow.status("hasty")).get("restarts"), "no failure"


def only_jobs(manager: Manager) -> None:
    add_indexes(manager.cache)
    add_jobs(manager, Clock())


async def test_a_pod_that_is_refused_though_its_trial_was_not_is_told_on_the_job(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(self: Client, resource: Any, obj: dict[str, Any]) -> None: ...

    monkeypatch.setattr(Client, "try_create", unheard)
    broken = {"spec": {"containers": [{"name": "Main_1", "image": "x"}]}}
    await hollow.submit("refused", replicas=1, worker={"template": broken})

    async def told() -> bool:
        warnings = (await hollow.status("refused")).get("warnings", ())
        return "WorkersUnscheduled" in [w["type"] for w in warnings]

    await hollow.until("a warning", told)
    await hollow.until("an Event", lambda: _has(hollow, "refused", {"PodRefused"}))


async def test_silent_agent_of_a_lost_node_is_relaunched_and_an_outage_of_ours_is_nobodys_silence(
    hollow: Hollow, server: ApiServer
) -> None:
    await hollow.submit("quiet", elasticPolicy={"heartbeatTimeoutSeconds": 10})
    for index in (0, 1):
        await hollow.bind(f"quiet-worker-{index}-1", "node-that-is-gone")
        await hollow.run_agent(f"quiet-worker-{index}")
        await hollow.beat(f"quiet-worker-{index}")
    await hollow.formed("quiet", 1)

    server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(12)  # an outage longer than the time-out: time has to pass
    server.process.send_signal(signal.SIGCONT)
    stop = asyncio.Event()

    async def keep_beating() -> None:
        while not stop.is_set():
            await hollow.beat("quiet-worker-1")
            await asyncio.sleep(0.5)

    beating = asyncio.create_task(keep_beating())
    try:
        await hollow.until(
            "the silent one's replacement", lambda: hollow.client.get(PODS, "quiet-worker-0-2", NAMESPACE)
        )
    finally:
        stop.set()
        await beating
    lost = await hollow.client.get(ELASTICWORKERS, "quiet-worker-0", NAMESPACE)
    assert lost["status"]["restarts"] == {"NodeLost": 1}
    well = await hollow.client.get(ELASTICWORKERS, "quiet-worker-1", NAMESPACE)
    assert well["spec"]["incarnation"] == 1


async def test_deleting_a_job_removes_everything_it_made(hollow: Hollow) -> None:
    await hollow.train("cleanup")
    await hollow.client.delete(ELASTICJOBS, "cleanup", NAMESPACE)

    async def nothing_left() -> bool:
        workers = await hollow.client.list(ELASTICWORKERS, NAMESPACE)
        leases = await hollow.client.list(LEASES, NAMESPACE)
        left = [o["metadata"]["name"] for o in (*workers["items"], *leases["items"])]
        for pod in await hollow.pods("cleanup"):
            await hollow.delete_pod(pod)
        return not any(name.startswith("cleanup-") for name in left)

    await hollow.until("nothing left", nothing_left)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"worker": {"replicas": -1}}, "spec.replicaSpecs.worker.replicas"),
        ({"worker": {"replicas": "two"}}, "spec.replicaSpecs.worker.replicas"),
        ({"worker": {"minReplicas": 3, "maxReplicas": 2}}, "spec.replicaSpecs.worker"),
        ({"worker": {"template": None}}, "spec.replicaSpecs.worker.template"),
        (
            {"worker": {"template": {"spec": {"containers": []}}}},
            "spec.replicaSpecs.worker.template.spec.containers",
        ),
        (
            {"worker": {"template": {"spec": {"containers": [{"name": "main"}]}}}},
            "spec.replicaSpecs.worker.template.spec.containers[0].image: Required value",
        ),
        ({"elasticPolicy": {"nodeUnit": 0}}, "spec.elasticPolicy.nodeUnit"),
        ({"elasticPolicy": {"nodeUnit": 4}}, "spec"),
    ],
)
async def test_bad_jobs_are_refused_with_the_fields_path(
    server: ApiServer, spec: dict[str, Any], path: str
) -> None:
    async with connected(server) as hollow:
        with pytest.raises(Invalid, match=re.escape(path)):
            await hollow.submit("bad", **spec)


async def test_a_master_may_say_anything_since_it_is_ignored(hollow: Hollow) -> None:
    without_image = {"spec": {"containers": [{"name": "main", "imagePullPolicy": "Always"}]}}
    masters: list[tuple[str, dict[str, Any]]] = [
        ("dlrover-master", {"template": without_image}),
        ("master", {"replicas": 7, "template": {"spec": {"containers": []}}, "restartCount": -1}),
        ("dlrover-master", {"template": {}}),
        ("master", {}),
    ]
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    for number, (type_, master) in enumerate(masters):
        name = f"mastered-{number}"
        specs = {"worker": {"replicas": 1, "template": template}, type_: master}
        await hollow.submit(name, replicaSpecs=specs, resourceLimits={"cpu": "1"})
        assert (await hollow.job(name))["spec"]["replicaSpecs"][type_] == master
        await hollow.run_agent(f"{name}-worker-0")
        await hollow.formed(name, 1)
        assert [w["type"] for w in (await hollow.status(name))["warnings"]] == ["MasterReplicaIgnored"]
        assert len(await hollow.pods(name)) == 1


async def test_name_that_makes_pod_names_too_long_is_refused(server: ApiServer) -> None:
    async with connected(server) as hollow:
        with pytest.raises(Invalid, match=r"metadata\.name is too long"):
            await hollow.submit("x" * 46)


def _conditions(status: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status.get("conditions", ())}


async def _count(hollow: Hollow, job: str, count: int) -> bool:
    return len(await hollow.pods(job)) == count


async def _has(hollow: Hollow, name: str, wanted: set[str]) -> bool:
    return wanted <= await reasons(hollow, name)


async def _without_pod(hollow: Hollow, worker: str) -> bool:
    found = await hollow.client.get(ELASTICWORKERS, worker, NAMESPACE)
    return "podUid" not in found["status"]
