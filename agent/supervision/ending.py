"""Exchange between the agents of a round about processes that have ended well."""

from __future__ import annotations

import logging

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from agent.facts.world import AgentWorld

logger = logging.getLogger(__name__)

ENDED_KEY = "dlr/ended/{}"


class GoodEnds:
    """The agents of a round whose processes have ended well, so that they wait for no other process.

    Each agent sets a key in the round's store.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._rank = 0
        self._size = 1

    def meet(self, store: Store, rank: int, world: AgentWorld) -> None:
        """Note a round whose members have met."""
        self._store, self._rank, self._size = store, rank, len(world.members)

    @property
    def is_alone(self) -> bool:
        """Whether this agent is the only one of the round."""
        return self._size == 1

    def note_own(self) -> None:
        """Inform the other agents that the processes of this one have ended well."""
        if self._store is None or self.is_alone:
            return
        try:
            self._store.set(ENDED_KEY.format(self._rank), "")
        except DistError as error:  # rank 0's agent is gone; a hang is then judged like any other
            logger.info("the other agents do not learn that the processes here have ended: %s", error)

    def are_all_others(self) -> bool:
        """Whether the processes of all other agents have ended well; False if the store cannot be reached."""
        others = [ENDED_KEY.format(rank) for rank in range(self._size) if rank != self._rank]
        if not others:
            return True
        try:
            return self._store is not None and self._store.check(others)
        except DistError:
            return False
