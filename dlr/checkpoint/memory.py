"""Writes checkpoints of this process into memory; `dlr.checkpoint.own_slot` reads them.

A save opens the oldest slot that no saver reads. Tensors that may change at any time are copied at once;
those that only an optimizer's step changes (`Captured.settled`) are copied during the next forward and
backward pass: by a thread, or from a GPU on a stream of its own. The thread commits the slot after all
copies, and then adds the sums. `wait` precedes the optimizer's step, and returns when the slot is committed.
(On a GPU the training's stream waits for the copy, and the next save for the commit.)

torch's version counter reveals a tensor that changes too early: then the slot is not used, and the tensor is
copied at once from then on. The counter misses changes through `.data`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent.slots.format import Header, Mark, lay_out
from agent.slots.slot import Slot, TooSmallError
from dlr.checkpoint.cuda import GpuCopies, Pair
from dlr.checkpoint.state import Captured, capacity
from dlr.checkpoint.surroundings import logger
from dlr.checkpoint.tensors import check_placements, local_tensor, part_of

Then = Callable[[Slot, "Future[None]", Callable[[], None]], None]
"""Action after a save. Arguments: the slot, the future of its sums, and a function that releases the slot,
which is not overwritten before that."""


class Layout:
    """Positions of a state's tensors in a slot, kept as long as the state has the same form.

    Raises:
        ValueError: the state has too many tensors, or one that `check_placements` refuses.
    """

    def __init__(self, captured: Captured) -> None:
        self._form = [_form(name, tensor) for name, tensor in captured.tensors.items()]
        self._rooms = {name: capacity(len(data)) for name, data in captured.pickles.items()}
        for name, tensor in captured.tensors.items():
            check_placements(name, tensor)
        buffers = {id(buffer) for module in captured.modules for buffer in module.buffers()}
        parts = [
            part_of(name, tensor, is_buffer=id(tensor) in buffers)
            for name, tensor in captured.tensors.items()
        ]
        rooms = [
            part_of(name, torch.empty(room, dtype=torch.uint8, device="cpu"))
            for name, room in self._rooms.items()
        ]
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


def needed_bytes(captured: Captured) -> int:
    """Return the size of a slot for that state."""
    return Layout(captured).header.slot_bytes


def private_slot(captured: Captured) -> Slot:
    """Create a slot for that state in this process's own memory; raise OSError if there is too little."""
    return Slot.create("dlr-checkpoint", needed_bytes(captured))


class NotSavedError(Exception):
    """A state changed while it was copied, so the copy is not used."""


@dataclass
class Copy:
    """A save that is under way, with the tensors that a thread copies."""

    slot: Slot
    mark: Mark
    header: Header
    is_on_gpu: bool = False
    """Whether some tensors are copied from a GPU."""
    views: list[Tensor] = field(default_factory=list)
    sources: list[Tensor] = field(default_factory=list)
    watched: list[tuple[str, Tensor, Tensor, int]] = field(default_factory=list)
    """Tensors that must not change: name, tensor, local memory, and the sum of their versions."""
    changed: list[str] = field(default_factory=list)
    """Names of those that did change: then the slot is not used."""
    may_change: threading.Event = field(default_factory=threading.Event)
    """Set when tensors in host memory may change: once the slot is committed or given up, and earlier if
    some tensors are on a GPU."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set when all tensors may change: training has waited."""

    def watch(self, name: str, tensor: Tensor, source: Tensor) -> None:
        """Let `check` detect changes of a tensor."""
        self.watched.append((name, tensor, source, _version(tensor, source)))

    def check(self) -> None:
        """Find the tensors that have changed; `released` must not be set yet."""
        self.changed.extend(
            name for name, tensor, source, version in self.watched if _version(tensor, source) != version
        )

    def run(self) -> None:
        """Copy the tensors in host memory."""
        if self.sources:  # without any, training continues already
            torch._foreach_copy_(self.views, self.sources)  # one call, during which training goes on
            self.check()


def _version(tensor: Tensor, source: Tensor) -> int:
    """Return the sum of both version counters: a change of a DTensor raises its own or its local part's."""
    return tensor._version + source._version


