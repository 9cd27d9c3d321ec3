"""Builds the objects of a Kueue in one line each."""

from __future__ import annotations

from typing import Any

from tests.kueue.objects import API_VERSION, REPLACES, Object

NAMESPACE = "kq"
GPU = "example.com/gpu"


def flavor(name: str, **spec: Any) -> Object:
    return {"kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str, gpus: dict[str, int], **spec: Any) -> Object:
    """Build a ClusterQueue with so many GPUs of each flavor, and 64 CPUs of each."""
    flavors = [
        {
            "name": flavor,
            "resources": [{"name": "cpu", "nominalQuota": 64}, {"name": GPU, "nominalQuota": count}],
        }
        for flavor, count in gpus.items()
    ]
    group = {"coveredResources": ["cpu", GPU], "flavors": flavors}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {"resourceGroups": [group]} | spec}


def local_queue(name: str, namespace: str = NAMESPACE, queue: str | None = None, **spec: Any) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": queue or name} | spec}


def workload(
    name: str,
    count: int,
    least: int | None = None,
    *,
    queue: str = "small",
    priority: int = 0,
    replaces: str = "",
    **metadata: Any,
) -> Object:
    """Build a Workload of `count` Pods with one CPU and one GPU each."""
    pod_set: Object = {"name": "worker", "count": count, "template": {"spec": {"containers": [container()]}}}
    if least is not None:
        pod_set["minCount"] = least
    if replaces:
        metadata["annotations"] = {REPLACES: f"{NAMESPACE}/{replaces}"} | metadata.get("annotations", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": NAMESPACE} | metadata,
        "spec": {"queueName": queue, "priority": priority, "podSets": [pod_set]},
    }


def container() -> Object:
    return {"name": "main", "image": "x", "resources": {"requests": {"cpu": 1, GPU: 1}, "limits": {GPU: 1}}}


def finished(workload: Object, at: str) -> Object:
    return _with(workload, "Finished", True, "Succeeded", at)


def _with(workload: Object, kind: str, value: bool, reason: str, at: str) -> Object:
    status = workload["status"]
    new = {"type": kind, "status": str(value), "reason": reason, "message": "", "lastTransitionTime": at}
    others = [each for each in status.get("conditions") or () if each["type"] != kind]
    return workload | {"status": status | {"conditions": [*others, new]}}
