"""The shard sets of a job, by the real reconcilers: asked for, leased, done, and whatever happens between two writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.shards.holding import Holding
from controller.resources import PODS
from crds.agent_report import MAX_SHARDS_TEXT
from crds.leases import holder_number
from crds.shard_set import SetDefinition
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SHARDSETS
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import SetState, ShardPullers, report_of
from tests.reconcilers.api import Api
from tests.reconcilers.cluster_model import Script
from tests.reconcilers.life import JOB, Run, beginning, edit, lose_pod, replicas, submit
from tests.reconcilers.process import Lag

JSON = dict[str, Any]
FILES = {"name": "files", "epoch": 0, "size": 100, "digest": "d", "retries": 0, "maxFailed": 0}
CONTAINER = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
WANTS = {"lease": 0, "rest": "", "failed": "", "wants": True}


def says(api: Api, index: int, type_: str = "worker", **said: Any) -> None:
    """The agent of a worker reports a set; of which ShardSet, it knows if there is one."""
    found = {each["spec"]["setName"]: each["metadata"]["uid"] for each in api.list(SHARDSETS)}
    report = FILES | {"uid": found.get(said.get("name", "files"), "")} | said
    patch = {"status": {"agent": {"shards": [report]}}}
    api.patch(ELASTICWORKERS, f"{JOB}-{type_}-{index}", patch, "status")


def files(api: Api) -> JSON:
    return status_of(api.get(SHARDSETS, f"{JOB}-shards-0"))


def status_of(shard_set: JSON) -> JSON:
    status: JSON = dict(shard_set.get("status") or {})
    return {key: value for key, value in status.items() if key not in ("startedAt", "finishedAt")}


def conditions(api: Api) -> dict[str, tuple[str, str]]:
    found = api.get(ELASTICJOBS, JOB)["status"]["conditions"]
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def two_workers(api: Api, **spec: Any) -> None:
    worker = {"replicas": 2, "minReplicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}
    submit(api, replicaSpecs={"worker": worker}, **spec)


async def training(**spec: Any) -> Api:
    """Two workers that train, and have not pulled yet."""
    api = beginning()
    two_workers(api, **spec)
    return await Run(api).settle()


async def pulling() -> Api:
    """Each of them has a quarter of a hundred files."""
    api = await training()
    for index in range(2):
        says(api, index, **WANTS)
    return await Run(api).settle()


async def test_a_set_that_is_asked_for_is_an_object_of_its_own_and_leaves_the_job_as_it_is() -> None:
    api = await training()
    before = api.get(ELASTICJOBS, JOB)["status"]
    says(api, 0, **WANTS)
    await Run(api).settle()
    (made,) = api.list(SHARDSETS)
    assert made["spec"] == {"jobName": JOB, "setName": "files"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ElasticJob", JOB)
    assert (files(api)["leases"], files(api)["rest"]) == ("0.1.1=0-24", "25-99")
    after = api.get(ELASTICJOBS, JOB)["status"]
    assert {key for key in after if after[key] != before.get(key)} == {"conditions"}
    assert conditions(api)["ShardsDone"] == ("False", "Pulling")


async def test_each_set_has_an_object_with_the_first_number_that_is_free() -> None:
    api = await pulling()
    says(api, 1, name="others", **WANTS)
    await Run(api).settle()
    named = {each["metadata"]["name"]: each["spec"]["setName"] for each in api.list(SHARDSETS)}
    assert named == {f"{JOB}-shards-0": "files", f"{JOB}-shards-1": "others"}
    assert "1.1." not in files(api)["leases"], "its agent names it no more"


async def test_the_condition_of_a_job_says_when_all_is_done() -> None:
    api = await training()
    for index in range(2):
        says(api, index, size=2, **WANTS)
    await Run(api).settle()
    for index in range(2):
        says(api, index, size=2, lease=index + 1, rest="", wants=True)
    await Run(api).settle()
    assert (files(api)["done"], files(api)["leases"]) == (2, "")
    assert conditions(api)["ShardsDone"] == ("True", "AllDone")


async def test_more_failures_than_may_be_are_the_end_of_the_job() -> None:
    api = await pulling()
    says(api, 0, lease=1, rest="0-6,8-24", failed="7", reason="it is torn")
    await Run(api).settle()
    job = api.get(ELASTICJOBS, JOB)["status"]
    assert (job["phase"], job["reason"]) == ("Failed", "ShardsFailed")
    assert "(element 8)" in job["message"] and "it is torn" in job["message"]
    assert conditions(api)["ShardsDone"] == ("False", "ElementsFailed")


async def test_a_job_that_ends_says_that_nobody_pulls_any_more() -> None:
    api = await pulling()
    await Run(api, Script(done=True)).settle()
    assert conditions(api)["Succeeded"][0] == "True"
    assert conditions(api)["ShardsDone"] == ("False", "JobEnded")


def done_of_the_second(api: Api) -> None:
    says(api, 1, lease=2, rest="40-43")


async def test_what_a_lost_worker_has_reported_is_not_done_again() -> None:
    api = await pulling()
    done_of_the_second(api)
    lose_pod(api, 1)
    await Run(api).settle()
    assert (files(api)["done"], files(api)["rest"]) == (15, "40-99")


async def test_what_a_worker_has_reported_that_is_scaled_away_is_not_done_again() -> None:
    api = await pulling()
    run = Run(api)
    done_of_the_second(api)
    await run.settle()
    edit(api, replicas(1))
    await run.settle()
    assert api.find(ELASTICWORKERS, f"{JOB}-worker-1") is None
    assert (files(api)["done"], files(api)["leases"]) == (15, "0.1.1=0-24")


async def test_chief_and_workers_have_leases_of_their_own() -> None:
    api = beginning()
    template = {"spec": {"containers": [CONTAINER]}}
    specs = {type_: {"replicas": 1, "template": template} for type_ in ("worker", "chief", "ps")}
    submit(api, replicaSpecs=specs, distributionStrategy="ParameterServerStrategy", elasticPolicy={})
    await Run(api).settle()
    for type_ in ("worker", "chief"):
        if api.get(ELASTICWORKERS, f"{JOB}-{type_}-0").get("status", {}).get("agent"):
            says(api, 0, type_, **WANTS)
    await Run(api).settle()
    held = {int(each.split(".")[0]) for each in files(api)["leases"].split(";")}
    assert held == {holder_number(type_, 0) for type_ in ("worker", "chief")}


async def test_a_set_that_somebody_deletes_begins_anew_and_what_was_said_of_it_does_not_count() -> None:
    api = await pulling()
    api.delete(SHARDSETS, f"{JOB}-shards-0")
    says(api, 1, uid="that of the old one", lease=2, rest="", wants=True)
    await Run(api).settle()
    assert (files(api)["done"], files(api)["leased"] + files(api)["waiting"]) == (0, 100)


async def test_a_job_of_the_same_name_begins_with_sets_of_its_own() -> None:
    api = await pulling()
    api.delete(ELASTICJOBS, JOB)
    two_workers(api)
    await Run(api).settle()
    assert api.list(SHARDSETS) == []
    says(api, 0, **WANTS)
    await Run(api).settle()
    uid = api.get(ELASTICJOBS, JOB)["metadata"]["uid"]
    (made,) = api.list(SHARDSETS)
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [uid]
    assert files(api)["done"] == 0


def scaling(**spec: Any) -> JSON:
    worker = {
        "replicas": 2, "minReplicas": 2, "maxReplicas": 4, "template": {"spec": {"containers": [CONTAINER]}},
    }  # fmt: skip
    policy = {"shardScaling": {"slotsPerWorker": 1, "idleSeconds": 30}, "lastCallSeconds": 5}
    return {"replicaSpecs": {"worker": worker}, "elasticPolicy": policy} | spec


async def test_workers_come_for_what_is_to_be_done_and_go_when_there_is_nothing_for_them() -> None:
    api = beginning()
    submit(api, **scaling())
    await Run(api).settle()
    says(api, 0, size=9, **WANTS)
    await Run(api).settle()
    job = api.get(ELASTICJOBS, JOB)
    assert job["spec"]["replicaSpecs"]["worker"]["replicas"] == 4
    assert job["status"]["scaling"]["by"] == "shardScaling"
    for _ in range(20):
        held = dict(each.split("=") for each in files(api).get("leases", "").split(";") if each)
        if not held:
            break
        (of,) = held
        says(api, 0, size=9, lease=int(of.split(".")[2]), rest="", wants=True)
        await Run(api).settle()
    await Run(api).settle()
    assert api.get(ELASTICJOBS, JOB)["spec"]["replicaSpecs"]["worker"]["replicas"] == 2


async def test_what_shards_want_beyond_the_limits_is_told_once() -> None:
    api = beginning()
    submit(api, **scaling(resourceLimits={"memory": "2Gi"}))
    run = Run(api)
    await run.settle()
    says(api, 0, **WANTS)
    await run.settle()
    await run.settle()
    refused = [event for event in api.events if event.reason == "ScaleRefused"]
    assert len(refused) == 1 and "shardScaling: " in refused[0].message
    edit(api, {"resourceLimits": {"memory": "8Gi"}})
    await run.settle()
    assert api.get(ELASTICJOBS, JOB)["spec"]["replicaSpecs"]["worker"]["replicas"] == 4


# --- disturbed -----------------------------------------------------------------------------------------------


def ask(api: Api) -> None:
    for index in range(2):
        says(api, index, **WANTS)


def go_on(api: Api) -> None:
    says(api, 0, lease=1, rest="20-24", wants=True)
    done_of_the_second(api)


def lose(api: Api) -> None:
    done_of_the_second(api)
    lose_pod(api, 1)


async def before(what: Callable[[Api], None]) -> Api:
    api = await (training() if what is ask else pulling())
    what(api)
    return api


@pytest.mark.parametrize("what", [ask, go_on, lose])
async def test_a_controller_that_dies_after_any_write_or_whose_write_is_late_changes_nothing(
    what: Callable[[Api], None],
) -> None:
    begun = await before(what)
    undisturbed = Run(begun.copy(), keeps_moments=True)
    api = await undisturbed.settle()
    wanted = files(api), conditions(api), len(api.list(PODS))
    assert undisturbed.moments and not undisturbed.errors
    for number, moment in enumerate(undisturbed.moments, start=1):
        killed = await Run(begun.copy(), kill_after=(number,)).settle()
        assert (files(killed), conditions(killed), len(killed.list(PODS))) == wanted, str(moment.write)
        late = await Run(moment.before.copy(), late=moment.write, late_after=1).settle()
        assert (files(late), conditions(late)) == wanted[:2], str(moment.write)
    for seed in range(5):
        lagging = await Run(begun.copy(), lag=Lag(4, seed=seed)).settle()
        assert (files(lagging)["done"], conditions(lagging)) == (wanted[0]["done"], wanted[1])


# --- ten thousand --------------------------------------------------------------------------------------------


def test_ten_thousand_pullers_cost_16_kb_a_look() -> None:
    """They take 0.15 to 0.45 s for each of a million elements, and reports come in order of the workers."""
    number, size, now = 10_000, 1_000_000, datetime(2026, 11, 23, tzinfo=UTC)
    definition = SetDefinition("train", 0, size, "", 3, 0)
    holdings = [Holding(definition) for _ in range(number)]
    pace = [0.15 + 0.3 * ((7 * index) % 101) / 101 for index in range(number)]
    sets, largest, done = tuple[SetState, ...](), 0, 0
    for look in range(1, 100):
        held = {each.worker: each for known in sets for each in known.leases}
        for index, holding in enumerate(holdings):
            holding.follow(held.get(index))
            left = int(10 / pace[index])
            while left and (part := holding.take(left)) is not None:
                holding.finish(part)
                left -= part[1] - part[0]
        voices = [report_of(at, 1, each.to_status(MAX_SHARDS_TEXT)) for at, each in enumerate(holdings)]
        crew = ShardPullers(dict.fromkeys(range(number), 1), voices, number)
        sets = lease(sets, crew, now + timedelta(seconds=10 * look))
        (known,) = sets
        largest = max(largest, len(json.dumps(known.to_status().to_wire())))
        done = known.done
        if known.is_over:
            break
    assert done == size and look < 20
    assert largest <= 16 << 10
