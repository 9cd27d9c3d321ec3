"""What the cache keeps of large objects decides as the whole does, and a Pod has all of it."""

import asyncio

import orjson
import pytest

from controller.errors import Conflict
from controller.salvage import reason_of
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.observed.builder import grace_seconds
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.resources import is_cut, template_digest
from reconcilers.observed.suitable import amounts_of, others_of
from reconcilers.roles.progress import sets_tf_config
from reconcilers.scale.request import MAX_CHARACTERS
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.worker.shapes import (
    WHOLE_BYTES,
    WholeObjects,
    kept_of_check,
    kept_of_job,
    kept_of_plan,
    kept_of_pod,
    kept_of_worker,
)
from tests.reconcilers.build import worker

JUNK = {f"k{n}": {"a": 1, "b": []} for n in range(20_000)}


def job(junk=None, **more):
    container = {
        "name": "main",
        "image": "x",
        "command": ["torchrun", "--nnodes=2:4", "train.py"],
        "resources": {"limits": {"memory": "4Gi"}, "claims": [{"name": "gpu"}]},
        "env": [
            *({"name": f"V{n}", "value": "x" * 50} for n in range(500)),
            {"name": "TF_CONFIG", "value": "{}"},
        ],
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 7, "x": junk or {}}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {
            "name": "digits",
            "namespace": "ns",
            "uid": "u",
            "generation": 3,
            "resourceVersion": "9",
            **more,
        },
        "spec": {"envs": {"MINE": "job"}, "replicaSpecs": {"worker": {"replicas": 4, "template": template}}},
    }


def test_a_small_job_is_kept_whole():
    raw = job()
    raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["env"] = []
    assert kept_of_job(raw) is raw


def test_what_is_kept_of_a_large_job_is_small_and_decides_as_the_whole():
    raw = job(JUNK, annotations={"a": "x" * 200_000}, labels={f"l{n}": "" for n in range(9_000)})
    before = orjson.dumps(raw)
    kept = kept_of_job(raw)
    assert orjson.dumps(raw) == before, "the object itself stays as it is"
    assert len(orjson.dumps(kept)) < 2 * WHOLE_BYTES
    whole, cut = ElasticJob.model_validate(raw), ElasticJob.model_validate(kept)
    assert is_cut(cut.spec.replica_specs["worker"].template)
    for decide in (
        minimum_workers,
        lambda of: sets_tf_config(of, "worker"),
        lambda of: template_digest(of, "worker"),
    ):
        assert decide(cut) == decide(whole)


