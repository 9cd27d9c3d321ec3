"""Whether worker Pods get the agent by an image volume, without an init container and its emptyDir.

Image volumes are GA in Kubernetes 1.36 (`volumes[].image`). All nodes have to support them, since a Pod may
run on any. A kubelet is never newer than its API server, so the server supports them too
(https://kubernetes.io/releases/version-skew-policy/). They are mounted noexec: so only commands that start a
launcher get the agent that way, through a shell; all others need an executable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from controller.resources import Object
from controller.store import Store

KUBELET = (1, 36)
RUNTIMES = {"containerd": (2, 1), "cri-o": (1, 33)}
"""The first version of each container runtime that mounts images."""

BY_IMAGE_VOLUMES = "image-volumes"
"""Index of Nodes: `CAN` for those that can mount images, `CANNOT` for the others."""
CAN, CANNOT = "can", "cannot"

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})")


def can_mount_images(node: Object) -> bool:
    """Whether a node's kubelet and container runtime have image volumes."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    name, _, version = str(info.get("containerRuntimeVersion", "")).partition("://")
    needed = RUNTIMES.get(name)
    return (
        needed is not None
        and _version(version) >= needed
        and _version(str(info.get("kubeletVersion", ""))) >= KUBELET
    )


def image_volume_keys(node: Object) -> Iterable[str]:
    """Index function of `BY_IMAGE_VOLUMES`."""
    return [CAN if can_mount_images(node) else CANNOT]


def images_mount(nodes: Store) -> bool:
    """Whether a Pod may have an image volume on whichever node it runs."""
    return nodes.count(BY_IMAGE_VOLUMES, CAN) > 0 and not nodes.count(BY_IMAGE_VOLUMES, CANNOT)


def _version(text: str) -> tuple[int, int]:
    """The first two numbers of a version; zeros if it has none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
