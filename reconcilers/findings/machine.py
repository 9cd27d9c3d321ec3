"""Age and GPUs of a raw Node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

NVIDIA = "nvidia.com/gpu"


def created_at(node: Mapping[str, Any]) -> datetime:
    """Return when a raw Node was added to the cluster."""
    return datetime.fromisoformat(node["metadata"]["creationTimestamp"])


def gpus_of(node: Mapping[str, Any]) -> int:
    """Return the number of a node's GPUs, even if Pods share them; 0 if it is unknown.

    Source: the labels of NVIDIA's GPU feature discovery, `nvidia.com/gpu.replicas` for shared ones.
    """
    shares = str((node["metadata"].get("labels") or {}).get(f"{NVIDIA}.replicas", "1"))
    return (_gpus(node, "capacity") or 0) // max(int(shares), 1) if shares.isdecimal() else 0


def unhealthy_gpus(node: Mapping[str, Any]) -> int:
    """Return the number of GPUs that the device plugin reports as unhealthy, so that no Pod gets them."""
    there, usable = _gpus(node, "capacity"), _gpus(node, "allocatable")
    return 0 if there is None or usable is None else there - usable


def _gpus(node: Mapping[str, Any], key: str) -> int | None:
    """Return a node's count of GPUs under a key of its status; None if it is no plain number."""
    count = str((node.get("status", {}).get(key) or {}).get(NVIDIA, "0"))
    return int(count) if count.isdecimal() else None
