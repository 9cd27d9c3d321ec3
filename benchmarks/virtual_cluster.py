"""Cluster in memory around the real controller: the simplest possible API server.

The controller is all that `reconcilers.setup` registers, with the real client, informers and queues. Its
transport ends in a dictionary instead of a socket, so the cost of HTTP and TLS is left out.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import orjson
from pydantic import ValidationError

from benchmarks.virtual_time import running_loop
from controller.api.calls import Answer, Call
from controller.client import AsyncClient
from controller.clock import monotonic
from controller.connection import Connection
from controller.errors import SilentWatch
from controller.manager import Manager, ManagerOptions
from controller.queue.controller import Controller
from controller.queue.metrics import RESULTS
from controller.resources import NAMESPACES, NODES, PODS, Object, Resource
from crds import names
from crds.elasticjob import ElasticJob
from crds.model import Model
from crds.nodecheck import NodeCheck
from localcluster.patches import merge_patch
from reconcilers.observed.options import PodOptions
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.setup import WATCHED_BY_LABEL, add_all
from reconcilers.shapes import memory_units

LATENCY_SECONDS = 0.005
"""Time from a request to its answer."""
GARBAGE_SECONDS = 1.0
"""Time until garbage collection removes a new object whose owner is gone."""
CHUNK_BYTES = 2 * 2**20
"""Maximum bytes that a watch hands over at once, as aiohttp does with the client's buffer."""
PAST_EVENTS = 20_000
NAMESPACE = "default"
CONTROLLER = "dlr-controller"
"""Name in managedFields."""
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>status|scale))?"
)
Collection = str
"""A resource's plural, which identifies it among those that the controller uses."""


def now() -> datetime:
    return BEGAN + timedelta(seconds=running_loop().time())


def wall_time() -> str:
    return now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Watch:
    """Open watch, with its unread lines."""

    def __init__(self, wanted: Callable[[Object], bool]) -> None:
        self.wanted = wanted
        self._lines: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None

    def push(self, line: bytes) -> None:
        self._lines.append(line)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def lines(self, idle_timeout_seconds: float) -> list[bytes]:
        if not self._lines:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(idle_timeout_seconds):
                    await self._waiting
            except TimeoutError as error:
                raise SilentWatch("nothing has changed") from error
        size = count = 0
        while count < len(self._lines) and size < CHUNK_BYTES:
            size += len(self._lines[count])
            count += 1
        taken, self._lines = self._lines[:count], self._lines[count:]
        return taken


