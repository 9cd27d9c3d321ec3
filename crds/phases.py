"""Phases of jobs, worlds and checks, and time limits, as controller, agents and commands read them."""

from __future__ import annotations

from crds.wire import WireWord


class JobPhase(WireWord):
    PENDING = "Pending"
    RUNNING = "Running"
    SCALING = "Scaling"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class RendezvousPhase(WireWord):
    FORMING = "Forming"
    FORMED = "Formed"
    REFORMING = "Reforming"


class NodeCheckPhase(WireWord):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    """There are verdicts, good or bad."""
    FAILED = "Failed"
    """It could not be carried out; the condition Failed says why."""

    @property
    def finished(self) -> bool:
        return self in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


class Accelerator(WireWord):
    """What the probes can test, besides CPU and network."""

    NVIDIA_GPU = "nvidia.com/gpu"
    NONE = "none"


HANG_TIMEOUT_SECONDS = 1_800
"""The default of `spec.elasticPolicy.hangTimeoutSeconds`."""
CHECK_TIMEOUT_SECONDS = 300
"""The default of `spec.timeoutSeconds`."""
