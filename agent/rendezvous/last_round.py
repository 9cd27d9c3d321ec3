"""Finds the copy of what a replacement's predecessor kept, before any round has this agent."""

from __future__ import annotations

import logging

from torch.distributed import DistError

from agent.checkpoints.holder import CheckpointMemory
from agent.connection.store import PeerStore
from agent.connection.store_server import round_prefix
from agent.facts.world import Member, World
from agent.rendezvous.agreement import server_of_peer
from agent.rendezvous.meeting import ANNOUNCEMENT, Announcement
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
    memory.prefetch(world.round, lambda: server_of_copies(world, rank, session.environment.key))
    return True


def predecessors_rank(world: World | None, me: Member) -> int | None:
    """The rank that an earlier incarnation of this slot has in a world; None if it has none."""
    for rank, member in enumerate(world.members if world else ()):
        if member.index == me.index and member.incarnation < me.incarnation:
            return rank
    return None


def server_of_copies(world: World, rank: int, key: bytes) -> str | None:
    """The slot server of who held the replicas of that rank's agent in that world; None if nobody is known.

    Of rank 0 nobody knows, since the round's store went with it.
    """
    if rank == 0:
        return None
    try:
        store = PeerStore.connect(world.master_address, world.master_port, key)
        round_keys = store.under(round_prefix(world.round))
        if not round_keys.check([ANNOUNCEMENT]):
            return None
        agents = round_keys.under(Announcement.read(round_keys).prefix)
        return server_of_peer(agents, rank, len(world.members))
    except (OSError, DistError, ValueError) as error:
        logger.info("what round %d has kept is fetched when the next begins: %s", world.round, error)
        return None
