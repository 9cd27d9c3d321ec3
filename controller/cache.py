"""Informers of one process: each resource is listed and watched once for all readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from controller import clock
from controller.client import AsyncClient
from controller.errors import Unavailable
from controller.resources import Object, Resource
from controller.salvage import UnreadableObject
from controller.shape import Shape
from controller.shares import MEMORY_UNITS, Shares
from controller.store import IndexFunction, Key, ObjectMemory, Store
from controller.watch.informer import Informer
from controller.watch.intake import Handler, UnreadableHandler
from controller.watch.reflector import WatchTiming

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")


class Cache:
    """Stores by resource. A resource first requested after the start is watched from then on.

    `namespace` and `label_selectors` (`key=value,…`) restrict what is watched, and so its cost;
    `memory_units` limits the memory for the objects of one namespace (`controller/shares.py`).
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        namespace: str | None = None,
        label_selectors: Mapping[Resource, str] | None = None,
        timing: WatchTiming | None = None,
        memory_units: int = MEMORY_UNITS,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._namespace = namespace
        self._label_selectors = dict(label_selectors or {})
        self._timing = timing
        self.shapes: dict[Resource, Shape] = {}
        """Shape of the objects that are kept, by resource."""
        self._shares = Shares(memory_units)
        self._informers: dict[Resource, Informer] = {}
        self._models: dict[tuple[Resource, type], Models[Any]] = {}
        self._readers: dict[Callable[[Cache], Any], Any] = {}
        self._optional: set[Resource] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._watching: dict[Resource, asyncio.Task[None]] = {}

    @property
    def namespace(self) -> str | None:
        """Only namespace that is watched; None if all are."""
        return self._namespace

    def store(self, resource: Resource) -> Store:
        return self._informer(resource).store

    def models(self, resource: Resource, model: type[M]) -> Models[M]:
        """Return the models of the store's objects; all callers share them."""
        key = (resource, model)
        if key not in self._models:
            self._models[key] = Models(self.store(resource), model)
        return self._models[key]

    def shared(self, reader: Callable[[Cache], R]) -> R:
        """Return what `reader` makes of this cache; all callers share it."""
        if reader not in self._readers:
            self._readers[reader] = reader(self)
        made: R = self._readers[reader]
        return made

    def watch_optionally(self, resource: Resource, label_selector: str | None = None) -> None:
        """Watch a resource that the API server may not serve. Nothing waits for it: its store is empty until
        it is served, and `why_not_synced` has the reason."""
        self._optional.add(resource)
        if label_selector is not None:
            self._label_selectors[resource] = label_selector

    def why_not_synced(self, resource: Resource) -> str | None:
        """Return why the resource's collection has not been read yet; None if it has."""
        informer = self._informer(resource)
        return None if informer.synced.is_set() else str(informer.last_error or "no answer yet")

    def add_index(self, resource: Resource, index_name: str, function: IndexFunction) -> None:
        self._informer(resource).store.add_index(index_name, function)

    def keep_only(self, shapes: Mapping[Resource, Shape]) -> None:
        """Set the shapes of these resources. No resource is watched without one."""
        self.shapes.update(shapes)

    def add_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Call `handler` for unreadable objects of all resources that are watched by now."""
        for informer in self._informers.values():
            informer.intake.add_unreadable_handler(handler)

    def remove_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Tells `handler` no more."""
        for informer in self._informers.values():
            informer.intake.remove_unreadable_handler(handler)

    def unreadable(self) -> list[tuple[Resource, UnreadableObject]]:
        """Return all unreadable objects."""
        return [
            (resource, f) for resource, i in self._informers.items() for f in i.intake.unreadable.values()
        ]

    def unreadable_of(self, group_resource: str, key: Key) -> tuple[Resource | None, UnreadableObject | None]:
        """Return the resource of this name, and why its object cannot be read; None if it can, or is gone."""
        for resource, informer in self._informers.items():
            if resource.group_resource == group_resource:
                return resource, informer.intake.unreadable.get(key)
        return None, None

    def unreadable_counts(self) -> dict[str, int]:
        """Return the number of unreadable objects by resource. Any thread may call it.

        Objects that do not fit their model count once somebody has tried to read them.
        """
        parsed = list(self._models.items())  # first, since each one's informer is older
        counts = {i.resource.group_resource: len(i.intake.unreadable) for i in list(self._informers.values())}
        for (resource, _), models in parsed:
            counts[resource.group_resource] += models.unreadable
        return counts

    def seconds_since_progress(self) -> dict[str, float]:
        """Return the seconds since each collection was last known to be up to date. Any thread may call
        it."""
        now = self._monotonic()
        return {i.resource.group_resource: now - i.progressed_at for i in self._needed()}

    def stalled(self, after_seconds: float) -> str | None:
        """Return the problem of a watch without progress for this long; None if all have made progress."""
        now = self._monotonic()
        for informer in self._needed():
            if (seconds := now - informer.progressed_at) >= after_seconds:
                reason = informer.last_error or "the API server sends nothing"
                return f"no news of {informer.resource.group_resource} for {seconds:.0f} s: {reason}"
        return None

    def add_handler(self, resource: Resource, handler: Handler) -> None:
        """Call `handler` for every change from now on."""
        self._informer(resource).intake.add_handler(handler)

    def remove_handler(self, resource: Resource, handler: Handler) -> None:
        """Tells `handler` no more."""
        self._informer(resource).intake.remove_handler(handler)

    async def tell_all(self, resource: Resource, handler: Handler) -> None:
        """Call `handler` for every existing object, as if it had just appeared."""
        await self._informer(resource).intake.tell_all(handler)

    def note_write(self, resource: Resource, obj: Object) -> None:
        """Take over the server's answer to a write of this process, for `AsyncClient.guarded`."""
        informer = self._informers.get(resource)
        if informer is not None:
            informer.note_write(obj)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for informer in self._informers.values():
                    self._watch(self._tasks, informer)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            self._watching.clear()

    async def list_again(self) -> None:
        """List all collections again, which brings what a hanging watch has not reported."""
        tasks = self._tasks
        assert tasks is not None, "the cache does not run"
        for watching in self._watching.values():
            watching.cancel()
        await asyncio.gather(*self._watching.values(), return_exceptions=True)
        for informer in self._informers.values():
            informer.list_again()
            self._watch(tasks, informer)

    async def wait_synced(self, timeout_seconds: float | None = None) -> None:
        """Wait until every collection was read once.

        Args:
            timeout_seconds: limit without a new page of any missing collection.

        Raises:
            Unavailable: a collection was not read; the message names it and the reason.
        """
        began = self._monotonic()
        for informer in self._needed():
            while not informer.synced.is_set():
                last = max([began, *(i.progressed_at for i in self._missing())])
                left_seconds = None if timeout_seconds is None else last + timeout_seconds - self._monotonic()
                if left_seconds is not None and left_seconds <= 0:
                    raise self._not_synced(timeout_seconds or 0.0)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_seconds):
                        await informer.synced.wait()

    def _missing(self) -> list[Informer]:
        return [informer for informer in self._needed() if not informer.synced.is_set()]

    def _needed(self) -> list[Informer]:
        return [i for i in list(self._informers.values()) if i.resource not in self._optional]

    def _not_synced(self, timeout_seconds: float) -> Unavailable:
        missing = self._missing()
        resources = ", ".join(informer.resource.group_resource for informer in missing)
        reason = next((str(i.last_error) for i in missing if i.last_error), "no answer yet")
        return Unavailable(f"could not list {resources} within {timeout_seconds:g} s: {reason}")

    @property
    def synced(self) -> bool:
        return not self._missing()

    def _informer(self, resource: Resource) -> Informer:
        informer = self._informers.get(resource)
        if informer is None:
            informer = Informer(
                self._client,
                resource,
                self._shape_of(resource),
                namespace=self._namespace,
                label_selector=self._label_selectors.get(resource),
                timing=self._timing,
                shares=self._shares,
                monotonic=self._monotonic,
                is_optional=resource in self._optional,
            )
            self._informers[resource] = informer
            if self._tasks is not None:
                self._watch(self._tasks, informer)
        return informer

    def _shape_of(self, resource: Resource) -> Shape:
        try:
            return self.shapes[resource]
        except KeyError:
            raise LookupError(f"no shape is set for {resource.group_resource}: call keep_only") from None

    def _watch(self, tasks: asyncio.TaskGroup, informer: Informer) -> None:
        name = f"watch {informer.resource.group_resource}"
        self._watching[informer.resource] = tasks.create_task(informer.run(), name=name)


