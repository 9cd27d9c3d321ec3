"""What a worker's Pods may do: a ServiceAccount and a RoleBinding in the namespace of their job or check.

They read ElasticJobs, NodeChecks and ElasticWorkers, patch their own report and keep their own Lease, and
nothing else (ClusterRole `dlr-worker`; the admission policy in deploy/ holds each to its own objects).

Both are watched by our label, so that a look costs no request while they are there. One that somebody else
made, without the label, is not seen; that it is there is known by the refusal to make it, and asked again now
and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists
from controller.resources import ROLEBINDINGS, SERVICEACCOUNTS, Resource
from controller.store import Change
from crds import names

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

WORKER_ROLE = "dlr-worker"
RECHECK_SECONDS = 300.0
"""For so long one that somebody else made is taken to be there."""
MISSED_RECHECK_SECONDS = 5.0
"""The same when a Pod was refused, perhaps because it is gone: of many such Pods not each is to ask."""


class WorkerAccess:
    """Makes both where they are missing."""

    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._cached = {resource: cache.store(resource) for resource in (SERVICEACCOUNTS, ROLEBINDINGS)}
        self._found: dict[Key, float] = {}
        """When the API server said of one that it is there."""
        self._asking: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """Of many workers that begin at once, one asks for it, and the others wait for the answer."""
        for resource in self._cached:
            cache.add_handler(resource, self._forget)

    async def ensure(self, namespace: str, account: str, *, missed: bool = False) -> None:
        """Make what is not there.

        Args:
            missed: a Pod was refused, so that the cache may be wrong.
        """
        for resource, wanted in _wanted(namespace, account):
            name = wanted["metadata"]["name"]
            key = (resource.kind, namespace, name)
            if self._is_there(resource, key, missed=missed):
                continue
            async with self._asking.setdefault(key, asyncio.Lock()):
                if self._is_there(resource, key, missed=missed):
                    continue
                try:
                    await self._client.create(resource, wanted)
                except AlreadyExists:
                    self._note(key)

    def _is_there(self, resource: Resource, key: Key, *, missed: bool) -> bool:
        """As far as we know without a request."""
        if not missed and self._cached[resource].get(*key[1:]) is not None:
            return True
        return self._is_known(key, MISSED_RECHECK_SECONDS if missed else RECHECK_SECONDS)

    def _forget(self, change: Change) -> None:
        if change.new is None:
            obj = change.current
            self._found.pop((obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]), None)

    def _is_known(self, key: Key, seconds: float) -> bool:
        found_at = self._found.get(key)
        return found_at is not None and self._monotonic() - found_at < seconds

    def _note(self, key: Key) -> None:
        """What is too old to be believed goes, so that this grows no further than there are namespaces."""
        self._found = {k: at for k, at in self._found.items() if self._is_known(k, RECHECK_SECONDS)}
        self._found[key] = self._monotonic()


def _wanted(namespace: str, account: str) -> Iterator[tuple[Resource, Object]]:
    """An account of the user's own is the user's to make."""
    ours = account == names.SERVICE_ACCOUNT
    if ours:
        yield SERVICEACCOUNTS, _object(SERVICEACCOUNTS, namespace, account)
    binding = _object(ROLEBINDINGS, namespace, WORKER_ROLE if ours else f"{WORKER_ROLE}-{account}")
    role = {"apiGroup": ROLEBINDINGS.group, "kind": "ClusterRole", "name": WORKER_ROLE}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    yield ROLEBINDINGS, binding | {"roleRef": role, "subjects": [subject]}


def _object(resource: Resource, namespace: str, name: str) -> Object:
    labels = {names.LABEL_MANAGED_BY: names.MANAGER}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
