"""Phases of jobs, worlds and checks, and time limits, shared by controller, agents and commands."""

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
    """The check could not be carried out; the condition Failed has the reason."""

    @property
    def finished(self) -> bool:
        return self in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


class Accelerator(WireWord):
    """Device type that the probes can test, besides CPU and network."""

    NVIDIA_GPU = "nvidia.com/gpu"
    NONE = "none"


HANG_TIMEOUT_SECONDS = 1_800
"""Default of `spec.elasticPolicy.hangTimeoutSeconds`."""
CHECK_TIMEOUT_SECONDS = 300
"""Default of `spec.timeoutSeconds`."""
