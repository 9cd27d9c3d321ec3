"""What is refused when it is applied, by the schemas and rules of our kinds."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

import crds
from crds import names
from localcluster.builtin import components
from localcluster.schema import CompiledSchema
from reconcilers.runtime.kinds import ELASTICJOBS, NODECHECKS
from tests.reconcilers.test_against_api_server import TEMPLATE, template, worker

JSON = dict[str, Any]


def rules(**rule: Any) -> JSON:
    return {"failurePolicy": {"rules": [rule]}}


MANAGERS = ("multikueue", "Kueue.io/x", "kueue.io/", "/x", "a..io/x", f"a.io/{'x' * 59}")
REFUSED_AT_APPLY: list[tuple[JSON, str]] = [
    (worker(replicas=-1), "spec.replicaSpecs.worker.replicas"),
    (worker(replicas="two"), "spec.replicaSpecs.worker.replicas"),
    (worker(minReplicas=3, maxReplicas=2), "spec.replicaSpecs.worker"),
    (worker(template=None), TEMPLATE),
    (worker(template={"spec": {"containers": []}}), f"{TEMPLATE}.spec.containers"),
    (worker(replicas=0, minReplicas=1), "replicas must not be less than minReplicas"),
    ({"elasticPolicy": {"nodeUnit": 0}}, "spec.elasticPolicy.nodeUnit"),
    ({"elasticPolicy": {"nodeUnit": 4}}, "spec"),
    *((worker(template=broken), f"{TEMPLATE}.{path}") for broken, path in (
        (template({"image": None}), "spec.containers[0].image: Required value"),
        (template({"env": ["A=1"]}), "spec.containers[0].env[0]"),
        (template({"env": [{"value": "x"}]}), "spec.containers[0].env[0].name: Required value"),
        (template({"env": [{"name": "A", "value": 5}]}), "spec.containers[0].env[0].value"),
        (template({"command": "sleep 1"}), "spec.containers[0].command"),
        (template(spec={"initContainers": "x"}), "spec.initContainers"),
        (template(spec={"nodeSelector": {"gpu": True}}), "spec.nodeSelector.gpu"),
        (template(metadata={"labels": "x"}), "metadata.labels"),
    )),
    (rules(action="Ignore", onPodConditions=[]), "a rule needs onExitCodes, onPodConditions or onMessagePattern"),
    (rules(action="Ignore", onMessagePattern="(unclosed"), "onMessagePattern"),
    (rules(action="Ignore", onMessagePattern=r"\\\pL"), "no class of Unicode characters"),
    (rules(action="Ignore", onMessagePattern="a{3,100}"), "counts below 100"),
    (rules(action="Retry", onMessagePattern="x"), "action"),
    (rules(action="Ignore", onExitCodes={"operator": "In", "values": []}), "values"),
    *(({"managedBy": manager}, "spec.managedBy") for manager in MANAGERS),
]  # fmt: skip


def manifest(name: str = "bad", replicas: int = 2, **spec: Any) -> JSON:
    main = worker(replicas=replicas)["worker"] | spec.pop("worker", {})
    return ELASTICJOBS.manifest({"name": name}, spec={"replicaSpecs": {"worker": main}} | spec)


@cache
def schema(kind: str) -> CompiledSchema:
    (found,) = (each["spec"] for each in crds.manifests() if each["spec"]["names"]["kind"] == kind)
    return CompiledSchema(found["versions"][0]["schema"]["openAPIV3Schema"], components(), custom=True)


def faults(obj: JSON, old: JSON | None = None) -> str:
    of = schema(obj["kind"])
    return "\n".join(map(str, of.validate(of.default(obj), of.default(old) if old else None)))


@pytest.mark.parametrize(("spec", "path"), REFUSED_AT_APPLY)
def test_bad_jobs_are_refused_with_the_fields_path(spec: JSON, path: str) -> None:
    assert path in faults(manifest(**copy.deepcopy(spec)))


def test_names_that_leave_no_room_and_a_check_that_goes_at_once_are_refused() -> None:
    assert "metadata.name is too long" in faults(manifest("x" * 46))
    spec = {"nodes": ["a"], "ttlSecondsAfterFinished": 0}
    assert "ttlSecondsAfterFinished" in faults(NODECHECKS.manifest({"name": "hasty"}, spec=spec))


@pytest.mark.parametrize("manager", [None, "a.io/b"])
def test_a_jobs_manager_is_for_life(manager: str | None) -> None:
    before = manifest(managedBy="kueue.x-k8s.io/multikueue")
    after = manifest(**({"managedBy": manager} if manager else {}))
    assert "managedBy cannot be changed" in faults(after, before)
    assert "managedBy cannot be changed" in faults(manifest(managedBy=names.CONTROLLER), manifest())


@pytest.mark.parametrize("type_", ["dlrover-master", "master"])
@pytest.mark.parametrize(
    "master", [{}, {"template": {}}, {"replicas": 7, "template": {"spec": {"containers": []}}}]
)
def test_what_a_job_says_of_a_master_is_taken(type_: str, master: JSON) -> None:
    assert not faults(manifest(replicaSpecs=worker(replicas=1) | {type_: master | {"restartCount": -1}}))
