"""Worker Pods mount the agent's image where all nodes can mount images."""

from __future__ import annotations

from typing import Any

import pytest

from controller.store import Store
from reconcilers.shapes import kept_of_node
from reconcilers.worker.image_volumes import (
    BY_IMAGE_VOLUMES,
    can_mount_images,
    image_volume_keys,
    images_mount,
)


def node(
    kubelet: str = "v1.37.2", runtime: str = "containerd://2.4.2", name: str = "node-0"
) -> dict[str, Any]:
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime, "machineID": "1"}
    metadata = {"name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {}, "status": {"nodeInfo": info}}


@pytest.mark.parametrize(
    ("kubelet", "runtime", "can"),
    [
        ("v1.36.0", "containerd://2.1.0", True),
        ("v1.37.1-gke.1043000", "containerd://2.1.4-k3s1", True),
        ("v1.36.2+rke2r1", "cri-o://1.36.1", True),
        ("v1.35.9", "containerd://2.4.2", False),
        ("v1.36.0", "containerd://2.0.7", False),
        ("v1.36.0", "cri-o://1.32.9", False),
        ("v1.36.0", "docker://29.0.0", False),
        ("v1.36.0", "containerd://Unknown", False),
        ("", "", False),
    ],
)
def test_a_node_can_by_its_kubelet_and_its_container_runtime(kubelet: str, runtime: str, can: bool) -> None:
    assert can_mount_images(kept_of_node(node(kubelet, runtime))) is can


def test_one_node_that_cannot_or_has_not_reported_is_enough_for_a_copy() -> None:
    store = Store()
    store.add_index(BY_IMAGE_VOLUMES, image_volume_keys)
    assert not images_mount(store), "nobody knows yet"
    store.apply(node())
    assert images_mount(store)
    store.apply({"metadata": {"name": "node-1", "uid": "node-1", "resourceVersion": "2"}})
    assert not images_mount(store)
