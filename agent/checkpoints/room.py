"""Whether there is room for the slots that a job asks for."""

from __future__ import annotations

from agent.environment import Environment, InvalidEnvironmentError
from agent.monitor.oom import OomWatch
from crds.checkpoint_files import SMALLEST_SLOT_BYTES

FIELD = "replicaSpecs.worker.memoryCheckpoint"


def check_room(me: Environment, count: int) -> None:
    """Refuse slots that are too small, or together too large.

    Raises:
        InvalidEnvironmentError: there is no room for so many.
    """
    if me.memory_bytes // count < SMALLEST_SLOT_BYTES:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes} bytes, too little for {count} slots: each takes "
            f"{SMALLEST_SLOT_BYTES} at least"
        )
    limit = OomWatch.of_pod(me.pod_uid).limit_bytes()
    if limit is not None and me.memory_bytes >= limit:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes / 2**20:.0f} MiB, which does not fit into the container's "
            f"memory limit of {limit / 2**20:.0f} MiB beside the training: raise the limit, or lower the size"
        )