class Models(Generic[M]):
    """Models of one kind, shared by all readers: models are frozen.

    Failures are remembered too, so that a large unreadable object costs one attempt per version.
    """

    def __init__(self, store: Store, model: type[M]) -> None:
        self._model = model
        self._parsed: ObjectMemory[tuple[str, M]] = store.memory()
        self._faults: ObjectMemory[tuple[str, ValidationError]] = store.memory()

    def parse(self, raw: Object) -> M:
        """Return the object as a model, for its own reconciler, which reports the error on it.

        Raises:
            pydantic.ValidationError: the API server has an object that the model refuses.
        """
        metadata = raw["metadata"]
        uid, version = metadata["uid"], metadata["resourceVersion"]
        parsed = self._parsed.get(uid)
        if parsed is not None and parsed[0] == version:
            return parsed[1]
        fault = self._faults.get(uid)
        if fault is not None and fault[0] == version:
            raise fault[1].with_traceback(None)
        try:
            model = self._model.model_validate(raw)
        except ValidationError as error:
            self._faults.put(uid, (version, error))
            self._parsed.forget(uid)
            raise
        self._faults.forget(uid)
        return self._parsed.put(uid, (version, model))[1]

    def parse_or_none(self, raw: Object) -> M | None:
        """Return the object as a model for any other reader; None if it cannot be read.

        The API server accepts more than the models do, for example `+99:99` in a date. So a reader of many
        objects skips the unreadable ones. The object's own reconciler reports it
        (`reconcilers/runtime/reconciled.py`), and a metric counts it.
        """
        try:
            return self.parse(raw)
        except ValidationError:
            return None

    def readable(self, raws: Iterable[Object]) -> Iterator[M]:
        """Yield the models of the readable objects."""
        return (model for raw in raws if (model := self.parse_or_none(raw)) is not None)

    def count_new(self, raws: Iterable[Object]) -> int:
        """Return how many of these objects have not been parsed in this version, which may take milliseconds
        each."""
        known = ((raw["metadata"], self._parsed.get(raw["metadata"]["uid"])) for raw in raws)
        return sum(found is None or found[0] != metadata["resourceVersion"] for metadata, found in known)

    @property
    def unreadable(self) -> int:
        """Number of objects that were found unreadable."""
        return len(self._faults)
