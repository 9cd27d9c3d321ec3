"""This process's side of checkpoints in memory.

A save opens the oldest slot that no saver reads, copies the state into it, and commits it; a thread then adds
the sums. Where the state is on a GPU, the copies run on a stream of their own and the thread commits when
they are done; `wait` makes the training's stream wait for them before the optimizer changes the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from agent.memory.slot import Commit, DamagedError, Header, Mark, Part, Slot, TooSmallError, lay_out
from dlr.checkpoint.cuda import Copies, Pair
from dlr.checkpoint.state import RNG, VALUES, Captured, capacity, local_tensor, part_of

Then = Callable[[Slot, "Future[None]", Callable[[], None]], None]
"""What is to follow a save: given the slot, what is done when it has its sums, and what releases it; until
that is called, the slot stays as it is."""


class Layout:
    """How the tensors of a state lie in a slot: made once, and kept as long as the state has this form.

    Args:
        captured: the state.
    """

    def __init__(self, captured: Captured) -> None:
        self._form = [_form(name, tensor) for name, tensor in captured.tensors.items()]
        self._rooms = {name: capacity(len(data)) for name, data in captured.pickles.items()}
        parts = [part_of(name, tensor) for name, tensor in captured.tensors.items()]
        rooms = [part_of(name, torch.empty(room, dtype=torch.uint8)) for name, room in self._rooms.items()]
        self.header: Header = lay_out([*parts, *rooms])

    def fits(self, captured: Captured) -> bool:
        """Whether that state has this form."""
        return (
            len(self._form) == len(captured.tensors)
            and all(len(data) <= self._rooms[name] for name, data in captured.pickles.items())
            and self._form == [_form(name, tensor) for name, tensor in captured.tensors.items()]
        )


def _form(name: str, tensor: Tensor) -> tuple[str, torch.dtype, torch.Size]:
    return name, tensor.dtype, tensor.shape


def private_slot(captured: Captured) -> Slot:
    """Make a slot for that state in memory of this process's own.

    Raises:
        OSError: there is no room.
    """
    return Slot.create("dlr-checkpoint", Layout(captured).header.slot_bytes)


class Writer:
    """Writes checkpoints into slots.

    Args:
        slots: one, or three. Of three, one always holds a whole checkpoint, one may be read by the saver, and
            one is there to write into.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._views: dict[Slot, tuple[Header, list[Tensor]]] = {}
        self._layout: Layout | None = None
        self._background = ThreadPoolExecutor(1, "dlr-checkpoint")
        self._pending: dict[Slot, Future[None]] = {}
        """When each slot has its sums."""
        self._committed: Future[None] | None = None
        """When the last save from a GPU is."""
        self._copies = Copies()
        self._reserved: set[Slot] = set()
        """Not to be written into, since they are to be read."""

    def save(self, mark: Mark, captured: Captured, then: Then | None = None) -> None:
        """Copy a state into a slot. It is committed when this returns, or soon after, if it is on a GPU.

        Args:
            then: called before this returns. It has released one slot before it is passed on again.

        Raises:
            TooSmallError: the state does not fit into it.
        """
        slot = self._take()
        try:
            header, views = self._place(slot, captured)
            slot.begin()
            on_gpu = self._copy(slot, captured, views)
        except BaseException:
            slot.unlock()
            raise
        if on_gpu:
            self._committed = self._background.submit(self._finish, slot, mark, header)
        else:
            self._commit(slot, mark, header)
        self._pending[slot] = self._background.submit(self._sum_up, slot, self._committed)
        if then is not None:
            self._reserved.add(slot)
            then(slot, self._pending[slot], lambda: self._reserved.discard(slot))

    def wait(self) -> None:
        """From here on, what was saved may change."""
        self._copies.wait()

    def close(self) -> None:
        """Wait until all that was saved is committed and has its sums."""
        self._background.shutdown()

    def discard(self) -> None:
        """Close it, and its slots too, whose memory is free when nobody refers to this writer any more."""
        self.close()
        self._copies.close()
        for slot in self._slots:
            slot.close()

    def _take(self) -> Slot:
        """Choose the oldest slot that no saver reads; it is never the newest, if there is more than one.

        A saver of processes that have ended may read one for long. Where there is no other, it has to give
        way, and finds out.
        """
        self._copies.wait()
        if self._committed is not None:  # only then do the marks say which slot is the newest
            committed, self._committed = self._committed, None
            committed.result()
        marks = {slot: slot.mark for slot in self._slots}
        oldest_first = sorted(self._slots, key=lambda slot: (marks[slot] is not None, marks[slot] or ()))
        candidates = oldest_first[: max(1, len(self._slots) - 1)]
        free = [slot for slot in candidates if slot not in self._reserved]
        for slot in free:
            if (pending := self._pending.pop(slot, None)) is not None:
                pending.result()
            if slot.lock(shared=False):
                return slot
        return free[0]

    def _place(self, slot: Slot, captured: Captured) -> tuple[Header, list[Tensor]]:
        if self._layout is None or not self._layout.fits(captured):
            self._layout = Layout(captured)
        header = self._layout.header
        known = self._views.get(slot)
        if known is None or known[0] is not header:
            if header.slot_bytes > slot.size:
                raise TooSmallError(
                    f"the state needs {header.slot_bytes:,} bytes of memory, and a slot has {slot.size:,}"
                )
            known = self._views[slot] = header, [slot.tensor(entry) for entry in header.entries]
        return known

    def _copy(self, slot: Slot, captured: Captured, views: Sequence[Tensor]) -> bool:
        """Copy what is in the memory of the host, and begin to copy what is on a GPU.

        Returns:
            whether there is such.
        """
        settled: list[Pair] = []
        passing: list[Pair] = []
        for view, (name, tensor) in zip(views, captured.tensors.items(), strict=False):
            source = local_tensor(tensor)
            if source.is_cuda:
                (settled if name in captured.settled else passing).append((view, source))
            else:
                view.copy_(source)
        for view, data in zip(views[len(captured.tensors) :], captured.pickles.values(), strict=True):
            view[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if settled or passing:
            self._copies.begin(slot, settled, passing)
            return True
        return False

    @staticmethod
    def _commit(slot: Slot, mark: Mark, header: Header) -> None:
        slot.commit(mark, header)
        slot.unlock()

    def _finish(self, slot: Slot, mark: Mark, header: Header) -> None:
        self._copies.finish()
        self._commit(slot, mark, header)

    @staticmethod
    def _sum_up(slot: Slot, committed: Future[None] | None) -> None:
        if committed is not None:
            committed.result()
        slot.sum_up()


class Source(Protocol):
    """A whole checkpoint, as one rank sees it."""

    parts: list[Part]
    """Its tensors."""
    values: bytes
    rng: bytes | None

    def fill(self, targets: dict[str, Tensor]) -> None:
        """Copy tensors into those that are given, by name."""


class OwnSlot:
    """What this rank wrote itself.

    Args:
        slot: it was verified.

    Raises:
        DamagedError: it cannot be read.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._entries = {entry.name: entry for entry in slot.header().entries}
        self.values = slot.data(self._entries.pop(VALUES))
        self.rng: bytes | None = slot.data(self._entries.pop(RNG))
        self.parts = [
            Part(entry.name, entry.dtype, entry.shape, entry.nbytes, entry.global_shape, entry.global_offset)
            for entry in self._entries.values()
        ]

    def fill(self, targets: dict[str, Tensor]) -> None:
        for name, target in targets.items():
            local_tensor(target).copy_(self._slot.tensor(self._entries[name]))


def verified(slot: Slot, mark: Mark) -> OwnSlot:
    """Read a slot that is whole, and holds what it is to hold.

    Raises:
        DamagedError: it is not; where its sums say so, the slot says so from now on.
    """
    if slot.mark != mark:
        raise DamagedError(f"the slot holds {slot.mark}, not {mark}")
    try:
        if slot.commit_word is Commit.WHOLE:  # its writer was killed before it had added the sums
            slot.sum_up()
        slot.verify()
        return OwnSlot(slot)
    except DamagedError:
        slot.damaged()
        raise
