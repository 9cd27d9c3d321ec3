"""What is refused at apply of a job with replica groups, each in one sentence with the field."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from crds.elasticjob import ElasticJob
from crds.grouping import group_count
from localcluster.schema import CompiledSchema
from tests.crds.test_cluster import RUNS, Object, faults

BESIDE = "cannot be combined with elasticPolicy.replicaGroups: "
SHRINKS = "the number of groups shrinks and grows, down to replicaGroups.min"
FIXED = "elasticPolicy.replicaGroups cannot be added, taken away or given other workers; make another job"
Edit = Callable[[Object, Object, Object], Any]
BAD: dict[str, tuple[Edit, str]] = {
    "no whole number of groups": (
        lambda spec, worker, groups: worker.update(replicas=5),
        "replicaSpecs.worker.replicas must be a multiple of elasticPolicy.replicaGroups.workers",
    ),
    "fewer groups than the minimum": (
        lambda spec, worker, groups: groups.update(min=4),
        "elasticPolicy.replicaGroups.min must not be more than the number of groups, which is "
        "replicaSpecs.worker.replicas / elasticPolicy.replicaGroups.workers",
    ),
    "no group at all": (
        lambda spec, worker, groups: worker.update(replicas=0),
        "elasticPolicy.replicaGroups.min must not be more than the number of groups, which is "
        "replicaSpecs.worker.replicas / elasticPolicy.replicaGroups.workers",
    ),
    "too many groups": (
        lambda spec, worker, groups: worker.update(replicas=2_002),
        "elasticPolicy.replicaGroups may make 1000 groups at most",
    ),
    "an evaluator": (
        lambda spec, worker, groups: spec["replicaSpecs"].update(evaluator={"template": RUNS}),
        "elasticPolicy.replicaGroups divides workers: replicaSpecs.evaluator has no place in a group",
    ),
    "a minimum of workers": (
        lambda spec, worker, groups: worker.update(minReplicas=2),
        f"replicaSpecs.worker.minReplicas {BESIDE}{SHRINKS}",
    ),
    "a maximum of workers": (
        lambda spec, worker, groups: worker.update(maxReplicas=8),
        f"replicaSpecs.worker.maxReplicas {BESIDE}{SHRINKS}",
    ),
    "workers by shards": (
        lambda spec, worker, groups: spec["elasticPolicy"].update(shardScaling={}),
        "elasticPolicy has replicaGroups or shardScaling, and not both",
    ),
    "groups that are no whole units": (
        lambda spec, worker, groups: spec["elasticPolicy"].update(nodeUnit=3),
        "elasticPolicy.replicaGroups.workers must be a multiple of elasticPolicy.nodeUnit: each group is a world",
    ),
    "a count by earlier jobs": (
        lambda spec, worker, groups: spec.update(optimizeMode="cluster"),
        f"optimizeMode cluster {BESIDE}it changes the count of workers, and each group has the same",
    ),
}
CHANGES: dict[str, Edit] = {
    "other workers": lambda spec, worker, groups: groups.update(workers=3),
    "groups taken away": lambda spec, worker, groups: spec["elasticPolicy"].pop("replicaGroups"),
}


def grouped(name: str = "wide") -> Object:
    """A job of three groups of two."""
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "ads"},
        "spec": {
            "replicaSpecs": {"worker": {"replicas": 6, "template": RUNS}},
            "elasticPolicy": {"replicaGroups": {"workers": 2, "min": 2}},
        },
    }


def edited(job: Object, edit: Edit) -> Object:
    job = copy.deepcopy(job)
    spec = job["spec"]
    edit(spec, spec["replicaSpecs"]["worker"], spec["elasticPolicy"]["replicaGroups"])
    return job


@pytest.mark.parametrize("case", BAD)
def test_groups_that_cannot_be_are_refused_in_one_sentence(schema: CompiledSchema, case: str) -> None:
    edit, sentence = BAD[case]
    assert faults(schema, grouped()) == []
    found = faults(schema, edited(grouped(), edit))
    assert f"spec: Invalid value: {sentence}" in found
    assert len(found) <= (2 if case in ("no whole number of groups", "groups that are no whole units") else 1)


@pytest.mark.parametrize("case", CHANGES)
def test_the_size_of_groups_is_for_life(schema: CompiledSchema, case: str) -> None:
    job = grouped()
    assert f"spec: Invalid value: {FIXED}" in _update_faults(schema, job, edited(job, CHANGES[case]))
    plain = edited(job, CHANGES["groups taken away"])
    assert f"spec: Invalid value: {FIXED}" in _update_faults(schema, plain, job)


def test_count_and_minimum_of_groups_may_change(schema: CompiledSchema) -> None:
    job = grouped()
    other = edited(job, lambda spec, worker, groups: (worker.update(replicas=10), groups.update(min=5)))
    assert _update_faults(schema, job, other) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running", None])
def test_an_ended_job_cannot_be_scaled(schema: CompiledSchema, phase: str | None) -> None:
    job = grouped() | ({"status": {"phase": phase}} if phase else {})
    other = edited(job, lambda spec, worker, groups: worker.update(replicas=10))
    ended = phase in ("Succeeded", "Failed")
    assert any("the job has ended" in each for each in _update_faults(schema, job, other)) is ended
    assert _update_faults(schema, job, job | {"status": {"phase": "Failed"}}) == []


def test_a_name_that_leaves_no_room_for_the_groups_is_refused(schema: CompiledSchema) -> None:
    assert faults(schema, grouped("x" * 35)) == []
    (fault,) = faults(schema, grouped("x" * 36))
    assert "beside elasticPolicy.replicaGroups it may have 35 characters" in fault


def _update_faults(schema: CompiledSchema, old: Object, new: Object) -> list[str]:
    return [str(error) for error in schema.validate(schema.default(new), schema.default(old))]


@pytest.mark.parametrize("replicas, workers, count", [(6, 2, 3), (6, 6, 1), (7, 2, 3), (0, 2, 0), (6, 0, 0)])
def test_the_number_of_groups_is_the_same_of_a_plain_object_and_of_a_model(
    replicas: int, workers: int, count: int
) -> None:
    policy = {"replicaGroups": {"workers": workers}} if workers else {}
    spec = {"replicaSpecs": {"worker": {"replicas": replicas, "template": RUNS}}, "elasticPolicy": policy}
    job = {"metadata": {"name": "digits", "namespace": "default", "uid": "u"}, "spec": spec}
    assert group_count(job) == ElasticJob.model_validate(job).group_count == count
