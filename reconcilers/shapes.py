"""Shapes of the cached objects of each kind: only the fields that decisions read. Pure.

The bounds are in the units of `controller/shape.py`, and higher than anybody needs. An object beyond them is
unreadable, which is reported. Users write `spec`, metadata and a worker's report.

Other bounds on the cost of one tenant's objects: lengths in the CRDs (`crds/`), time and memory of a
namespace (`controller/shares.py`), only the newest change of an object in the queue
(`controller/watch/intake.py`), instructions of patterns (`failure/rules.py`), workers of a namespace
(`observed/options.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

import orjson

from controller.resources import (
    LEASES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SERVICEACCOUNTS,
    Object,
    Resource,
)
from controller.shape import Shape, units
from crds import names
from reconcilers.observed.containers import PULL_SECRETS, kept_of_container
from reconcilers.observed.device_taints import kept_of_claim, kept_of_rule, kept_of_slice
from reconcilers.observed.hardware import unhealthy_devices
from reconcilers.runtime.kinds import (
    DEVICETAINTRULES,
    ELASTICJOBS,
    ELASTICWORKERS,
    ELASTICWORLDS,
    NODECHECKS,
    RESOURCECLAIMS,
    RESOURCESLICES,
    SCALEPLANS,
    SHARDSETS,
)
from reconcilers.scale.uptake import wrote_count

MOST_SPEC = 50_000
"""Most units of a spec from users: a template of a megabyte of text, or a check of 10,000 nodes."""
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OTHER_UNITS, WORKER_UNITS = 1_000_000, 250
"""Units of a namespace for each of its workers, with Pod and Lease, and for all other objects."""
MOST_CONTAINERS = 64
"""Most containers of a cached Pod, ours first; a template of an ElasticJob has no more."""
MOST_PULL_SECRETS = 8
"""Most pull secrets of a cached Pod, for messages."""
MOST_OWNERS = 64
HELD = ("finalizers",)
_OWNER = ("apiVersion", "kind", "name", "uid", "controller")
_SCALARS = (
    *(
        "nodeName",
        "restartPolicy",
        "terminationGracePeriodSeconds",
        "priorityClassName",
        "schedulingGroup",
        "serviceAccountName",
    ),
    "serviceAccount",
)
_POD_STATUS = ("phase", "reason", "message", "startTime", "conditions", "podIP")
_CONDITION = ("type", "status", "reason", "message")
_CONTAINER_STATUS = ("name", "state", "lastState", "restartCount", "started")
_UNREAD_OF_AGENTS = ("askedStacks", "result")


def memory_units(workers: int) -> int:
    """Return the cache's units for a namespace that may have so many workers."""
    return OTHER_UNITS + WORKER_UNITS * workers


def kept_of_job(job: Object) -> Object:
    metadata = _without_applied(job["metadata"])
    if writers := metadata.get("managedFields"):
        metadata = metadata | {"managedFields": _count_writers(writers)}
    return job | {"metadata": metadata}


def kept_of_check(check: Object) -> Object:
    return check | {"metadata": _without_applied(check["metadata"])}


