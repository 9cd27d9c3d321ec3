"""The calls that a HorizontalPodAutoscaler's controller makes, on the project's own ElasticJob."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.localcluster.apiserver.api import CRDS, Api

pytestmark = pytest.mark.real

JSON = dict[str, Any]
DEFINITION = Path(__file__).parents[3] / "crds" / "yaml" / "elasticjobs.yaml"
JOBS = "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticjobs"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
SCALE = f"{JOBS}/train/scale"
API_VERSION = "elastic.iml.github.io/v1alpha1"


@pytest.fixture
async def jobs(api: Api) -> Api:
    await api.created(CRDS, yaml.safe_load(DEFINITION.read_text()))
    container = {"name": "main", "image": "none"}
    worker = {"replicas": 4, "minReplicas": 2, "maxReplicas": 8}
    worker["template"] = {"spec": {"containers": [container]}}
    spec = {"elasticPolicy": {"nodeUnit": 2}, "replicaSpecs": {"worker": worker}}
    named = {"apiVersion": API_VERSION, "kind": "ElasticJob", "metadata": {"name": "train"}}
    await api.created(JOBS, named | {"spec": spec})
    return api


async def replicas(jobs: Api) -> int:
    found: int = (await jobs.get(f"{JOBS}/train")).body["spec"]["replicaSpecs"]["worker"]["replicas"]
    return found


async def test_an_autoscaler_reads_and_puts_the_scale(jobs: Api) -> None:
    target = {"apiVersion": API_VERSION, "kind": "ElasticJob", "name": "train"}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 8}
    named = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "train"}}
    await jobs.created(AUTOSCALERS, named | {"spec": spec})
    await jobs.patch(f"{JOBS}/train/status", {"status": {"replicas": 4, "selector": "job=train"}})
    scale = (await jobs.get(SCALE)).body
    assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 4})
    assert scale["status"] == {"replicas": 4, "selector": "job=train"}
    scale["spec"]["replicas"] = 6
    assert (await jobs.put(SCALE, scale)).body["spec"] == {"replicas": 6}
    assert await replicas(jobs) == 6
    scale["spec"]["replicas"] = 8
    stale = await jobs.put(SCALE, scale)
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert (await jobs.patch(SCALE, {"spec": {"replicas": 8}})).code == 200
    assert await replicas(jobs) == 8


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (5, "replicaSpecs.worker.replicas must be a multiple of elasticPolicy.nodeUnit"),
        (10, "replicas must not be greater than maxReplicas"),
        (0, "replicas must not be less than minReplicas"),
        (-2, "spec.replicas: Invalid value: -2: must be greater than or equal to 0"),
    ],
)
async def test_the_job_s_own_rules_refuse_the_scale_call_with_their_sentence(
    jobs: Api, count: int, why: str
) -> None:
    scale = (await jobs.get(SCALE)).body | {"spec": {"replicas": count}}
    for refused in (await jobs.put(SCALE, scale), await jobs.patch(SCALE, {"spec": scale["spec"]})):
        assert (refused.code, refused.reason) == (422, "Invalid")
        assert why in refused.message
    assert await replicas(jobs) == 4
