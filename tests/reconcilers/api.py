"""An API server in memory: as much of its semantics as the reconcilers can notice.

resourceVersions and conflicts, merge patches of an object or of its status, uid preconditions, AlreadyExists and
NotFound, generations, graceful deletion of Pods, finalizers, garbage collection by owner uid, and the limits that the
models of our own kinds know. Objects are never changed in place, so a copy of the whole server costs microseconds.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from pydantic import ValidationError

import crds
from controller.errors import AlreadyExists, Conflict, Invalid, NotFound
from controller.resources import NODES, PODDISRUPTIONBUDGETS, PODS, Resource
from crds.agent_report import EARLIER_WORKER, LATER_POD, LATER_REPORT
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from crds.scaleplan import ScalePlan
from reconcilers.runtime.kinds import (
    ELASTICJOBS,
    ELASTICWORKERS,
    KUBERNETES_PODGROUPS,
    NODECHECKS,
    SCALEPLANS,
)
from tests.reconcilers.build import NOW

JSON = dict[str, Any]
Key = tuple[str | None, str]
MODELS = {
    ELASTICJOBS: ElasticJob,
    ELASTICWORKERS: ElasticWorker,
    NODECHECKS: NodeCheck,
    SCALEPLANS: ScalePlan,
}
STATUSES: dict[Resource, Any] = {
    resource: model.model_fields["status"].annotation for resource, model in MODELS.items()
}
WITH_STATUS = frozenset({*MODELS, PODS, NODES, PODDISRUPTIONBUDGETS})
NAMESPACE = "default"


def merged(target: JSON, patch: JSON) -> JSON:
    """RFC 7396."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = value
    return result


@dataclass(frozen=True)
class Write:
    """A request that changes something, as it travels."""

    verb: str
    """create, patch, replace or delete."""
    resource: Resource
    name: str
    namespace: str | None
    body: JSON = field(default_factory=dict)
    subresource: str | None = None
    uid: str | None = None
    """Of a delete: the object that is meant."""
    resource_version: str | None = None
    """Of a delete: the version that is meant."""

    def refuses(self, metadata: JSON) -> bool:
        """Whether a delete means another object, or another version of it."""
        wanted = (self.uid, metadata["uid"]), (self.resource_version, metadata["resourceVersion"])
        return any(each not in (None, there) for each, there in wanted)

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource.kind} {self.name}{part}"


@dataclass(frozen=True)
class Entry:
    """One line of a watch."""

    obj: JSON
    deleted: bool = False


@dataclass(frozen=True)
class Event:
    """What a recorder was told; that it is written is taken for granted."""

    kind: str
    name: str
    type: str
    reason: str
    message: str


