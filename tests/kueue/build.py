"""Builds the objects of a Kueue in one line each."""

from __future__ import annotations

from typing import Any

from tests.kueue.objects import Object

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
