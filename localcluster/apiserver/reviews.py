"""Questions about who somebody is and what they may do: oneself, or another. Answered, never stored."""

from __future__ import annotations

import time
from typing import Any

from localcluster.apiserver.authentication import AUDIENCES, Authenticator, User
from localcluster.apiserver.bodies import read_body
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import bad_request
from localcluster.apiserver.rbac import Attributes, Authorizer
from localcluster.apiserver.requests import Context
from localcluster.apiserver.tokens import InvalidToken
from localcluster.builtin import component_of
from localcluster.resource import JSON


def review(cluster: Cluster, context: Context, body: Any) -> JSON:
    """The answer to a SelfSubjectReview, TokenReview, SelfSubjectAccessReview or SubjectAccessReview."""
    asked = read_body(component_of(context.type), body, spec={})
    spec = asked.get("spec") or {}
    answer: JSON = {
        "kind": context.type.kind,
        "apiVersion": context.type.api_version,
        "metadata": {**(asked.get("metadata") or {}), "creationTimestamp": None},
    }
    match context.type.kind:
        case "SelfSubjectReview":
            return {**answer, "status": {"userInfo": context.user.info()}}
        case "TokenReview":
            status = _token_status(cluster.authenticator, spec, time.time())
        case "SelfSubjectAccessReview":
            status = {"allowed": _allowed(cluster.authorizer, context.user, spec)}
        case _:
            status = {"allowed": _allowed(cluster.authorizer, _subject(spec), spec)}
    return {**answer, "spec": spec, "status": status}


def _token_status(authenticator: Authenticator, spec: JSON, now: float) -> JSON:
    if not spec["token"]:
        raise bad_request("token is required for TokenReview in authentication")
    try:
        bearer = authenticator.bearer(spec["token"], spec.get("audiences") or AUDIENCES, now)
    except InvalidToken as error:
        return {"user": {}, "error": f"[invalid bearer token, {error}]"}
    return {"authenticated": True, "user": bearer.user.info(), "audiences": list(bearer.audiences)}


def _subject(spec: JSON) -> User:
    """The user asked about, whether or not there is one of that name."""
    groups, extra = tuple(spec.get("groups") or ()), spec.get("extra") or {}
    return User(spec.get("user") or "", spec.get("uid") or "", groups, extra)


def _allowed(authorizer: Authorizer, user: User, spec: JSON) -> bool:
    if "nonResourceAttributes" in spec:
        asked = spec["nonResourceAttributes"]
        return authorizer.allows_path(user, asked.get("verb", ""), asked.get("path", ""))
    asked = spec.get("resourceAttributes") or {}
    parts = ("verb", "group", "resource", "subresource", "namespace", "name")
    return authorizer.allows(user, Attributes(*(asked.get(part, "") for part in parts)))
