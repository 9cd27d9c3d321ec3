"""Checkpoints in memory that an agent keeps for its training processes, from its start to its end.

Between two rounds, when no process runs, `inventory` lists the checkpoints here, `fetch` gets missing parts,
and `agree` applies the decision. At each start `write_files` assigns every local rank its slots. While
processes run, `replicas.py` exchanges replicas with peers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.checkpoints import last_save
from agent.checkpoints.agreed import AgreedCheckpoint, resume_of, slots_to_persist
from agent.checkpoints.arrivals import Prefetch
from agent.checkpoints.replicas import ReplicaExchange
from agent.connection.listener import Listener
from agent.environment import Environment, InvalidEnvironmentError
from agent.facts.place import Place
from agent.monitor.oom import OomWatch
from agent.slots.format import Mark
from agent.slots.pool import Pool, assign
from agent.slots.process_files import LastSave, ProcessFile, ProcessFiles
from agent.slots.replication import shortened
from agent.slots.resume import Attempts, Checkpoint, Inventory
from agent.slots.slot import Slot
from agent.slots.wire import LOOK_SECONDS, DamagedCopyError, have_checked
from crds import agent_report
from crds.checkpoint_files import SMALLEST_SLOT_BYTES, Tier, slot_count

logger = logging.getLogger(__name__)

FIELD = "replicaSpecs.worker.memoryCheckpoint"


class OutdatedMeetingError(Exception):
    """The meeting was abandoned, and must not change the memory any more."""


class CheckpointHolder:
    """The checkpoints in the memory of one agent.

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
        self._me = me
        self._local_world_size = local_world_size
        self._place = place
        self._lock = self._pool.lock
        """Lock of the pool, and of the fields below."""
        self._files = ProcessFiles(has_replicas=me.memory_replicas > 0)
        self.replicas = ReplicaExchange(self._pool, me, self._files, listener)
        self._gone: frozenset[int] = frozenset()
        """Ranks of the last round's agents whose Pods are not in the next world."""
        self.persists = False
        """Whether the processes of the next round also write their checkpoint to storage."""
        self._meeting = 0
        """Newest round whose meeting this agent has joined; threads of older meetings must not act any
        more."""
        self._attempts = Attempts()
        self._step_before = step_before
        self._lost_step: int | None = None
        """Newest step that was here, if nothing in memory is usable any more."""
        self._prefetch: Prefetch | None = None
        """Prefetch before the first round; then None."""
        self.lives = 0
        """Number of processes that wait for the next round, set by the main thread."""
        self.bound_to: Place | None = None
        """Only place that these processes can go on in; see `Inventory`."""
        self.no_newcomers = False
        """Whether newcomers fail before their loop, so that all processes have to start again."""

    @property
    def lives_on(self) -> bool:
        """Whether processes live on into the round of the last agreement, and the others join them."""
        return self.replicas.agreed.decision.lives_on

    def to_status(self) -> agent_report.CheckpointMemory:
        marks, agreed = self.replicas.own_marks() or self.replicas.last_marks(), self.replicas.agreed
        loaded = self._files.resumed(agreed.round)
        if loaded is not None and loaded.tier is Tier.MEMORY and agreed.decision.from_peer:
            loaded = replace(loaded, tier=Tier.PEER)  # which the processes cannot see
        return agent_report.CheckpointMemory(
            step=min(mark.step for mark in marks) if marks else None,
            replicated_step=self.replicas.handover.copied_step,
            every=self._files.every(agreed.round),
            resumed=loaded,
        )

    def close(self) -> None:
        self.replicas.close()
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
        self._prefetch = Prefetch(self._me.key, round_, find_server, self._fetch_before)
        self._prefetch.start()

    def _fetch_before(self, mark: Mark, address: str) -> None:
        with self._lock:
            target, agreed = self._pool.take_oldest(Checkpoint.of(mark)), self.replicas.agreed
        self._fetch_into(target, mark, address, lambda: self.replicas.agreed is agreed)

    # Between two rounds.

    def expect(self, gone: frozenset[int], *, after_failure: bool) -> None:
        """Note the next round, before it is joined.

        Args:
            gone: ranks of the last round's agents whose Pods are not in it.
            after_failure: the last round was broken by a failure.
        """
        self._gone, self.persists = gone, self._me.persist_on_failure and after_failure

    def await_arrivals(self, round_: int, abandoned: threading.Event) -> None:
        """Before the meeting of a round, wait for the copy of a leaving Pod, and for a prefetch.

        Raises:
            OutdatedMeetingError: the meeting was abandoned, or a newer one has begun.
        """

        def check() -> None:
            self._check_meeting(round_, abandoned)

        check()
        while (prefetch := self._prefetch) is not None and prefetch.is_alive():
            prefetch.join(LOOK_SECONDS)
            check()
        self.replicas.await_arrival(self._gone, check)

    def inventory(self, round_: int) -> Inventory:
        """Return the checkpoints here for a round's meeting, after all processes have left the last round.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        place = shortened(self._place()) if self._me.memory_replicas else ()
        with self._lock:
            self._check_meeting(round_)
            self._meeting = round_
            self.replicas.meet()
            return Inventory(
                self._local_world_size,
                self.replicas.address,
                self._pool.held(),
                place,
                from_peer=self._prefetch is not None and self._prefetch.has_fetched,
                exhausted=self._attempts.exhausted,
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
            OutdatedMeetingError: the meeting was abandoned, or a newer one has begun.
        """
        mark = checkpoint.part(rank)
        with self._lock:
            self._check_meeting(round_, abandoned)
            if self._pool.find(mark) is not None:
                return
            target, agreed = self._pool.take_oldest(checkpoint), self.replicas.agreed
        try:
            self._fetch_into(
                target, mark, address, lambda: self.replicas.agreed is agreed and not abandoned.is_set()
            )
        except DamagedCopyError:
            have_checked(address, self._me.key, mark)
            raise

    def _fetch_into(self, target: Slot, mark: Mark, address: str, goes_on: Callable[[], bool]) -> None:
        self._pool.touch_now(target)
        self._pool.fetch_into(target, mark, address, self._me.key, goes_on)

    def agree(self, agreed: AgreedCheckpoint) -> None:
        """Apply the agreement of the members; newer checkpoints are dropped.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        checkpoint = agreed.decision.checkpoint
        with self._lock:
            self._check_meeting(agreed.round)
            self._prefetch = None
            self._attempts.begin(checkpoint)
            kept = max((mark.step for _, mark in self._pool.whole()), default=self._step_before)
            self._step_before = None
            self._lost_step = kept if checkpoint is None else None
            self._pool.forget_after(checkpoint)
            self.replicas.agree(agreed)
        if checkpoint is not None:
            logger.info("round=%d resumes from memory, step=%d", agreed.round, checkpoint.step)
        elif agreed.round > 1:
            logger.info("round=%d: memory has no whole checkpoint, so storage is looked at", agreed.round)

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
            agreed, decision = self.replicas.agreed, self.replicas.agreed.decision
            checkpoint = None if decision.shards else decision.checkpoint
            resumed = [self._pool.find(checkpoint.part(rank)) if checkpoint else None for rank in ranks]
            usable = [slot for slot in self._pool.slots if slot not in self._pool.taken]
            own = assign(usable, resumed)
            self.replicas.begin(own, ranks)
        here = self._pool.paths_of(decision.checkpoint)
        persisted = slots_to_persist(decision, ranks, here, self.replicas.address)
        contents = [
            ProcessFile(
                round=agreed.round,
                slots=tuple(slot.path for slot in slots),
                resume=resume_of(decision, slot, persist, here, self._me.key),
                slots_of_pod=len(self._pool.slots),
                failures_per_hour=None if failures_per_hour is None else round(failures_per_hour, 4),
                lost_step=self._lost_step,
            )
            for slots, slot, persist in zip(own, resumed, persisted, strict=True)
        ]
        return self._files.write(directory, contents)

    def _check_meeting(self, round_: int, abandoned: threading.Event | None = None) -> None:
        """Check that the caller's meeting is the newest.

        Raises:
            OutdatedMeetingError: it was abandoned, or the meeting of a newer round has begun.
        """
        if round_ < self._meeting or (abandoned is not None and abandoned.is_set()):
            raise OutdatedMeetingError

    # Once the processes have left.

    def note_plan(self) -> None:
        """Note that the round ends by plan. May be called again."""
        self._attempts.note_plan()

    def last_save(self, stored_step: int | None, seconds: float) -> LastSave | None:
        """Return the save to storage that this agent needs before it ends; None if it needs none.

        Args:
            stored_step: newest step that the last processes have saved there.
            seconds: time left.
        """
        with self._lock:
            self.replicas.end()
            agreed, storage = self.replicas.agreed, self._files.storage()
            whole = {slot.path: mark for slot, mark in self._pool.whole()}
        newest = max((mark.step for mark in whole.values()), default=-1)
        if storage is None or newest <= (-1 if stored_step is None else stored_step):
            return None
        name = last_save.name_of(self._me.key, self._me.owner_name, agreed.round)
        return last_save.made_of(agreed, whole, name, storage, seconds)


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
