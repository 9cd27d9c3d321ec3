"""Every Pod of our own making runs in a namespace that enforces the strictest Pod Security Standard."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deploy
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from localcluster.builtin import components
from localcluster.pod_security import Level, violations
from localcluster.schema import CompiledSchema
from localcluster.schema_nodes import reference_to
from reconcilers.nodecheck.pod import build_check_pod
from reconcilers.observed.options import AgentSource
from reconcilers.worker.injection import inject_agent
from tests.reconcilers.build import check, check_worker

POD = "io.k8s.api.core.v1.Pod"
AGENT = AgentSource("dlr-agent:0.1.0", "/opt/dlr-agent", "/dlr")
GPUS = {"metadata": {"name": "node-0"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
OPEN = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
JSON = dict[str, Any]


def found(pod: JSON) -> list[str]:
    return [str(violation) for violation in violations(Level.RESTRICTED, pod["spec"])]


def with_agent(pod: JSON, *, images_mount: bool = False) -> JSON:
    injected = copy.deepcopy(pod)
    inject_agent(injected, AGENT, images_mount=images_mount)
    return injected


def check_pod(of: NodeCheck, worker: ElasticWorker | None = None, node: JSON | None = None) -> JSON:
    return build_check_pod(of, worker or check_worker(0), node, "dlr-worker:0.1.0")


@pytest.mark.parametrize("node", [None, GPUS])
def test_the_pod_of_a_check_without_a_template(node: JSON | None) -> None:
    pod = check_pod(check(), node=node)
    for each in (pod, with_agent(pod)):
        assert found(each) == []


def test_the_pod_of_a_check_with_a_template_is_as_careful_as_the_template() -> None:
    careful = {"spec": {"containers": [{"name": "c", "image": "x", "securityContext": OPEN}]}}
    assert found(with_agent(check_pod(check(template=careful)))) == []
    careless = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    assert found(with_agent(check_pod(check(template=careless)))) != []


def test_what_is_deployed() -> None:
    manifests = deploy.documents(jobs_namespace="team-a", network_policy=True, priority_class=True)
    templates = [
        document["spec"]["template"] for document in manifests if "template" in (document.get("spec") or {})
    ]
    assert templates
    for template in templates:
        assert found(template) == []


PROFILES = st.sampled_from([{"type": "RuntimeDefault"}, {"type": "Localhost", "localhostProfile": "x"}])
USERS = {
    "runAsUser": st.sampled_from([0, 1000, 65532]),
    "runAsGroup": st.sampled_from([0, 1000]),
    "runAsNonRoot": st.booleans(),
    "seccompProfile": PROFILES | st.just({"type": "Unconfined"}),
    "seLinuxOptions": st.sampled_from([{"level": "s0:c1,c2"}, {"type": "spc_t"}, {"user": "u"}]),
    "appArmorProfile": st.sampled_from([{"type": "RuntimeDefault"}, {"type": "Unconfined"}]),
}
RIGHTS = {
    "allowPrivilegeEscalation": st.booleans(),
    "privileged": st.booleans(),
    "capabilities": st.sampled_from([{"drop": ["ALL"]}, {"drop": ["ALL"], "add": ["SYS_PTRACE"]}, {}]),
    "procMount": st.sampled_from(["Default", "Unmasked"]),
    "readOnlyRootFilesystem": st.booleans(),
}
CONTAINERS = st.fixed_dictionaries({}, optional=USERS | RIGHTS)
PODS = st.fixed_dictionaries({}, optional=USERS)
LEVELS = st.sampled_from([Level.BASELINE, Level.RESTRICTED])


@given(of_container=CONTAINERS | st.just(OPEN), of_pod=PODS, host_users=st.booleans(), level=LEVELS)
def test_the_agents_container_takes_nothing_that_the_users_own_may_not_have(
    of_container: JSON, of_pod: JSON, host_users: bool, level: Level
) -> None:
    container = {
        "name": "main",
        "image": "x",
        "command": ["torchrun", "t.py"],
        "securityContext": of_container,
    }
    pod: JSON = {"metadata": {}, "spec": {"containers": [container], "securityContext": of_pod}}
    if not host_users:
        pod["spec"]["hostUsers"] = False
    reasons = {violation.reason for violation in violations(level, pod["spec"])}
    for images_mount in (False, True):
        injected = with_agent(pod, images_mount=images_mount)
        assert {violation.reason for violation in violations(level, injected["spec"])} == reasons


@pytest.mark.parametrize("images_mount", [False, True])
def test_kubernetes_has_each_field_of_what_is_injected(images_mount: bool) -> None:
    container = {"name": "main", "image": "x", "command": ["torchrun", "t.py"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    injected = with_agent(pod, images_mount=images_mount)
    schema = CompiledSchema(reference_to(POD), components(), custom=False)
    pruned, unknown = schema.prune(injected)
    assert (pruned, unknown, schema.validate(schema.default(pruned))) == (injected, [], [])


@given(of_container=CONTAINERS, of_pod=PODS)
def test_the_agents_container_runs_as_the_users_own_does(of_container: JSON, of_pod: JSON) -> None:
    container = {"name": "main", "image": "x", "securityContext": of_container}
    spec = with_agent({"metadata": {}, "spec": {"containers": [container], "securityContext": of_pod}})[
        "spec"
    ]
    own, agents = spec["containers"][0]["securityContext"], spec["initContainers"][0]["securityContext"]
    for field in ("runAsUser", "runAsGroup", "runAsNonRoot"):
        assert agents.get(field, "the Pod's") == own.get(field, "the Pod's")
    assert spec["securityContext"] == of_pod
    assert agents["capabilities"] == {"drop": ["ALL"]} and "privileged" not in agents