@dataclass
class Api:
    seconds: float = 0.0
    """The time, on all clocks."""
    version: int = 0
    objects: dict[Resource, dict[Key, JSON]] = field(default_factory=dict)
    log: dict[Resource, list[Entry]] = field(default_factory=dict)
    """Everything that ever happened to the objects of a resource."""
    events: list[Event] = field(default_factory=list)
    made: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many objects of a name there have been, for uids that do not depend on the order of writes."""
    changed_at: float = 0.0
    """When anything but a Lease was written last."""
    unserved: frozenset[Resource] = frozenset({KUBERNETES_PODGROUPS})
    """Kinds that the cluster does not know; those behind a gate of Kubernetes, unless a test turns it on."""

    def copy(self) -> Api:
        return Api(
            self.seconds,
            self.version,
            {resource: dict(objects) for resource, objects in self.objects.items()},
            {resource: list(entries) for resource, entries in self.log.items()},
            list(self.events),
            dict(self.made),
            self.changed_at,
            self.unserved,
        )

    # --- reading ------------------------------------------------------------------------------------------

    def find(self, resource: Resource, name: str, namespace: str | None = NAMESPACE) -> JSON | None:
        return self.objects.get(resource, {}).get((namespace if resource.namespaced else None, name))

    def get(self, resource: Resource, name: str, namespace: str | None = NAMESPACE) -> JSON:
        found = self.find(resource, name, namespace)
        if found is None:
            raise self._not_found(resource, name)
        return found

    def _not_found(self, resource: Resource, name: str) -> NotFound:
        details = {} if resource in self.unserved else {"name": name}
        return NotFound(404, "NotFound", f"{resource.kind} {name} not found", details)

    def list(self, resource: Resource) -> list[JSON]:
        return [obj for _, obj in sorted(self.objects.get(resource, {}).items(), key=lambda item: item[0][1])]

    def said(self, name: str | None = None) -> list[tuple[str, str]]:
        """(reason, message) of the Events of all objects, or of those of this name."""
        return [(event.reason, event.message) for event in self.events if name in (None, event.name)]

    def now(self) -> str:
        return (NOW + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- writing ------------------------------------------------------------------------------------------

    def apply(self, write: Write) -> JSON:
        """Carry it out, or refuse it as the API server would."""
        match write.verb:
            case "create":
                return self._create(write.resource, write.body)
            case "patch":
                return self._patch(write)
            case "delete":
                return self._delete(write)
        raise AssertionError(write.verb)

    def create(self, resource: Resource, obj: JSON) -> JSON:
        """For those who play users and the cluster: with a status, if `obj` has one."""
        made = self._create(resource, obj)
        if resource in WITH_STATUS and obj.get("status"):
            made = self.patch(resource, made["metadata"]["name"], {"status": obj["status"]}, "status")
        return made

    def put(self, resource: Resource, obj: JSON, namespace: str = NAMESPACE) -> JSON:
        """Store it, valid or not."""
        metadata = {"uid": f"uid-{self.version + 1}", "creationTimestamp": self.now()} | obj["metadata"]
        if resource.namespaced:
            metadata.setdefault("namespace", namespace)
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._put(resource, kind | obj | {"metadata": metadata})

    def patch(self, resource: Resource, name: str, body: JSON, subresource: str | None = None) -> JSON:
        namespace = NAMESPACE if resource.namespaced else None
        return self.apply(Write("patch", resource, name, namespace, body, subresource))

    def delete(self, resource: Resource, name: str) -> None:
        self.apply(Write("delete", resource, name, NAMESPACE if resource.namespaced else None))

    def remove(self, resource: Resource, obj: JSON | str) -> None:
        """It, or what has that name, is gone for good."""
        obj = self.get(resource, obj) if isinstance(obj, str) else obj
        gone = self._stamped(obj)
        del self.objects[resource][_key(obj)]
        self._log(resource, Entry(gone, deleted=True))

    def collect_garbage(self) -> None:
        """Whatever is owned by objects that are no longer there."""
        there = {obj["metadata"]["uid"] for objects in self.objects.values() for obj in objects.values()}
        for resource, objects in list(self.objects.items()):
            for obj in list(objects.values()):
                owners = obj["metadata"].get("ownerReferences")
                if owners and all(owner["uid"] not in there for owner in owners):
                    self._delete_gracefully(resource, obj)

    def _create(self, resource: Resource, body: JSON) -> JSON:
        metadata = dict(body["metadata"])
        name = metadata["name"]
        namespace = metadata.get("namespace", NAMESPACE) if resource.namespaced else None
        if resource in self.unserved:
            raise self._not_found(resource, name)
        if self.find(resource, name, namespace) is not None:
            raise AlreadyExists(409, "AlreadyExists", f"{resource.kind} {name} already exists")
        number = self.made[resource.plural, name] = self.made.get((resource.plural, name), 0) + 1
        uid = f"{resource.plural}/{name}#{number}"
        uid = f"{zlib.crc32(uid.encode()):08x}-{uid}"[:64]  # of which eight characters tell objects apart
        metadata |= {"uid": uid, "creationTimestamp": self.now()}
        metadata |= {"generation": 1} | ({"namespace": namespace} if namespace else {})
        body = _defaulted(_schemas().get(resource.kind, {}), body)
        obj = body | {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        if resource in WITH_STATUS:
            obj.pop("status", None)
        if resource is PODS:
            obj["status"] = {"phase": "Pending"}
        self._validate(resource, obj)
        return self._put(resource, obj)

    def _patch(self, write: Write) -> JSON:
        resource, body = write.resource, write.body
        current = self.get(resource, write.name, write.namespace)
        metadata = current["metadata"]
        for precondition in ("resourceVersion", "uid"):
            wanted = body.get("metadata", {}).get(precondition)
            if wanted not in (None, metadata[precondition]):
                raise Conflict(409, "Conflict", f"{write}: {precondition} {wanted}")
        if write.subresource == "status":
            changed = merged(current, {"status": body.get("status", {})})
        else:
            words = {key: value for key, value in body.get("metadata", {}).items() if key not in _SYSTEM}
            rest = {
                key: value for key, value in body.items() if key != "status" or resource not in WITH_STATUS
            }
            changed = merged(current, rest | {"metadata": words})
        if changed == current:
            return current
        if changed.get("spec") != current.get("spec"):
            changed["metadata"] = changed["metadata"] | {"generation": metadata.get("generation", 1) + 1}
        self._validate(resource, changed, status_alone=write.subresource == "status")
        if resource is ELASTICWORKERS and (why := _out_of_order(current, changed)):
            raise Invalid(422, "Invalid", f"{write}: {why}")
        return self._put(resource, changed)

    def _delete(self, write: Write) -> JSON:
        obj = self.get(write.resource, write.name, write.namespace)
        if write.refuses(obj["metadata"]):
            raise Conflict(409, "Conflict", f"{write}: uid {write.uid}, version {write.resource_version}")
        self._delete_gracefully(write.resource, obj)
        return {}

    def _delete_gracefully(self, resource: Resource, obj: JSON) -> None:
        """A Pod on a node goes when its kubelet has ended it; what has finalizers when they are gone."""
        metadata = obj["metadata"]
        runs = resource is PODS and obj["spec"].get("nodeName") and obj["status"]["phase"] in _ALIVE
        if not runs and not metadata.get("finalizers"):
            self.remove(resource, obj)
        elif not metadata.get("deletionTimestamp"):
            mark = {"deletionTimestamp": self.now(), "deletionGracePeriodSeconds": 30}
            self._put(resource, obj | {"metadata": metadata | mark})

    def _validate(self, resource: Resource, obj: JSON, *, status_alone: bool = False) -> None:
        model = MODELS.get(resource)
        if model is None:
            return
        try:
            if status_alone:  # the rest is as it was, and valid
                STATUSES[resource].model_validate(obj.get("status", {}))
            else:
                model.model_validate(self._stamped(obj, take=False))
        except ValidationError as error:
            raise Invalid(422, "Invalid", f"{resource.kind} is invalid: {error}") from error

    def _put(self, resource: Resource, obj: JSON) -> JSON:
        stamped = self._stamped(obj)
        self.objects.setdefault(resource, {})[_key(obj)] = stamped
        self._log(resource, Entry(stamped))
        return stamped

    def _log(self, resource: Resource, entry: Entry) -> None:
        self.log.setdefault(resource, []).append(entry)
        if resource.kind != "Lease":
            self.changed_at = self.seconds

    def _stamped(self, obj: JSON, *, take: bool = True) -> JSON:
        if take:
            self.version += 1
        return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.version)}}


_ALIVE = ("Pending", "Running")
_SYSTEM = (
    "resourceVersion",
    "uid",
    "name",
    "namespace",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)


def _out_of_order(current: JSON, changed: JSON) -> str:
    """What the rules of an ElasticWorker say to a report; empty if they allow it."""
    old, new = ((each.get("status") or {}).get("agent") or {} for each in (current, changed))
    incarnation, before = new.get("incarnation", 0), old.get("incarnation", 0)
    if new == old or not new:
        return ""
    if incarnation > changed["spec"]["incarnation"]:
        return EARLIER_WORKER
    if incarnation != before:
        return LATER_POD if incarnation < before else ""
    if new.get("podUid") == old.get("podUid"):
        return "" if new.get("sequence", 0) >= old.get("sequence", 0) else LATER_REPORT
    return "" if new.get("podUid") == changed["status"].get("podUid") else LATER_REPORT


def _key(obj: JSON) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace"), metadata["name"]


@cache
def _schemas() -> dict[str, JSON]:
    """Of our own kinds, what their CRDs say."""
    specs = [crd["spec"] for crd in crds.manifests()]
    return {spec["names"]["kind"]: spec["versions"][0]["schema"]["openAPIV3Schema"] for spec in specs}


def _defaulted(schema: JSON, value: Any) -> Any:
    """With the defaults of the schema filled in, where the API server fills them in."""
    if isinstance(value, list):
        return [_defaulted(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    filled = {key: inner["default"] for key, inner in properties.items() if "default" in inner} | value
    of_any = schema.get("additionalProperties") or {}
    return {key: _defaulted(properties.get(key, of_any), inner) for key, inner in filled.items()}


class Client:
    """The requests of `controller.client.AsyncClient`, to an `Api`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def live(self) -> None:
        """Called before each request."""

    def write(self, write: Write) -> JSON:
        return self._api.apply(write)

    async def get(self, resource: Resource, name: str, namespace: str | None = None, **_: Any) -> JSON:
        self.live()
        return self._api.get(resource, name, namespace)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        **_: Any,
    ) -> JSON:
        self.live()
        found = [o for o in self._api.list(resource) if namespace in (None, o["metadata"].get("namespace"))]
        for term in (label_selector or "").split(",") if label_selector else ():
            key, _, value = term.partition("=")
            found = [o for o in found if (o["metadata"].get("labels") or {}).get(key) == value]
        for term in (field_selector or "").split(",") if field_selector else ():
            path, _, value = term.partition("=")
            found = [o for o in found if str(_field(o, path)).lower() == value]
        return {"metadata": {"resourceVersion": str(self._api.version)}, "items": found}

    async def list_page(self, resource: Resource, *args: Any, page_size: int, **more: Any) -> JSON:
        return {"items": (await self.list(resource, *args, **more))["items"][:page_size]}

    async def create(self, resource: Resource, obj: JSON, *, strict: bool = False) -> JSON:
        metadata = obj["metadata"]
        return self.write(Write("create", resource, metadata["name"], metadata.get("namespace"), obj))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: JSON,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> JSON:
        return self.write(Write("patch", resource, name, namespace, patch, subresource))

    async def replace(self, resource: Resource, obj: JSON, *, subresource: str | None = None) -> JSON:
        metadata = obj["metadata"]
        return self.write(
            Write("replace", resource, metadata["name"], metadata.get("namespace"), obj, subresource)
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        **_: Any,
    ) -> None:
        self.write(Write("delete", resource, name, namespace, uid=uid, resource_version=resource_version))


def _field(obj: JSON, path: str) -> Any:
    found: Any = obj
    for part in path.split("."):
        found = (found or {}).get(part)
    return found
