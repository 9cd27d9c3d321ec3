"""The key of an ElasticJob or NodeCheck: a Secret that its Pods alone get, for the agent's container.

The controller may create Secrets and not read them. The Secret's name contains its owner's uid: one that is
there already is this owner's.

A key is replaced only while no Pod runs with it. If the Secret is deleted meanwhile, Pods that come later
wait for it, and `start.py` says what to do: with a new key they could not talk to the others.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Callable

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists
from controller.resources import PODS, SECRETS, Object
from controller.shared_calls import SharedCalls
from controller.store import Memory
from crds import names
from reconcilers.observed.builder import owned_metadata
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS

KEY_BYTES = 32
MISSED_RECHECK_SECONDS = 5.0
"""Time between two looks at a Secret that Pods wait for: of many such Pods not each makes one."""


class OwnerKeys:
    """Makes the Secret before its owner's first Pod."""

    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._pods = cache.store(PODS)
        self._workers = cache.store(ELASTICWORKERS)
        self._made: dict[str, Memory[float]] = {
            resource.kind: cache.store(resource).memory() for resource in (ELASTICJOBS, NODECHECKS)
        }
        """When an owner's Secret was found or made last, by kind and uid."""
        self._making = SharedCalls[None]()
        """By uid of the owner, whose workers may all begin at once."""

    async def ensure(self, owner: Object, *, missed: bool = False) -> None:
        """Make the Secret, unless it is there or a Pod runs with its key.

        Args:
            owner: the ElasticJob or NodeCheck.
            missed: a Pod waits for it, so that it is not there any more.
        """
        uid = owner["metadata"]["uid"]
        if self._is_there(owner, missed=missed):
            return
        await self._making.ask(uid, lambda: self._make(owner))

    async def _make(self, owner: Object) -> None:
        if not self._is_in_use(owner):
            with contextlib.suppress(AlreadyExists):
                await self._client.create(SECRETS, secret_of(owner))
        self._made[owner["kind"]].put(owner["metadata"]["uid"], self._monotonic())

    def forget(self, owner: Object) -> None:
        """Ask again before the next Pod: the owner has none any more, so it may have a new key."""
        self._made[owner["kind"]].forget(owner["metadata"]["uid"])

    def _is_there(self, owner: Object, *, missed: bool) -> bool:
        """Whether nothing is to be asked for now."""
        made_at = self._made[owner["kind"]].get(owner["metadata"]["uid"])
        return made_at is not None and (not missed or self._monotonic() - made_at < MISSED_RECHECK_SECONDS)

    def _is_in_use(self, owner: Object) -> bool:
        """Whether a Pod runs with the key. Pods in other namespaces have none, whatever owner they name."""
        namespace = owner["metadata"]["namespace"]
        return any(
            pod["metadata"]["namespace"] == namespace
            and pod.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            for worker in self._workers.by_index(BY_OWNER, owner["metadata"]["uid"])
            for pod in self._pods.by_index(BY_OWNER, worker["metadata"]["uid"])
        )


def secret_of(owner: Object) -> Object:
    """The Secret to create, with a new key."""
    key = secrets.token_hex(KEY_BYTES)
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": owned_metadata(owner, names.key_secret(owner["metadata"]["uid"])),
        "type": "Opaque",
        "immutable": True,
        "data": {names.KEY_FIELD: base64.b64encode(key.encode()).decode()},
    }
