"""Checkpoints of training processes: their places, problems and memory sizes."""

from __future__ import annotations

from enum import IntEnum

from crds.wire import WireWord


class Tier(WireWord):
    """Place of a checkpoint."""

    MEMORY = "memory"
    PEER = "peer"
    """Memory, with parts fetched from other Pods. Processes read `memory`."""
    STORAGE = "storage"

    @property
    def origin(self) -> str:
        """Return the phrase for a sentence such as `goes on from memory`."""
        return "from a peer's copy" if self is Tier.PEER else f"from {self.value}"


class KeptIn(IntEnum):
    """Place of the step after which all ranks leave, as a number of the progress record."""

    MEMORY = 1
    STORAGE = 2


class CheckpointTrouble(WireWord):
    """Checkpoint problem of a process; if there are several, the first in this order counts."""

    STATE = "StateNotSaved"
    """The state cannot be split, or the steps do not rise: nothing is saved."""
    LOST = "CheckpointLost"
    """Training resumes from an earlier step than memory had, or from 0; or the last step in memory is missing
    in storage."""
    SLOT = "SlotTooSmall"
    """The state does not fit into the job's checkpoint memory."""
    MEMORY = "MemoryFails"
    """The checkpoint memory cannot be used for another reason."""
    STORAGE = "StorageFails"
    """The last due step has not reached the storage."""
    SKIPPED = "SaveSkipped"
    """The last due step is not in storage, because the previous one was still being written."""


SAVER_PROCESS = "the saver process"
"""Subject of a StorageFails message if the storage itself did not fail."""
MAX_TROUBLE = 512
"""Maximum characters of a problem's message."""


AFTER_FAILURE = "failure-"
"""Prefix of an attempt that writes the checkpoint from which a round resumes after a failure; the round
follows."""
OWN_SLOTS = 3
"""Slots per process: the newest complete one, one to write into, and one that its saver may still read."""
REPLICA_SLOTS = 2
"""Slots per replica: if a write is interrupted, the older one remains."""
SMALLEST_SLOT_BYTES = 64 << 10
"""Minimum size of a slot, with room for its control words and a small header."""


def slot_count(processes: int, replicas: int) -> int:
    """Return the number of slots of a Pod."""
    return processes * (OWN_SLOTS + REPLICA_SLOTS * replicas)


def attempt_of(start: str, replica_group: str) -> str:
    """Return the name of the attempt that a start of the training processes writes; `group_of` reverses it.

    Args:
        replica_group: index of the group; empty in a job without groups.
    """
    return f"{start}.{replica_group}" if replica_group else start


def group_of(attempt: str) -> str:
    """Return the replica group that writes an attempt; empty in a job without groups."""
    return attempt.partition(".")[2]
