"""How long things take, each with where the figure is from. A user replaces what differs (`times:`).

Seconds, if the name says nothing else. What is measured in this repository is measured on CPUs over gloo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

GPUS_PER_NODE = 8
LARGEST_SAVE_SHARE = 0.005
"""Of the time, for saves to memory that come as often as dlr chooses (`dlr/checkpoint/interval.py`)."""


@dataclass(frozen=True)
class Figure:
    value: float
    source: str


RECOVERY = "measured: docs/recovery.md, where dlr's time goes"
FT_HSDP = "FT-HSDP, arXiv 2602.00277"
H100 = "measured: one H100, torch 2.11, three runs"
ASSUMED = "assumed; replace it by your own"

SOURCES: dict[str, Figure] = {
    "detect_seconds": Figure(0.017, RECOVERY),
    "publish_seconds": Figure(0.009, f"{RECOVERY} (publish and observe)"),
    "stop_seconds": Figure(1.0, "docs/failures.md: the grace of processes whose peers are dead"),
    "start_seconds": Figure(0.05, RECOVERY),
    "import_seconds": Figure(3.1, f"{RECOVERY} (import and first step without warm start)"),
    "device_start_seconds": Figure(0.5, f"{H100}: CUDA context 0.36, first matrix product 0.13"),
    "communicator_seconds": Figure(17.0, f"{FT_HSDP}: NCCL start of a small job"),
    "communicator_large_seconds": Figure(200.0, f"{FT_HSDP}: NCCL start at 98,304 GPUs"),
    "load_memory_seconds": Figure(2.7, "measured: docs/checkpoints.md, 0.27 s a GB, of 10 GB a process"),
    "load_storage_seconds": Figure(25.0, "measured: DCP from tmpfs, at most 2.5 s a GB, of 10 GB a process"),
    "save_memory_seconds": Figure(0.2, f"{H100}: 10 GiB to pinned memory, hidden by nothing"),
    "save_storage_seconds": Figure(0.78, "torchtitan, 1,856 H200, Llama-3 70B: blocked for a save"),
    "pod_seconds": Figure(60.0, f"{ASSUMED}: a Pod is bound, its image is there, its agent reports"),
    "watchdog_seconds": Figure(600.0, "torch.distributed: NCCL's default time-out"),
    "check_seconds": Figure(120.0, f"{ASSUMED}: a node check of a job (docs/node-check-scale.md)"),
    "step_seconds": Figure(5.0, f"{ASSUMED}: one training step"),
    "preempted_seconds": Figure(3600.0, f"{ASSUMED}: until a preempted node is there again"),
    "group_stall_seconds": Figure(180.0, f"{FT_HSDP}: the others stand still when a group fails"),
}


@dataclass(frozen=True)
class Times:
    """The table's values."""

    detect_seconds: float
    publish_seconds: float
    stop_seconds: float
    start_seconds: float
    import_seconds: float
    device_start_seconds: float
    communicator_seconds: float
    communicator_large_seconds: float
    load_memory_seconds: float
    load_storage_seconds: float
    save_memory_seconds: float
    save_storage_seconds: float
    pod_seconds: float
    watchdog_seconds: float
    check_seconds: float
    step_seconds: float
    preempted_seconds: float
    group_stall_seconds: float
    restart_seconds: float | None = None
    """Seconds from the next world to its first step, whatever the parts say; for comparison with others'
    models."""
    peer_loss_seconds: float | None = None
    """Until peers fail by the connections of a node that is lost; None: it falls silent, as without power."""

    def save_interval(self, failures_per_second: float) -> float:
        """Training time between two saves to memory, by the rule of `every="auto"` (docs/checkpoints.md)."""
        at_most = self.save_memory_seconds / LARGEST_SAVE_SHARE
        daly = math.sqrt(2 * self.save_memory_seconds / max(failures_per_second, 1e-9))
        return max(at_most, daly, self.step_seconds)

    def communicator(self, nodes: int) -> float:
        """NCCL start: constant up to 16,384 GPUs, then linear through the large figure, and beyond it."""
        small, large = 16_384, 98_304
        gpus = nodes * GPUS_PER_NODE
        if gpus <= small:
            return self.communicator_seconds
        slope = (self.communicator_large_seconds - self.communicator_seconds) / (large - small)
        return self.communicator_seconds + slope * (gpus - small)

    def round_start(self, nodes: int, *, fresh: bool, from_memory: bool) -> float:
        """Return the seconds from a published world to the first step of a world of so many nodes.

        Args:
            fresh: processes start in new Pods, and import torch first.
            from_memory: the checkpoint that they load is in the agents' memory.
        """
        if self.restart_seconds is not None:
            return self.restart_seconds
        started = self.import_seconds if fresh else self.start_seconds
        loaded = self.load_memory_seconds if from_memory else self.load_storage_seconds
        parts = (self.publish_seconds, self.stop_seconds, started, self.device_start_seconds, loaded)
        return sum(parts) + self.communicator(nodes)


DEFAULT_TIMES = Times(**{name: figure.value for name, figure in SOURCES.items()})
NAMES = tuple(field.name for field in fields(Times))


def times_with(changed: dict[str, Any]) -> Times:
    """The table with a user's figures in it."""
    return replace(DEFAULT_TIMES, **changed)
