"""The informers of one process: each resource is listed and watched once, however many read it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from controller.client import Client
from controller.errors import Unavailable
from controller.informer import Handler, Informer, WatchTiming
from controller.models import M, Models
from controller.resources import Object, Resource
from controller.store import IndexFunction, Store


class Cache:
    """Stores by resource. A resource asked for after the start is watched from then on.

    `namespace` and `label_selectors` (`key=value,…`) narrow what is watched, and so what it costs.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str | None = None,
        label_selectors: Mapping[Resource, str] | None = None,
        timing: WatchTiming | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._label_selectors = dict(label_selectors or {})
        self._timing = timing
        self._informers: dict[Resource, Informer] = {}
        self._models: dict[tuple[Resource, type], Models[Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._watching: dict[Resource, asyncio.Task[None]] = {}

    @property
    def namespace(self) -> str | None:
        """The only namespace whose objects are watched; None if those of all are."""
        return self._namespace

    def store(self, resource: Resource) -> Store:
        return self._informer(resource).store

    def models(self, resource: Resource, model: type[M]) -> Models[M]:
        """The store's objects as models; the same for everybody who asks."""
        key = (resource, model)
        if key not in self._models:
            self._models[key] = Models(self.store(resource), model)
        return self._models[key]

    def unreadable(self) -> dict[Resource, int]:
        """How many objects of each resource cannot be read as a model, of those that somebody read."""
        counts = dict.fromkeys((resource for resource, _ in self._models), 0)
        for (resource, _), models in self._models.items():
            counts[resource] += models.unreadable
        return counts

    def add_index(self, resource: Resource, index_name: str, function: IndexFunction) -> None:
        self._informer(resource).store.add_index(index_name, function)

    def add_handler(self, resource: Resource, handler: Handler) -> None:
        """Tells `handler` of every change from now on."""
        self._informer(resource).add_handler(handler)

    async def tell_all(self, resource: Resource, handler: Handler) -> None:
        """Tells `handler` of every object there is, as if it had just appeared."""
        await self._informer(resource).tell_all(handler)

    def note_write(self, resource: Resource, obj: Object) -> None:
        """For `Client.guarded`: what the server answered to a write of this process."""
        informer = self._informers.get(resource)
        if informer is not None:
            informer.note_write(obj)

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for informer in self._informers.values():
                    self._watch(self._tasks, informer)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            self._watching.clear()

    async def list_again(self) -> None:
        """Lists all collections anew: what a watch that hangs has not told is known when they are synced."""
        tasks = self._tasks
        assert tasks is not None, "the cache does not run"
        for watching in self._watching.values():
            watching.cancel()
        await asyncio.gather(*self._watching.values(), return_exceptions=True)
        for informer in self._informers.values():
            informer.list_again()
            self._watch(tasks, informer)

    async def wait_synced(self, timeout_seconds: float | None = None) -> None:
        """Until every collection was read once; Unavailable says which was not, and why."""
        try:
            async with asyncio.timeout(timeout_seconds):
                for informer in list(self._informers.values()):
                    await informer.synced.wait()
        except TimeoutError as error:
            missing = [informer for informer in self._informers.values() if not informer.synced.is_set()]
            resources = ", ".join(informer.resource.group_resource for informer in missing)
            reason = next((str(i.last_error) for i in missing if i.last_error), "no answer yet")
            raise Unavailable(f"could not list {resources} within {timeout_seconds:g} s: {reason}") from error

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self._informers.values())

    def _informer(self, resource: Resource) -> Informer:
        informer = self._informers.get(resource)
        if informer is None:
            informer = Informer(
                self._client,
                resource,
                namespace=self._namespace,
                label_selector=self._label_selectors.get(resource),
                timing=self._timing,
            )
            self._informers[resource] = informer
            if self._tasks is not None:
                self._watch(self._tasks, informer)
        return informer

    def _watch(self, tasks: asyncio.TaskGroup, informer: Informer) -> None:
        name = f"watch {informer.resource.group_resource}"
        self._watching[informer.resource] = tasks.create_task(informer.run(), name=name)
