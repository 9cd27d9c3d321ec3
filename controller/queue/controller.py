"""Controller: its watches, the requests that a change makes, and the loop that processes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.cache import Cache
from controller.queue.loop import ReconcileLoop
from controller.queue.workqueue import WorkQueue
from controller.reconciler import Request
from controller.resources import Object, Resource
from controller.salvage import UnreadableObject
from controller.store import Change, key_of

log = logging.getLogger(__name__)

MapFunction = Callable[[Object], Iterable[Request]]
Predicate = Callable[[Change], bool]
"""Returns whether a change requires a reconcile; without a predicate, every change does."""


@dataclass(frozen=True)
class WatchSource:
    """Watched resource, and the requests that a change in it makes."""

    resource: Resource
    map_function: MapFunction
    predicate: Predicate | None = None

    def requests(self, change: Change) -> set[Request]:
        """Return the requests for the object before and after the change: an owner that lost it must see that
        too.

        A failing predicate counts as True, a failing map function as no request.
        """
        found: set[Request] = set()
        try:
            if self.predicate is not None and not self.predicate(change):
                return found
        except Exception as error:
            self._log(change.current, error)
        for obj in (change.old, change.new):
            try:
                if obj is not None:
                    found.update(self.map_function(obj))
            except Exception as error:
                self._log(obj, error)
        return found

    def _log(self, obj: Object | None, error: Exception) -> None:
        name = "/".join(filter(None, key_of(obj))) if obj is not None else ""
        log.warning(
            "cannot tell whom it concerns resource=%s object=%s error=%s: %s",
            self.resource.group_resource,
            name,
            type(error).__name__,
            error,
        )


class Controller:
    """Reconciler with its queue and sources. The manager runs it."""

    def __init__(
        self, name: str, sources: Iterable[WatchSource], queue: WorkQueue[Request], loop: ReconcileLoop
    ) -> None:
        self.name = name
        self.sources = tuple(sources)
        self._queue = queue
        self._loop = loop

    async def run(self, cache: Cache) -> None:
        """Reconcile all existing objects, then changed ones, until `stop`, and finish the current work.

        After a cancellation it may run again.
        """
        handlers = [(source.resource, self._handler(source)) for source in self.sources]
        for resource, handler in handlers:
            cache.add_handler(resource, handler)
        try:
            for resource, handler in handlers:
                await cache.tell_all(resource, handler)
            await self._loop.run()
        finally:
            for resource, handler in handlers:
                cache.remove_handler(resource, handler)

    def look_at(self, request: Request) -> None:
        """Request a reconcile for a reason other than a change of an object."""
        self._queue.add(request)

    def stop(self) -> None:
        """Accept no more work."""
        self._queue.shut_down()

    def _handler(self, source: WatchSource) -> Callable[[Change], None]:
        def handle(change: Change) -> None:
            self._queue.add_all(source.requests(change))

        return handle


class UnreadableController(Controller):
    """Controller for unreadable objects; a request has the resource in front of the name."""

    def __init__(self, name: str, queue: WorkQueue[Request], loop: ReconcileLoop) -> None:
        super().__init__(name, (), queue, loop)

    async def run(self, cache: Cache) -> None:
        cache.add_unreadable_handler(self._note)
        for resource, found in cache.unreadable():
            self._note(resource, found)
        try:
            await self._loop.run()
        finally:
            cache.remove_unreadable_handler(self._note)

    def _note(self, resource: Resource, found: UnreadableObject) -> None:
        if found.has_name:
            namespace, name = key_of(found.obj)
            self._queue.add(Request(namespace, f"{resource.group_resource}/{name}"))
