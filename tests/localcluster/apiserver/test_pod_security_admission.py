"""Pod Security Admission in the server: labels of Namespaces, Pods refused, warnings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.localcluster.apiserver.api import PODS, Api, pod

pytestmark = pytest.mark.real

NAMESPACES = "/api/v1/namespaces"
LABEL = "pod-security.kubernetes.io/"
CAREFUL = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


async def label(api: Api, **labels: str) -> Any:
    given = {LABEL + key: value for key, value in labels.items()}
    return await api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": given}})


async def test_a_pod_that_its_namespace_forbids_is_refused_or_warned_of(api: Api) -> None:
    await api.created(PODS, pod("earlier"))
    assert (await label(api, enforce="baseline", warn="restricted")).status == 200
    warned = await api.post(PODS, pod("warned"))
    assert warned.status == 201 and "would violate" in warned.headers["Warning"]
    assert (await label(api, enforce="restricted")).status == 200
    answer = await api.post(PODS, pod("x"))
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")
    assert 'is forbidden: violates PodSecurity "restricted:latest": seccompProfile (' in answer.message
    careful = pod("x", containers=[{"name": "main", "image": "busybox:1", "securityContext": CAREFUL}])
    allowed = await api.post(PODS, careful)
    assert allowed.status == 201 and "Warning" not in allowed.headers
    assert (await api.patch(f"{PODS}/earlier", {"metadata": {"labels": {"a": "b"}}})).status == 200


async def test_wrong_labels_are_refused(api: Api) -> None:
    answer = await label(api, enforce="strict")
    assert answer.status == 422 and "metadata.labels[pod-security.kubernetes.io/enforce]" in answer.message
