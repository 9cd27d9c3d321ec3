"""Questions about oneself: who am I, and what may I do? Answered, never stored."""

from __future__ import annotations

from typing import Any

from localcluster.apiserver.authentication import User
from localcluster.apiserver.bodies import read_body
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.rbac import Attributes
from localcluster.apiserver.requests import Context
from localcluster.builtin import component_of
from localcluster.resource import JSON


def review(cluster: Cluster, context: Context, body: Any) -> JSON:
    """SelfSubjectReview and SelfSubjectAccessReview."""
    asked = read_body(component_of(context.type), body, spec={})
    answer: JSON = {
        "kind": context.type.kind,
        "apiVersion": context.type.api_version,
        "metadata": {"creationTimestamp": None},
    }
    if context.type.kind == "SelfSubjectReview":
        return {**answer, "status": {"userInfo": context.user.info()}}
    return {**answer, "spec": asked["spec"], "status": _access(cluster, context.user, asked["spec"])}


def _access(cluster: Cluster, user: User, spec: JSON) -> JSON:
    asked = spec.get("resourceAttributes")
    if not asked:
        return {"allowed": user.is_superuser}
    wanted = Attributes(
        verb=asked.get("verb", ""),
        group=asked.get("group", ""),
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
    )
    return {"allowed": cluster.authorizer.allows(user, wanted)}
