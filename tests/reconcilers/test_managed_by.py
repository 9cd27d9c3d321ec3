"""A job that another controller manages is left alone, with its workers, plans, checks and companions."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import EVENTS, PODDISRUPTIONBUDGETS, PODS, Resource
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS
from tests.reconcilers.api import NAMESPACE
from tests.reconcilers.played import Played

pytestmark = pytest.mark.played

ANOTHER = "kueue.x-k8s.io/multikueue"


def made(resource: Resource, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


async def statuses(client: Any) -> dict[str, Any]:
    """Of all that a controller could have made or touched, by kind and name."""
    kinds = (ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS, PODS, PODDISRUPTIONBUDGETS, EVENTS)
    listed = [(kind, await client.list(kind, NAMESPACE)) for kind in kinds]
    return {
        f"{kind.kind} {raw['metadata']['name']}": raw.get("status")
        for kind, found in listed
        for raw in found["items"]
        if raw["metadata"]["name"].startswith("away")
    }


async def test_what_belongs_to_anothers_job_is_left_alone(played: Played) -> None:
    client = played.client
    worker = {"jobName": "away", "type": "worker", "index": 0, "incarnation": 1}
    await played.submit("away", managedBy=ANOTHER, nodeCheck={"enabled": True})
    # Each of these is seen after the job, so what is done about it is done with the job known.
    await played.submit("first")
    await played.until("the first job's Pods", lambda: played.pods("first"))
    await client.create(ELASTICWORKERS, made(ELASTICWORKERS, "away-worker-0", **worker))
    await client.create(NODECHECKS, made(NODECHECKS, "away-check", jobName="away"))
    counts = {"worker": {"replicas": 3}}
    await client.create(
        SCALEPLANS, made(SCALEPLANS, "away-plan", ownerJob="away", replicaResourceSpecs=counts)
    )
    await client.patch(ELASTICJOBS, "away", {"spec": {"suspend": True}}, NAMESPACE)
    mirrored = {"phase": "Running"}
    await client.patch(ELASTICJOBS, "away", {"status": mirrored}, NAMESPACE, subresource="status")
    # As long as another job's whole life in the meantime takes.
    await played.train("later")
    assert await statuses(client) == {
        "ElasticJob away": mirrored,
        "ElasticWorker away-worker-0": None,
        "NodeCheck away-check": None,
        "ScalePlan away-plan": None,
    }


async def test_job_that_names_us_is_run(played: Played) -> None:
    await played.submit("mine", managedBy=names.CONTROLLER)
    await played.until("its Pods", lambda: played.pods("mine"))
