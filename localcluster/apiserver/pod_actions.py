"""pods/binding and pods/eviction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from localcluster.apiserver.bodies import SUCCESS, read_body
from localcluster.apiserver.budgets import check_eviction
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.deletion import check_preconditions, delete, read_options
from localcluster.apiserver.errors import conflict, invalid, required
from localcluster.apiserver.requests import Context
from localcluster.apiserver.writes import current_object
from localcluster.builtin import BINDING, EVICTION
from localcluster.client.clock import timestamp
from localcluster.resource import JSON

DOES_NO_WORK = frozenset({"Pending", "Succeeded", "Failed"})
"""The phases of Pods that no budget holds back."""


def bind(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """The scheduler's decision."""
    binding = read_body(BINDING, body)
    pod = current_object(cluster, context).copy()
    node = binding["target"].get("name")
    if not node:
        raise invalid(context.type, context.name, [required("target.name")])
    uid = (binding.get("metadata") or {}).get("uid")
    if uid not in (None, "", pod["metadata"]["uid"]):
        raise conflict(context.type, context.name, f"the UID in the binding ({uid}) is not the Pod's")
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {context.name} is being deleted, cannot be assigned to a host"
        raise conflict(context.type, context.name, why)
    if pod["spec"].get("nodeName"):
        why = f'pod {context.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        raise conflict(context.type, context.name, why)
    pod["spec"]["nodeName"] = node
    conditions = [each for each in pod["status"].get("conditions") or () if each["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now)}
    pod["status"]["conditions"] = [*conditions, {**scheduled, "lastProbeTime": None}]
    if not context.dry_run():
        cluster.store.put(context.type.group_resource, pod)
    return SUCCESS


def evict(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """A deletion that a PodDisruptionBudget may refuse."""
    current = current_object(cluster, context)
    eviction = read_body(EVICTION, body)
    options_body = eviction.get("deleteOptions") or {}
    options = read_options(options_body, None, None, dry_run=context.dry_run(options_body))
    check_preconditions(context.type, current.obj["metadata"], options)
    if not current.obj["metadata"].get("deletionTimestamp"):
        if current.obj["status"].get("phase") not in DOES_NO_WORK:
            check_eviction(cluster, current.obj)
        if not options.dry_run:
            current = cluster.store.put(context.type.group_resource, _as_target(current.copy(), now))
    delete(cluster, context.type, current, replace(options, resource_version=None), now)
    return SUCCESS


def _as_target(pod: JSON, now: datetime) -> JSON:
    """Set the condition that distinguishes an evicted Pod from a deleted one."""
    conditions = [
        each for each in pod["status"].get("conditions") or () if each["type"] != "DisruptionTarget"
    ]
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    target = {"type": "DisruptionTarget", "status": "True", **why, "lastTransitionTime": timestamp(now)}
    pod["status"]["conditions"] = [*conditions, {**target, "lastProbeTime": None}]
    return pod
