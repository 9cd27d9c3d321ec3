"""The time that a real kubelet and its runtime take where ours take next to none.

For benchmarks: with `LOCALCLUSTER_LATENCIES=real` in the environment of `dlr up`, a Pod starts as slowly as
on a node with containerd, and what of a recovery is the kubelet's can be told from what is dlr's.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

ENV_LATENCIES = "LOCALCLUSTER_LATENCIES"
REAL = "real"


@dataclass(frozen=True)
class Latencies:
    sandbox_seconds: float = 0.0
    """The time for a Pod's sandbox: its cgroup, network and pause container."""
    container_seconds: float = 0.0
    """The time to create and start one container from an image that is on the node."""
    relist_seconds: float = 0.0
    """The period at which the kubelet asks its runtime which containers have ended.

    A Pod's next container starts no earlier. 1 s is `genericPlegRelistPeriod` of
    https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/kubelet/kubelet.go
    """

    def until_relist(self, now: float) -> float:
        """Seconds from `now` (monotonic) to the next look at the runtime."""
        if not self.relist_seconds:
            return 0.0
        return math.ceil(now / self.relist_seconds) * self.relist_seconds - now

    @classmethod
    def of_environment(cls) -> Latencies:
        return cls(0.5, 0.25, 1.0) if os.environ.get(ENV_LATENCIES) == REAL else cls()
