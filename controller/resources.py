"""API resources in use, and their paths on the server.

Objects are plain dicts: parsing them into typed models costs ten to twenty times the CPU, so only a
reconciler does that, and only for our own kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Object: TypeAlias = dict[str, Any]
"""One Kubernetes object (or any other JSON object from the server), as parsed JSON."""


@dataclass(frozen=True)
class Resource:
    """One kind of object, as the API server serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    gather_seconds: float = 0.0
    """Seconds for which a watch collects changes before it reads them, for kinds that change constantly, but
    rarely in a relevant way."""

    def __hash__(self) -> int:
        return hash(self.plural)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """`elasticjobs.elastic.iml.github.io`, as kubectl and error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def manifest(self, metadata: Object, **parts: Any) -> Object:
        """Return an object of this kind, to create."""
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **parts}

    def named(self, obj: Object) -> Object:
        """Return the object with apiVersion and kind, which the server omits in lists."""
        return {"apiVersion": self.api_version, "kind": self.kind} | obj

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of one object, or of the collection if `name` is None.

        A namespaced resource without a namespace is the collection of all namespaces.
        """
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace is not None:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        elif self.namespaced and name is not None:
            raise ValueError(f"{self.kind} {name!r} is namespaced: give its namespace")
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
SERVICES = Resource("", "v1", "services", "Service")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", gather_seconds=0.1)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
PODDISRUPTIONBUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


SELF_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
SELF_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
