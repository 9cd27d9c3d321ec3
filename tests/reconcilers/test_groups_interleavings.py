"""The controller is killed at every moment of the life of a job with replica groups; nothing comes of it but time.

As test_interleavings.py, smaller.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest

from controller.resources import PODS, Resource
from crds.grouping import worker_number
from reconcilers.observed.builder import owner_reference
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, SHARDSETS
from tests.reconcilers.api import NAMESPACE, Api
from tests.reconcilers.cluster_model import Script
from tests.reconcilers.life import (
    JOB,
    Chapter,
    Phase,
    Run,
    beginning,
    edit,
    plan,
    replicas,
    submit,
    undisturbed,
)
from tests.reconcilers.outcome import end_state
from tests.reconcilers.process import Lag, Process

JSON = dict[str, Any]
CONTAINER = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
TEMPLATE = {"spec": {"containers": [CONTAINER]}}
PLAIN = {"replicaSpecs": {"worker": {"replicas": 1, "template": TEMPLATE}}}


def submit_groups(api: Api) -> None:
    """Two groups of one worker."""
    policy = {"lastCallSeconds": 5, "shrinkAfterSeconds": 20, "replicaGroups": {"workers": 1, "min": 1}}
    submit(api, replicaSpecs={"worker": {"replicas": 2, "template": TEMPLATE}}, elasticPolicy=policy)


def edit_group(api: Api) -> None:
    """A user changes what no look at the group has to notice before it is put back."""
    api.patch(ELASTICJOBS, "j-group-0", {"spec": {"nodeCheck": {"timeoutSeconds": 99}}})


def report_of_group(api: Api, index: int, **replicas: Any) -> None:
    """The worker of a group reports more of its part in the training of all."""
    body = {"status": {"agent": {"replicas": replicas}}}
    api.patch(ELASTICWORKERS, f"j-group-{index}-worker-0", body, "status")


def version_of(api: Api) -> int:
    version: int = api.get(ELASTICWORLDS, JOB)["spec"]["replicas"]["version"]
    return version


def hang(api: Api) -> None:
    """The first group, which leads, hangs, and the other one waits for it in vain."""
    report_of_group(api, 1, lateVersion=version_of(api), lateGroups=[0])


def go_on(api: Api) -> None:
    """The group that hung comes to its next step, and sees that it was left out."""
    report_of_group(api, 0, leftOutVersion=version_of(api))


def pull(api: Api) -> None:
    """The worker of the last group pulls from a set."""
    said = {"name": "files", "epoch": 0, "size": 100, "digest": "", "retries": 3, "maxFailed": 0}
    shards = [said | {"lease": 0, "rest": "", "failed": "", "wants": True}]
    api.patch(ELASTICWORKERS, "j-group-1-worker-0", {"status": {"agent": {"shards": shards}}}, "status")


LIFE = (
    Phase("create", submit_groups),
    Phase("grow", lambda api: edit(api, replicas(3))),
    Phase("shrink", lambda api: edit(api, replicas(2))),
    Phase("edit of the job", lambda api: edit(api, {"nodeCheck": {"timeoutSeconds": 77}})),
    Phase("edit of a group", edit_group),
    Phase("pull", pull),
    Phase("deletion of a group", lambda api: api.delete(ELASTICJOBS, "j-group-1")),
    Phase("hang", hang),
    Phase("end of the hang", go_on),
    Phase("plan", lambda api: plan(api, "p", replicaResourceSpecs={"worker": {"replicas": 8}})),
    Phase("suspend", lambda api: edit(api, {"suspend": True})),
    Phase("resume", lambda api: edit(api, {"suspend": False})),
    Phase("finish", lambda api: None, Script(done=True)),
    Phase("delete", lambda api: api.delete(ELASTICJOBS, JOB)),
)
PHASES = [phase.name for phase in LIFE]


@cache
def life() -> dict[str, Chapter]:
    return asyncio.run(undisturbed(LIFE))


async def test_a_job_that_is_applied_again_asks_for_no_group_whose_name_is_taken_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred would be asked for without a pause, until garbage collection has come to the last of them."""
    api, asked = beginning(), list[str]()
    submit_groups(api)
    await Run(api).settle()
    api.delete(ELASTICJOBS, JOB)
    submit_groups(api)
    process, read = Process(api, before_write=lambda write: asked.append(write.name)), api.get

    def get(resource: Resource, name: str, *more: Any) -> JSON:
        asked.append(name)
        return read(resource, name, *more)

    with monkeypatch.context() as patched:
        patched.setattr(api, "get", get)
        while await process.step():
            pass
    assert JOB in asked and not [name for name in asked if name.startswith(f"{JOB}-group")]
    await Run(api, process=process).settle()
    assert api.get(ELASTICJOBS, JOB)["status"]["phase"] == "Running"


