"""Durations, each with its source. A user can replace them (`times:` of a fleet.yaml).

The unit is seconds, unless the name says otherwise. Measurements in this repository used CPUs over gloo.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GPUS_PER_NODE = 8
LARGEST_SAVE_SHARE = 0.005
"""Maximum share of time for saves to memory at the interval that dlr chooses
(`dlr/checkpoint/interval.py`)."""
RECOVERY = "measured: benchmarks/results/recovery.md, where dlr's time goes"
FT_HSDP = "FT-HSDP, arXiv 2602.00277"
GROUPS = "measured: benchmarks/results/stall.md"
H100 = "measured: one H100, torch 2.11, three runs"
ASSUMED = "assumed; replace it by your own"


class Section(BaseModel):
    """Map of a fleet.yaml."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,  # `standby: true` is not a number
        allow_inf_nan=False,
    )


def _figure(value: float, source: str) -> Any:
    return Field(default=value, ge=0, lt=1e9, description=source)


class Times(Section):
    detect_seconds: float = _figure(0.017, RECOVERY)
    publish_seconds: float = _figure(0.009, f"{RECOVERY} (publish and observe)")
    stop_seconds: float = _figure(1.0, "docs/failures.md: the grace of processes whose peers are dead")
    start_seconds: float = _figure(0.05, RECOVERY)
    import_seconds: float = _figure(3.1, f"{RECOVERY} (import and first step without warm start)")
    device_start_seconds: float = _figure(0.5, f"{H100}: CUDA context 0.36, first matrix product 0.13")
    communicator_seconds: float = _figure(17.0, f"{FT_HSDP}: NCCL start of a small job")
    communicator_large_seconds: float = _figure(200.0, f"{FT_HSDP}: NCCL start at 98,304 GPUs")
    load_memory_seconds: float = _figure(2.7, "measured: docs/checkpoints.md, 0.27 s a GB, of 10 GB")
    load_storage_seconds: float = _figure(25.0, "measured: DCP from tmpfs, at most 2.5 s a GB, of 10 GB")
    save_memory_seconds: float = _figure(0.2, f"{H100}: 10 GiB to pinned memory, hidden by nothing")
    save_storage_seconds: float = _figure(0.78, "torchtitan, 1,856 H200, Llama-3 70B: blocked for a save")
    pod_seconds: float = _figure(60.0, f"{ASSUMED}: a Pod is bound, its image is there, its agent reports")
    watchdog_seconds: float = _figure(600.0, "torch.distributed: NCCL's default time-out")
    check_seconds: float = _figure(120.0, f"{ASSUMED}: a node check of a job")
    step_seconds: float = _figure(5.0, f"{ASSUMED}: one training step")
    preempted_seconds: float = _figure(3600.0, f"{ASSUMED}: until a preempted node is there again")
    group_stall_seconds: float = _figure(
        0.1, f"{GROUPS}: a process dies, until the others' next committed step"
    )
    group_return_seconds: float = _figure(0.2, f"{GROUPS}: the others stand still when a group comes back")
    group_heal_seconds: float = _figure(2.7, "as load_memory_seconds: the state comes from a living group")
    restart_seconds: float | None = Field(default=None, ge=0, lt=1e9)
    """Seconds from the next world to its first step, which replaces the sum of the parts, for comparison with
    other models."""
    peer_loss_seconds: float | None = Field(default=None, ge=0, lt=1e9)
    """Seconds until peers fail by their connections to a lost node; None: it falls silent, as without
    power."""

    def save_interval(self, failures_per_second: float) -> float:
        """Return the training time between two saves to memory, by the rule of `every="auto"`
        (docs/checkpoints.md)."""
        at_most = self.save_memory_seconds / LARGEST_SAVE_SHARE
        daly = math.sqrt(2 * self.save_memory_seconds / max(failures_per_second, 1e-9))
        return max(at_most, daly, self.step_seconds)

    def communicator(self, nodes: int) -> float:
        """Return the duration of NCCL's start: constant up to 16,384 GPUs, then linear through the large
        figure and beyond."""
        small, large = 16_384, 98_304
        gpus = nodes * GPUS_PER_NODE
        if gpus <= small:
            return self.communicator_seconds
        slope = (self.communicator_large_seconds - self.communicator_seconds) / (large - small)
        return self.communicator_seconds + slope * (gpus - small)

    def regroup_seconds(self, *, someone_left: bool) -> float:
        """Return the seconds from a published membership of replica groups to their next committed step.

        Args:
            someone_left: whether a group left, and not only joined.
        """
        if not someone_left:
            return self.group_return_seconds
        return max(self.group_stall_seconds - self.detect_seconds, 0.0)

    def round_start(self, nodes: int, *, fresh: bool, from_memory: bool, heals: bool = False) -> float:
        """Return the seconds from a published world to the first step of a world of `nodes` nodes.

        Args:
            fresh: whether processes start in new Pods, and import torch first.
            from_memory: whether they load a checkpoint from the agents' memory.
            heals: whether they take the state of another replica group that trains.
        """
        if self.restart_seconds is not None:
            return self.restart_seconds
        started = self.import_seconds if fresh else self.start_seconds
        loaded = self.load_memory_seconds if from_memory else self.load_storage_seconds
        if heals:
            loaded = self.group_heal_seconds
        parts = (self.publish_seconds, self.stop_seconds, started, self.device_start_seconds, loaded)
        return sum(parts) + self.communicator(nodes)
