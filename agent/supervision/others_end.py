"""Which agents' processes of a round have ended well: nobody waits any longer for one that is left."""

from __future__ import annotations

import logging

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

KEY = "dlr/ended/{}"


class OthersEnd:
    """The ends of one round after the other, told through the round's store of the agents."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._rank = 0
        self._size = 1

    def meet(self, store: Store, rank: int, size: int) -> None:
        """Take note of a round whose members have met."""
        self._store, self._rank, self._size = store, rank, size

    @property
    def are_none(self) -> bool:
        """Whether this agent is alone in the round."""
        return self._size == 1

    def say_ended(self) -> None:
        """Tell the other agents that the processes of this one have ended well."""
        if self._store is None or self.are_none:
            return
        try:
            self._store.set(KEY.format(self._rank), "")
        except DistError as error:  # rank 0's agent is gone; a hang there is judged as any other
            logger.info("the other agents do not learn that the processes here have ended: %s", error)

    def all_have_ended(self) -> bool:
        """Whether the processes of all other agents have ended well, as far as can be known."""
        others = [KEY.format(rank) for rank in range(self._size) if rank != self._rank]
        if not others:
            return True
        try:
            return self._store is not None and self._store.check(others)
        except DistError:
            return False
