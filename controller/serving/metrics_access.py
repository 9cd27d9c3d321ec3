"""Access to the metrics for bearer tokens of accounts that RBAC allows to get `/metrics`.

Controllers made with controller-runtime (JobSet, Kueue) have the same rule: a TokenReview identifies the
account, and a SubjectAccessReview checks its rights. Answers are remembered for a while. Invalid tokens
cannot evict valid ones, and cause only a few requests to the API server at a time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from controller import clock
from controller.client import AsyncClient
from controller.errors import ApiError
from controller.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Object, Resource
from controller.tasks import SharedCalls

ALLOWED_SECONDS = 60.0
REFUSED_SECONDS = 10.0
MOST_KNOWN = 256
MOST_REVIEWS = 8
"""Maximum concurrent reviews; further requests are asked to retry."""
PATH = "/metrics"


@dataclass(frozen=True)
class MetricsRefusal:
    """Refusal of a request for metrics."""

    status: int
    reason: str


class MetricsAccess:
    """Access check with the controller's own account, whether it leads or not."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._allowed: OrderedDict[bytes, float] = OrderedDict()
        """Expiry of allowed tokens, by digest. A token that was allowed before does not wait for reviews."""
        self._refused: OrderedDict[bytes, tuple[float, MetricsRefusal]] = OrderedDict()
        self._reviews = SharedCalls[MetricsRefusal | None]()

    async def refusal(self, authorization: str) -> MetricsRefusal | None:
        """Return why the request with this header is refused; None if it is allowed."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or not token.isascii():
            return MetricsRefusal(
                401, "send the token of an account that may get /metrics, as a bearer token"
            )
        key, now = hashlib.sha256(token.encode()).digest(), clock.monotonic()
        if self._allowed.get(key, now) > now:
            return None
        until, refusal = self._refused.get(key, (now, None))
        if until > now:
            return refusal
        if key not in self._reviews and len(self._reviews) >= MOST_REVIEWS and key not in self._allowed:
            return MetricsRefusal(503, "too many tokens are being reviewed: come again in a second")
        return await self._reviews.ask(key, lambda: self._review(key, token.strip()))

    async def _review(self, key: bytes, token: str) -> MetricsRefusal | None:
        """Review a token. If the API server does not answer, the next request asks again."""
        try:
            refusal = await self._ask(token)
        except ApiError as error:
            return MetricsRefusal(503, f"the API server does not say whose token it is: {error}")
        now = clock.monotonic()
        if refusal is None:
            self._allowed[key] = now + ALLOWED_SECONDS
        else:
            self._allowed.pop(key, None)
            self._refused[key] = (now + REFUSED_SECONDS, refusal)
        for known in (self._allowed, self._refused):
            if len(known) > MOST_KNOWN:
                known.popitem(last=False)
        return refusal

    async def _ask(self, token: str) -> MetricsRefusal | None:
        status = await self._answer(TOKEN_REVIEWS, {"token": token})
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict):
            return MetricsRefusal(401, "the API server knows nobody with this token")
        who = {"user": user.get("username"), "groups": user.get("groups"), "extra": user.get("extra")}
        asked = {**who, "uid": user.get("uid"), "nonResourceAttributes": {"path": PATH, "verb": "get"}}
        spec = {field: value for field, value in asked.items() if value}
        if (await self._answer(ACCESS_REVIEWS, spec)).get("allowed") is True:
            return None
        return MetricsRefusal(
            403, f"{user.get('username')} may not get {PATH}: see the ClusterRole dlr-metrics-reader"
        )

    async def _answer(self, resource: Resource, spec: Object) -> Object:
        review = resource.manifest({}, spec=spec)
        status = (await self._client.create(resource, review)).get("status")
        return status if isinstance(status, dict) else {}
