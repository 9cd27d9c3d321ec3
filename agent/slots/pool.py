"""The slots of one agent: all that it keeps in memory, for its own ranks and for those of a peer.

Any slot may hold any rank's checkpoint. At each start of processes every local rank is given three of them to
write into; the others hold replicas. So a rank that moves to another agent finds there what was kept for it.
The files are in memory alone (memfd_create(2)), and end with the agent and its processes.

A slot that a copy from another agent is fetched into is taken for that, by one fetch at a time.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent.slots.format import CommitWord, Mark
from agent.slots.pages import HUGE_PAGE_BYTES, cpus_by_node, populate
from agent.slots.resume import Checkpoint
from agent.slots.slot import DamagedError, Slot
from agent.slots.wire import TIMEOUT_SECONDS, FetchError, fetch
from crds.checkpoint_files import OWN_SLOTS

logger = logging.getLogger(__name__)

TOUCH_BYTES = HUGE_PAGE_BYTES or 4 << 20
"""So much is touched at once."""
NODE_BYTES = 16 * TOUCH_BYTES
"""So much lies on one NUMA node, before the next has its turn."""
TOUCH_NICENESS = 15
READY_NICENESS = 5
"""Nice value of the thread that gives a replica's slot its pages; a first step has priority, three to one."""


