"""ServiceAccount tokens: JWTs with Kubernetes' claims, bound to a Pod, signed with the cluster's own key.

Only this server ever checks them, so a symmetric signature (HS256) is all they need.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from dataclasses import dataclass

import orjson

from localcluster.resource import JSON

ISSUER = "https://kubernetes.default.svc.cluster.local"


class InvalidToken(Exception):
    """Not signed by this cluster, or malformed."""


@dataclass(frozen=True)
class Reference:
    """An object by name and uid: a token dies with what it is bound to."""

    name: str
    uid: str


@dataclass(frozen=True)
class Claims:
    """Claims of a token about its bearer."""

    namespace: str
    service_account: Reference
    pod: Reference | None
    node: Reference | None
    audiences: tuple[str, ...]
    issued_at: int
    expires_at: int
    token_id: str

    @property
    def subject(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.service_account.name}"


def new_token_id() -> str:
    return str(uuid.uuid4())


def issue(claims: Claims, key: bytes) -> str:
    bound: JSON = {
        "namespace": claims.namespace,
        "serviceaccount": {"name": claims.service_account.name, "uid": claims.service_account.uid},
    }
    if claims.pod is not None:
        bound["pod"] = {"name": claims.pod.name, "uid": claims.pod.uid}
    if claims.node is not None:
        bound["node"] = {"name": claims.node.name, "uid": claims.node.uid}
    payload = {
        "aud": list(claims.audiences),
        "exp": claims.expires_at,
        "iat": claims.issued_at,
        "nbf": claims.issued_at,
        "iss": ISSUER,
        "jti": claims.token_id,
        "kubernetes.io": bound,
        "sub": claims.subject,
    }
    signed = f"{_encode(orjson.dumps({'alg': 'HS256', 'typ': 'JWT'}))}.{_encode(orjson.dumps(payload))}"
    return f"{signed}.{_encode(_signature(signed, key))}"


def verify(token: str, key: bytes) -> Claims:
    """The claims of a token that this cluster issued. Whether they hold now is the caller's question."""
    try:
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(_decode(signature), _signature(signed, key)):
            raise InvalidToken("the signature is not this cluster's")
        payload = orjson.loads(_decode(signed.partition(".")[2]))
        bound = payload["kubernetes.io"]
        return Claims(
            namespace=bound["namespace"],
            service_account=Reference(**bound["serviceaccount"]),
            pod=Reference(**bound["pod"]) if "pod" in bound else None,
            node=Reference(**bound["node"]) if "node" in bound else None,
            audiences=tuple(payload["aud"]),
            issued_at=payload["iat"],
            expires_at=payload["exp"],
            token_id=payload["jti"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidToken("the token is malformed") from error


def _signature(signed: str, key: bytes) -> bytes:
    return hmac.new(key, signed.encode(), hashlib.sha256).digest()


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
