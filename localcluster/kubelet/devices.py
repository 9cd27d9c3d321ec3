"""Assignment of the host's GPUs to containers, in the form of Kubernetes' device plug-in."""

from __future__ import annotations

from localcluster.quantities import container_requests
from localcluster.resource import JSON

GPU = "nvidia.com/gpu"


class DevicePool:
    """The GPUs of one virtual node: a slice of the host's, or of imagined ones."""

    def __init__(self, first: int, count: int) -> None:
        self._free = list(range(first, first + count))
        self._held: dict[str, list[int]] = {}

    def take(self, owner: str, container: JSON) -> dict[str, str]:
        """Variables that show a container its devices and no others; the same ones when it restarts."""
        wanted = container_requests(container).get(GPU, 0)
        if owner not in self._held:
            self._held[owner], self._free = self._free[:wanted], self._free[wanted:]
        visible = ",".join(str(device) for device in self._held[owner])
        return {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}

    def give_back(self, owner_prefix: str) -> None:
        for owner in [owner for owner in self._held if owner.startswith(owner_prefix)]:
            self._free = sorted(self._free + self._held.pop(owner))
