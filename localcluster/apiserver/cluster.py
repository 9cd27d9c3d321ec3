"""The parts of one running API server, as its handlers and controllers see them."""

from __future__ import annotations

from dataclasses import dataclass

from localcluster.apiserver.authentication import Authenticator
from localcluster.apiserver.deferred import Deferred
from localcluster.apiserver.policies import Policies
from localcluster.apiserver.rbac import Authorizer
from localcluster.apiserver.schemas import Schemas
from localcluster.apiserver.store import Collection, Store, Stored
from localcluster.paths import Home
from localcluster.resource import JSON, Registry, ResourceType


@dataclass(frozen=True)
class Cluster:
    """One per process."""

    home: Home
    store: Store
    registry: Registry
    authenticator: Authenticator
    authorizer: Authorizer
    schemas: Schemas
    policies: Policies
    deferred: Deferred
    ca_certificate: str
    token_key: bytes

    def collection(self, resource_type: ResourceType) -> Collection:
        return self.store.collection(resource_type.group_resource)

    def get(self, resource_type: ResourceType, namespace: str, name: str) -> Stored | None:
        return self.store.get(resource_type.group_resource, namespace, name)

    def type_of(self, obj: JSON) -> ResourceType | None:
        """The served type of a stored object; None when its CRD is gone."""
        return self.registry.by_kind(obj.get("apiVersion", ""), obj.get("kind", ""))
