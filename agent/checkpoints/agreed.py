"""What the agents of a round have agreed upon, and what a training process is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.slots.pool import Pool
from agent.slots.resume import Checkpoint
from agent.slots.slot import Slot
from crds.checkpoint_files import CheckpointFile, ResumeFile, StorageFile, Tier


@dataclass(frozen=True)
class HeldReplicas:
    """What this agent holds of another agent's checkpoints."""

    agent: int
    """Its rank among the members."""
    address: str
    """Address of its slot server."""
    ranks: int
    """How many processes it starts."""


@dataclass(frozen=True)
class Agreed:
    """What the agents of a round have agreed upon."""

    round: int
    checkpoint: Checkpoint | None = None
    """None where memory has nothing, so that it comes from storage."""
    is_last_resort: bool = False
    """Whether what storage has goes first, since rounds began with the checkpoint and saved nothing."""
    shards: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Ranks of the checkpoint by address of the slot server, in a world of another size."""
    from_peer: bool = False
    """Whether any agent had to fetch a part of it from another."""
    peer: str | None = None
    """The slot server of who holds our replicas; None where nobody does."""
    held: HeldReplicas | None = None
    """Replicas that we hold; None where there is nobody. Others' offers are not taken."""
    peers: tuple[int, ...] | None = None
    """Holders of replicas, by agent of the round."""
    persist_to: StorageFile | None = None
    """Destination of the checkpoint that is written in the background; None: nowhere."""


def checkpoint_file(
    agreed: Agreed,
    slots: Sequence[Slot],
    resumed: Slot | None,
    pool: Pool,
    key: bytes,
    lost_step: int | None,
    failures_per_hour: float | None,
) -> CheckpointFile:
    """What a process is told.

    Args:
        slots: that it may write into.
        resumed: that it resumes from, if its own is here.
        pool: of this agent.
        key: the job's.
        lost_step: the newest that was here, where nothing in memory is of use any more.
        failures_per_hour: of the job.
    """
    content: CheckpointFile = {
        "round": agreed.round,
        "slots": [each.path for each in slots],
        "resume": _resume_file(agreed, resumed, pool, key),
        "slotsOfPod": len(pool.slots),
    }
    if lost_step is not None:
        content["lostStep"] = lost_step
    if failures_per_hour is not None:
        content["failuresPerHour"] = round(failures_per_hour, 4)
    return content


def _resume_file(agreed: Agreed, slot: Slot | None, pool: Pool, key: bytes) -> ResumeFile:
    checkpoint = agreed.checkpoint
    if checkpoint is None:
        return {"tier": Tier.STORAGE}
    resume: ResumeFile = {
        "tier": Tier.MEMORY,
        "round": checkpoint.round,
        "step": checkpoint.step,
        "worldSize": checkpoint.world_size,
    }
    if agreed.is_last_resort:
        resume["lastResort"] = True
    if agreed.shards:
        resume["shards"] = _shards(checkpoint, agreed.shards, pool)
        resume["key"] = key.hex()
    elif slot is not None:
        resume["slot"] = slot.path
    return resume


def _shards(checkpoint: Checkpoint, shards: Mapping[str, frozenset[int]], pool: Pool) -> dict[str, str]:
    """Return the place of each rank's slot: here, if it is here."""
    found = {str(rank): f"tcp://{address}" for address, ranks in shards.items() for rank in ranks}
    for slot, mark in pool.whole():
        if Checkpoint.of(mark) == checkpoint:
            found[str(mark.rank)] = slot.path
    return found
