"""Slots that a copy from another agent is fetched into, each by one fetch at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from agent.slots.fetch import FetchError, fetch
from agent.slots.pool import Pool, oldest_first
from agent.slots.resume import Checkpoint
from agent.slots.slot import Mark, Slot

READY_NICENESS = 5
"""Of who makes room for a replica: a first step goes before it, at three to one."""


class FetchTargets:
    """Fetch targets of one agent.

    Args:
        pool: all slots.
        lock: of who uses which slot. It is held where a slot is taken.
        key: the job's.
    """

    def __init__(self, pool: Pool, lock: threading.Lock, key: bytes) -> None:
        self._pool = pool
        self._lock = lock
        self._key = key
        self.slots: list[Slot] = []
        """Those that were taken."""

    def take(self, slot: Slot) -> Slot:
        """Take a slot, which `fetch` or `make_ready` gives back."""
        self.slots.append(slot)
        return slot

    def is_making_ready(self) -> bool:
        """Whether a slot that was taken has yet to be given its pages."""
        return not all(map(self._pool.has_touched, self.slots))

    def make_ready(self, target: Slot) -> None:
        """Begin to give a slot that was taken its pages: what is offered may be written over meanwhile."""
        threading.Thread(target=self._touch, args=(target,), name="dlr-ready", daemon=True).start()

    def _touch(self, target: Slot) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READY_NICENESS)  # of this thread alone
        try:
            self._pool.touch_now(target)
        finally:
            self._give_back(target)

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            self.slots.remove(slot)

    def take_oldest(self, checkpoint: Checkpoint) -> Slot:
        """Take the oldest slot, for a part of that checkpoint.

        Raises:
            FetchError: there is none.
        """
        for slot in oldest_first(self._pool.slots):
            if slot not in self.slots and not _is_of(slot, checkpoint):
                slot.begin()  # before a newer meeting says what is here
                return self.take(slot)
        raise FetchError("every slot here holds a part of that checkpoint already")

    def fetch(
        self,
        target: Slot,
        mark: Mark,
        address: str,
        goes_on: Callable[[], bool],
        share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Fetch into a slot that was taken.

        Args:
            goes_on: whether it is still wanted.
            share: as `agent.slots.fetch.fetch` has it.

        Raises:
            FetchError: it could not be had, or is not wanted any more.
        """
        try:
            fetch(address, self._key, mark, target, goes_on=goes_on, share=share)
            with self._lock:
                if not goes_on():
                    raise FetchError("it is not wanted any more")
                target.seal()
                if target.mark != mark:
                    target.begin()
                    raise FetchError(f"{address} sent another checkpoint")
        finally:
            self._give_back(target)


def _is_of(slot: Slot, checkpoint: Checkpoint) -> bool:
    mark = slot.mark
    return mark is not None and Checkpoint.of(mark) == checkpoint
