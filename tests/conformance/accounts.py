"""Service accounts made for a test: their tokens, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.resources import ROLEBINDINGS, ROLES, SERVICEACCOUNTS, Resource

from .objects import manifest, serviceaccount
from .rawapi import Api
from .waiting import eventually

JSON = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
POD_NAME_EXTRA = "authentication.kubernetes.io/pod-name"


def rule(group: str, resources: str, verbs: str, names: str = "") -> JSON:
    found = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    return {**found, "resourceNames": names.split()} if names else found


@dataclass
class Accounts:
    """Makes service accounts, hands out their tokens and what they may do."""

    api: Api
    namespace: str

    async def token(self, name: str, **spec: Any) -> str:
        (await self.api.create(SERVICEACCOUNTS, serviceaccount(self.namespace, name))).expect(201, 409)
        return str((await self.request(name, **spec)).expect(201)["status"]["token"])

    async def request(self, name: str, **spec: Any) -> Any:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICEACCOUNTS.path(self.namespace, name, "token")
        return await self.api.call("POST", path, body=body)

    def subject(self, name: str) -> JSON:
        return {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}

    async def allow(self, account: str, *rules: JSON, namespace: str | None = None) -> None:
        """By a Role of the same name, and its binding."""
        where = namespace or self.namespace
        (await self.api.create(ROLES, manifest(ROLES, where, account, rules=list(rules)))).expect(201)
        await self.bind(account, ROLES.kind, account, namespace=where)

    async def bind(self, account: str, kind: str, role: str, namespace: str | None = None) -> None:
        where = namespace or self.namespace
        reference = {"apiGroup": RBAC, "kind": kind, "name": role}
        binding = manifest(ROLEBINDINGS, where, account, roleRef=reference, subjects=[self.subject(account)])
        (await self.api.create(ROLEBINDINGS, binding)).expect(201)

    async def becomes(self, account: Api, status: int, resource: Resource, *where: str) -> None:
        """Authorization follows its objects with a short delay."""
        namespace = where[0] if where else self.namespace
        await eventually(
            lambda: account.list(resource, namespace), until=lambda reply: reply.status == status
        )