def end_of(api: Api) -> dict[str, Any]:
    """What is there in the end, without the numbers of memberships and rounds, which count the ways there, and
    without the last membership of a job that has ended: its groups end one after the other. Which Pod comes first,
    and so to which node, depends on whether a group was made once more after a kill."""
    found = end_state(api)
    for state in found.values():
        for part in (state.get("status") or {}, *(state.get("status") or {}).get("history", ())):
            part.pop("nodeName", None)
            part.pop("nodeUid", None)
        if (state.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            state["status"].pop("membership", None)
        for part in (state.get("status") or {}, state.get("spec") or {}):
            for field in ("membership", "replicas", "replicaGroup"):
                if isinstance(part.get(field), dict):
                    part[field] = {
                        key: value
                        for key, value in part[field].items()
                        if not key.lower().endswith("version")
                    }
            membership = part.get("membership") or {}
            for each in [part, membership, {"groups": membership.get("late")}]:
                for group in each.get("groups") or ():
                    group.pop("round", None)
                    group.pop("version", None)
    return {
        name: state
        for name, state in found.items()
        if name.startswith(("ElasticJob ", "ElasticWorker ", "ShardSet "))
    }


def unsound(api: Api) -> list[str]:
    """What must hold of all memberships that were ever published."""
    wrong, groups_of, newest = [], dict[int, Any](), 0
    for entry in api.log.get(ELASTICWORLDS, ()):
        spec = entry.obj["spec"]
        if entry.deleted or (found := spec.get("replicas")) is None:
            continue
        if found["version"] < newest:
            wrong.append(f"version {found['version']} after {newest}")
        newest = found["version"]
        if groups_of.setdefault(newest, found["groups"]) != found["groups"]:
            wrong.append(f"version {newest} has {groups_of[newest]} and {found['groups']}")
    return wrong


def play(phase: str, run: Run) -> None:
    asyncio.run(run.settle())
    assert run.errors == list(life()[phase].errors)
    assert unsound(run.api) == []
    assert end_of(run.api) == end_of(life()[phase].end)


# --- undisturbed ---------------------------------------------------------------------------------------------


def status(phase: str, name: str = JOB) -> JSON:
    return life()[phase].end.get(ELASTICJOBS, name).get("status", {})


def groups(phase: str) -> list[str]:
    names = [job["metadata"]["name"] for job in life()[phase].end.list(ELASTICJOBS)]
    return sorted(name for name in names if name != JOB)


def test_groups_come_train_go_and_end_with_their_job() -> None:
    assert [chapter.errors for chapter in life().values()] == [()] * len(LIFE)
    assert groups("create") == ["j-group-0", "j-group-1"]
    assert [place["index"] for place in status("create")["membership"]["groups"]] == [0, 1]
    assert groups("grow") == ["j-group-0", "j-group-1", "j-group-2"]
    assert [place["index"] for place in status("grow")["membership"]["groups"]] == [0, 1, 2]
    assert groups("shrink") == groups("deletion of a group") == ["j-group-0", "j-group-1"]
    assert status("suspend")["phase"] == status("suspend", "j-group-1")["phase"] == "Suspended"
    assert status("resume")["phase"] == "Running"
    assert status("finish")["phase"] == "Succeeded"
    assert [
        obj
        for kind in (ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS)
        for obj in life()["delete"].end.list(kind)
    ] == []


def test_a_group_is_deleted_only_after_a_membership_without_it() -> None:
    left_out = False
    for moment in life()["shrink"].moments:
        world = moment.before.get(ELASTICWORLDS, JOB)["spec"]["replicas"]
        left_out = [place["index"] for place in world["groups"]] == [0, 1]
        if str(moment.write) == "delete ElasticJob j-group-2":
            break
    else:
        pytest.fail("the group is not deleted")
    assert left_out


def test_a_group_is_leased_shards_of_its_job_which_go_back_when_it_is_deleted() -> None:
    pulled = life()["pull"].end.get(SHARDSETS, "j-shards-0")
    assert pulled["status"]["leases"] == f"{worker_number(1, 0)}.1.1=0-24"
    assert [owner["name"] for owner in pulled["metadata"]["ownerReferences"]] == [JOB]
    back = life()["deletion of a group"].end.get(SHARDSETS, "j-shards-0")["status"]
    assert (back.get("leases", ""), back["rest"], back.get("done", 0)) == ("", "0-99", 0)


def test_a_group_that_hangs_is_left_out_without_a_restart_until_it_comes_back() -> None:
    late = status("hang")["membership"]
    assert ([place["index"] for place in late["groups"]], late["late"][0]["index"]) == ([1], 0)
    assert late["address"] == status("hang", "j-group-1")["rendezvous"]["masterAddress"]
    back = status("end of the hang")["membership"]
    assert ([place["index"] for place in back["groups"]], back["late"]) == ([0, 1], [])
    rounds = [status(phase, "j-group-0")["rendezvous"]["round"] for phase in ("hang", "end of the hang")]
    assert rounds == [status("edit of a group", "j-group-0")["rendezvous"]["round"]] * 2
    written = [str(moment.write) for moment in life()["hang"].moments]
    assert not any("Pod" in write or "Worker" in write for write in written), written


def test_a_job_that_only_calls_itself_a_group_gets_no_pods_and_so_no_key() -> None:
    api = life()["edit of a group"].end.copy()
    api.create(ELASTICJOBS, {"metadata": {"name": "plain", "namespace": NAMESPACE}, "spec": PLAIN})
    for name, owner in (("j-group-7", JOB), ("plain-group-0", "plain")):
        reference = owner_reference("ElasticJob", owner, api.get(ELASTICJOBS, owner)["metadata"]["uid"])
        metadata = {"name": name, "namespace": NAMESPACE, "ownerReferences": [reference]}
        api.create(ELASTICJOBS, {"metadata": metadata, "spec": PLAIN})
    asyncio.run(Run(api).settle())
    pods = {pod["metadata"]["name"] for pod in api.list(PODS)}
    assert {"j-group-0-worker-0-1", "plain-worker-0-1"} <= pods
    assert not [name for name in pods if name.startswith(("j-group-7", "plain-group-0"))]


# --- disturbed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_no_kill_late_write_or_lag_changes_anything(phase: str) -> None:
    """A kill after any write; every other write arrives late, when another leads; caches that lag by chance."""
    chapter = life()[phase]
    script = chapter.phase.script
    for writes, moment in enumerate(chapter.moments):
        play(phase, Run(chapter.after(writes), script))
        if writes % 2:
            play(phase, Run(moment.before.copy(), script, late=moment.write, late_after=2))
    for seed in range(4):
        play(phase, Run(chapter.after(0), script, Lag(4, seed=seed)))