class ApiServer:
    """Objects as JSON text by name, watches, and garbage collection; it replaces `controller.api.transport`.

    Python's garbage collector does not visit text, so that its pauses are only the controller's.

    `listeners` are called for every change with (collection, object, whether it is new, whether it is
    gone).
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[Collection, Object, bool, bool], None]] = []
        self.controller_writes = 0
        self.largest_bytes: defaultdict[Collection, int] = defaultdict(int)
        """Largest size of jobs, plans and checks, without managedFields."""
        self.refused = 0
        """Conflicts, and other refusals of the controller's writes."""
        self._texts: defaultdict[Collection, dict[str, bytes]] = defaultdict(dict)
        self._watches: defaultdict[Collection, list[_Watch]] = defaultdict(list)
        self._children: dict[str, set[tuple[Resource, str]]] = {}
        """Children of each existing object, by its uid."""
        self._past: defaultdict[Collection, deque[tuple[int, bytes]]] = defaultdict(
            lambda: deque(maxlen=PAST_EVENTS)
        )
        """Last events, for reopened watches."""
        self._version = 1

    # --- calls of the players -----------------------------------------------------------------------------

    def get(self, resource: Resource, name: str) -> Object | None:
        text = self._texts[resource.plural].get(name)
        found: Object | None = None if text is None else orjson.loads(text)
        return found

    def create(self, resource: Resource, obj: Object, manager: str = "user") -> Object:
        metadata = {
            **obj["metadata"],
            "uid": f"{self._version:08x}-0000-4000-8000-{len(self._texts[resource.plural]):012x}",
            "creationTimestamp": wall_time(),
            "generation": 1,
        }
        if resource.namespaced:
            metadata.setdefault("namespace", NAMESPACE)
        made = {"apiVersion": resource.api_version, "kind": resource.kind, **obj, "metadata": metadata}
        self._children[metadata["uid"]] = set()
        for owner in metadata.get("ownerReferences", ()):
            if owner["uid"] in self._children:
                self._children[owner["uid"]].add((resource, metadata["name"]))
            else:
                running_loop().call_later(
                    GARBAGE_SECONDS, self._remove_orphan, resource, metadata["name"], metadata["uid"]
                )
        return self._put(resource, made, obj, manager, "", is_new=True)

    def patch(
        self, resource: Resource, name: str, patch: Object, subresource: str = "", manager: str = "agent"
    ) -> Object | None:
        """Patch an object; return the result, or None if it does not exist."""
        before = self.get(resource, name)
        if before is None:
            return None
        parts = ("status",) if subresource else tuple(key for key in patch if key != "status")
        asked = {key: patch[key] for key in parts if key in patch}
        if "metadata" in asked:
            asked["metadata"] = {k: v for k, v in asked["metadata"].items() if k != "resourceVersion"}
        after = merge_patch(before, asked)
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            after = {
                **after,
                "metadata": {**after["metadata"], "generation": before["metadata"]["generation"] + 1},
            }
        return self._put(resource, after, asked, manager, subresource)

    def remove(self, resource: Resource, name: str) -> None:
        """Remove an object at once, with all that it owns."""
        obj = self.get(resource, name)
        if obj is None:
            return
        del self._texts[resource.plural][name]
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._tell(resource, obj, "DELETED")
        for child, child_name in sorted(self._children.pop(obj["metadata"]["uid"]), key=lambda c: c[1]):
            self.remove(child, child_name)

    def _remove_orphan(self, resource: Resource, name: str, uid: str) -> None:
        """Remove an object that was created for an owner already gone, as by a write in progress."""
        with running_loop().outside():
            obj = self.get(resource, name)
            if obj is not None and obj["metadata"]["uid"] == uid:
                self.remove(resource, name)

    def _put(
        self,
        resource: Resource,
        obj: Object,
        written: Object,
        manager: str,
        subresource: str,
        is_new: bool = False,
    ) -> Object:
        self._version += 1
        if resource.plural in _MODELS:
            _MODELS[resource.plural].model_validate(obj)
        fields = _with_fields(obj["metadata"].get("managedFields", ()), written, manager, subresource)
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._measure(resource, obj)
        obj["metadata"]["managedFields"] = fields
        self._texts[resource.plural][obj["metadata"]["name"]] = orjson.dumps(obj)
        self._tell(resource, obj, "ADDED" if is_new else "MODIFIED")
        return obj

    def _measure(self, resource: Resource, obj: Object) -> None:
        if resource.group == names.GROUP and resource != ELASTICWORKERS:
            bare = {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}
            size = len(orjson.dumps(bare))
            self.largest_bytes[resource.plural] = max(self.largest_bytes[resource.plural], size)

    def _tell(self, resource: Resource, obj: Object, type_: str) -> None:
        line = orjson.dumps({"type": type_, "object": obj})
        self._past[resource.plural].append((self._version, line))
        for watch in self._watches[resource.plural]:
            if watch.wanted(obj):
                watch.push(line)
        for listener in self.listeners:
            listener(resource.plural, obj, type_ == "ADDED", type_ == "DELETED")

    # --- the transport ------------------------------------------------------------------------------------

    def apart(self) -> ApiServer:
        """Return the transport of another client."""
        return self

    async def send(self, call: Call, timeout_seconds: float) -> Answer:
        with running_loop().outside():
            answer = self._answer(call)
        await asyncio.sleep(LATENCY_SECONDS)
        return answer

    @asynccontextmanager
    async def stream(self, call: Call, open_timeout_seconds: float) -> AsyncIterator[_Watch]:
        resource, *_ = _parsed(call.path)
        query = dict(call.query)
        watch = _Watch(_selected(query))
        with running_loop().outside():
            self._catch_up(watch, resource, int(query["resourceVersion"]))
        self._watches[resource.plural].append(watch)
        await asyncio.sleep(LATENCY_SECONDS)
        try:
            yield watch
        finally:
            self._watches[resource.plural].remove(watch)

    def _catch_up(self, watch: _Watch, resource: Resource, since: int) -> None:
        past = self._past[resource.plural]
        assert len(past) < PAST_EVENTS or past[0][0] <= since, "a watch came back too late"
        for version, line in past:
            if version > since and watch.wanted(orjson.loads(line)["object"]):
                watch.push(line)

    async def close(self) -> None: ...

    def _answer(self, call: Call) -> Answer:
        resource, name, subresource = _parsed(call.path)
        body = orjson.loads(call.body) if call.body else {}
        if not call.is_read:
            self.controller_writes += 1
        if name is None and call.is_read:
            return self._listed(resource, dict(call.query))
        if name is None:
            return self._created(resource, body)
        current = self.get(resource, name)
        if current is None:
            return self._refuse(404, "NotFound", f'{resource.plural} "{name}" not found')
        if call.is_read:
            return _answer(200, orjson.dumps(current))
        if call.method == "DELETE":
            return self._deleted(resource, current, body)
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, current["metadata"]["resourceVersion"]):
            return self._refuse(409, "Conflict", "the object has been modified")
        assert call.method == "PATCH", call
        try:
            return _answer(200, orjson.dumps(self.patch(resource, name, body, subresource, CONTROLLER)))
        except ValidationError as error:
            return self._refuse(422, "Invalid", str(error))

    def _created(self, resource: Resource, body: Object) -> Answer:
        if body["metadata"]["name"] in self._texts[resource.plural]:
            return self._refuse(409, "AlreadyExists", f"{body['metadata']['name']} already exists")
        return _answer(201, orjson.dumps(self.create(resource, body, CONTROLLER)))

    def _deleted(self, resource: Resource, current: Object, options: Object) -> Answer:
        metadata = current["metadata"]
        if options.get("preconditions", {}).get("uid") not in (None, metadata["uid"]):
            return self._refuse(409, "Conflict", "the UID in the precondition does not match")
        if resource == PODS and not metadata.get("deletionTimestamp"):
            marked = {"metadata": {"deletionTimestamp": wall_time(), "deletionGracePeriodSeconds": 30}}
            self.patch(resource, metadata["name"], marked, manager=CONTROLLER)
        elif resource != PODS:
            self.remove(resource, metadata["name"])
        return _answer(200, b'{"kind":"Status","status":"Success"}')

    def _listed(self, resource: Resource, query: Mapping[str, str]) -> Answer:
        texts = list(self._texts[resource.plural].values())
        start, size = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(texts) + 1
        places: Iterable[int] = range(start, len(texts))
        if "labelSelector" in query or "fieldSelector" in query:
            wanted = _selected(query)
            places = (place for place in places if wanted(orjson.loads(texts[place])))
        page = list(islice(places, size))
        chosen = [texts[place] for place in page]
        more = str(page[-1] + 1) if len(page) == size and page[-1] + 1 < len(texts) else ""
        head = orjson.dumps({"resourceVersion": str(self._version), "continue": more})
        return _answer(200, b'{"kind":"List","metadata":%b,"items":[%b]}' % (head, b",".join(chosen)))

    def _refuse(self, status: int, reason: str, message: str) -> Answer:
        self.refused += status != 404
        return _answer(status, orjson.dumps({"kind": "Status", "reason": reason, "message": message}))


