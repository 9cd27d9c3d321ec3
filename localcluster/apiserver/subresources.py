"""What is only ever posted: bindings, evictions, tokens, and reviews of one's own identity and rights."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from localcluster.apiserver import tokens
from localcluster.apiserver.authentication import User
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.deletion import Deleted, delete, read_options
from localcluster.apiserver.errors import ApiError, bad_request, conflict, invalid, invalid_value, required
from localcluster.apiserver.rbac import Attributes
from localcluster.apiserver.requests import Context
from localcluster.apiserver.times import rfc3339
from localcluster.apiserver.tokens import Claims, Reference
from localcluster.apiserver.versions import collection_of
from localcluster.apiserver.writes import current_object
from localcluster.resource import JSON
from localcluster.selectors import from_selector

TOKEN_LIFETIME_SECONDS = 3600
TOKEN_LIFETIME_MIN_SECONDS = 600
TOKEN_LIFETIME_MAX_SECONDS = 2**32
SUCCESS: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def bind(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """pods/binding: the scheduler's decision."""
    current = current_object(cluster, context)
    pod = current.copy()
    node = _part(_part(body, "body of the request").get("target"), "target").get("name")
    if not node:
        raise invalid(context.type, context.name, [required("target.name")])
    metadata = _part(body.get("metadata") or {}, "metadata")
    if metadata.get("uid") not in (None, "", pod["metadata"]["uid"]):
        raise conflict(
            context.type, context.name, f"the UID in the binding ({metadata['uid']}) is not the Pod's"
        )
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(
            context.type, context.name, f"pod {context.name} is being deleted, cannot be assigned to a host"
        )
    if pod["spec"].get("nodeName"):
        raise conflict(
            context.type,
            context.name,
            f'pod {context.name} is already assigned to node "{pod["spec"]["nodeName"]}"',
        )
    pod["spec"]["nodeName"] = node
    conditions = [each for each in pod["status"].get("conditions") or () if each["type"] != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": rfc3339(now),
        "lastProbeTime": None,
    }
    pod["status"]["conditions"] = [*conditions, scheduled]
    if not context.dry_run():
        cluster.store.put(collection_of(context.type), pod)
    return SUCCESS


def evict(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """pods/eviction: a deletion that PodDisruptionBudgets may refuse."""
    current = current_object(cluster, context)
    options_body = _part(_part(body or {}, "body of the request").get("deleteOptions") or {}, "deleteOptions")
    options = read_options(options_body, None, None, dry_run=context.dry_run(options_body))
    _check_budgets(cluster, context, current.obj)
    delete(cluster, context.type, current, options, now)
    return SUCCESS


def _check_budgets(cluster: Cluster, context: Context, pod: JSON) -> None:
    """429 while a PodDisruptionBudget that selects the Pod allows no disruption."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending"):
        return
    for (_, name), stored in cluster.store.select("poddisruptionbudgets.policy", context.namespace):
        selector = from_selector(stored.obj["spec"].get("selector") or {})
        allowed = (stored.obj.get("status") or {}).get("disruptionsAllowed", 0)
        if selector.matches(pod["metadata"].get("labels")) and allowed <= 0:
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {name} allows no disruption now",
            }
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiError(429, "TooManyRequests", message, {"causes": [cause], "retryAfterSeconds": 10})


def request_token(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """serviceaccounts/token: a token for the account, bound to a Pod if one is named."""
    account = current_object(cluster, context).obj
    spec = _part(_part(body or {}, "body of the request").get("spec") or {}, "spec")
    lifetime = spec.get("expirationSeconds") or TOKEN_LIFETIME_SECONDS
    if (
        not isinstance(lifetime, int)
        or not TOKEN_LIFETIME_MIN_SECONDS <= lifetime <= TOKEN_LIFETIME_MAX_SECONDS
    ):
        why = f"must be from {TOKEN_LIFETIME_MIN_SECONDS} to {TOKEN_LIFETIME_MAX_SECONDS}"
        raise invalid(context.type, context.name, [invalid_value("spec.expirationSeconds", lifetime, why)])
    audiences = tuple(spec.get("audiences") or (tokens.ISSUER,))
    pod = _bound_pod(cluster, context, spec.get("boundObjectRef"))
    issued_at = int(now.timestamp())
    claims = Claims(
        namespace=context.namespace,
        service_account=_reference(account),
        pod=_reference(pod) if pod else None,
        node=_bound_node(cluster, pod),
        audiences=audiences,
        issued_at=issued_at,
        expires_at=issued_at + lifetime,
        token_id=tokens.new_token_id(),
    )
    token = tokens.issue(claims, cluster.token_key)
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": context.name, "namespace": context.namespace},
        "spec": {**spec, "audiences": list(audiences), "expirationSeconds": lifetime},
        "status": {"token": token, "expirationTimestamp": rfc3339(now + timedelta(seconds=lifetime))},
    }


def _bound_pod(cluster: Cluster, context: Context, reference: Any) -> JSON | None:
    if not reference:
        return None
    if _part(reference, "spec.boundObjectRef").get("kind") != "Pod":
        raise bad_request("spec.boundObjectRef: tokens can be bound to Pods only")
    pods = cluster.registry.lookup("", "v1", "pods")
    assert pods is not None
    target = replace(context.target, plural="pods", name=reference.get("name", ""))
    pod = current_object(cluster, replace(context, type=pods, target=target)).obj
    if reference.get("uid") not in (None, "", pod["metadata"]["uid"]):
        raise conflict(
            pods, target.name, f"the UID in the bound object reference ({reference['uid']}) is not the Pod's"
        )
    account = pod["spec"].get("serviceAccountName", "default")
    if account != context.name:
        raise bad_request(
            f"cannot bind token for serviceaccount {context.name} to pod running with {account}"
        )
    return pod


def _bound_node(cluster: Cluster, pod: JSON | None) -> Reference | None:
    name = pod["spec"].get("nodeName") if pod else None
    node = cluster.store.get("nodes", "", name) if name else None
    return _reference(node.obj) if node is not None else None


def _reference(obj: JSON) -> Reference:
    return Reference(obj["metadata"]["name"], obj["metadata"]["uid"])


def review(cluster: Cluster, context: Context, body: Any) -> JSON:
    """SelfSubjectReview and SelfSubjectAccessReview: answered, never stored."""
    spec = _part(_part(body or {}, "body of the request").get("spec") or {}, "spec")
    answer: JSON = {
        "kind": context.type.kind,
        "apiVersion": context.type.api_version,
        "metadata": {"creationTimestamp": None},
    }
    if context.type.kind == "SelfSubjectReview":
        return {**answer, "status": {"userInfo": context.user.info()}}
    return {**answer, "spec": spec, "status": _access(cluster, context.user, spec)}


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


def _part(value: Any, what: str) -> JSON:
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object")
    return value


def deletion_answer(context: Context, deleted: Deleted) -> JSON:
    """What a DELETE is answered with: the object while it goes on, else that it is gone."""
    if not deleted.gone or context.type.kind in ("Pod", "Namespace", "ServiceAccount"):
        return deleted.obj
    details: JSON = {"name": context.name, "kind": context.type.plural, "uid": deleted.obj["metadata"]["uid"]}
    if context.type.group:
        details["group"] = context.type.group
    return {**SUCCESS, "details": details}
