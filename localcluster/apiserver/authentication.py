"""Authenticates the admin, and a ServiceAccount through a token whose Pod still exists. No other client."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from localcluster.apiserver import tokens
from localcluster.apiserver.errors import unauthorized
from localcluster.apiserver.store import Store
from localcluster.apiserver.tokens import Claims, InvalidToken, Reference
from localcluster.resource import JSON

SUPERUSERS = "system:masters"
AUTHENTICATED = "system:authenticated"
KNOWN_TOKENS_MAX = 10_000
AUDIENCES = (tokens.ISSUER,)
"""Those of this server."""


@dataclass(frozen=True)
class User:
    """A request's author, as `userInfo` and RBAC see it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict, hash=False)

    @property
    def is_superuser(self) -> bool:
        return SUPERUSERS in self.groups

    def info(self) -> JSON:
        """The `userInfo` of reviews and of admission."""
        info: JSON = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            info["uid"] = self.uid
        if self.extra:
            info["extra"] = self.extra
        return info


ADMIN = User("kubernetes-admin", groups=(SUPERUSERS, AUTHENTICATED))


@dataclass(frozen=True)
class Bearer:
    """The user of a token, and those of the audiences asked about that it is for."""

    user: User
    audiences: tuple[str, ...]


class Authenticator:
    """Reads bearer tokens."""

    def __init__(self, store: Store, admin_token: str, token_key: bytes) -> None:
        self._store = store
        self._admin_token = admin_token.encode()
        self._token_key = token_key
        self._known: dict[str, tuple[Claims, User]] = {}

    def authenticate(self, authorization: str, now: float) -> User:
        """The bearer of an Authorization header; raises 401 for everybody unknown."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthorized()
        try:
            return self.bearer(token, AUDIENCES, now).user
        except InvalidToken as error:
            raise unauthorized() from error

    def bearer(self, token: str, audiences: Sequence[str], now: float) -> Bearer:
        """The bearer of a token that is for one of the audiences at least; raises InvalidToken."""
        if hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._admin_token):
            return Bearer(ADMIN, _common(audiences, AUDIENCES))
        known = self._known.get(token)
        if known is None:
            known = self._read(token)
        claims, user = known
        if now >= claims.expires_at:
            self._known.pop(token, None)
            raise InvalidToken("the token has expired")
        if not self._still_bound(claims):
            self._known.pop(token, None)
            raise InvalidToken("the account or the Pod that the token is bound to is gone")
        return Bearer(user, _common(audiences, claims.audiences))

    def _read(self, token: str) -> tuple[Claims, User]:
        claims = tokens.verify(token, self._token_key)
        if len(self._known) >= KNOWN_TOKENS_MAX:
            self._known.clear()
        known = self._known[token] = (claims, _user(claims))
        return known

    def _still_bound(self, claims: Claims) -> bool:
        account = self._exists("serviceaccounts", claims.namespace, claims.service_account)
        return account and (claims.pod is None or self._exists("pods", claims.namespace, claims.pod))

    def _exists(self, collection: str, namespace: str, reference: Reference) -> bool:
        stored = self._store.get(collection, namespace, reference.name)
        return stored is not None and stored.obj["metadata"]["uid"] == reference.uid


def _common(asked: Sequence[str], held: Sequence[str]) -> tuple[str, ...]:
    """The audiences asked about that a token is for; raises InvalidToken where there are none."""
    common = tuple(audience for audience in asked if audience in held)
    if not common:
        raise InvalidToken(f"the token is for the audiences {list(held)}, not for {list(asked)}")
    return common


def _user(claims: Claims) -> User:
    """The user that a token's claims make."""
    extra = {"authentication.kubernetes.io/credential-id": [f"JTI={claims.token_id}"]}
    for kind, reference in (("pod", claims.pod), ("node", claims.node)):
        if reference is not None:
            extra[f"authentication.kubernetes.io/{kind}-name"] = [reference.name]
            extra[f"authentication.kubernetes.io/{kind}-uid"] = [reference.uid]
    groups = account_groups(claims.namespace)
    return User(claims.subject, claims.service_account.uid, groups, extra)


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of a namespace's ServiceAccounts."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
