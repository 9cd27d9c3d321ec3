"""One worker without a server: the real Worker reconciler over objects in memory, with a cache that is as late as the
test wants. Kubelet, garbage collector and the job's reconciler are played.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from controller.cache import Models
from controller.contact import Contact
from controller.errors import AlreadyExists, Conflict, Forbidden, NotFound, Refused
from controller.reconciler import Request, Result
from controller.resources import (
    LEASES,
    PODS,
    SERVICEACCOUNTS,
    Resource,
)
from controller.store import Change, Store
from crds import names
from crds.elasticjob import ElasticJob
from crds.model import Model
from reconcilers.observed.options import PodOptions
from reconcilers.observed.workers import new_worker
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import WATCHED_BY_LABEL, add_indexes
from reconcilers.worker.reconciler import WorkerReconciler
from tests.reconcilers.build import NOW, job
from tests.reconcilers.check_stage import merged

JSON = dict[str, Any]
NAMESPACE = "default"
JOB = "digits"
WORKER = f"{JOB}-worker-0"
TEMPLATE: JSON = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


class Api:
    """The API server: what there is, and what was asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, str], JSON] = {}
        self.requests: list[tuple[str, str]] = []
        """Verb and kind, of all controllers."""
        self.events: list[tuple[str, str]] = []
        self.refusals: dict[Resource, Refused] = {}
        """What to answer to a create."""
        self.seconds = 0.0
        self.listeners: list[Callable[[Resource, JSON | None, JSON], None]] = []
        self._numbers = itertools.count(1)

    def put(self, resource: Resource, obj: JSON) -> JSON:
        obj = {"apiVersion": resource.api_version, "kind": resource.kind} | copy.deepcopy(obj)
        metadata = obj["metadata"]
        if resource.namespaced:
            metadata.setdefault("namespace", NAMESPACE)
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        key = (resource, metadata["name"])
        old, self.objects[key] = self.objects.get(key), obj
        for listener in self.listeners:
            listener(resource, old, obj)
        return obj

    def remove(self, resource: Resource, name: str) -> None:
        obj = copy.deepcopy(self.objects.pop((resource, name)))
        obj["metadata"]["resourceVersion"] = str(next(self._numbers))
        for listener in self.listeners:
            listener(resource, obj, None)  # type: ignore[arg-type]

    def get(self, resource: Resource, name: str) -> JSON:
        if (resource, name) not in self.objects:
            raise NotFound(404, "NotFound", f"{name} not found", {"name": name})
        return self.objects[(resource, name)]

    def find(self, resource: Resource, name: str) -> JSON | None:
        return self.objects.get((resource, name))

    def create(self, resource: Resource, obj: JSON) -> JSON:
        name = obj["metadata"]["name"]
        if resource in self.refusals:
            raise self.refusals[resource]
        if resource is PODS and self.find(SERVICEACCOUNTS, obj["spec"]["serviceAccountName"]) is None:
            raise Forbidden(403, "Forbidden", f'pods "{name}" is forbidden: serviceaccount not found')
        if (resource, name) in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{name} already exists")
        return self.put(resource, obj | ({"status": {"phase": "Pending"}} if resource is PODS else {}))

    def patch(self, resource: Resource, name: str, patch: JSON) -> JSON:
        current = self.get(resource, name)
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, current["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", name)
        changed = merged(current, {key: value for key, value in patch.items() if key != "metadata"})
        return current if changed == current else self.put(resource, changed)

    def delete(self, resource: Resource, name: str, uid: str) -> None:
        """As with a grace period: the kubelet, which the test plays, removes the Pod."""
        obj = self.get(resource, name)
        if obj["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", name)
        self.put(resource, merged(obj, {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}}))

    # --- users, kubelet, garbage collector ----------------------------------------------------------------

    def apply_job(self) -> JSON:
        """The job, and the worker that its reconciler makes."""
        wire = job(JOB, replicas=1, template=TEMPLATE).to_wire()
        del wire["metadata"]["uid"]
        applied = self.put(ELASTICJOBS, wire)
        self.put(ELASTICWORKERS, new_worker(ElasticJob.model_validate(applied), "worker", 0))
        return applied

    def collect(self) -> None:
        """What has no owner any more goes, and what it owned."""
        uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
        orphans = [
            (resource, name)
            for (resource, name), obj in self.objects.items()
            if any(o["uid"] not in uids for o in obj["metadata"].get("ownerReferences", ()))
        ]
        for resource, name in orphans:
            self.remove(resource, name)
        if orphans:
            self.collect()

    def worker(self) -> JSON:
        return self.get(ELASTICWORKERS, WORKER)

    @property
    def status(self) -> JSON:
        return dict(self.worker().get("status", {}))

    def pod(self) -> JSON | None:
        """Of the worker's incarnation."""
        return self.find(PODS, self.worker_pod_name())

    def lives(self) -> bool:
        pod = self.pod()
        return pod is not None and pod["status"]["phase"] in ("Pending", "Running")

    def worker_pod_name(self) -> str:
        return f"{WORKER}-{self.worker()['spec']['incarnation']}"

    def pod_phase(self, phase: str, **status: Any) -> None:
        pod = self.pod()
        assert pod is not None
        self.put(PODS, merged(pod, {"status": {"phase": phase} | status, "spec": {"nodeName": "node-0"}}))

    def report(self, state: str = "Ready") -> None:
        """The agent of the present Pod speaks."""
        pod = self.pod()
        assert pod is not None
        report = {
            "incarnation": self.worker()["spec"]["incarnation"],
            "podUid": pod["metadata"]["uid"],
            "address": "10.0.0.1",
            "storePort": 20_000,
            "localWorldSize": 1,
            "state": state,
            "since": f"2026-01-01T12:00:{int(self.seconds) % 60:02}Z",
        }
        self.patch(ELASTICWORKERS, WORKER, {"status": {"agent": report}})

    def beat(self) -> None:
        renewed = (NOW + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        incarnation = self.worker()["spec"]["incarnation"]
        spec = {"holderIdentity": f"{WORKER}-{incarnation}", "renewTime": renewed}
        self.patch(LEASES, WORKER, {"spec": spec})


class Stores:
    """Stands in for the Cache."""

    def __init__(self) -> None:
        self._stores: dict[Resource, Store] = {}
        self._handlers: list[tuple[Resource, Callable[[Change], None]]] = []
        self._models: dict[Resource, Models[Any]] = {}

    def store(self, resource: Resource) -> Store:
        return self._stores.setdefault(resource, Store())

    def models(self, resource: Resource, model: type[Model]) -> Models[Any]:
        return self._models.setdefault(resource, Models(self.store(resource), model))

    def add_index(self, resource: Resource, name: str, function: Any) -> None:
        self.store(resource).add_index(name, function)

    def add_handler(self, resource: Resource, handler: Callable[[Change], None]) -> None:
        self._handlers.append((resource, handler))

    def take(self, resource: Resource, old: JSON | None, new: JSON | None) -> None:
        labels = ((new or old or {})["metadata"].get("labels")) or {}
        if resource in WATCHED_BY_LABEL and labels.get(names.LABEL_MANAGED_BY) != names.MANAGER:
            return
        store = self.store(resource)
        change = store.delete(old or {}) if new is None else store.apply(new)
        for handled, handler in self._handlers:
            if change is not None and handled is resource:
                handler(change)


class Deposed(Exception):
    """The controller ends with a write on its way."""


class Controller:
    """One process: its cache, and what it remembers."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._news: deque[tuple[Resource, JSON | None, JSON | None]] = deque()
        self.cache = Stores()
        self.in_flight: list[Callable[[], Any]] | None = None
        """Set: what is written ends the controller, and lands when the test wants."""
        add_indexes(self.cache)  # type: ignore[arg-type]
        for (resource, _), obj in api.objects.items():
            self._news.append((resource, None, obj))
        api.listeners.append(lambda *news: self._news.append(news))
        self._contact = contact = Contact(now=lambda: api.seconds, gap_seconds=float("inf"))
        contact.answered()
        clock = Clock(lambda: NOW + timedelta(seconds=api.seconds), lambda: api.seconds)
        me: Any = self
        options = PodOptions(agent=None, random=Random(0))
        self.reconciler = WorkerReconciler(me, me.cache, me, contact, clock, options)
        self.deliver()

    def deliver(self) -> None:
        """The watch has caught up."""
        while self._news:
            self.cache.take(*self._news.popleft())

    def contact_broke(self) -> None:
        """The API server answers again, after an outage."""
        self._contact._since = self._api.seconds

    async def look(self, *, late: bool = False) -> Result:
        """At the worker; with what the cache has, or with all there is."""
        if not late:
            self.deliver()
        return await self.reconciler.reconcile(Request(NAMESPACE, WORKER))

    async def look_until_quiet(self) -> None:
        """Time passes between looks; what conflicts is tried again."""
        quiet = 0
        for _ in range(30):
            before = len(self._api.requests)
            try:
                await self.look()
            except Conflict:
                continue
            self._api.seconds += 5
            quiet = quiet + 1 if len(self._api.requests) == before else 0
            if quiet == 3:
                return
        raise AssertionError("no end in sight")

    # --- the client, and the Event recorder ---------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None, **_: Any) -> JSON:
        self._api.requests.append(("get", resource.kind))
        return self._api.get(resource, name)

    async def create(self, resource: Resource, obj: JSON, *, strict: bool = False) -> JSON:
        return self._write("create", resource, lambda: self._api.create(resource, obj))

    async def patch(
        self, resource: Resource, name: str, patch: JSON, namespace: str, *, subresource: str | None = None
    ) -> JSON:
        return self._write("patch", resource, lambda: self._api.patch(resource, name, patch))

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        self._write("delete", resource, lambda: self._api.delete(resource, name, uid))

    def _write(self, verb: str, resource: Resource, write: Callable[[], Any]) -> Any:
        if self.in_flight is not None:
            self.in_flight.append(write)
            raise Deposed
        self._api.requests.append((verb, resource.kind))
        written = write()
        if written is not None:
            self.cache.take(resource, None, written)  # as the manager's client notes it
        return written

    def event(self, obj: JSON, type_: str, reason: str, message: str) -> None:
        self._api.events.append((reason, message))
