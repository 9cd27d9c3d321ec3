"""`kubectl create` and other commands that send Kubernetes' protobuf form, from the same objects to JSON."""

from __future__ import annotations

from typing import Any

import pytest

from .kubectl import Kubectl
from .objects import unique
from .rawapi import Api
from .resources import (
    CLUSTERROLES,
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    ROLEBINDINGS,
    ROLES,
    SECRETS,
    SERVICEACCOUNTS,
    Resource,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_a_namespace(kubectl: Kubectl, api: Api) -> None:
    name = unique("conformance")
    try:
        assert (await kubectl.run("create", "namespace", name)).lines == [f"namespace/{name} created"]
        made = (await api.get(NAMESPACES, None, name)).expect(200)
        assert made["spec"]["finalizers"] == ["kubernetes"]
        assert "AlreadyExists" in await kubectl.refused("create", "namespace", name)
    finally:
        await api.delete(NAMESPACES, None, name)


@pytest.mark.parametrize(
    ("command", "resource", "expected"),
    [
        (
            "configmap x --from-literal=a=1 --from-literal=empty=",
            CONFIGMAPS,
            {"data": {"a": "1", "empty": ""}},
        ),
        ("secret generic x --from-literal=a=1", SECRETS, {"data": {"a": "MQ=="}, "type": "Opaque"}),
        ("serviceaccount x", SERVICEACCOUNTS, {}),
        (
            "role x --verb=get,list --resource=pods --resource-name=p",
            ROLES,
            {
                "rules": [
                    {
                        "apiGroups": [""],
                        "resources": ["pods"],
                        "resourceNames": ["p"],
                        "verbs": ["get", "list"],
                    }
                ]
            },
        ),
        (
            "rolebinding x --clusterrole=view --user=somebody",
            ROLEBINDINGS,
            {
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
            },
        ),
    ],
    ids=["configmap", "secret", "serviceaccount", "role", "rolebinding"],
)
async def test_an_object(
    kubectl: Kubectl, api: Api, namespace: str, command: str, resource: Resource, expected: JSON
) -> None:
    output = await kubectl.run("create", *command.split(), namespace=namespace)
    assert output.lines == [f"{_shown(resource)}/x created"]
    made = (await api.get(resource, namespace, "x")).expect(200)
    assert {key: made.get(key) for key in expected} == expected
    said = await kubectl.refused("create", *command.split(), namespace=namespace)
    assert "already exists" in said


def _shown(resource: Resource) -> str:
    kind = resource.kind.lower()
    return f"{kind}.{resource.group}" if resource.group else kind


async def test_a_deployment(kubectl: Kubectl, api: Api, namespace: str) -> None:
    command = ("deployment", "x", "--image=none", "--replicas=0", "--port=80", "--", "sleep", "1")
    await kubectl.run("create", *command, namespace=namespace)
    spec = (await api.get(DEPLOYMENTS, namespace, "x")).expect(200)["spec"]
    assert (spec["replicas"], spec["selector"]) == (0, {"matchLabels": {"app": "x"}})
    container = spec["template"]["spec"]["containers"][0]
    assert container["command"] == ["sleep", "1"]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


async def test_a_cluster_role(kubectl: Kubectl, api: Api) -> None:
    name = unique("conformance")
    try:
        await kubectl.run("create", "clusterrole", name, "--verb=get", "--non-resource-url=/version")
        made = (await api.get(CLUSTERROLES, None, name)).expect(200)
        assert made["rules"] == [{"nonResourceURLs": ["/version"], "verbs": ["get"]}]
    finally:
        await api.delete(CLUSTERROLES, None, name)


async def test_a_token(kubectl: Kubectl, controllers: None, namespace: str) -> None:
    await kubectl.run("create", "serviceaccount", "x", namespace=namespace)
    token = (await kubectl.run("create", "token", "x", namespace=namespace)).stdout.strip()
    assert len(token.split(".")) == 3


async def test_what_may_be_done(kubectl: Kubectl, namespace: str) -> None:
    for what in (("list", "pods"), ("get", "/metrics"), ("get", "/healthz", "--as", "somebody")):
        output = await kubectl.run("auth", "can-i", *what, namespace=namespace)
        assert output.stdout.strip() == "yes", what
    await kubectl.refused("auth", "can-i", "get", "/metrics", "--as", "somebody", namespace=namespace)
