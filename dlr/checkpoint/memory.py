"""How this process writes checkpoints into memory; `dlr.checkpoint.own_slot` reads them.

A save opens the oldest slot that no saver reads. What may change at any time is copied at once; what only an
optimizer's step changes (`Captured.settled`) while the next forward and backward pass run: by a thread, or on
a stream of its own where it is on a GPU. The thread commits the slot when all is there, and then adds the
sums. `wait` comes before the optimizer's step, and returns when the slot is committed. (On a GPU its stream
waits for the copy, and the next save for the commit.)

A tensor that changes sooner is found by torch's version of it: that slot is not used, and the tensor is
copied at once from then on. torch does not count what is changed by way of `.data`.
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
"""What is to follow a save: given the slot, what is done when it has its sums, and what releases it; until
that is called, the slot stays as it is."""


class Layout:
    """How the tensors of a state lie in a slot: made once, and kept as long as the state has this form.

    Raises:
        ValueError: it has too many tensors, or one that `check_placements` refuses.
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
    """How large a slot for that state must be."""
    return Layout(captured).header.slot_bytes


def private_slot(captured: Captured) -> Slot:
    """Make a slot for that state in memory of this process's own; raise OSError where there is no room."""
    return Slot.create("dlr-checkpoint", needed_bytes(captured))


class NotSavedError(Exception):
    """A state changed while it was copied, so that its copy is not used."""


@dataclass
class Copy:
    """A save that is under way: what a thread has to copy of it, and whether it has."""

    slot: Slot
    mark: Mark
    header: Header
    is_on_gpu: bool = False
    """Whether the GPU copies a part of it."""
    views: list[Tensor] = field(default_factory=list)
    sources: list[Tensor] = field(default_factory=list)
    watched: list[tuple[str, Tensor, Tensor, int]] = field(default_factory=list)
    """What is to stay as it is: name, the tensor, its memory here, and the version of both."""
    changed: list[str] = field(default_factory=list)
    """What did not, by name: then the slot is not used."""
    may_change: threading.Event = field(default_factory=threading.Event)
    """Set when what is in the memory of the host may change: once the slot is committed, or is not going to
    be; where there is anything on a GPU, earlier."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set when all may change: training has waited."""

    def watch(self, name: str, tensor: Tensor, source: Tensor) -> None:
        """Have `check` tell whether it has changed."""
        self.watched.append((name, tensor, source, _version(tensor, source)))

    def check(self) -> None:
        """Find what has changed. Nothing may have been released yet."""
        self.changed.extend(
            name for name, tensor, source, version in self.watched if _version(tensor, source) != version
        )

    def run(self) -> None:
        """Copy what is in the memory of the host."""
        if self.sources:  # else training goes on already
            torch._foreach_copy_(self.views, self.sources)  # one call, which training need not wait for
            self.check()


def _version(tensor: Tensor, source: Tensor) -> int:
    """A DTensor and its local part have one each, and whatever changes them raises one of the two."""
    return tensor._version + source._version


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
        self._copying = ThreadPoolExecutor(1, "dlr-copy")
        self._summing = ThreadPoolExecutor(1, "dlr-sum")  # which no copy waits for
        self._pending: dict[Slot, Future[None]] = {}
        """When each slot has its sums."""
        self._under_way: tuple[Copy, Future[None]] | None = None
        """The last save, and when it is committed."""
        self._on_gpu = GpuCopies()
        self._restless: set[str] = set()
        """What has changed before `wait`, though it seemed to be settled."""
        self._reserved: set[Slot] = set()
        """Not to be written into, since they are to be read."""

    def prepare(self) -> None:
        """Have the threads started and the slots mapped: the first saves would take much longer to do it."""
        self._copying.submit(int)  # its thread begins with the first thing that it has to do
        for slot in self._slots:
            self._summing.submit(slot.map_pages)

    @torch.inference_mode(mode=False)  # what is made in it, the threads and later saves cannot write into
    def save(self, mark: Mark, captured: Captured, then: Then | None = None) -> None:
        """Begin to copy a state into a slot. What is settled in it stays as it is until `wait`.

        Args:
            then: called before this returns. It has released one slot before it is passed on again.

        Raises:
            TooSmallError: the state does not fit into it.
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
        """Wait until what was saved may change."""
        if self._under_way is not None and not (copy := self._under_way[0]).released.is_set():
            copy.may_change.wait()
            is_known = bool(copy.changed)
            copy.check()  # again: torch counts a change when it is over, and on a GPU nobody has looked yet
            if copy.changed:
                self._restless.update(copy.changed)
                copy.slot.begin()  # the threads do it too, after what they say of it
                if not is_known:
                    logger.warning("step %s is not saved to memory: %s", copy.mark.step, _reason(copy))
            copy.released.set()
        self._on_gpu.wait()

    def close(self) -> None:
        """Wait until all that was saved is committed and has its sums."""
        self._copying.shutdown()
        self._summing.shutdown()
        self._on_gpu.close()

    def discard(self) -> None:
        """Close it, and its slots too, whose memory is free when nobody refers to this writer any more."""
        self.close()
        for slot in self._slots:
            slot.close()

    def _take(self) -> Slot:
        """Choose the oldest slot that no saver reads; it is never the newest, if there is more than one.

        A saver of processes that have ended may read one for long. Where there is no other, it has to give
        way, and finds out.
        """
        self.wait()
        if self._under_way is not None:  # only then do the marks say which slot is the newest
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
        """The present one, if the state has that form."""
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
        """Copy what may change, and begin to copy what is on a GPU. The rest is added to `copy`."""
        settled: list[Pair] = []
        passing: list[Pair] = []
        for view, (name, tensor) in zip(views, captured.tensors.items(), strict=False):
            source, stays = local_tensor(tensor), name in captured.settled and name not in self._restless
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
            NotSavedError: something has changed meanwhile, so that it stays open.
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
    """Open the slot again, if something has changed while it was copied.

    Raises:
        NotSavedError: something has.
    """
    if copy.changed:
        copy.slot.begin()
        raise NotSavedError(_reason(copy))


def _reason(copy: Copy) -> str:
    return f"{min(copy.changed)} has changed while it was copied: call wait() before parameters change"
