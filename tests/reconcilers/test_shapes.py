"""What is kept of each kind that the controller watches: what decisions read of an honest object, and no more."""

import orjson
import pytest

from controller.resources import CONFIGMAPS, PODS
from controller.shape import CannotBeRead
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.shapes import APPLIED, SHAPES
from tests.reconcilers.api import Api
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.process import Process

METADATA = {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"}


def read(resource, **parts):
    parts = {"metadata": METADATA} | parts
    shape = SHAPES[resource]
    return shape.read(shape.event(orjson.dumps({"type": "ADDED", "object": parts})).object)


def job(count=0, **metadata):
    container = {
        "name": "main",
        "image": "x",
        "env": [{"name": f"V{n}", "value": "x" * 50} for n in range(500)],
    }
    template = {"spec": {"containers": [container], "x": [[]] * count}}
    spec = {"replicaSpecs": {"worker": {"replicas": 4, "template": template}}}
    return {"metadata": METADATA | metadata, "spec": spec}


def test_each_kind_that_is_watched_has_a_shape():
    assert Process(Api()).cache._informers.keys() == SHAPES.keys()


def test_a_kind_without_a_shape_cannot_be_watched():
    with pytest.raises(LookupError, match="no shape is set for configmaps"):
        shaped_cache().store(CONFIGMAPS)


def test_a_job_as_large_as_anybody_needs_is_kept_whole():
    raw = job(10_000)
    raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["args"] = ["x" * 100_000] * 6
    assert read(ELASTICJOBS, **raw)["spec"] == raw["spec"]


@pytest.mark.parametrize("resource", [ELASTICJOBS, NODECHECKS])
def test_an_object_beyond_that_is_unreadable_and_keeps_its_conditions(resource):
    raw = job(30_000) | {"status": {"conditions": [{"type": "Succeeded"}], "other": 1}}
    with pytest.raises(
        CannotBeRead, match=r"its spec has 6\d{4} values.* at most 50000 are allowed"
    ) as caught:
        read(resource, **raw)
    assert caught.value.found.obj == {"metadata": METADATA, "status": {"conditions": [{"type": "Succeeded"}]}}


def test_of_who_wrote_what_the_writers_of_the_count_are_kept():
    count = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:replicas": {}}}}}
    written = [
        {"manager": "me", "operation": "Apply", "fieldsV1": count},
        {"manager": "x", "fieldsV1": {"f:a": {}}},
    ]
    assert read(ELASTICJOBS, **job(managedFields=written))["metadata"]["managedFields"] == written[:1]
    many = [*written, {"manager": "y", "fieldsV1": {f"f:{n}": {} for n in range(20_000)}}]
    assert "managedFields" not in read(ELASTICJOBS, **job(managedFields=many))["metadata"]
    assert "managedFields" not in read(NODECHECKS, **job(managedFields=written))["metadata"]


def test_the_last_applied_count_is_kept_and_nothing_else_of_what_was_applied():
    text = orjson.dumps(job()).decode()
    kept = read(ELASTICJOBS, **job(annotations={APPLIED: text, "a": "b"}))["metadata"]["annotations"]
    assert kept.pop("a") == "b"
    assert orjson.loads(kept[APPLIED]) == {"spec": {"replicaSpecs": {"worker": {"replicas": 4}}}}


def test_what_nobody_reads_of_a_report_is_dropped():
    agent = {"state": "Running", "result": "x", "series": {"points": [1], "latest": {"step": 1}}}
    kept = read(ELASTICWORKERS, spec={}, status={"phase": "Running", "agent": agent})
    latest = {"state": "Running", "series": {"latest": {"step": 1}}}
    assert kept["status"] == {"phase": "Running", "agent": latest}


def test_of_a_pod_what_its_end_is_judged_by_is_kept():
    container = {"name": "main", "image": "x", "env": [{"name": "X", "value": "y"}]}
    labels = {names.LABEL_JOB: "digits", "team": "a"}
    pod = read(
        PODS,
        metadata=METADATA | {"labels": labels},
        spec={
            "nodeName": "n",
            "imagePullSecrets": [{"name": "registry"}] * 9,
            "containers": [container],
            "volumes": [1],
        },
        status={"phase": "Running", "podIPs": [1], "conditions": [{"type": "Ready", "lastProbeTime": None}]},
    )
    assert pod["metadata"]["labels"] == {names.LABEL_JOB: "digits"}
    assert pod["spec"].pop("imagePullSecrets") == [{"name": "registry"}] * 8
    assert pod["spec"] == {"nodeName": "n", "containers": [{"name": "main"}], "initContainers": []}
    assert pod["status"] == {"phase": "Running", "conditions": [{"type": "Ready"}]}