class Writer:
    """Writes checkpoints into slots.

    Args:
        slots: one, or three: one that holds a whole checkpoint, one that a saver may read, and one to write.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._views: dict[Slot, tuple[Header, list[Tensor]]] = {}
        self._layout: Layout | None = None
        self._copying = ThreadPoolExecutor(1, "dlr-copy")
        self._summing = ThreadPoolExecutor(1, "dlr-sum")  # no copy waits for it
        self._pending: dict[Slot, Future[None]] = {}
        """Futures of the slots' sums."""
        self._under_way: tuple[Copy, Future[None]] | None = None
        """The last save, and the future of its commit."""
        self._on_gpu = GpuCopies()
        self._unsettled: set[str] = set()
        """Names of tensors that changed before `wait`, though `Captured.settled` has them."""
        self._reserved: set[Slot] = set()
        """Slots that a saver will read, and that must not be overwritten."""

    def prepare(self) -> None:
        """Start the threads and map the slots in advance, which would slow down the first saves."""
        self._copying.submit(int)  # an executor starts its thread with the first task
        for slot in self._slots:
            self._summing.submit(slot.map_pages)

    @torch.inference_mode(mode=False)  # the threads and later saves could not write into inference tensors
    def save(self, mark: Mark, captured: Captured, then: Then | None = None) -> None:
        """Begin to copy a state into a slot. Its settled tensors must not change before `wait`.

        Args:
            then: called before this returns. Its previous slot must have been released.

        Raises:
            TooSmallError: the state does not fit into the slot.
        """
        slot = self._take()
        try:
            header = self._layout_of(captured).header
            views = self._views_of(slot, header)
            slot.begin()
            copy = self._begin(Copy(slot, mark, header), captured, views)
            committed = self._copying.submit(self._finish, copy)
        except BaseException:
            slot.unlock()
            raise
        self._under_way = copy, committed
        self._pending[slot] = self._summing.submit(self._sum_up, copy, committed)
        if then is not None:
            self._reserved.add(slot)
            then(slot, self._pending[slot], lambda: self._reserved.discard(slot))

    def wait(self) -> None:
        """Wait until the tensors of the last save may change."""
        if self._under_way is not None and not (copy := self._under_way[0]).released.is_set():
            copy.may_change.wait()
            is_known = bool(copy.changed)
            copy.check()  # again: torch counts a change at its end, and on a GPU this is the first check
            if copy.changed:
                self._unsettled.update(copy.changed)
                copy.slot.begin()  # the threads do it too, after their commit
                if not is_known:
                    logger.warning("step %s is not saved to memory: %s", copy.mark.step, _reason(copy))
            copy.released.set()
        self._on_gpu.wait()

    def close(self) -> None:
        """Wait until all saves are committed and have their sums."""
        self._copying.shutdown()
        self._summing.shutdown()
        self._on_gpu.close()

    def discard(self) -> None:
        """Close the writer and its slots; their memory is freed with the last reference to the writer."""
        self.close()
        for slot in self._slots:
            slot.close()

    def _take(self) -> Slot:
        """Choose the oldest slot that no saver reads; never the newest, if there is more than one.

        A saver of an earlier start may read a slot for long. If no other slot is left, this one is taken
        nevertheless, which that saver detects.
        """
        self.wait()
        if self._under_way is not None:  # the marks are valid only after the commit
            self._under_way[1].exception()
        marks = {slot: slot.mark for slot in self._slots}
        oldest_first = sorted(self._slots, key=lambda slot: (marks[slot] is not None, marks[slot] or ()))
        candidates = oldest_first[: max(1, len(self._slots) - 1)]
        free = [slot for slot in candidates if slot not in self._reserved]
        for slot in free:
            if (pending := self._pending.pop(slot, None)) is not None:
                pending.exception()
            if slot.lock(shared=False):
                return slot
        return free[0]

    def _layout_of(self, captured: Captured) -> Layout:
        """Return the present layout if the state still fits it, otherwise a new one."""
        layout = self._layout
        if layout is None or not layout.fits(captured):
            layout = self._layout = Layout(captured)
        return layout

    def _views_of(self, slot: Slot, header: Header) -> list[Tensor]:
        known = self._views.get(slot)
        if known is None or known[0] is not header:
            if header.slot_bytes > slot.size:
                raise TooSmallError(
                    f"the state needs {header.slot_bytes:,} bytes of memory, and a slot has {slot.size:,}"
                )
            known = self._views[slot] = header, [slot.tensor(entry) for entry in header.entries]
        return known[1]

    def _begin(self, copy: Copy, captured: Captured, views: Sequence[Tensor]) -> Copy:
        """Copy unsettled tensors, begin copies from GPUs, and add the other tensors to `copy`."""
        settled: list[Pair] = []
        passing: list[Pair] = []
        for view, (name, tensor) in zip(views, captured.tensors.items(), strict=False):
            source, stays = local_tensor(tensor), name in captured.settled and name not in self._unsettled
            if stays:
                copy.watch(name, tensor, source)
            if source.is_cuda:
                (settled if stays else passing).append((view, source))
            elif stays:
                copy.views.append(view)
                copy.sources.append(source)
            else:
                view.copy_(source)
        for view, data in zip(views[len(captured.tensors) :], captured.pickles.values(), strict=True):
            view[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if settled or passing:
            self._on_gpu.begin(copy.slot, settled, passing)
            copy.is_on_gpu = True
            if not copy.sources:
                copy.may_change.set()
        return copy

    def _finish(self, copy: Copy) -> None:
        """Copy the rest, and commit the slot.

        Raises:
            NotSavedError: a tensor has changed meanwhile, so the slot stays open.
        """
        try:
            copy.run()
            if copy.is_on_gpu:
                copy.may_change.set()
                self._on_gpu.finish()
            _refuse(copy)
            copy.slot.commit(copy.mark, copy.header)
            _refuse(copy)
        except Exception as error:
            logger.warning("step %s is not saved to memory: %s", copy.mark.step, error)
            raise
        finally:
            copy.may_change.set()
            copy.slot.unlock()

    @staticmethod
    def _sum_up(copy: Copy, committed: Future[None]) -> None:
        committed.result()
        copy.slot.sum_up()
        _refuse(copy)


def _refuse(copy: Copy) -> None:
    """Open the slot again if a tensor has changed while it was copied.

    Raises:
        NotSavedError: a tensor has changed.
    """
    if copy.changed:
        copy.slot.begin()
        raise NotSavedError(_reason(copy))


def _reason(copy: Copy) -> str:
    return f"{min(copy.changed)} has changed while it was copied: call wait() before parameters change"
