"""Builder of controllers: the resource that a reconciler is for, and the others whose changes call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.manager import Manager
from controller.queue.controller import Controller, MapFunction, Predicate, UnreadableController, WatchSource
from controller.queue.loop import RECONCILE_TIMEOUT_SECONDS, ReconcileLoop, make_queue
from controller.reconciler import Reconciler, ReconcileReporter, Request
from controller.resources import Object, Resource


class ControllerBuilder:
    """`ControllerBuilder(manager, "job").for_(ELASTICJOBS).owns(ELASTICWORKERS).build(reconciler)`."""

    def __init__(self, manager: Manager, name: str) -> None:
        self._manager = manager
        self.name = name
        self._for: Resource | None = None
        self._for_unreadable = False
        self._sources: list[WatchSource] = []
        self._flow_of: Callable[[Request], Request] | None = None
        self._goes_first: Callable[[str], bool] | None = None
        self._reporter: ReconcileReporter | None = None
        self._workers = 1
        self._timeout_seconds = RECONCILE_TIMEOUT_SECONDS

    def for_(self, resource: Resource, *, predicate: Predicate | None = None) -> ControllerBuilder:
        """Set the resource whose objects are the requests."""
        self._for = resource
        return self.watches(resource, itself, predicate=predicate)

    def for_unreadable(self) -> ControllerBuilder:
        """Make the objects that the cache cannot read the requests, with their resource in front of the
        name."""
        self._for_unreadable = True
        return self

    def owns(self, resource: Resource, *, predicate: Predicate | None = None) -> ControllerBuilder:
        """Watch a resource whose objects the `for_` resource creates; a change calls their controlling
        owner."""
        if self._for is None:
            raise ValueError(f"controller {self.name!r}: call for_ before owns")
        return self.watches(resource, controller_owner(self._for), predicate=predicate)

    def watches(
        self, resource: Resource, map_function: MapFunction, *, predicate: Predicate | None = None
    ) -> ControllerBuilder:
        """Watch any other resource; `map_function` returns the requests that a change concerns."""
        self._sources.append(WatchSource(resource, map_function, predicate))
        return self

    def in_flows(self, flow_of: Callable[[Request], Request]) -> ControllerBuilder:
        """Set the flow of a request. Namespaces take turns, and so do the flows of each. Default: a flow of
        its own."""
        self._flow_of = flow_of
        return self

    def serves_first(self, goes_first: Callable[[str], bool]) -> ControllerBuilder:
        """Set which namespaces' requests come before all others. Default: none."""
        self._goes_first = goes_first
        return self

    def with_workers(self, workers: int) -> ControllerBuilder:
        """Set how many requests may be in work at once. Default: 1."""
        self._workers = workers
        return self

    def with_timeout(self, timeout_seconds: float) -> ControllerBuilder:
        """Set the time limit of a reconcile, in seconds. Default: 120."""
        self._timeout_seconds = timeout_seconds
        return self

    def reports_to(self, reporter: ReconcileReporter) -> ControllerBuilder:
        """Report unexpected failures on the objects through this reporter. Default: only the log has them."""
        self._reporter = reporter
        return self

    def build(self, reconciler: Reconciler) -> Controller:
        """Register the controller with the manager, which runs it."""
        if self._for is None and not self._for_unreadable:
            raise ValueError(f"controller {self.name!r} is for no resource: call for_")
        manager = self._manager
        queue = make_queue(self.name, manager.queue_metrics, self._flow_of, self._goes_first)
        loop = ReconcileLoop(
            self.name,
            queue,
            reconciler,
            workers=self._workers,
            metrics=manager.reconcile_metrics,
            timeout_seconds=self._timeout_seconds,
            reporter=self._reporter,
        )
        controller = (
            UnreadableController(self.name, queue, loop)
            if self._for_unreadable
            else Controller(self.name, self._sources, queue, loop)
        )
        manager.add(controller)
        return controller


def requests_for(objects: Iterable[Object]) -> list[Request]:
    """Return the requests for these objects."""
    return [Request(o["metadata"].get("namespace") or None, o["metadata"]["name"]) for o in objects]


def itself(obj: Object) -> Iterable[Request]:
    return requests_for((obj,))


def controller_owner(owner: Resource) -> MapFunction:
    """Return a map function to the controlling owner of that kind, in any version of its group."""

    def map_function(obj: Object) -> Iterable[Request]:
        metadata = obj["metadata"]
        for reference in metadata.get("ownerReferences") or ():
            group = reference["apiVersion"].rpartition("/")[0]
            if reference.get("controller") and reference["kind"] == owner.kind and group == owner.group:
                namespace = metadata.get("namespace") if owner.namespaced else None
                return (Request(namespace or None, reference["name"]),)
        return ()

    return map_function
