"""Checkpoints in memory that an agent keeps for its training processes, from its start to its end.

Between two rounds, when no process runs, `inventory` lists the checkpoints here, `fetch` gets missing parts,
and `agree` applies the decision. At each start `write_files` assigns every local rank its slots. While
processes run, replicas are exchanged with peers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.checkpoints import last_save
from agent.checkpoints.agreed import AgreedCheckpoint, resume_of, slots_to_persist
from agent.checkpoints.arrivals import Handover, Prefetch
from agent.connection.listener import Listener
from agent.environment import Environment, InvalidEnvironmentError
from agent.facts.place import Place
from agent.monitor.oom import OomWatch
from agent.slots.format import Mark
from agent.slots.pool import Pool, assign, slot_for_replica
from agent.slots.process_files import LastSave, ProcessFile, ProcessFiles
from agent.slots.replication import Replication, shortened
from agent.slots.resume import Attempts, Checkpoint, Inventory
from agent.slots.server import SlotServer
from agent.slots.slot import Slot
from agent.slots.wire import LOOK_SECONDS, DamagedCopyError, FetchError, have_checked
from crds import agent_report
from crds.agent_report import Resumed
from crds.checkpoint_files import SMALLEST_SLOT_BYTES, Tier, slot_count

logger = logging.getLogger(__name__)

FIELD = "replicaSpecs.worker.memoryCheckpoint"
REPLICA_SHARE = 0.5
"""Share of the time in which a replica's fetch may take network and CPU; training has the rest."""


class OutdatedMeetingError(Exception):
    """The meeting was abandoned, and must not change the memory any more."""