def _answer(status: int, body: bytes) -> Answer:
    return Answer(Connection("http://memory", "the benchmark"), status, body)


def _parsed(path: str) -> tuple[Resource, str | None, str]:
    found = _PATH.fullmatch(path)
    assert found is not None, path
    part = found.groupdict()
    group, version, plural = part["group"] or "", part["version"], part["plural"]
    namespaced = plural not in (NODES.plural, NAMESPACES.plural)
    resource = Resource(group, version, plural, _KINDS[plural], namespaced)
    return resource, part["name"], part["subresource"] or ""


_MODELS: Mapping[Collection, type[Model]] = {"elasticjobs": ElasticJob, "nodechecks": NodeCheck}
"""Models that replace the CRDs' schemas, which are generated from them."""
_KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "namespaces": "Namespace",
    "events": "Event",
    "leases": "Lease",
    "serviceaccounts": "ServiceAccount",
    "secrets": "Secret",
    "roles": "Role",
    "networkpolicies": "NetworkPolicy",
    "rolebindings": "RoleBinding",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "elasticjobs": "ElasticJob",
    "elasticworkers": "ElasticWorker",
    "elasticworlds": "ElasticWorld",
    "scaleplans": "ScalePlan",
    "nodechecks": "NodeCheck",
    "shardsets": "ShardSet",
    "podgroups": "PodGroup",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "devicetaintrules": "DeviceTaintRule",
}


