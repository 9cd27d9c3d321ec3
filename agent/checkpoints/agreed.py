"""The agreement of a round's agents on a checkpoint, and its consequence for each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.slots.process_files import MemoryResume
from agent.slots.resume import UNDECIDED, ResumeDecision
from agent.slots.slot import Slot


@dataclass(frozen=True)
class ReplicaSource:
    """The agent whose checkpoints this agent has copies of."""

    agent: int
    """Its rank among the members."""
    address: str
    """Address of its slot server."""
    ranks: int
    """Number of processes that it starts."""


@dataclass(frozen=True)
class AgreedCheckpoint:
    """The agreement of a round's agents, for one of them."""

    round: int
    decision: ResumeDecision = UNDECIDED
    peers: tuple[int, ...] | None = None
    """Each agent's peer, which has its replicas."""
    peer: str | None = None
    """Slot server of this agent's peer; None if it has none."""
    source: ReplicaSource | None = None
    """Agent whose replicas are kept here; None if there is none. Offers of others are refused."""
    agent: int = 0
    """Rank of this agent."""
    agents: int = 1
    """Number of agents of the round."""


def resume_of(
    decision: ResumeDecision,
    slot: Slot | None,
    persist: Mapping[int, str],
    here: Mapping[int, str],
    key: bytes,
) -> MemoryResume | None:
    """Return the checkpoint in memory that a process resumes from; None if there is none.

    Args:
        slot: the process's own slot, if it is here and the world has the same size.
        persist: slots that it writes to storage.
        here: paths of the checkpoint's slots that this agent has, by rank.
    """
    if (checkpoint := decision.checkpoint) is None:
        return None
    return MemoryResume(
        checkpoint.round,
        checkpoint.step,
        checkpoint.world_size,
        None if slot is None else slot.path,
        {
            rank: here.get(rank, f"tcp://{address}")
            for address, served in decision.shards.items()
            for rank in served
        },
        decision.is_last_resort,
        persist,
        key if decision.shards else b"",
    )


def slots_to_persist(
    decision: ResumeDecision, ranks: Sequence[int], here: Mapping[int, str], address: str
) -> list[dict[int, str]]:
    """Return the slots that processes write to storage, by local rank: all that this agent serves.

    Args:
        ranks: the global ranks, by local rank.
        here: paths of the checkpoint's slots that this agent has, by rank.
    """
    if not decision.persists:
        return [{} for _ in ranks]
    served = sorted(decision.shards.get(address, ())) if decision.shards else ranks
    return [
        {rank: here[rank] for rank in served[local_rank :: len(ranks)] if rank in here}
        for local_rank in range(len(ranks))
    ]