class CheckpointHolder:
    """The slots of one agent, and their use.

    Args:
        local_world_size: number of processes that it starts.
        listener: listener that serves its slots to peers.
        place: returns the failure domains of this Pod, the largest first, the node last.
        step_before: step that the slot's last agent has reported to be in memory.

    Raises:
        InvalidEnvironmentError: there is no memory for the slots of the job.
    """

    def __init__(
        self,
        me: Environment,
        local_world_size: int,
        listener: Listener,
        place: Callable[[], tuple[str, ...]] = tuple,
        step_before: int | None = None,
    ) -> None:
        count = slot_count(local_world_size, me.memory_replicas)
        _check_size(me, count)
        try:
            self._pool = Pool(me.memory_bytes, count)
        except OSError as error:
            raise InvalidEnvironmentError(f"{FIELD}: no memory for {count} slots: {error}") from error
        self._key, self._job = me.key, me.owner_name
        self._local_world_size = local_world_size
        self._place = place
        self._has_replicas = me.memory_replicas > 0
        self._handover = Handover(me.termination_grace_seconds)
        self._lock = self._pool.lock
        """Lock of the pool, and of the fields below."""
        self._persists = me.persist_on_failure
        self._after_failure = False
        """Whether the round to join comes after a failure."""
        self._files = ProcessFiles(has_replicas=self._has_replicas)
        self._gone: frozenset[int] = frozenset()
        """Ranks of the last round's agents whose Pods are not in the next world."""
        self._agreed = AgreedCheckpoint(0)
        self._ends = False
        """Whether this agent ends, so that it accepts no replicas any more."""
        self._meeting = 0
        """Newest round whose meeting this agent has joined; threads of older meetings must not act any
        more."""
        self._attempts = Attempts()
        self._step_before = step_before
        self._lost_step: int | None = None
        """Newest step that was here, if nothing in memory is usable any more."""
        self._own: list[list[Slot]] = []
        """Slots of the running processes, by local rank; empty between rounds."""
        self._replicated_step: int | None = None
        """Newest step that the peer has for all local ranks."""
        self._own_ranks: frozenset[int] = frozenset()
        """Global ranks of the current or last processes."""
        self._prefetch: Prefetch | None = None
        """Prefetch before the first round; then None."""
        self.lives = 0
        """Number of processes that wait for the next round, set by the main thread."""
        self.bound_to: Place | None = None
        """Only place that these processes can go on in; see `Inventory`."""
        self.no_newcomers = False
        """Whether newcomers fail before their loop, so that all processes have to start again."""
        self._server = SlotServer(self._pool, listener, self._take_replica, self._copies)
        self._replication = Replication(
            self.own_marks, self.address, me.key, self._replicated, self._files.tell_copy_seconds
        )
        if me.memory_replicas:
            self._replication.start()

    @property
    def address(self) -> str:
        return self._server.address

    def close(self) -> None:
        self._replication.stop()
        self._server.close()
        self._pool.close()

    # Before the first round.

    def touch(self) -> None:
        """Begin to allocate all memory in the background, since the first touch of a page is slow.

        A slot that is needed earlier is allocated by its user.
        """
        self._pool.touch()

    def prefetch(self, round_: int, find_server: Callable[[], str | None]) -> None:
        """Begin to fetch the replicas of the predecessor's processes in that round from its peer.

        Args:
            find_server: returns the slot server of that peer; None if it is unknown.
        """
        self._prefetch = Prefetch(self._key, round_, find_server, self._fetch_before)
        self._prefetch.start()

    # Leaving by vote.

    def peers(self) -> tuple[int, ...] | None:
        """Return each agent's peer, which has its replicas; None without replicas."""
        return self._agreed.peers if self._has_replicas else None

    def note_plan(self) -> None:
        """Note that the round ends by plan. May be called again."""
        self._attempts.note_plan()

    def note_departure(self, step: int) -> None:
        """Note that all processes of the round have left after that step, which is in memory."""
        self._handover.begin(step)
        self._replication.hasten()

    def hand_over(self, seconds: float) -> None:
        """Before this agent ends, wait until the peer has the step that the processes left after."""
        peer = self._agreed.peer
        if self._has_replicas and peer is not None:
            self._handover.hand_over(peer, seconds, self._has_kept)

    def last_save(self, stored_step: int | None, seconds: float) -> LastSave | None:
        """Return the save to storage that this agent needs before it ends; None if it needs none.

        Args:
            stored_step: newest step that the last processes have saved there.
            seconds: time left.
        """
        self._replication.follow(None)
        with self._lock:
            self._ends = True
            agreed, storage = self._agreed, self._files.storage()
            whole = {slot.path: mark for slot, mark in self._pool.whole()}
        newest = max((mark.step for mark in whole.values()), default=-1)
        if storage is None or newest <= (-1 if stored_step is None else stored_step):
            return None
        name = last_save.name_of(self._key, self._job, agreed.round)
        return last_save.made_of(agreed, whole, name, storage, seconds)

    def expect(self, gone: frozenset[int], *, after_failure: bool) -> None:
        """Note the next round, before it is joined.

        Args:
            gone: ranks of the last round's agents whose Pods are not in it.
            after_failure: the last round was broken by a failure.
        """
        self._gone, self._after_failure = gone, after_failure

    def await_arrivals(self, round_: int, abandoned: threading.Event) -> None:
        """Before the meeting of a round, wait for the copy of a leaving Pod, and for a prefetch.

        Raises:
            OutdatedMeetingError: the meeting was abandoned, or a newer one has begun.
        """
        agreed = self._agreed
        source = agreed.source

        def has_come(step: int) -> bool:
            assert source is not None
            own = {slot for slots in self._own for slot in slots}
            found = [mark for slot, mark in self._pool.with_sums() if slot not in own]
            return [(mark.round, mark.step) for mark in found].count((agreed.round, step)) >= source.ranks

        def check() -> None:
            self._check_meeting(round_)
            if abandoned.is_set():
                raise OutdatedMeetingError

        check()
        while (prefetch := self._prefetch) is not None and prefetch.is_alive():
            prefetch.join(LOOK_SECONDS)
            check()
        if self._has_replicas and source is not None and source.agent in self._gone:
            self._handover.await_arrival(source.address, has_come, check)

    # Between two rounds.

    def inventory(self, round_: int) -> Inventory:
        """Return the checkpoints here for a round's meeting, after all processes have left the last round.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        place = shortened(self._place()) if self._has_replicas else ()
        with self._lock:
            self._check_meeting(round_)
            self._meeting = round_
            self._replication.follow(None)
            self._own = []
            self._handover.end()
            held: dict[Checkpoint, frozenset[int]] = {}
            for _, mark in self._pool.whole():
                checkpoint = Checkpoint.of(mark)
                held[checkpoint] = held.get(checkpoint, frozenset()) | {mark.rank}
            prefetched = self._prefetch is not None and self._prefetch.has_fetched
            exhausted = self._attempts.exhausted
        return Inventory(
            *(self._local_world_size, self.address, held, place, prefetched, exhausted),
            lives=self.lives,
            bound_to=self.bound_to,
            no_newcomers=self.no_newcomers,
        )

    def fetch(
        self, round_: int, checkpoint: Checkpoint, rank: int, address: str, abandoned: threading.Event
    ) -> None:
        """Fetch a rank's slot of that checkpoint from a peer, unless it is here.

        Raises:
            FetchError: it could not be fetched; the message has the reason.
            OutdatedMeetingError: the meeting of a newer round than `round_` has begun.
        """
        mark = checkpoint.part(rank)
        with self._lock:
            self._check_meeting(round_)
            if abandoned.is_set():
                raise OutdatedMeetingError
            if self._pool.find(mark) is not None:
                return
            target, agreed = self._pool.take_oldest(checkpoint), self._agreed
        self._pool.touch_now(target)
        try:
            self._pool.fetch_into(
                target,
                mark,
                address,
                self._key,
                lambda: self._agreed is agreed and not abandoned.is_set(),
            )
        except DamagedCopyError:
            have_checked(address, self._key, mark)
            raise

    @property
    def lives_on(self) -> bool:
        """Whether processes live on into the round of the last agreement, and the others join them."""
        return self._agreed.decision.lives_on

    def persists(self) -> bool:
        """Return whether the processes of the next round also write their checkpoint to storage."""
        return self._persists and self._after_failure

    def agree(self, agreed: AgreedCheckpoint) -> None:
        """Apply the agreement of the members; newer checkpoints are dropped.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        checkpoint = agreed.decision.checkpoint
        with self._lock:
            self._check_meeting(agreed.round)
            self._agreed = agreed
            self._prefetch = None
            self._attempts.begin(checkpoint)
            kept = max((mark.step for _, mark in self._pool.whole()), default=self._step_before)
            self._step_before = None
            self._lost_step = kept if checkpoint is None else None
            self._pool.forget_after(checkpoint)
            self._replicated_step = None
            self._handover.note_copied(None)
            if checkpoint is not None:
                logger.info("round=%d resumes from memory, step=%d", agreed.round, checkpoint.step)
            elif agreed.round > 1:
                logger.info("round=%d: memory has no whole checkpoint, so storage is looked at", agreed.round)
            self._replication.follow(agreed.peer)

    def write_files(
        self, directory: Path, ranks: Sequence[int], failures_per_hour: float | None
    ) -> list[dict[str, str]]:
        """Assign slots to processes that are about to start, and write their files.

        Args:
            ranks: the global ranks, by local rank.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: a file cannot be written.
        """
        with self._lock:
            self._pool.wait_for_slots(len(ranks))
            agreed, decision = self._agreed, self._agreed.decision
            checkpoint = None if decision.shards else decision.checkpoint
            resumed = [self._pool.find(checkpoint.part(rank)) if checkpoint else None for rank in ranks]
            usable = [slot for slot in self._pool.slots if slot not in self._pool.taken]
            self._own = assign(usable, resumed)
            self._own_ranks = frozenset(ranks)
            own = self._own
        here = {
            mark.rank: slot.path
            for slot, mark in self._pool.whole()
            if Checkpoint.of(mark) == decision.checkpoint
        }
        persisted = slots_to_persist(decision, ranks, here, self.address)
        contents = [
            ProcessFile(
                round=agreed.round,
                slots=tuple(slot.path for slot in slots),
                resume=resume_of(decision, slot, persist, here, self._key),
                slots_of_pod=len(self._pool.slots),
                failures_per_hour=None if failures_per_hour is None else round(failures_per_hour, 4),
                lost_step=self._lost_step,
            )
            for slots, slot, persist in zip(own, resumed, persisted, strict=True)
        ]
        return self._files.write(directory, contents)

    # While processes run.

    def own_marks(self) -> list[Mark] | None:
        """Return each local rank's newest mark in memory; None if one has none, or no process runs."""
        with self._lock:
            own = self._own
        return self._newest_of(own)

    def _newest_of(self, own: Sequence[Sequence[Slot]]) -> list[Mark] | None:
        held = dict(self._pool.with_sums())
        marks = [max((held[slot] for slot in slots if slot in held), default=None) for slots in own]
        found = [mark for mark in marks if mark is not None]
        return found if found and len(found) == len(marks) else None

    def _last_marks(self) -> list[Mark]:
        """Return the newest mark of each rank that ran here last, which a peer may need in a recovery."""
        newest: dict[int, Mark] = {}
        for _, mark in self._pool.with_sums():
            if mark.rank in self._own_ranks:
                newest[mark.rank] = max(mark, newest.get(mark.rank, mark))
        return [*newest.values()]

    def _has_kept(self, step: int) -> bool:
        """Return whether this is the newest step of all local ranks."""
        return {mark.step for mark in self.own_marks() or ()} == {step}

    def to_status(self) -> agent_report.CheckpointMemory:
        marks, agreed = self.own_marks() or self._last_marks(), self._agreed
        return agent_report.CheckpointMemory(
            step=min(mark.step for mark in marks) if marks else None,
            replicated_step=self._replicated_step,
            every=self._files.every(agreed.round),
            resumed=_resumed(self._files.resumed(agreed.round), agreed),
        )

    def _check_meeting(self, round_: int) -> None:
        """Check that the caller's meeting is the newest. The lock is held.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        if round_ < self._meeting:
            raise OutdatedMeetingError

    def _replicated(self, step: int) -> None:
        self._replicated_step = step
        self._handover.note_copied(step)

    def _copies(self, round_: int) -> list[Mark]:
        """Return the marks of the replicas here of that round."""
        return [
            mark
            for _, mark in self._pool.with_sums()
            if mark.round == round_ and mark.rank not in self._own_ranks
        ]

    def _fetch_before(self, mark: Mark, address: str) -> None:
        with self._lock:
            target = self._pool.take_oldest(Checkpoint.of(mark))
        agreed = self._agreed
        self._pool.touch_now(target)
        self._pool.fetch_into(target, mark, address, self._key, lambda: self._agreed is agreed)

    def _take_replica(self, mark: Mark, address: str) -> bool:
        """Fetch an offered slot, and return whether it is here. A peer repeats a refused offer."""
        with self._lock:
            if self._agreed.source is None or address != self._agreed.source.address:
                logger.debug(
                    "%s offers a replica, and is not the agent whose replicas are kept here", address
                )
                return False
            if any(each == mark for _, each in self._pool.with_sums()):
                return True
            if (target := self._replica_target(mark)) is None:
                return False
            self._pool.take(target)
            agreed = self._agreed
        if not (self._pool.has_touched(target) or self._handover.is_under_way):
            self._pool.make_ready(target)
            return False
        try:
            self._pool.fetch_into(
                target, mark, address, self._key, lambda: self._agreed is agreed, self._share
            )
        except FetchError as error:
            logger.debug("a replica of rank %d, step %d was not taken: %s", mark.rank, mark.step, error)
            return False
        self._handover.note_arrival()
        return True

    def _replica_target(self, mark: Mark) -> Slot | None:
        """Return the slot for a replica; None if there is none for now. The lock is held."""
        if not self._own or self._ends:  # `_own` is empty during a meeting
            return None
        kept = min(self._newest_of(self._own) or (), default=None)
        is_busy = self._processes_load(kept) or self._pool.is_making_ready()
        if is_busy and not self._handover.is_under_way:
            return None
        taken = [*(slot for slots in self._own for slot in slots), *self._pool.taken]
        free = (slot for slot in self._pool.slots if slot not in taken)
        resumed = kept is not None and (kept.round, kept.step) >= (mark.round, mark.step)
        return slot_for_replica(free, mark, has_resumed=resumed)

    def _processes_load(self, kept: Mark | None) -> bool:
        """Return whether the processes here may still be loading the round's checkpoint."""
        agreed = self._agreed
        if agreed.decision.checkpoint is None or (kept is not None and kept.round >= agreed.round):
            return False
        return self._files.resumed(agreed.round) is None

    def _share(self) -> float:
        """Return the share of time for fetching a replica: all of it once no process trains."""
        return 1.0 if self._handover.is_under_way else REPLICA_SHARE


def _resumed(loaded: Resumed | None, agreed: AgreedCheckpoint) -> Resumed | None:
    """Return a loaded step with tier PEER if it was fetched, which the processes cannot see."""
    from_peer = loaded is not None and loaded.tier is Tier.MEMORY and agreed.decision.from_peer
    return replace(loaded, tier=Tier.PEER) if loaded is not None and from_peer else loaded


def _check_size(me: Environment, count: int) -> None:
    """Check that slots are not too small, or together too large.

    Raises:
        InvalidEnvironmentError: they are.
    """
    if me.memory_bytes // count < SMALLEST_SLOT_BYTES:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes} bytes, too little for {count} slots: each takes "
            f"{SMALLEST_SLOT_BYTES} at least"
        )
    limit = OomWatch.of_pod(me.pod_uid).limit_bytes()
    if limit is not None and me.memory_bytes >= limit:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes / 2**20:.0f} MiB, which does not fit into the container's "
            f"memory limit of {limit / 2**20:.0f} MiB beside the training: raise the limit, or lower the size"
        )
