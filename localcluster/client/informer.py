"""A kept-up-to-date copy of one collection: the controller runtime's, for readers that ask by name.

The scheduler, the kubelets and the node lifecycle share these copies, so that the cluster pays for one watch
a kind. Handlers are told of changes; they ask the copy for what is true.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from controller import store
from controller.resources import Resource
from controller.shape import WHOLE
from controller.shares import Shares
from controller.watch import informer
from controller.watch.reflector import WatchTiming
from localcluster.client.api import ApiClient
from localcluster.resource import JSON

TIMING = WatchTiming(backoff_base_seconds=0.02, backoff_cap_seconds=1.0, away_cap_seconds=1.0)
"""The server is a process beside us, back within a second of being restarted."""


UNLIMITED = 10**12
"""Units of a namespace: the cluster is its user's alone."""


class Change(Enum):
    APPLIED = "applied"
    DELETED = "deleted"


Handler = Callable[[Change, JSON], None]


def key_of(obj: JSON) -> tuple[str, str]:
    namespace, name = store.key_of(obj)
    return namespace or "", name


class Informer:
    """Objects are shared between all readers: read only."""

    def __init__(self, client: ApiClient, resource: Resource, namespace: str | None = None) -> None:
        self._informer = informer.Informer(
            client.runtime, resource, WHOLE, namespace=namespace, timing=TIMING, shares=Shares(UNLIMITED)
        )
        self.synced = self._informer.synced

    def get(self, namespace: str, name: str) -> JSON | None:
        return self._informer.store.get(namespace or None, name)

    def list(self) -> list[JSON]:
        return self._informer.store.list()

    def add_handler(self, handler: Handler) -> None:
        """Call `handler` for every change; an object that took another's name is the end of that one."""

        def hear(change: store.Change) -> None:
            old, new = change.old, change.new
            if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
                handler(Change.DELETED, old)
            if new is not None:
                handler(Change.APPLIED, new)

        self._informer.intake.add_handler(hear)

    async def run(self) -> None:
        """Keep up for ever; the process that asked for it bounds it."""
        await self._informer.run()
