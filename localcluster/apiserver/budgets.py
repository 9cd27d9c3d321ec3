"""The disruption controller, and what it means for evictions.

It keeps the status of PodDisruptionBudgets as kube-controller-manager does. An eviction does not read that
status: it counts for itself, in the same step in which it deletes, so that two at once never take too many.
"""

from __future__ import annotations

from collections.abc import Sequence

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.disruption import (
    ALWAYS_ALLOW,
    Health,
    ScaleUnknown,
    health,
    is_ready,
    selects,
    status_of,
)
from localcluster.apiserver.errors import ApiError
from localcluster.apiserver.scale_object import scale_of
from localcluster.apiserver.store import ChangeType, Event
from localcluster.client.clock import utc_now
from localcluster.resource import JSON

BUDGETS = "poddisruptionbudgets.policy"
PODS = "pods"


class BudgetController:
    """Watches budgets, and of Pods what budgets count."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        for key in cluster.store.collection(BUDGETS).objects:
            cluster.deferred.add(self._settle, *key)
        cluster.store.observers.append(self._observe)

    def _observe(self, event: Event) -> None:
        if event.collection == BUDGETS and event.type is not ChangeType.DELETED:
            self._cluster.deferred.add(self._settle, *event.key)
        elif event.collection == PODS and _counts_differently(event):
            states = [event.now.obj, *([event.before.obj] if event.before else [])]
            for key, stored in self._cluster.store.collection(BUDGETS).objects.items():
                labels = (state["metadata"].get("labels") for state in states)
                if key[0] == event.key[0] and any(selects(stored.obj, each) for each in labels):
                    self._cluster.deferred.add(self._settle, *key)

    def _settle(self, namespace: str, name: str) -> None:
        stored = self._cluster.store.get(BUDGETS, namespace, name)
        if stored is None or stored.obj["metadata"].get("deletionTimestamp"):
            return
        status = status_of(stored.obj, _health(self._cluster, stored.obj), utc_now())
        if status != stored.obj.get("status"):
            self._cluster.store.put(BUDGETS, {**stored.copy(), "status": status})


def _counts_differently(event: Event) -> bool:
    if event.type is not ChangeType.MODIFIED or event.before is None:
        return True
    return _counted(event.before.obj) != _counted(event.now.obj)


def _counted(pod: JSON) -> tuple[object, ...]:
    metadata = pod["metadata"]
    return metadata.get("labels"), "deletionTimestamp" in metadata, is_ready(pod)


def check_eviction(cluster: Cluster, pod: JSON) -> None:
    """429 while the budget that selects the Pod can spare none."""
    namespace = pod["metadata"]["namespace"]
    labels = pod["metadata"].get("labels")
    budgets = [stored.obj for _, stored in cluster.store.select(BUDGETS, namespace)]
    budgets = [budget for budget in budgets if selects(budget, labels)]
    if len(budgets) > 1:
        why = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise ApiError(500, "", why)
    if not budgets:
        return
    (budget,) = budgets
    found = _health(cluster, budget)
    if not is_ready(pod) and _may_go_unready(budget, found):
        return
    if isinstance(found, ScaleUnknown) or found.allowed <= 0:
        raise _no_disruption(budget["metadata"]["name"], found)


def _may_go_unready(budget: JSON, found: Health | ScaleUnknown) -> bool:
    """Return whether an unready Pod may be evicted: never, or not while the budget is met."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == ALWAYS_ALLOW:
        return True
    return isinstance(found, Health) and found.current >= found.desired > 0


def _no_disruption(name: str, found: Health | ScaleUnknown) -> ApiError:
    if isinstance(found, Health):
        why = (
            f"The disruption budget {name} needs {found.desired} healthy pods "
            f"and has {found.current} currently"
        )
    else:
        why = f"The disruption budget {name} cannot be checked: {found}"
    causes = [{"reason": "DisruptionBudget", "message": why}]
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError(429, "TooManyRequests", message, {"causes": causes})


def _health(cluster: Cluster, budget: JSON) -> Health | ScaleUnknown:
    namespace = budget["metadata"]["namespace"]
    pods = [
        stored.obj
        for (place, _), stored in cluster.store.collection(PODS).objects.items()
        if place == namespace and selects(budget, stored.obj["metadata"].get("labels"))
    ]
    try:
        return health(budget.get("spec") or {}, pods, lambda: _scale(cluster, pods))
    except ScaleUnknown as unknown:
        return unknown


def _scale(cluster: Cluster, pods: Sequence[JSON]) -> int:
    """How many Pods those who control these want in all; nobody wants Pods without a controller."""
    wanted: dict[str, int] = {}
    for pod in pods:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner["uid"] not in wanted:
                wanted[owner["uid"]] = _replicas(cluster, pod, owner)
    return sum(wanted.values())


def _replicas(cluster: Cluster, pod: JSON, owner: JSON) -> int:
    owner_type = cluster.type_of(owner)
    if owner_type is None:
        raise ScaleUnknown(f'no matches for kind "{owner["kind"]}" in version "{owner["apiVersion"]}"')
    if "scale" not in owner_type.subresources:
        raise ScaleUnknown(f"{owner_type.group_resource} does not implement the scale subresource")
    stored = cluster.get(owner_type, pod["metadata"]["namespace"], owner["name"])
    if stored is None or stored.obj["metadata"]["uid"] != owner["uid"]:
        raise ScaleUnknown(f'found no controllers for pod "{pod["metadata"]["name"]}"')
    replicas: int = scale_of(owner_type, stored.obj)["spec"]["replicas"]
    return replicas
