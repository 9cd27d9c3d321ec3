"""`kubectl create` and other commands that send Kubernetes' protobuf form, from the same objects to JSON."""

from __future__ import annotations

from typing import Any

import pytest

from .kubectl import Kubectl
from .objects import unique
from .rawapi import Api
from .resources import (
    CONFIGMAPS,
    NAMESPACES,
    ROLEBINDINGS,
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
            "rolebinding x --clusterrole=view --user=somebody",
            ROLEBINDINGS,
            {
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
            },
        ),
    ],
    ids=["configmap", "secret", "serviceaccount", "rolebinding"],
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


async def test_a_token(kubectl: Kubectl, controllers: None, namespace: str) -> None:
    await kubectl.run("create", "serviceaccount", "x", namespace=namespace)
    token = (await kubectl.run("create", "token", "x", namespace=namespace)).stdout.strip()
    assert len(token.split(".")) == 3
