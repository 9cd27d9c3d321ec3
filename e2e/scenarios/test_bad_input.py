"""Manifests that cannot work are refused at apply, with the path of the field."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import yaml

from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation


def worker(manifest: Object) -> Object:
    found: Object = manifest["spec"]["replicaSpecs"]["worker"]
    return found


BAD: dict[str, tuple[Callable[[Object], object], tuple[str, ...]]] = {
    "an unknown field": (lambda job: worker(job).update(replica=3), ("spec.replicaSpecs.worker.replica",)),
    "a wrong type": (lambda job: worker(job).update(replicas="two"), ("spec.replicaSpecs.worker.replicas",)),
    "standby of another type than worker": (
        lambda job: job["spec"]["replicaSpecs"].update(evaluator=worker(job) | {"standby": 1}),
        ("spec", "only replicaSpecs.worker may have standby"),
    ),
    "min above max": (
        lambda job: worker(job).update(minReplicas=3, maxReplicas=2),
        ("spec.replicaSpecs.worker", "minReplicas must not be greater than maxReplicas"),
    ),
    "a container without an image": (
        lambda job: worker(job)["template"]["spec"]["containers"][0].pop("image"),
        ("spec.replicaSpecs.worker.template.spec.containers[0].image: Required value",),
    ),
    "a name too long for Pods": (
        lambda job: job["metadata"].update(name="a" * 60),
        ("metadata.name is too long",),
    ),
}


@pytest.mark.named
def test_bad_input_is_refused_with_the_path_of_the_field(cluster: Cluster, observation: Observation) -> None:
    for case, (spoil, expected) in BAD.items():
        manifest = copy.deepcopy(jobs.shell(cluster, "exit 0"))
        spoil(manifest)
        done = cluster.kubectl(
            "apply", "-n", observation.namespace, "-f", "-", stdin=yaml.safe_dump(manifest), check=False
        )
        assert done.returncode != 0, f"{case} was accepted"
        for text in expected:
            assert text in done.stderr, done.stderr
    assert not observation.objects(Kind.JOB), "nothing was made of it"
