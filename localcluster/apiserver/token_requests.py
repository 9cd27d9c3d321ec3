"""serviceaccounts/token: a token for an account, bound to a Pod if one is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from localcluster.apiserver import tokens
from localcluster.apiserver.bodies import read_body
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import bad_request, conflict, invalid, invalid_value
from localcluster.apiserver.requests import Context
from localcluster.apiserver.tokens import Claims, Reference
from localcluster.apiserver.writes import current_object
from localcluster.builtin import TOKEN_REQUEST
from localcluster.client.clock import timestamp
from localcluster.resource import JSON

LIFETIME_SECONDS = 3600
LIFETIME_MIN_SECONDS = 600
LIFETIME_MAX_SECONDS = 2**32


def request_token(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    account = current_object(cluster, context).obj
    spec = read_body(TOKEN_REQUEST, body, spec={"audiences": []})["spec"]
    lifetime_seconds = spec.get("expirationSeconds") or LIFETIME_SECONDS
    if not LIFETIME_MIN_SECONDS <= lifetime_seconds <= LIFETIME_MAX_SECONDS:
        why = f"must be from {LIFETIME_MIN_SECONDS} to {LIFETIME_MAX_SECONDS}"
        fault = invalid_value("spec.expirationSeconds", lifetime_seconds, why)
        raise invalid(context.type, context.name, [fault])
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
        expires_at=issued_at + lifetime_seconds,
        token_id=tokens.new_token_id(),
    )
    expires = now + timedelta(seconds=lifetime_seconds)
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": context.name, "namespace": context.namespace},
        "spec": {**spec, "audiences": list(audiences), "expirationSeconds": lifetime_seconds},
        "status": {
            "token": tokens.issue(claims, cluster.token_key),
            "expirationTimestamp": timestamp(expires),
        },
    }


def _bound_pod(cluster: Cluster, context: Context, reference: JSON | None) -> JSON | None:
    if not reference:
        return None
    if reference.get("kind") != "Pod":
        raise bad_request("spec.boundObjectRef: tokens can be bound to Pods only")
    pods = cluster.registry.lookup("", "v1", "pods")
    assert pods is not None
    target = replace(context.target, plural="pods", name=reference.get("name", ""))
    pod = current_object(cluster, replace(context, type=pods, target=target)).obj
    if reference.get("uid") not in (None, "", pod["metadata"]["uid"]):
        why = f"the UID in the bound object reference ({reference['uid']}) is not the Pod's"
        raise conflict(pods, target.name, why)
    account = pod["spec"].get("serviceAccountName", "default")
    if account != context.name:
        why = f"cannot bind token for serviceaccount {context.name} to pod running with {account}"
        raise bad_request(why)
    return pod


def _bound_node(cluster: Cluster, pod: JSON | None) -> Reference | None:
    name = pod["spec"].get("nodeName") if pod else None
    node = cluster.store.get("nodes", "", name) if name else None
    return _reference(node.obj) if node is not None else None


def _reference(obj: JSON) -> Reference:
    return Reference(obj["metadata"]["name"], obj["metadata"]["uid"])
