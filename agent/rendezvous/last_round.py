"""Where a replacement finds the copy of what its predecessor kept, before any round has this agent."""

from __future__ import annotations

import logging

from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousStoreInfo

from agent.memory.agreement import server_of_peer
from agent.memory.checkpoints import CheckpointMemory
from agent.rendezvous.meeting import connect
from agent.rendezvous.world import Member, World
from agent.session import Session

logger = logging.getLogger(__name__)


def prefetch(session: Session, memory: CheckpointMemory) -> bool:
    """Begin to fetch what this worker's predecessor has kept, while what processes need is imported.

    Returns:
        Whether it had a part in the last round: then others wait for this worker.
    """
    view = session.watcher.view()
    world = view.world if view is not None else None
    rank = predecessors_rank(world, session.member)
    if world is None or rank is None:
        return False
    memory.prefetch(world.round, lambda: server_of_copies(world, rank))
    return True


def predecessors_rank(world: World | None, me: Member) -> int | None:
    """The rank that an earlier incarnation of this slot has in a world; None if it has none."""
    for rank, member in enumerate(world.members if world else ()):
        if member.index == me.index and member.incarnation < me.incarnation:
            return rank
    return None


def server_of_copies(world: World, rank: int) -> str | None:
    """The slot server of who held the replicas of that rank's agent in that world; None if nobody is known.

    Of rank 0 nobody knows, since the round's store went with it.
    """
    if rank == 0:
        return None
    try:
        announced = PrefixStore(f"dlr/round/{world.round}", connect(world.master_address, world.master_port))
        if not announced.check([RendezvousStoreInfo.MASTER_PORT_KEY]):
            return None
        at = RendezvousStoreInfo.build(rank, announced, None)
        agents = PrefixStore("dlr/agents", connect(at.master_addr, at.master_port))
        return server_of_peer(agents, rank, len(world.members))
    except (OSError, DistError, ValueError) as error:
        logger.info("what round %d has kept is fetched when the next begins: %s", world.round, error)
        return None