def kept_of_worker(worker: Object) -> Object:
    """Return the worker without the parts of its report that only people read, from the API server."""
    worker = worker | {"metadata": _ours(worker["metadata"])}
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
    """Return the Pod with only those fields of its spec by which its end is judged; our other settings are in
    its labels and annotations."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept = _fields(spec, _SCALARS)
    if secrets := spec.get(PULL_SECRETS):
        kept[PULL_SECRETS] = [_fields(each, ("name",)) for each in secrets[:MOST_PULL_SECRETS]]
    for kind in ("containers", "initContainers"):
        found = [kept_of_container(each) for each in spec.get(kind) or ()]
        kept[kind] = sorted(found, key=lambda each: "env" not in each)[:MOST_CONTAINERS]
    shown = _fields(status, _POD_STATUS)
    if "conditions" in shown:
        shown["conditions"] = [_fields(each, _CONDITION) for each in shown["conditions"] or ()]
    for kind in ("containerStatuses", "initContainerStatuses"):
        if kind in status:
            shown[kind] = [_kept_of_status(each) for each in status[kind] or ()]
    return pod | {"metadata": _ours(pod["metadata"]), "spec": kept, "status": shown}


def _kept_of_status(status: Object) -> Object:
    kept, unhealthy = _fields(status, _CONTAINER_STATUS), unhealthy_devices(status)
    return kept | {"allocatedResourcesStatus": unhealthy} if unhealthy else kept


def kept_of_owned(obj: Object) -> Object:
    """Return an object that the controller makes, for comparison with the desired one."""
    return obj | {"metadata": _ours(obj["metadata"])}


_NODE_INFO = ("kubeletVersion", "containerRuntimeVersion")


def kept_of_node(node: Object) -> Object:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    kept = _fields(status, ("conditions", "allocatable", "capacity"))
    info = status.get("nodeInfo") or {}
    kept["nodeInfo"] = {field: intern(text) for field, text in _fields(info, _NODE_INFO).items()}
    return node | {"spec": _fields(spec, ("taints", "unschedulable")), "status": kept}


SHAPES: Mapping[Resource, Shape] = {
    ELASTICJOBS: Shape({"spec": MOST_SPEC, "status": 200_000}, kept_of_job, writers=True, metadata=HELD),
    NODECHECKS: Shape({"spec": MOST_SPEC, "status": 400_000}, kept_of_check, metadata=HELD),
    SCALEPLANS: Shape({"spec": MOST_SPEC, "status": 5_000}, kept_of_check),
    ELASTICWORKERS: Shape({"spec": 2_000, "status": 20_000}, kept_of_worker, metadata=HELD),
    ELASTICWORLDS: Shape({"spec": 400_000}),
    SHARDSETS: Shape({"spec": 100, "status": 50_000}),
    PODS: Shape({"spec": MOST_SPEC + 10_000, "status": 20_000}, kept_of_pod),
    LEASES: Shape({"spec": 100}, kept_of_owned),
    SERVICEACCOUNTS: Shape({}, kept_of_owned),
    ROLES: Shape({}, kept_of_owned),
    ROLEBINDINGS: Shape({}, kept_of_owned),
    NETWORKPOLICIES: Shape({"spec": 500}, kept_of_owned),
    PODDISRUPTIONBUDGETS: Shape({"spec": 500}, kept_of_owned),
    NODES: Shape({"spec": 5_000, "status": 50_000}, kept_of_node),
    NAMESPACES: Shape({}),
    RESOURCESLICES: Shape({"spec": MOST_SPEC}, kept_of_slice),
    RESOURCECLAIMS: Shape({"status": 20_000}, kept_of_claim),
    DEVICETAINTRULES: Shape({"spec": 100}, kept_of_rule),
}
"""Shapes by kind. A status that only the controller writes may be as large as the kind's CRD allows."""


def _fields(obj: Object, fields: Iterable[str]) -> Object:
    return {field: obj[field] for field in fields if field in obj}


def _ours(metadata: Object) -> Object:
    """Return the metadata with only our own labels and annotations, with shared texts."""
    kept = dict(metadata)
    for field in ("labels", "annotations"):
        if field in kept:
            ours = ((key, value) for key, value in (kept[field] or {}).items() if _is_ours(key))
            kept[field] = {key: intern(value) for key, value in ours}
    if owners := kept.get("ownerReferences"):
        kept["ownerReferences"] = [_fields(owner, _OWNER) for owner in owners[:MOST_OWNERS]]
    return kept


def _is_ours(key: str) -> bool:
    return key.startswith(f"{names.GROUP}/") or key in (names.LABEL_APP, names.LABEL_MANAGED_BY)


def _without_applied(metadata: Object) -> Object:
    """Return the metadata with only the count of workers in the last applied configuration."""
    annotations = metadata.get("annotations") or {}
    if APPLIED not in annotations:
        return metadata
    return metadata | {"annotations": annotations | {APPLIED: _applied(annotations[APPLIED])}}


def _applied(text: str) -> str:
    try:
        written = orjson.loads(text) if units(text.encode()) <= MOST_SPEC else {}
        worker = written["spec"]["replicaSpecs"][names.WORKER]
        count = {"replicas": worker["replicas"]} if "replicas" in worker else {}
    except (ValueError, KeyError, TypeError):
        return "{}"
    return orjson.dumps({"spec": {"replicaSpecs": {names.WORKER: count}}}).decode()


def _count_writers(fields: Any) -> list[Object]:
    """Return the entries of `managedFields` that show the writers of the count of workers."""
    owned: Object = {"f:spec": {"f:replicaSpecs": {f"f:{names.WORKER}": {"f:replicas": {}}}}}
    return [
        {key: value for key, value in entry.items() if key != "fieldsV1"} | {"fieldsV1": owned}
        for entry in fields
        if wrote_count(entry)
    ]