class Pool:
    """The slots of one agent, which may be used as soon as it is made.

    Raises:
        OSError: the kernel gives none.
    """

    def __init__(self, total_bytes: int, count: int) -> None:
        size = total_bytes // count // mmap.PAGESIZE * mmap.PAGESIZE
        self.slots = [Slot.create("dlr-slot", size) for _ in range(count)]
        self._stop_event = threading.Event()
        self._toucher = threading.Thread(target=self._touch, name="dlr-touch", daemon=True)
        self._touched: set[Slot] = set()
        self._summing = threading.Lock()
        self.lock = threading.Condition(threading.Lock())
        """Lock of who uses which slot: held where a slot is taken, and notified where one is given back."""
        self.taken: list[Slot] = []
        """Slots that copies are fetched into."""

    def touch(self) -> threading.Thread:
        """Have the kernel give all pages, in the background, once: the first touch is what costs.

        Returns:
            Who does it.
        """
        if self._toucher.ident is None:
            self._toucher.start()
        return self._toucher

    def touch_now(self, slot: Slot) -> None:
        """Have the kernel give the pages of one slot, huge ones, before it is filled; small ones take longer.

        Others may do so at the same time. Where memory is slow to come, as from a virtual machine's host,
        it takes seconds a gigabyte: too long for a replica, whose original is written over meanwhile.
        Pages lie on the NUMA node that touches them, and GPUs of all nodes write here: the parts take turns.
        """
        if slot in self._touched:
            return
        own, nodes = os.sched_getaffinity(0), cpus_by_node()
        try:
            for part, start in enumerate(range(0, slot.size, NODE_BYTES)):
                if len(nodes) > 1:
                    os.sched_setaffinity(0, nodes[part % len(nodes)])  # of this thread alone
                if not self._touch_part(slot, start, min(start + NODE_BYTES, slot.size)):
                    return
        finally:
            if len(nodes) > 1:
                os.sched_setaffinity(0, own)
        self._touched.add(slot)

    def _touch_part(self, slot: Slot, start: int, stop: int) -> bool:
        """Have the kernel give the pages of a part of a slot; False if the pool is closed meanwhile."""
        for begin in range(start, stop, TOUCH_BYTES):
            if self._stop_event.is_set():
                return False
            with slot.bytes(begin, min(begin + TOUCH_BYTES, stop)) as piece:
                populate(piece)
        return True

    def has_touched(self, slot: Slot) -> bool:
        """Whether that slot has all its pages."""
        return slot in self._touched

    def close(self) -> None:
        """Give the memory back, as soon as no process has it mapped."""
        self._stop_event.set()
        for slot in self.slots:
            slot.close()

    def held(self) -> Iterator[tuple[Slot, Mark]]:
        """Each slot that holds a checkpoint with its sums."""
        return ((slot, mark) for slot, mark in self.whole() if slot.commit_word is CommitWord.SUMMED)

    def whole(self) -> Iterator[tuple[Slot, Mark]]:
        """Each slot that holds a checkpoint; who reads one without sums adds them (`Slot.sum_up`)."""
        return ((slot, mark) for slot in self.slots if (mark := slot.mark) is not None)

    def find(self, wanted: Mark) -> Slot | None:
        """The slot that holds that part of a checkpoint."""
        return next((slot for slot, mark in self.whole() if mark == wanted), None)

    def summed(self, wanted: Mark) -> Slot | None:
        """Find a slot for a reader elsewhere: it has its sums, and its header can be read."""
        if (slot := self.find(wanted)) is None:
            return None
        with self._summing:  # once, and not for each who asks
            try:
                slot.sum_up()
                slot.header()
                return slot
            except DamagedError as error:
                self._drop(slot, wanted, error)
                return None

    def is_damaged(self, wanted: Mark) -> bool:
        """Compare the slot of that mark with its sums. One that differs is used by nobody any more."""
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
        """Open every slot that is newer than what was agreed upon: it belongs to a history that has ended."""
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
        """Whether a slot that was taken has yet to be given its pages."""
        return not all(map(self.has_touched, self.taken))

    def make_ready(self, target: Slot) -> None:
        """Begin to give a slot that was taken its pages: what is offered may be written over meanwhile."""
        threading.Thread(
            target=self._touch_for_replica, args=(target,), name="dlr-ready", daemon=True
        ).start()

    def _touch_for_replica(self, target: Slot) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READY_NICENESS)  # of this thread alone
        try:
            self.touch_now(target)
        finally:
            self._give_back(target)

    def _give_back(self, slot: Slot) -> None:
        with self.lock:
            self.taken.remove(slot)
            self.lock.notify_all()

    def wait_for_slots(self, ranks: int) -> None:
        """Wait, with the lock held, until so many local ranks can have their slots.

        A fetch from a peer that is silent keeps its slot until its connection times out.

        Raises:
            OSError: too many slots are still taken by then.
        """
        needed = OWN_SLOTS * ranks
        if not self.lock.wait_for(lambda: len(self.slots) - len(self.taken) >= needed, 2 * TIMEOUT_SECONDS):
            raise OSError(
                f"{len(self.taken)} of {len(self.slots)} slots in memory wait for peers that are silent"
            )

    def take_oldest(self, checkpoint: Checkpoint) -> Slot:
        """Take the oldest slot, for a part of that checkpoint; raise FetchError where there is none."""
        for slot in oldest_first(self.slots):
            if slot not in self.taken and not (slot.mark and Checkpoint.of(slot.mark) == checkpoint):
                slot.begin()  # before a newer meeting says what is here
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
        """Fetch into a slot that was taken.

        Args:
            goes_on: whether it is still wanted.
            share: as `agent.slots.wire.fetch` has it.

        Raises:
            FetchError: it could not be had, or is not wanted any more.
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
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), TOUCH_NICENESS)  # of this thread alone
        for slot in self.slots:
            self.touch_now(slot)


def oldest_first(slots: Iterable[Slot]) -> list[Slot]:
    """Sort slots: those that hold nothing, and then by what they hold."""
    return sorted(slots, key=lambda slot: _age(slot.mark))


def assign(slots: Iterable[Slot], resumed: Sequence[Slot | None]) -> list[list[Slot]]:
    """Give each local rank its slots: first what it resumes from, then those that hold the oldest.

    Args:
        resumed: by local rank, the slot that it resumes from, if that is here.
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
    """Return the slot to write a replica to: the oldest that is not the newest of its rank.

    Args:
        slots: that no process writes into, and that are not being written.
        wanted: what the replica is of.
        has_resumed: the processes here have kept the step themselves, so that what this world went on from is
            hardly needed any more.
    """
    newest: dict[int, Mark] = {}
    candidates = oldest_first(slots)
    for each in candidates:
        if (mark := each.mark) is not None:
            newest[mark.rank] = max(mark, newest.get(mark.rank, mark))
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
