"""What the controller's cache keeps of objects that others write, so that a thousand of 1 MB fit. Pure.

A small object is kept whole: recovery of an ordinary job asks the API server for nothing. Of a larger one the
cache keeps what decisions read, within a budget; the whole is read from the API server to build a Pod of it
(`WholeObjects`). The digest of what was cut off stands in its place, so that an edit of it shows.

What orjson cannot write (more than 254 levels) can be made no Pod of, so these functions raise for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson

from controller.cache import Cache
from controller.client import Client
from controller.errors import Conflict
from controller.resources import PODS, Object, Resource
from controller.salvage import parsed
from controller.tasks import SharedCalls
from crds import names
from crds.cluster import PORT_NAME
from crds.elasticjob import ElasticJob
from crds.job_spec import MemoryCheckpoint
from crds.nodecheck import NodeCheck
from reconcilers.observed.containers import kept_of_container
from reconcilers.observed.resources import CUT, KINDS, digest_of, is_cut
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS
from reconcilers.scale.request import MAX_CHARACTERS
from reconcilers.scale.uptake import wrote_count
from reconcilers.worker.gang import VOLCANO_QUEUE

WHOLE_BYTES = 16 << 10
"""JSON of an object that is kept whole, without managedFields and status."""
METADATA_BYTES = 8 << 10
"""JSON of the labels, annotations and owners that are kept of a larger one."""
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_READ_FIRST = (names.ENV_TF_CONFIG, "PET_NNODES")
_SCALARS = ("terminationGracePeriodSeconds", "priorityClassName", "serviceAccountName", "serviceAccount")
_MOST_MISSES = 100
"""Entries that do not fit; after so many, no more are tried."""
_MOST_CONTAINERS = 64
"""Containers beside the first whose resources count, of a template that is not kept whole; and as many native
sidecars."""
_ALWAYS = "Always"
"""The restart policy that makes an init container a native sidecar."""
_UNREAD_OF_AGENTS = ("profile", "askedStacks", "result")
_FIRST = ("name", "namespace", "uid", "resourceVersion", "generation", "generateName")
_LATER = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def keep_what_is_read(cache: Cache) -> None:
    """Shape what the cache keeps, before it begins to watch."""
    cache.keep_only(ELASTICJOBS, kept_of_job)
    cache.keep_only(NODECHECKS, kept_of_check)
    cache.keep_only(SCALEPLANS, kept_of_plan)
    cache.keep_only(ELASTICWORKERS, kept_of_worker)
    cache.keep_only(PODS, kept_of_pod)


def kept_of_job(job: Object) -> Object:
    """Raises what orjson raises for a job that is nested too deeply."""
    fields = job["metadata"].get("managedFields")
    if fields:
        job = job | {"metadata": job["metadata"] | {"managedFields": _count_writers(fields)}}
    if _size_bytes(job) <= WHOLE_BYTES:
        return job
    spec, budget = job["spec"], Budget(WHOLE_BYTES)
    envs, written = spec.get("envs") or {}, spec["replicaSpecs"]
    read = budget.entries({key: envs[key] for key in _READ_FIRST if key in envs})
    specs = {
        type_: {} if type_ in names.MASTER_TYPES else _replica_spec(spec, each, budget)
        for type_, each in written.items()
    }
    others = budget.entries({key: value for key, value in envs.items() if key not in _READ_FIRST})
    for type_, each in specs.items():
        if each:  # variables come last: a thousand of them must not take the place of commands and amounts
            _add_variables(each["template"], written[type_]["template"], budget)
    return job | {
        "metadata": _metadata(job["metadata"]),
        "spec": spec | {"envs": read | others, "replicaSpecs": specs},
    }


def kept_of_check(check: Object) -> Object:
    if _size_bytes(check) <= WHOLE_BYTES:
        return check
    spec = dict(check["spec"])
    template = spec.get("template")
    if template is not None:
        spec["template"] = _template(template, digest_of(template, {}, True, None), Budget(WHOLE_BYTES))
    return check | {"metadata": _metadata(check["metadata"]), "spec": spec}


def kept_of_plan(plan: Object) -> Object:
    """The plan with a mark in place of resources by Pod, which no plan may ask for."""
    if _size_bytes(plan) <= WHOLE_BYTES:
        return plan
    spec = dict(plan["spec"])
    for field in ("createPods", "removePods", "migratePods"):
        if spec.get(field):
            spec[field] = [
                pod | {"resource": {"cut": "0"}} if pod.get("resource") else pod for pod in spec[field]
            ]
    return plan | {"metadata": _metadata(plan["metadata"]), "spec": spec}


def kept_of_worker(worker: Object) -> Object:
    """The worker without the parts of its report that people alone read, from the API server."""
    status = worker.get("status") or {}
    agent = status.get("agent")
    if agent is None:
        return worker
    kept = {field: value for field, value in agent.items() if field not in _UNREAD_OF_AGENTS}
    series = kept.get("series")
    if series:
        kept["series"] = {field: value for field, value in series.items() if field != "points"}
    return worker | {"status": status | {"agent": kept}}


def kept_of_pod(pod: Object) -> Object:
    """The Pod without its spec, but for what its end is judged by: our part in it is on its labels and
    annotations."""
    spec, budget = pod.get("spec") or {}, Budget(WHOLE_BYTES)
    kept = {field: spec[field] for field in ("nodeName", "restartPolicy", *_SCALARS) if field in spec}
    for kind in ("containers", "initContainers"):
        ours_first = sorted(map(kept_of_container, spec.get(kind) or ()), key=lambda each: "env" not in each)
        kept[kind] = budget.first(ours_first)
    metadata = pod["metadata"]
    if len(orjson.dumps(metadata)) > WHOLE_BYTES:
        metadata = _metadata(metadata)
    return pod | {"metadata": metadata, "spec": kept}


class Budget:
    """How much JSON may still be kept."""

    def __init__(self, size_bytes: int) -> None:
        self.left_bytes = size_bytes

    def takes(self, value: Any) -> bool:
        size = len(orjson.dumps(value)) + 1
        if size > self.left_bytes:
            return False
        self.left_bytes -= size
        return True

    def first(self, items: Iterable[Any]) -> list[Any]:
        """The first items, as far as it goes."""
        kept = []
        for item in items:
            if not self.takes(item):
                break
            kept.append(item)
        return kept

    def entries(self, entries: Mapping[str, Any] | None, first: Iterable[str] = ()) -> Object:
        """The named entries, then the others in their order, as far as they fit."""
        entries = entries or {}
        kept = {key: entries[key] for key in first if key in entries and self.takes((key, entries[key]))}
        misses = 0
        for key, value in entries.items():
            if misses == _MOST_MISSES:
                break
            if key not in kept and self.takes((key, value)):
                kept[key] = value
            else:
                misses += key not in kept
        return kept


def _size_bytes(obj: Object) -> int:
    """What a user has written of the object; its status is not counted."""
    orjson.dumps(obj.get("status"))
    return len(orjson.dumps(obj["metadata"])) + len(orjson.dumps(obj["spec"]))


def _replica_spec(job_spec: Object, spec: Object, budget: Budget) -> Object:
    inject = bool((job_spec.get("agent") or {}).get("inject", True))
    memory = spec.get("memoryCheckpoint")
    checkpoints = None if memory is None else MemoryCheckpoint.model_validate(memory)
    digest = digest_of(spec["template"], job_spec.get("envs") or {}, inject, checkpoints)
    return spec | {"template": _template(spec["template"], digest, budget)}


def _template(template: Object, digest: str, budget: Budget) -> Object:
    """What decisions read of a template, without most of its variables (`_add_variables`)."""
    spec = template["spec"]
    said = (field for field in _SCALARS if spec.get(field) is not None)
    kept = {field: spec[field] for field in said if budget.takes(spec[field])}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    queue = {key: annotations[key] for key in (VOLCANO_QUEUE,) if annotations.get(key)}
    metadata = {"annotations": budget.entries(queue)}
    containers = [_container(each, budget) for each in spec["containers"][: _MOST_CONTAINERS + 1]]
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == _ALWAYS)
    kept["initContainers"] = [
        _container(each, budget) | {"restartPolicy": _ALWAYS} for each in islice(sidecars, _MOST_CONTAINERS)
    ]
    containers[0] |= _rest_of_first(spec["containers"][0], budget)
    return {"metadata": metadata, "spec": kept | {"containers": containers}, CUT: digest}


def _container(container: Object, budget: Budget) -> Object:
    """What a decision reads of a container beside the first."""
    resources = container.get("resources") or {}
    amounts = {kind: budget.entries(resources[kind]) for kind in KINDS if resources.get(kind)}
    return {"name": container["name"][:63], "image": "-", "resources": amounts}


def _rest_of_first(container: Object, budget: Budget) -> Object:
    ports = (port for port in container.get("ports") or () if port.get("name") == PORT_NAME)
    kept = {"ports": budget.first(ports), "env": budget.first(_variables(container, read_first=True))}
    for field in ("command", "args"):
        kept[field] = budget.first(container.get(field) or ())
    return kept


def _add_variables(kept: Object, template: Object, budget: Budget) -> None:
    first = template["spec"]["containers"][0]
    kept["spec"]["containers"][0]["env"] += budget.first(_variables(first, read_first=False))


def _variables(container: Object, *, read_first: bool) -> Iterator[Object]:
    """The variables that decide something, or the others, without the source of a value from elsewhere."""
    for entry in container.get("env") or ():
        if (entry["name"] in _READ_FIRST) is read_first:
            yield {key: value for key, value in entry.items() if key in ("name", "value")}


def _count_writers(fields: Any) -> list[Object]:
    """The entries of `managedFields` that say who wrote the count of workers, and how."""
    owned: Object = {"f:spec": {"f:replicaSpecs": {f"f:{names.WORKER}": {"f:replicas": {}}}}}
    return [
        {key: value for key, value in entry.items() if key != "fieldsV1"} | {"fieldsV1": owned}
        for entry in fields
        if wrote_count(entry)
    ]


def _metadata(metadata: Object) -> Object:
    """The metadata with the labels, annotations and owners that fit, ours first; a scale request always."""
    budget = Budget(METADATA_BYTES)
    labels, annotations = metadata.get("labels") or {}, dict(metadata.get("annotations") or {})
    request = annotations.pop(names.ANNOTATION_SCALE, "")
    requests = {names.ANNOTATION_SCALE: request} if 0 < len(request) <= MAX_CHARACTERS else {}
    if APPLIED in annotations:
        annotations[APPLIED] = _applied(annotations[APPLIED])
    kept = {field: metadata[field] for field in (*_FIRST, *_LATER) if field in metadata}
    kept["labels"] = budget.entries(labels, filter(_is_ours, labels))
    kept["annotations"] = requests | budget.entries(annotations, filter(_is_ours, annotations))
    kept["ownerReferences"] = budget.first(metadata.get("ownerReferences") or ())
    if "managedFields" in metadata:
        kept["managedFields"] = budget.first(metadata["managedFields"])
    return kept


def _is_ours(key: str) -> bool:
    return key.startswith(f"{names.GROUP}/") or key in (names.LABEL_APP, names.LABEL_MANAGED_BY, APPLIED)


def _applied(text: str) -> str:
    """The part of the applied object that has the count of workers."""
    try:
        worker = orjson.loads(text)["spec"]["replicaSpecs"][names.WORKER]
        count = {"replicas": worker["replicas"]} if "replicas" in worker else {}
    except (ValueError, KeyError, TypeError):
        return "{}"
    return orjson.dumps({"spec": {"replicaSpecs": {names.WORKER: count}}}).decode()


MOST_BYTES = 32 << 20

Version = tuple[str, int]
"""Uid and generation."""


class WholeObjects:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._texts: OrderedDict[Version, bytes] = OrderedDict()
        self._size_bytes = 0
        self._reads = SharedCalls[bytes]()

    async def job(self, job: ElasticJob) -> ElasticJob:
        """The job with the templates and variables that its user wrote, in objects of its own.

        Raises:
            Conflict: it is another by now.
        """
        if not any(is_cut(spec.template) for spec in job.spec.replica_specs.values()):
            return job
        written = await self._written(ELASTICJOBS, job)
        specs = {
            type_: spec.model_copy(update={"template": written["replicaSpecs"][type_]["template"]})
            if is_cut(spec.template)
            else spec
            for type_, spec in job.spec.replica_specs.items()
        }
        update = {"replica_specs": specs, "envs": written.get("envs") or {}}
        return job.model_copy(update={"spec": job.spec.model_copy(update=update)})

    async def check(self, check: NodeCheck) -> NodeCheck:
        """The same of a check."""
        if not is_cut(check.spec.template):
            return check
        written = await self._written(NODECHECKS, check)
        return check.model_copy(
            update={"spec": check.spec.model_copy(update={"template": written["template"]})}
        )

    async def _written(self, resource: Resource, cut: ElasticJob | NodeCheck) -> Object:
        """Its spec; the API server has validated it, which takes Python long."""
        version = cut.metadata.uid, cut.metadata.generation
        text = self._texts.get(version)
        if text is None:
            text = await self._reads.ask(version, lambda: self._ask(resource, cut, version))
        else:
            self._texts.move_to_end(version)
        spec: Object = parsed(text)
        return spec

    async def _ask(self, resource: Resource, cut: ElasticJob | NodeCheck, version: Version) -> bytes:
        found = await self._client.get(resource, cut.metadata.name, cut.metadata.namespace)
        metadata = found["metadata"]
        if (metadata.get("uid"), metadata.get("generation", 0)) != version:
            message = f"{resource.kind} {cut.metadata.name} has changed since it was seen"
            raise Conflict(409, "Conflict", message)
        text = orjson.dumps(found["spec"])
        self._remember(version, text)
        return text

    def _remember(self, version: Version, text: bytes) -> None:
        self._texts[version] = text
        self._size_bytes += len(text)
        while self._size_bytes > MOST_BYTES and len(self._texts) > 1:
            _, oldest = self._texts.popitem(last=False)
            self._size_bytes -= len(oldest)
