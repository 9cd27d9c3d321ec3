"""The slots of one agent, for the checkpoints of its own ranks and for replicas of a peer's.

Any slot may hold any rank's checkpoint. At each start of processes every local rank is given three of them to
write into; the others hold replicas, so that a rank that moves to another agent may find its checkpoint
there. The files are in memory (memfd_create(2)), and end with the agent and its processes.

While a copy from another agent is fetched into a slot, the slot is in `Pool.taken`.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent.slots.format import CommitWord, Mark, newest_by_rank
from agent.slots.pages import HUGE_PAGE_BYTES, cpus_by_node, populate
from agent.slots.resume import Checkpoint
from agent.slots.slot import DamagedError, Slot
from agent.slots.wire import TIMEOUT_SECONDS, FetchError, fetch
from crds.checkpoint_files import OWN_SLOTS

logger = logging.getLogger(__name__)

TOUCH_BYTES = HUGE_PAGE_BYTES or 4 << 20
"""Bytes allocated at once."""
NODE_BYTES = 16 * TOUCH_BYTES
"""Bytes allocated on one NUMA node before the next has its turn."""
TOUCH_NICENESS = 15
READY_NICENESS = 5
"""Nice value of the thread that allocates a replica's slot; a first step has priority, three to one."""


class Pool:
    """The slots of one agent, usable at once.

    Raises:
        OSError: the kernel refuses to create a file in memory.
    """

    def __init__(self, total_bytes: int, count: int) -> None:
        size = total_bytes // count // mmap.PAGESIZE * mmap.PAGESIZE
        self.slots = [Slot.create("dlr-slot", size) for _ in range(count)]
        self._stop_event = threading.Event()
        self._toucher = threading.Thread(target=self._touch, name="dlr-touch", daemon=True)
        self._touched: set[Slot] = set()
        self._summing = threading.Lock()
        self.lock = threading.Condition(threading.Lock())
        """Lock of the slots' use: held when a slot is taken, notified when one is given back."""
        self.taken: list[Slot] = []
        """Slots that copies are being fetched into."""

    def touch(self) -> threading.Thread:
        """Allocate all pages once, in a background thread, since the first touch of a page is slow.

        Returns:
            The thread.
        """
        if self._toucher.ident is None:
            self._toucher.start()
        return self._toucher

    def touch_now(self, slot: Slot) -> None:
        """Allocate the pages of one slot, huge ones, before it is filled. Thread-safe.

        Where memory is slow to allocate, for example from a virtual machine's host, it takes seconds a
        gigabyte: too long while a replica is fetched, since its original is overwritten meanwhile. Pages lie
        on the NUMA node that touches them first; since GPUs of all nodes write here, the parts alternate
        between nodes.
        """
        if slot in self._touched:
            return
        own, nodes = os.sched_getaffinity(0), cpus_by_node()
        try:
            for part, start in enumerate(range(0, slot.size, NODE_BYTES)):
                if len(nodes) > 1:
                    os.sched_setaffinity(0, nodes[part % len(nodes)])  # only of this thread
                if not self._touch_part(slot, start, min(start + NODE_BYTES, slot.size)):
                    return
        finally:
            if len(nodes) > 1:
                os.sched_setaffinity(0, own)
        self._touched.add(slot)

    def _touch_part(self, slot: Slot, start: int, stop: int) -> bool:
        """Allocate the pages of a part of a slot; return False if the pool is closed meanwhile."""
        for begin in range(start, stop, TOUCH_BYTES):
            if self._stop_event.is_set():
                return False
            with slot.bytes(begin, min(begin + TOUCH_BYTES, stop)) as piece:
                populate(piece)
        return True

    def has_touched(self, slot: Slot) -> bool:
        """Return whether the slot has all its pages."""
        return slot in self._touched

    def close(self) -> None:
        """Close all slots. Their memory is free once no process maps it."""
        self._stop_event.set()
        for slot in self.slots:
            slot.close()

    def with_sums(self) -> Iterator[tuple[Slot, Mark]]:
        """Yield each slot that holds a checkpoint with its sums."""
        return ((slot, mark) for slot, mark in self.whole() if slot.commit_word is CommitWord.SUMMED)

    def whole(self) -> Iterator[tuple[Slot, Mark]]:
        """Yield each slot that holds a checkpoint; a reader of one without sums adds them (`Slot.sum_up`)."""
        return ((slot, mark) for slot in self.slots if (mark := slot.mark) is not None)

    def held(self) -> dict[Checkpoint, frozenset[int]]:
        """Return the ranks whose slots are here, by checkpoint."""
        held: dict[Checkpoint, frozenset[int]] = {}
        for _, mark in self.whole():
            checkpoint = Checkpoint.of(mark)
            held[checkpoint] = held.get(checkpoint, frozenset()) | {mark.rank}
        return held

    def paths_of(self, checkpoint: Checkpoint | None) -> dict[int, str]:
        """Return the paths of a checkpoint's slots that are here, by rank."""
        return {mark.rank: slot.path for slot, mark in self.whole() if Checkpoint.of(mark) == checkpoint}

    def find(self, wanted: Mark) -> Slot | None:
        """Return the slot with that mark; None if there is none."""
        return next((slot for slot, mark in self.whole() if mark == wanted), None)

    def find_summed(self, wanted: Mark) -> Slot | None:
        """Return the slot with that mark, its sums added and its header checked, for a remote reader."""
        if (slot := self.find(wanted)) is None:
            return None
        with self._summing:  # so that concurrent readers do not all add the sums
            try:
                slot.sum_up()
                slot.header()
                return slot
            except DamagedError as error:
                self._drop(slot, wanted, error)
                return None

    def is_damaged(self, wanted: Mark) -> bool:
        """Compare the slot with that mark to its sums; if they differ, it is not used any more."""
        if (slot := self.find(wanted)) is None:
            return False
        try:
            slot.verify()
        except DamagedError as error:
            return self._drop(slot, wanted, error)
        return False

    @staticmethod
    def _drop(slot: Slot, mark: Mark, error: DamagedError) -> bool:
        if slot.mark != mark:  # it was written into meanwhile
            return False
        logger.warning("step %d of rank %d in memory is not used: %s", mark.step, mark.rank, error)
        slot.damaged()
        return True

    def forget_after(self, checkpoint: Checkpoint | None) -> None:
        """Empty every slot that is newer than the agreed checkpoint: training will repeat those steps."""
        for slot in self.slots:
            mark = slot.mark
            if mark is not None and (
                checkpoint is None or (mark.round, mark.step) > (checkpoint.round, checkpoint.step)
            ):
                slot.begin()

    def take(self, slot: Slot) -> Slot:
        """Take a slot, which `fetch_into` or `make_ready` gives back."""
        self.taken.append(slot)
        return slot

    def is_making_ready(self) -> bool:
        """Return whether a taken slot does not have all its pages yet."""
        return not all(map(self.has_touched, self.taken))

    def make_ready(self, target: Slot) -> None:
        """Begin to allocate a taken slot, which is then given back: too slow to do during a fetch."""
        threading.Thread(
            target=self._touch_for_replica, args=(target,), name="dlr-ready", daemon=True
        ).start()

    def _touch_for_replica(self, target: Slot) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READY_NICENESS)  # only of this thread
        try:
            self.touch_now(target)
        finally:
            self._give_back(target)

    def _give_back(self, slot: Slot) -> None:
        with self.lock:
            self.taken.remove(slot)
            self.lock.notify_all()

    def wait_for_slots(self, ranks: int) -> None:
        """Wait, with the lock held, until there are slots for this number of local ranks.

        A fetch from a silent peer keeps its slot until its connection times out.

        Raises:
            OSError: too many slots are still taken after that time.
        """
        needed = OWN_SLOTS * ranks
        if not self.lock.wait_for(lambda: len(self.slots) - len(self.taken) >= needed, 2 * TIMEOUT_SECONDS):
            raise OSError(
                f"{len(self.taken)} of {len(self.slots)} slots in memory wait for peers that are silent"
            )

    def take_oldest(self, checkpoint: Checkpoint) -> Slot:
        """Take the oldest slot for a part of that checkpoint; raise FetchError if there is none."""
        for slot in oldest_first(self.slots):
            if slot not in self.taken and not (slot.mark and Checkpoint.of(slot.mark) == checkpoint):
                slot.begin()  # before it is counted in the inventory for a newer meeting
                return self.take(slot)
        raise FetchError("every slot here holds a part of that checkpoint already")

    def fetch_into(
        self,
        target: Slot,
        mark: Mark,
        address: str,
        key: bytes,
        goes_on: Callable[[], bool],
        share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Fetch a checkpoint into a taken slot.

        Args:
            goes_on: returns whether it is still wanted.
            share: see `agent.slots.wire.fetch`.

        Raises:
            FetchError: it could not be fetched, or is not wanted any more.
        """
        try:
            fetch(address, key, mark, target, goes_on=goes_on, share=share)
            with self.lock:
                if not goes_on():
                    raise FetchError("it is not wanted any more")
                target.seal()
                if target.mark != mark:
                    target.begin()
                    raise FetchError(f"{address} sent another checkpoint")
        finally:
            self._give_back(target)

    def _touch(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), TOUCH_NICENESS)  # only of this thread
        for slot in self.slots:
            self.touch_now(slot)


def oldest_first(slots: Iterable[Slot]) -> list[Slot]:
    """Sort slots by age, empty ones first."""
    return sorted(slots, key=lambda slot: _age(slot.mark))


def assign(slots: Iterable[Slot], resumed: Sequence[Slot | None]) -> list[list[Slot]]:
    """Assign each local rank its slots: first the one that it resumes from, then the oldest.

    Args:
        resumed: the slot that each local rank resumes from; None if that is not here.
    """
    free = [each for each in oldest_first(slots) if each not in resumed]
    given = []
    for slot in resumed:
        own = [] if slot is None else [slot]
        while len(own) < OWN_SLOTS:
            own.append(free.pop(0))
        given.append(own)
    return given


def slot_for_replica(slots: Iterable[Slot], wanted: Mark, *, has_resumed: bool) -> Slot | None:
    """Return the slot to write a replica to: the oldest that is not the newest of its rank; None if none is.

    Args:
        slots: slots that no process writes into and nothing is fetched into.
        wanted: mark of the replica.
        has_resumed: the processes here have saved since they resumed, so that the checkpoint that this world
            resumed from is hardly needed any more.
    """
    candidates = oldest_first(slots)
    newest = newest_by_rank(mark for each in candidates if (mark := each.mark) is not None)
    for each in candidates:
        mark = each.mark
        if mark is None or mark != newest[mark.rank]:
            return each
    # As many ranks as slots: those of worlds that have ended give way.
    if not has_resumed:
        return None
    return next((each for each in candidates if (m := each.mark) and m.round < wanted.round), None)


def _age(mark: Mark | None) -> tuple[int, int]:
    return (-1, -1) if mark is None else (mark.round, mark.step)