def _selected(query: Mapping[str, str]) -> Callable[[Object], bool]:
    labels = dict(term.split("=") for term in query.get("labelSelector", "").split(",") if term)
    by_field, _, name = query.get("fieldSelector", "metadata.name=").partition("=")
    assert by_field == "metadata.name", query
    return lambda obj: (
        labels.items() <= (obj["metadata"].get("labels") or {}).items()
        and name in ("", obj["metadata"]["name"])
    )


def _with_fields(known: Iterable[Object], written: Object, manager: str, subresource: str) -> list[Object]:
    """Return metadata.managedFields after a write, as a real API server keeps them: half of an object's
    size."""
    key = (manager, subresource or None)
    entries = {(entry["manager"], entry.get("subresource")): entry for entry in known}
    before = entries.get(key, {}).get("fieldsV1", {})
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": names.API_VERSION,
        "time": wall_time(),
        "fieldsType": "FieldsV1",
        "fieldsV1": merge_patch(before, _fields_of(written)),
    }
    entries[key] = entry | ({"subresource": subresource} if subresource else {})
    return list(entries.values())


def _fields_of(obj: Mapping[str, Any]) -> Object:
    return {f"f:{key}": _fields_of(value) if isinstance(value, dict) else {} for key, value in obj.items()}


MOST_WORKERS = 30_000


class VirtualController(Manager):
    """All controllers, without servers and leader election, which need real sockets and threads."""

    def __init__(self, server: ApiServer) -> None:
        options = ManagerOptions(
            leader_election=False,
            label_selectors=WATCHED_BY_LABEL,
            memory_units=memory_units(MOST_WORKERS),
        )
        connection = Connection("http://virtual", "the benchmark", NAMESPACE)
        super().__init__(AsyncClient(connection, transport=server), options)  # type: ignore[arg-type]
        self._added: dict[str, Controller] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.clock = Clock(now, monotonic)
        add_all(self, pods=PodOptions(workers_per_namespace=MOST_WORKERS), clock=self.clock)

    def add(self, controller: Controller) -> None:
        super().add(controller)
        self._added[controller.name] = controller

    async def start_watching(self) -> None:
        """Start the caches, without any controller."""
        running = (self.cache.run(), self.recorder.run(), self._probe())
        self._tasks += [asyncio.create_task(task) for task in running]
        await self.cache.wait_synced(60.0)

    def start(self, *, without: Iterable[str] = ()) -> None:
        """Start the remaining controllers, except those named."""
        for name in [name for name in self._added if name not in without]:
            self._tasks.append(asyncio.create_task(self._added.pop(name).run(self.cache)))

    async def _probe(self) -> None:
        """Keep the contact with the API server unbroken."""
        while True:
            self.contact.answered()
            await asyncio.sleep(self.options.probe_period_seconds)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def looks(self, controller: str) -> int:
        """Return the number of reconciles so far."""
        total = "controller_runtime_reconcile_total"
        labels = [{"controller": controller, "result": result} for result in RESULTS]
        return int(sum(self.metrics_registry.get_sample_value(total, each) or 0 for each in labels))
