"""What is refused at apply of a job that is to grow into free room, and of types that nobody knows."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from localcluster.schema import CompiledSchema
from tests.crds.test_cluster import Object, faults, manifest

POLICY = {"opportunistic": {"priorityClassName": "idle"}}
BAD: dict[str, tuple[Callable[[Object, Object], object], str]] = {
    "no maximum": (
        lambda spec, worker: worker.pop("maxReplicas"),
        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas, its upper limit",
    ),
    "no room between the minimum and the maximum": (
        lambda spec, worker: worker.update(replicas=4, minReplicas=4),
        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas to be one nodeUnit above minReplicas "
        "at least: else the job can never grow",
    ),
    "less room than a unit takes": (
        lambda spec, worker: (
            worker.update(minReplicas=2, maxReplicas=3),
            spec["elasticPolicy"].update(nodeUnit=2),
        ),
        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas to be one nodeUnit above minReplicas "
        "at least: else the job can never grow",
    ),
    "workers that stand by": (
        lambda spec, worker: worker.update(standby=1),
        "elasticPolicy.opportunistic and replicaSpecs.worker.standby exclude each other: a worker that stands by "
        "would take the place of each probe",
    ),
    "a count that is not to change": (
        lambda spec, worker: worker.update(autoScale=False),
        "elasticPolicy.opportunistic needs replicaSpecs.worker.autoScale, which is false",
    ),
    "two who change the count": (
        lambda spec, worker: spec["elasticPolicy"].update(shardScaling={}),
        "elasticPolicy has shardScaling or opportunistic, and not both",
    ),
    "a mode that changes nothing": (
        lambda spec, worker: spec.update(optimizeMode="manual"),
        "elasticPolicy.opportunistic changes the count, which optimizeMode manual excludes",
    ),
}


def growing() -> Object:
    job = json.loads(json.dumps(manifest(chief={}, ps={}, worker={"replicas": 2, "maxReplicas": 4})))
    job["spec"]["elasticPolicy"] = dict(POLICY)
    return dict(job)


@pytest.mark.parametrize("case", BAD)
def test_growth_that_cannot_be_is_refused_in_one_sentence(schema: CompiledSchema, case: str) -> None:
    spoil, sentence = BAD[case]
    job = growing()
    assert faults(schema, job) == []
    spoil(job["spec"], job["spec"]["replicaSpecs"]["worker"])
    assert faults(schema, job) == [f"spec: Invalid value: {sentence}"]


def test_a_job_that_has_grown_to_its_maximum_is_taken(schema: CompiledSchema) -> None:
    job = growing()
    job["spec"]["replicaSpecs"]["worker"].update(replicas=4, minReplicas=2)
    assert faults(schema, job) == []


def test_a_type_that_nobody_knows_is_an_unknown_field_with_its_path(schema: CompiledSchema) -> None:
    """`kubectl` and `dlr` ask for strict validation, which refuses those."""
    job = manifest(trainer={"replicas": 1})
    _, unknown = schema.prune(job)
    assert unknown == ["spec.replicaSpecs.trainer"]
