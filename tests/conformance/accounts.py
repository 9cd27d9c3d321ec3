"""Service accounts made for a test: their tokens, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.resources import SERVICEACCOUNTS

from .objects import serviceaccount
from .rawapi import Api

JSON = dict[str, Any]

POD_NAME_EXTRA = "authentication.kubernetes.io/pod-name"


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
