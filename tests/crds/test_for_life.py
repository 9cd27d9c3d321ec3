"""What an object keeps for life, by rules of its CRD."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import crds
from localcluster.builtin import components
from localcluster.schema import CompiledSchema

WORKER: dict[str, Any] = {"jobName": "a", "type": "worker", "index": 1, "incarnation": 1}
CHECKED = {"checkName": "a", "type": "check", "index": 1}
SHARDS = {"jobName": "a", "setName": "train"}
SLOT = "index and type cannot be changed: a worker stays one slot"
OWNER = "jobName and checkName cannot be changed: a worker stays with its owner"
SET = "jobName and setName cannot be changed"


def faults(kind: str, old: dict[str, Any], change: dict[str, Any]) -> list[str]:
    (found,) = (each for each in crds.manifests() if each["spec"]["names"]["kind"] == kind)
    openapi = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema = CompiledSchema(openapi, components(), custom=True)
    spec = {key: value for key, value in (old | change).items() if value is not None}
    before = {"metadata": {"name": "a-worker-1", "namespace": "default"}, "spec": old}
    after = copy.deepcopy(before) | {"spec": spec}
    return [str(fault) for fault in schema.validate(after, before)]


@pytest.mark.parametrize(
    ("kind", "old", "change", "sentence"),
    [
        ("ElasticWorker", WORKER, {"index": 7}, SLOT),
        ("ElasticWorker", WORKER, {"type": "ps"}, SLOT),
        ("ElasticWorker", WORKER, {"jobName": "b"}, OWNER),
        ("ElasticWorker", WORKER, {"jobName": None, "checkName": "a"}, OWNER),
        ("ElasticWorker", CHECKED, {"checkName": "b"}, OWNER),
        ("ShardSet", SHARDS, {"jobName": "b"}, SET),
        ("ShardSet", SHARDS, {"setName": "test"}, SET),
    ],
)
def test_what_an_object_is_of_cannot_be_changed(
    kind: str, old: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    assert faults(kind, old, change) == [f"spec: Invalid value: {sentence}"]


def test_the_next_life_of_a_worker_is_no_other_slot() -> None:
    assert faults("ElasticWorker", WORKER, {"incarnation": 2, "excludedNodes": ["node-1"]}) == []
    assert faults("ElasticWorker", CHECKED, {"incarnation": 2}) == []
