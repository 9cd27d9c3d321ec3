"""What the agents of a round have agreed upon, and what it is for each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.slots.process_files import MemoryResume
from agent.slots.resume import UNDECIDED, ResumeDecision
from agent.slots.slot import Slot


@dataclass(frozen=True)
class HeldReplicas:
    """The agent whose checkpoints this agent has copies of."""

    agent: int
    """Its rank among the members."""
    address: str
    """Address of its slot server."""
    ranks: int
    """How many processes it starts."""


@dataclass(frozen=True)
class AgreedCheckpoint:
    """What the agents of a round have agreed upon, as one of them sees it."""

    round: int
    decision: ResumeDecision = UNDECIDED
    peers: tuple[int, ...] | None = None
    """Holders of replicas, by agent of the round."""
    peer: str | None = None
    """The slot server of the agent that holds our replicas; None where nobody does."""
    held: HeldReplicas | None = None
    """The agent whose replicas are kept here; None where there is none. Others' offers are not taken."""
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
    """Return what a process goes on from; None where memory has nothing.

    Args:
        slot: its own, if that is here, in a world of the same size.
        persist: what it writes to storage.
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
        here: as `resume_of` has it.
    """
    if not decision.persists:
        return [{} for _ in ranks]
    served = sorted(decision.shards.get(address, ())) if decision.shards else ranks
    return [
        {rank: here[rank] for rank in served[local_rank :: len(ranks)] if rank in here}
        for local_rank in range(len(ranks))
    ]
