"""pods/binding and pods/eviction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from localcluster.apiserver.bodies import SUCCESS, read_body
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.deletion import delete, read_options
from localcluster.apiserver.disruption import disruptions_allowed, is_ready
from localcluster.apiserver.errors import ApiError, conflict, invalid, required
from localcluster.apiserver.requests import Context
from localcluster.apiserver.times import rfc3339
from localcluster.apiserver.versions import collection_of
from localcluster.apiserver.writes import current_object
from localcluster.builtin import BINDING, EVICTION
from localcluster.resource import JSON
from localcluster.selectors import from_selector

BUDGETS = "poddisruptionbudgets.policy"
EVICTION_RETRY_SECONDS = 10


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
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(now)}
    pod["status"]["conditions"] = [*conditions, {**scheduled, "lastProbeTime": None}]
    if not context.dry_run():
        cluster.store.put(collection_of(context.type), pod)
    return SUCCESS


def evict(cluster: Cluster, context: Context, body: Any, now: datetime) -> JSON:
    """A deletion that PodDisruptionBudgets may refuse."""
    current = current_object(cluster, context)
    eviction = read_body(EVICTION, body)
    options_body = eviction.get("deleteOptions") or {}
    options = read_options(options_body, None, None, dry_run=context.dry_run(options_body))
    if is_ready(current.obj):
        _check_budgets(cluster, context, current.obj)
    delete(cluster, context.type, current, options, now)
    return SUCCESS


def _check_budgets(cluster: Cluster, context: Context, pod: JSON) -> None:
    """429 while a budget that selects the Pod can spare none."""
    neighbours = [stored.obj for _, stored in cluster.store.select("pods", context.namespace)]
    for (_, name), stored in cluster.store.select(BUDGETS, context.namespace):
        selector = from_selector(stored.obj["spec"].get("selector") or {})
        if not selector.matches(pod["metadata"].get("labels")):
            continue
        selected = [each for each in neighbours if selector.matches(each["metadata"].get("labels"))]
        if disruptions_allowed(stored.obj, selected) <= 0:
            why = f"The disruption budget {name} can spare no Pod now"
            causes = [{"reason": "DisruptionBudget", "message": why}]
            details = {"causes": causes, "retryAfterSeconds": EVICTION_RETRY_SECONDS}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiError(429, "TooManyRequests", message, details)
