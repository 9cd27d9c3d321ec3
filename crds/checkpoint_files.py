"""Checkpoints of training processes: their places, what may fail, and how much memory they take."""

from __future__ import annotations

from enum import IntEnum

from crds.wire import WireWord


class Tier(WireWord):
    """The place of a checkpoint."""

    MEMORY = "memory"
    PEER = "peer"
    """Memory, with parts that were fetched from other Pods. Processes read `memory`."""
    STORAGE = "storage"

    @property
    def origin(self) -> str:
        """Return the word for a sentence such as `goes on from memory`."""
        return "from a peer's copy" if self is Tier.PEER else f"from {self.value}"


class KeptIn(IntEnum):
    """The place where the step is kept after which all ranks leave, as a number of the progress record."""

    MEMORY = 1
    STORAGE = 2


class CheckpointTrouble(WireWord):
    """What does not work with a process's checkpoints; where more than one does not, the first counts."""

    STATE = "StateNotSaved"
    """The state cannot be taken apart, or the steps do not rise: nothing is saved."""
    LOST = "CheckpointLost"
    """Training goes on from an earlier step than memory had, or from 0; or memory ends with a step of which
    storage has nothing."""
    SLOT = "SlotTooSmall"
    """The state does not fit into the memory that the job asks for."""
    MEMORY = "MemoryFails"
    """That memory cannot be used for another reason."""
    STORAGE = "StorageFails"
    """The last step that was due has not reached the storage."""
    SKIPPED = "SaveSkipped"
    """The last step that was due is not in the storage, since the one before was still being written."""


SAVER_PROCESS = "the saver process"
"""What a message of StorageFails says where it is not the storage that failed."""
MAX_TROUBLE = 512
"""Characters of what is told of it."""


AFTER_FAILURE = "failure-"
"""Beginning of an attempt that writes what a round goes on from after a failure; the round follows."""
OWN_SLOTS = 3
"""Of a process: the newest whole one, one to write into, and one that its saver may still read."""
REPLICA_SLOTS = 2
"""Of a held replica: a kill in the middle of writing must not cost the older one."""
SMALLEST_SLOT_BYTES = 64 << 10
"""Its control words and a small header take some of it."""


def slot_count(processes: int, replicas: int) -> int:
    """Slots of a Pod."""
    return processes * (OWN_SLOTS + REPLICA_SLOTS * replicas)


def attempt_of(start: str, replica_group: str) -> str:
    """Return the name of what a start of the training processes writes; `group_of` finds the group.

    Args:
        replica_group: index of the group; empty in a job without groups.
    """
    return f"{start}.{replica_group}" if replica_group else start


def group_of(attempt: str) -> str:
    """Return the replica group that writes an attempt; empty in a job without groups."""
    return attempt.partition(".")[2]
