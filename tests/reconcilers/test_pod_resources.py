from __future__ import annotations

from typing import Any

import pytest

from crds import names
from crds.model import ResourceRequirements
from reconcilers.observed.resources import resources_digest, resources_of
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import job, worker


def template(resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]}}


def test_a_types_resources_come_before_the_templates_and_a_slots_own_where_they_are_more() -> None:
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 8}
    asked = {"worker": {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "2"}}}
    owner = job(
        template=template({"limits": limits, "claims": [{"name": "nic"}]}), status={"resources": asked}
    )
    own = ResourceRequirements(limits={"memory": "3Gi"})
    assert resources_of(owner, "worker", own) == {
        "limits": {"cpu": "2", "memory": "3Gi", "nvidia.com/gpu": 8},
        "requests": {"cpu": "2"},
        "claims": [{"name": "nic"}],
    }
    assert resources_of(owner, "worker", None)["limits"]["memory"] == "2Gi"
    less = ResourceRequirements(limits={"memory": "1536Mi", "cpu": "500m"})
    assert resources_of(owner, "worker", less) == resources_of(owner, "worker", None)
    assert limits["memory"] == "1Gi"


def test_nothing_said_is_nothing_added() -> None:
    pod = build_job_pod(job(), worker())
    assert "resources" not in pod["spec"]["containers"][0]
    assert resources_of(job(), "worker", ResourceRequirements()) == {}


@pytest.mark.parametrize("resources", [None, {"limits": None}, {"limits": {"memory": "many"}}])
def test_what_is_not_to_be_read_is_left_to_the_api_server(resources: Any) -> None:
    owner = job(template=template(resources))
    pod = build_job_pod(owner, worker())
    assert pod["metadata"]["annotations"][names.ANNOTATION_RESOURCES]
    own = ResourceRequirements(limits={"memory": "3Gi"})
    assert resources_of(owner, "worker", own)["limits"] == {"memory": "3Gi"}


def test_digest_tells_amounts_apart_and_not_their_spelling() -> None:
    def digest(memory: Any, kind: str = "limits") -> str:
        return resources_digest({kind: {"memory": memory}})

    assert digest("1Gi") == digest("1024Mi") == digest(2**30)
    assert (
        len({digest("1Gi"), digest("1G"), digest("many"), digest("1Gi", "requests"), resources_digest({})})
        == 5
    )