def test_variables_take_no_place_of_what_decides():
    """Beside 35 KB of variables, the minimum was `replicas`, and other containers asked for no memory."""
    raw = job(JUNK)
    raw["spec"]["envs"] = {f"E{n}": "x" * 50 for n in range(500)}
    spec = raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    text = "set -eux\n" + "echo begins\n" * 40 + "exec torchrun --nnodes=2:4 train.py"
    spec["containers"][0]["command"] = ["bash", "-c", text]
    spec["terminationGracePeriodSeconds"] = 0
    amounts = {"resources": {"requests": {"memory": "9Gi"}}, "image": "x"}
    spec["containers"].append({"name": "log", **amounts})
    sidecar = {"name": "proxy", "restartPolicy": "Always", **amounts}
    spec["initContainers"] = [{"name": "fetch", **amounts}, sidecar]
    kept = kept_of_job(raw)
    assert len(orjson.dumps(kept["spec"])) < 2 * WHOLE_BYTES
    assert minimum_workers(ElasticJob.model_validate(kept)) == 2
    kept_spec = kept["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    assert amounts_of(others_of(kept_spec)) == amounts_of(others_of(spec)) == {"memory": 18 << 30}
    assert grace_seconds(kept_spec) == 0
    assert sets_tf_config(ElasticJob.model_validate(kept), "worker")


def test_thousands_of_containers_are_kept_small():
    raw = job()
    spec = raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    spec["containers"] += [{"name": f"c{n}", "image": "x"} for n in range(15_000)]
    kept = kept_of_job(raw)
    assert len(orjson.dumps(kept)) < 2 * WHOLE_BYTES
    edited = job()
    edited["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"] += [
        *spec["containers"][1:-1],
        {"name": "last", "image": "x"},
    ]
    assert kept_of_job(edited)["spec"] != kept["spec"]


def test_an_edit_of_what_was_cut_off_shows():
    edited = job({**JUNK, "k7": 0})
    assert kept_of_job(job(JUNK))["spec"] != kept_of_job(edited)["spec"]


def test_the_last_applied_count_is_kept_and_nothing_else_of_what_was_applied():
    applied = orjson.dumps(job(JUNK)).decode()
    name = "kubectl.kubernetes.io/last-applied-configuration"
    kept = kept_of_job(job(JUNK, annotations={name: applied}))
    assert orjson.loads(kept["metadata"]["annotations"][name]) == {
        "spec": {"replicaSpecs": {"worker": {"replicas": 4}}}
    }


@pytest.mark.parametrize(("size", "is_kept"), [(MAX_CHARACTERS, True), (MAX_CHARACTERS + 1, False)])
def test_a_scale_request_is_kept_however_many_labels_there_are(size, is_kept):
    annotations = {names.ANNOTATION_SCALE: "x" * size}
    kept = kept_of_job(job(JUNK, annotations=annotations, labels={f"l{n}": "" for n in range(9_000)}))
    assert (kept["metadata"]["annotations"] == annotations) is is_kept


def test_what_no_pod_can_be_made_of_cannot_be_read():
    deep = value = {}
    for _ in range(300):
        value["a"] = value = {}
    with pytest.raises(TypeError) as caught:
        kept_of_job(job({"x": deep}))
    assert reason_of(caught.value) == "it is nested too deeply"


def test_what_nobody_reads_of_workers_pods_checks_and_plans_is_dropped():
    agent = {"state": "Running", "profile": {"text": "x"}, "series": {"points": [1], "latest": {"step": 1}}}
    kept = kept_of_worker({"metadata": {}, "status": {"phase": "Running", "agent": agent}})
    assert kept["status"] == {
        "phase": "Running",
        "agent": {"state": "Running", "series": {"latest": {"step": 1}}},
    }
    pod = {
        "metadata": {},
        "spec": {
            "nodeName": "n",
            "serviceAccountName": "a",
            "containers": [{"name": "main", "image": "x", "env": [{"name": "X", "value": "y"}]}],
            "initContainers": [],
        },
        "status": {"phase": "x"},
    }
    kept = {"nodeName": "n", "serviceAccountName": "a", "containers": [{"name": "main"}]}
    assert kept_of_pod(pod)["spec"] == kept | {"initContainers": []}
    template = job(JUNK)["spec"]["replicaSpecs"]["worker"]["template"]
    check = {"metadata": {"name": "c"}, "spec": {"nodes": ["n"], "template": template}}
    assert len(orjson.dumps(kept_of_check(check))) < 2 * WHOLE_BYTES
    plan = {
        "metadata": {"name": "p"},
        "spec": {"ownerJob": "j", "createPods": [{"name": "a", "resource": JUNK}, {"name": "b"}]},
    }
    assert kept_of_plan(plan)["spec"]["createPods"] == [
        {"name": "a", "resource": {"cut": "0"}},
        {"name": "b"},
    ]


class Server:
    def __init__(self, raw):
        self.raw, self.reads = raw, 0

    async def get(self, resource, name, namespace):
        self.reads += 1
        await asyncio.sleep(0)
        return orjson.loads(orjson.dumps(self.raw))


async def test_ten_thousand_pods_of_a_large_job_take_one_read_and_have_all_of_the_template():
    server = Server(job(JUNK))
    cut, objects = ElasticJob.model_validate(kept_of_job(server.raw)), WholeObjects(server)
    whole = (await asyncio.gather(*(objects.job(cut) for _ in range(20))))[0]
    await objects.job(cut)
    assert server.reads == 1
    pod = build_job_pod(cut, worker(), whole)
    assert pod["spec"]["x"] == JUNK
    assert (
        len([entry for entry in pod["spec"]["containers"][0]["env"] if entry["name"].startswith("V")]) == 500
    )
    assert pod == build_job_pod(ElasticJob.model_validate(server.raw), worker())


async def test_a_job_that_was_cut_and_has_changed_since_is_a_conflict_and_a_small_one_is_not_read():
    server = Server(job(JUNK))
    cut, objects = ElasticJob.model_validate(kept_of_job(server.raw)), WholeObjects(server)
    server.raw["metadata"]["generation"] = 4
    with pytest.raises(Conflict):
        await objects.job(cut)
    small = ElasticJob.model_validate(job())
    reads = server.reads
    assert await objects.job(small) is small and server.reads == reads


async def test_what_is_remembered_of_whole_jobs_is_bounded(monkeypatch):
    monkeypatch.setattr("reconcilers.worker.shapes.MOST_BYTES", 2_000_000)
    for_all = WholeObjects(Server(job(JUNK)))
    for number in range(12):
        for_all._client.raw["metadata"]["uid"] = f"u{number}"
        await for_all.job(ElasticJob.model_validate(kept_of_job(for_all._client.raw)))
    assert for_all._size_bytes <= 2_000_000 and for_all._size_bytes == sum(map(len, for_all._texts.values()))
