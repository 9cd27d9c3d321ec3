"""Pod Security Admission in the server: labels of Namespaces, Pods refused, warnings of everything else."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.apiserver.pod_security_admission import policy_of
from localcluster.pod_security import Level, Standard
from tests.localcluster.apiserver.api import PODS, Api, pod

pytestmark = pytest.mark.real

NAMESPACES = "/api/v1/namespaces"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
LABEL = "pod-security.kubernetes.io/"
WHY = (
    'allowPrivilegeEscalation != false (container "main" must set '
    "securityContext.allowPrivilegeEscalation=false), "
    'unrestricted capabilities (container "main" must set securityContext.capabilities.drop=["ALL"]), '
    'runAsNonRoot != true (pod or container "main" must set securityContext.runAsNonRoot=true), '
    'seccompProfile (pod or container "main" must set securityContext.seccompProfile.type to '
    '"RuntimeDefault" or "Localhost")'
)
CAREFUL = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


async def label(api: Api, **labels: str) -> Any:
    given = {LABEL + key.replace("_", "-"): value for key, value in labels.items()}
    return await api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": given}})


def careful(name: str) -> dict[str, Any]:
    return pod(name, containers=[{"name": "main", "image": "busybox:1", "securityContext": CAREFUL}])


def warnings(answer: Any) -> list[str]:
    return [text[len('299 - "') : -1].replace('\\"', '"') for text in answer.headers.getall("Warning", ())]


def deployment(template: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "a"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"spec": template["spec"], "metadata": {"labels": labels}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}


async def test_a_pod_that_its_namespace_forbids_is_refused(api: Api) -> None:
    assert (await label(api, enforce="restricted")).code == 200
    answer = await api.post(PODS, pod("x"))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message == f'pods "x" is forbidden: violates PodSecurity "restricted:latest": {WHY}'
    assert answer.body["details"] == {"name": "x", "kind": "pods"}
    assert warnings(answer) == []
    trial = await api.post(PODS, pod("x"), dryRun="All")
    assert trial.code == 403
    allowed = await api.post(PODS, careful("x"))
    assert (allowed.code, warnings(allowed)) == (201, [])


async def test_others_namespaces_and_levels_are_not_touched(api: Api) -> None:
    await api.created(
        NAMESPACES, {"metadata": {"name": "other", "labels": {LABEL + "enforce": "restricted"}}}
    )
    assert (await api.post(PODS, pod("x", hostNetwork=True))).code == 201
    await label(api, enforce="baseline", enforce_version="v1.20")
    answer = await api.post(PODS, pod("y", hostNetwork=True))
    why = 'violates PodSecurity "baseline:v1.20": host namespaces (hostNetwork=true)'
    assert answer.message == f'pods "y" is forbidden: {why}'
    assert (await api.post(PODS, pod("z"))).code == 201


async def test_a_warning_lets_pods_through(api: Api) -> None:
    await label(api, warn="restricted", warn_version="v1.30", audit="baseline")
    answer = await api.post(PODS, pod("x"))
    assert (answer.code, warnings(answer)) == (201, [f'would violate PodSecurity "restricted:v1.30": {WHY}'])


async def test_templates_of_workloads_are_warned_of_and_their_pods_refused(api: Api) -> None:
    await label(api, enforce="restricted")
    answer = await api.post(DEPLOYMENTS, deployment(pod("x")))
    assert (answer.code, warnings(answer)) == (201, [f'would violate PodSecurity "restricted:latest": {WHY}'])
    scaled = await api.patch(f"{DEPLOYMENTS}/a/status", {"status": {"replicas": 0}})
    assert warnings(scaled) == []
    await label(api, warn="privileged")
    again = await api.patch(f"{DEPLOYMENTS}/a", {"spec": {"replicas": 2}})
    assert warnings(again) == []


async def test_a_pod_is_looked_at_again_only_when_its_image_changes(api: Api) -> None:
    await api.created(PODS, pod("x"))
    await label(api, enforce="restricted")
    assert (await api.patch(f"{PODS}/x", {"metadata": {"labels": {"a": "b"}}})).code == 200
    assert (await api.patch(f"{PODS}/x/status", {"status": {"phase": "Running"}})).code == 200
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "busybox:2"}]
    answer = await api.patch(f"{PODS}/x", image, "application/json-patch+json")
    assert answer.code == 403 and "violates PodSecurity" in answer.message


async def test_wrong_labels_are_refused_unless_they_are_old(api: Api) -> None:
    labels = {LABEL + "enforce": "strict", LABEL + "warn-version": "1.30", LABEL + "audit": "x"}
    answer = await api.post(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
    assert answer.code == 422
    levels = "must be one of privileged, baseline, restricted"
    assert [(each["field"], each["message"]) for each in answer.body["details"]["causes"]] == [
        (f"metadata.labels[{LABEL}enforce]", f'Invalid value: "strict": {levels}'),
        (f"metadata.labels[{LABEL}audit]", f'Invalid value: "x": {levels}'),
        (f"metadata.labels[{LABEL}warn-version]", 'Invalid value: "1.30": must be "latest" or "v1.x"'),
    ]
    assert (await label(api, enforce="")).code == 422
    assert (await label(api, enforce="baseline")).code == 200


async def test_a_stricter_label_warns_of_the_pods_that_are_there(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.created(PODS, pod(name, hostPID=name == "c"))
    await api.created(PODS, careful("d"))
    answer = await label(api, enforce="baseline")
    assert warnings(answer) == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "c: host namespaces",
    ]
    answer = await label(api, enforce="restricted")
    plain = (
        "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    )
    assert warnings(answer) == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "restricted:latest"',
        f"a (and 1 other pod): {plain}",
        f"c: host namespaces, {plain}",
    ]
    assert warnings(await label(api, enforce="baseline")) == []


def test_what_cannot_be_read_fails_closed_for_enforce_and_open_for_warn() -> None:
    policy = policy_of({LABEL + "enforce": "?", LABEL + "warn": "?", LABEL + "enforce-version": "v1.01"})
    assert (policy.enforce, policy.warn) == (Standard(Level.RESTRICTED), Standard())
    assert len(policy.faults) == 3


def test_enforce_warns_of_itself_where_nothing_is_said_of_warnings() -> None:
    labels = {LABEL + "enforce": "baseline", LABEL + "enforce-version": "v1.29"}
    assert policy_of(labels).warn == Standard(Level.BASELINE, 29)
    assert policy_of({**labels, LABEL + "warn-version": "v1.30"}).warn == Standard(Level.BASELINE, 30)
    assert policy_of({**labels, LABEL + "warn": "privileged"}).warn == Standard()
