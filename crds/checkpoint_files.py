"""Checkpoints of training processes: their places, and the files between a process and its agent."""

from __future__ import annotations

from typing import TypedDict

from crds.wire import Word


class Tier(Word):
    """The place of a checkpoint."""

    MEMORY = "memory"
    PEER = "peer"
    """Memory, with parts that were fetched from other Pods. Processes read `memory`."""
    STORAGE = "storage"

    @property
    def origin(self) -> str:
        """Return the word for a sentence such as `goes on from memory`."""
        return "from a peer's copy" if self is Tier.PEER else f"from {self.value}"


class CheckpointTrouble(Word):
    """What does not work with a process's checkpoints; where more than one does not, the first counts."""

    STATE = "StateNotSaved"
    """The state cannot be taken apart, or the steps do not rise: nothing is saved."""
    LOST = "CheckpointLost"
    """Training has begun at step 0, though there was a checkpoint in memory."""
    SLOT = "SlotTooSmall"
    """The state does not fit into the memory that the job asks for."""
    MEMORY = "MemoryFails"
    """That memory cannot be used for another reason."""
    STORAGE = "StorageFails"
    """The last step that was due has not reached the storage."""
    SKIPPED = "SaveSkipped"
    """The last step that was due is not in the storage, since the one before was still being written."""


MAX_TROUBLE = 512
"""Characters of what is told of it."""


AFTER_FAILURE = "failure-"
"""How the attempt of savers begins that an agent starts after a failure; the round's number follows."""
OWN_SLOTS = 3
"""Of a process: the newest whole one, one to write into, and one that its saver may still read."""
REPLICA_SLOTS = 2
"""Of a held replica: a kill in the middle of writing must not cost the older one."""
SMALLEST_SLOT_BYTES = 64 << 10
"""Its control words and a small header take some of it."""


def slot_count(processes: int, replicas: int) -> int:
    """Slots of a Pod."""
    return processes * (OWN_SLOTS + REPLICA_SLOTS * replicas)


ENV_CHECKPOINT_FILE = "DLR_CHECKPOINT_FILE"
"""Names a JSON file (`CheckpointFile`), written anew for each start of the process."""


class ResumeFile(TypedDict, total=False):
    """`resume` in the file. Of tier storage it has `tier` alone."""

    tier: Tier
    round: int
    step: int
    worldSize: int
    slot: str
    """The file of this rank's slot, if the world has the size that it had."""
    shards: dict[str, str]
    """File, or tcp://host:port, of each rank of the world of another size, by rank."""
    key: str
    """The job's key in hexadecimal, by which the process proves to those agents that it is of the job; there
    with `shards`."""
    lastResort: bool
    """True where any checkpoint in storage goes first; otherwise absent."""


class CheckpointFile(TypedDict, total=False):
    """What the file says."""

    round: int
    """Round of the marks that the process writes."""
    slots: list[str]
    """The files of its slots. Where it resumes from one of them, that is the first."""
    resume: ResumeFile | None
    failuresPerHour: float
    """Failures of the job so far, an hour; absent if none has been counted."""
    slotsOfPod: int
    """Among how many slots the memory that the job asks for is divided."""
    storageFile: str
    """Into which the process is to say what it does with checkpoints (`CheckpointerFile`)."""
    copySecondsFile: str
    """File in which the agent writes how many seconds the last copy to its peer took, as a decimal number. It
    appears with the first copy; absent where the job asks for no replicas."""
    lostStep: int
    """The newest that was in memory here, where nothing in memory is of use any more; absent without one."""


class StorageFile(TypedDict):
    """The place of a job's checkpoints in storage."""

    path: str
    job: str
    """Owner of the checkpoints, as the manifests name it."""
    keep: int | None
    """How many stay; None: all."""


class CheckpointerFile(StorageFile, total=False):
    """What a process says of its checkpoints. It is replaced as a whole."""

    round: int
    """Round in which the process wrote this."""
    loaded: int
    """The step that `load` has brought back; absent before it has, and where there was none."""
    tier: Tier
    """Place of that step: memory or storage."""
    every: int
    """Steps between two saves to memory."""
