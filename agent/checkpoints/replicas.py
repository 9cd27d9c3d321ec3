"""The exchange of replicas: this agent offers its checkpoints to its peer, and takes those of its source.

Both follow from the round's agreement (`agreed.py`). An offer is refused in these cases, and then repeated:

| case | during a handover |
|---|---|
| it is not of the source's agent; a meeting has begun; this agent ends | refused, too |
| processes here load the round's checkpoint, or the memory of another replica is being allocated | taken |
| the memory of its slot is not allocated; that begins now | taken |
| there is no slot for it | refused, too |

During a handover (`arrivals.py`) no process trains, and all of the network is for the last step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from agent.checkpoints.agreed import AgreedCheckpoint
from agent.checkpoints.arrivals import Handover
from agent.connection.listener import Listener
from agent.environment import Environment
from agent.slots.format import Mark, newest_by_rank
from agent.slots.pool import Pool, slot_for_replica
from agent.slots.process_files import ProcessFiles
from agent.slots.replication import Replication
from agent.slots.server import SlotServer
from agent.slots.slot import Slot
from agent.slots.wire import FetchError

logger = logging.getLogger(__name__)

REPLICA_SHARE = 0.5
"""Share of the time in which a replica's fetch may take network and CPU; training has the rest."""


class ReplicaExchange:
    """The slots of one agent's processes, their copies at its peer, and the copies here.

    Methods that change which slots are in use are called with the pool's lock held.

    Args:
        files: files of the processes, which say what they have loaded.
        listener: listener that serves the slots to peers.
    """

    def __init__(self, pool: Pool, me: Environment, files: ProcessFiles, listener: Listener) -> None:
        self._pool, self._key, self._files = pool, me.key, files
        self._has_replicas = me.memory_replicas > 0
        self._own: list[list[Slot]] = []
        """Slots of the running processes, by local rank; empty between rounds."""
        self._own_ranks: frozenset[int] = frozenset()
        """Global ranks of the current or last processes."""
        self._ends = False
        """Whether this agent ends, so that it accepts no replicas any more."""
        self.agreed = AgreedCheckpoint(0)
        self.handover = Handover(me.termination_grace_seconds)
        self._server = SlotServer(pool, listener, self.take, self._copies)
        self._replication = Replication(
            self.own_marks, self.address, me.key, self.handover.note_copied, files.tell_copy_seconds
        )
        if self._has_replicas:
            self._replication.start()

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def peers(self) -> tuple[int, ...] | None:
        """Each agent's peer, which has its replicas; None without replicas."""
        return self.agreed.peers if self._has_replicas else None

    def close(self) -> None:
        self._replication.stop()
        self._server.close()

    # The course of a round.

    def meet(self) -> None:
        """Exchange nothing during a meeting: all processes have left."""
        self._replication.follow(None)
        self._own = []
        self.handover.end()

    def agree(self, agreed: AgreedCheckpoint) -> None:
        """Exchange with the peers of the next round."""
        self.agreed = agreed
        self.handover.note_copied(None)
        self._replication.follow(agreed.peer)

    def begin(self, own: list[list[Slot]], ranks: Sequence[int]) -> None:
        """Offer what processes of these global ranks write into these slots."""
        self._own, self._own_ranks = own, frozenset(ranks)

    def depart(self, step: int) -> None:
        """Offer that step at once: all processes of the round have left after it."""
        self.handover.begin(step)
        self._replication.hasten()

    def hand_over(self, seconds: float) -> None:
        """Before this agent ends, wait until the peer has the step that the processes left after."""
        if self._has_replicas and self.agreed.peer is not None:
            self.handover.hand_over(self.agreed.peer, seconds, self._has_kept)

    def await_arrival(self, gone: frozenset[int], check: Callable[[], None]) -> None:
        """Wait for the last step of the source if its Pod leaves.

        Args:
            gone: ranks of the agents whose Pods leave.
            check: raises if the wait has to end.
        """
        source, round_ = self.agreed.source, self.agreed.round
        if not self._has_replicas or source is None or source.agent not in gone:
            return

        def has_come(step: int) -> bool:
            own = {slot for slots in self._own for slot in slots}
            found = [mark for slot, mark in self._pool.with_sums() if slot not in own]
            return [(mark.round, mark.step) for mark in found].count((round_, step)) >= source.ranks

        self.handover.await_arrival(source.address, has_come, check)

    def end(self) -> None:
        """Exchange nothing any more."""
        self._replication.follow(None)
        self._ends = True

    # The slots of the processes.

    def own_marks(self) -> list[Mark] | None:
        """Return each local rank's newest mark in memory; None if one has none, or no process runs."""
        own, held = self._own, dict(self._pool.with_sums())
        marks = [max((held[slot] for slot in slots if slot in held), default=None) for slots in own]
        found = [mark for mark in marks if mark is not None]
        return found if found and len(found) == len(marks) else None

    def last_marks(self) -> list[Mark]:
        """Return the newest mark of each rank that ran here last, which a peer may need in a recovery."""
        marks = (mark for _, mark in self._pool.with_sums() if mark.rank in self._own_ranks)
        return [*newest_by_rank(marks).values()]

    def _has_kept(self, step: int) -> bool:
        """Return whether this is the newest step of all local ranks."""
        return {mark.step for mark in self.own_marks() or ()} == {step}

    # The copies here.

    def take(self, mark: Mark, address: str) -> bool:
        """Fetch an offered slot, and return whether it is here. A peer repeats a refused offer."""
        with self._pool.lock:
            agreed = self.agreed
            if agreed.source is None or address != agreed.source.address:
                logger.debug("%s offers a replica, and is not the agent whose are kept here", address)
                return False
            if mark in [each for _, each in self._pool.with_sums()]:
                return True
            if (target := self._target(mark)) is None:
                return False
            self._pool.take(target)
        if not (self._pool.has_touched(target) or self.handover.is_under_way):
            self._pool.make_ready(target)
            return False
        try:
            self._pool.fetch_into(
                target, mark, address, self._key, lambda: self.agreed is agreed, self._share
            )
        except FetchError as error:
            logger.debug("a replica of rank %d, step %d was not taken: %s", mark.rank, mark.step, error)
            return False
        self.handover.note_arrival()
        return True

    def _target(self, mark: Mark) -> Slot | None:
        """Return the slot for a replica; None if there is none for now."""
        if not self._own or self._ends:  # `_own` is empty during a meeting
            return None
        kept = min(self.own_marks() or (), default=None)
        is_busy = self._processes_load(kept) or self._pool.is_making_ready()
        if is_busy and not self.handover.is_under_way:
            return None
        taken = [*(slot for slots in self._own for slot in slots), *self._pool.taken]
        free = (slot for slot in self._pool.slots if slot not in taken)
        resumed = kept is not None and (kept.round, kept.step) >= (mark.round, mark.step)
        return slot_for_replica(free, mark, has_resumed=resumed)

    def _processes_load(self, kept: Mark | None) -> bool:
        """Return whether the processes here may still be loading the round's checkpoint."""
        has_saved = kept is not None and kept.round >= self.agreed.round
        if self.agreed.decision.checkpoint is None or has_saved:
            return False
        return self._files.resumed(self.agreed.round) is None

    def _share(self) -> float:
        """Return the share of time for fetching a replica: all of it once no process trains."""
        return 1.0 if self.handover.is_under_way else REPLICA_SHARE

    def _copies(self, round_: int) -> list[Mark]:
        """Return the marks of the replicas here of that round."""
        marks = [mark for _, mark in self._pool.with_sums() if mark.round == round_]
        return [mark for mark in marks if mark.rank not in self._own_ranks]
