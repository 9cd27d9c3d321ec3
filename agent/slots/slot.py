"""One memory slot: a whole checkpoint of one rank, in a file in memory that its agent owns.

The agent makes the file (memfd_create(2)); a training process maps it, copies its tensors into it, and
commits. The commit word is OPEN before anything in the slot changes, and is set by a single store of eight
bytes when the checkpoint is complete. So if a writer is killed, the slot is either whole or marked as open;
every rank has three, and never writes into its newest. The sums follow the commit. If the writer ended before
it had added them, the slot is WHOLE but not SUMMED, and a reader adds them.

A reader cannot keep its rank from writing into a slot, so it compares the sums, or looks at the mark again
after reading. A saver, which reads for long, holds a shared flock(2) meanwhile, and a writer prefers a slot
that it can lock exclusively.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from agent.slots.format import (
    CONTROL_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    WORD_BYTES,
    CommitWord,
    ControlWord,
    Entry,
    Header,
    Mark,
    padded,
)
from agent.slots.pages import map_pages, map_shared, memory_file
from agent.slots.sums import WordSum, sum_of, wrapped

_PIECE_WORDS = (512 << 10) // WORD_BYTES
"""Words that are copied out of a slot and summed up at once: they nearly fit into a core's own cache, and a
large state has few enough such pieces."""


class DamagedError(Exception):
    """The content of a slot differs from what was written."""


class TooSmallError(Exception):
    """The state does not fit into the slot."""


class Slot:
    """A mapped slot.

    Args:
        memory: the whole slot, writable.
        descriptor: descriptor of its file, to lock it; `close` closes it.
    """

    def __init__(self, memory: memoryview | mmap.mmap, descriptor: int = -1) -> None:
        self.size = len(memory)
        self._memory = memoryview(memory)
        self._descriptor = descriptor
        self._words = self._memory[:CONTROL_BYTES].cast("q")

    @classmethod
    def create(cls, name: str, size: int) -> Slot:
        """Create a slot in memory (memfd_create(2)); /proc/PID/fd shows `name`.

        Raises:
            OSError: the kernel refuses.
        """
        return cls._map(memory_file(name), size)

    @classmethod
    def open(cls, path: str) -> Slot:
        """Map the slot in a file such as /proc/1/fd/12; raise OSError if there is none."""
        return cls._map(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @classmethod
    def _map(cls, descriptor: int, size: int | None = None) -> Slot:
        """Map a file, after setting its size if one is given; close the descriptor on errors."""
        try:
            if size is None:
                size = os.fstat(descriptor).st_size
            else:
                os.ftruncate(descriptor, size)
            return cls(map_shared(descriptor, size), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def path(self) -> str:
        """Path by which other processes of this user can open it, as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def lock(self, *, shared: bool) -> bool:
        """Take the lock without waiting; return False if it is taken.

        Args:
            shared: lock for reading; otherwise for writing.
        """
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close its file. The memory stays mapped as long as there are views of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # Writing.

    def begin(self) -> None:
        """Mark it as open, until `commit`."""
        self._words[ControlWord.COMMIT] = CommitWord.OPEN

    def commit(self, mark: Mark, header: Header) -> None:
        """Mark it as whole, with all tensors of `header` but without sums.

        Raises:
            TooSmallError: header and sums do not fit.
        """
        data, words = header.encoded, self._words
        if header.slot_bytes > self.size:
            raise TooSmallError(f"{header.slot_bytes:,} bytes do not fit into a slot of {self.size:,}")
        self._memory[header.end : header.end + len(data)] = data
        words[ControlWord.HEADER_OFFSET], words[ControlWord.HEADER_BYTES] = header.end, len(data)
        words[ControlWord.RANK], words[ControlWord.WORLD_SIZE] = mark.rank, mark.world_size
        words[ControlWord.STEP], words[ControlWord.ROUND] = mark.step, mark.round
        words[ControlWord.MAGIC] = MAGIC
        words[ControlWord.COMMIT] = CommitWord.WHOLE

    def sum_up(self, computed: Mapping[str, int] | None = None) -> None:
        """Add the sums, if it is whole and has none yet.

        Args:
            computed: sums of tensors, by name, that are computed already.

        Raises:
            DamagedError: the header cannot be read.
        """
        if (mark := self.mark) is None or self.commit_word is not CommitWord.WHOLE:
            return
        header, computed = self.header(), computed or {}
        sums = [
            computed[entry.name] if entry.name in computed else self._sum(entry.offset, entry.nbytes)
            for entry in header.entries
        ]
        self._store_sums(header, [*sums, self._sum_of_header(header)])
        if self.mark == mark:  # else it was opened meanwhile
            self._words[ControlWord.COMMIT] = CommitWord.SUMMED

    def seal(self) -> None:
        """Mark it as complete with sums, after a copy of another slot and its `verify`.

        The copy includes everything but the commit word, which has been OPEN since `begin`.
        """
        self._words[ControlWord.COMMIT] = CommitWord.SUMMED

    def damaged(self) -> None:
        """Mark it as damaged, so that it is not used any more."""
        self._words[ControlWord.COMMIT] = CommitWord.DAMAGED

    # Reading.

    @property
    def commit_word(self) -> CommitWord:
        word = self._words[ControlWord.COMMIT]
        if self._words[ControlWord.MAGIC] != MAGIC or word not in CommitWord.__members__.values():
            return CommitWord.OPEN
        return CommitWord(word)

    @property
    def mark(self) -> Mark | None:
        """Mark of the checkpoint that it holds; None if it holds none."""
        if self.commit_word not in (CommitWord.WHOLE, CommitWord.SUMMED):
            return None
        words = self._words
        return Mark(
            round=words[ControlWord.ROUND],
            step=words[ControlWord.STEP],
            rank=words[ControlWord.RANK],
            world_size=words[ControlWord.WORLD_SIZE],
        )

    def header(self) -> Header:
        """Return its header.

        Raises:
            DamagedError: it cannot be read, or is inconsistent.
        """
        start, length = self._words[ControlWord.HEADER_OFFSET], self._words[ControlWord.HEADER_BYTES]
        if not (
            CONTROL_BYTES <= start <= self.size and 0 <= length <= min(self.size - start, MAX_HEADER_BYTES)
        ):
            raise DamagedError("the header is not within the slot")
        try:
            header = Header.decode(bytes(self._memory[start : start + length]))
        except ValueError as error:
            raise DamagedError(f"the header cannot be read: {error}") from error
        if header.end != start or header.slot_bytes > self.size:
            raise DamagedError("the header does not fit what it describes")
        for entry in header.entries:
            if _nbytes(entry) != entry.nbytes:
                raise DamagedError(f"{entry.name:.99} is not of its type, shape and size")
        return header

    def tensor(self, entry: Entry) -> Tensor:
        """Return a view of one tensor, without a copy.

        Raises:
            DamagedError: the entry does not describe a tensor.
        """
        try:
            dtype = getattr(torch, entry.dtype)
            flat = (
                torch.frombuffer(self._memory, dtype=torch.uint8, count=entry.nbytes, offset=entry.offset)
                if entry.nbytes
                else torch.empty(0, dtype=torch.uint8, device="cpu")
            )
            return flat.view(dtype).view(entry.shape)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise DamagedError(f"{entry.name} cannot be read: {error}") from error

    def data(self, entry: Entry) -> bytes:
        """Return a copy of the bytes of one tensor."""
        return bytes(self._memory[entry.offset : entry.offset + entry.nbytes])

    def copy(self, entry: Entry, target: Tensor) -> int:
        """Copy a tensor out of it, and return the sum of the copy.

        If the target has the slot's memory layout, the sum is computed while the copy is in the processor's
        cache, or by the target's device.

        Args:
            target: tensor of the same shape, on any device.

        Raises:
            DamagedError: the entry does not describe a tensor.
        """
        source = self.tensor(entry)
        alike = type(target) is Tensor and target.is_contiguous() and target.dtype == source.dtype
        alike = alike and not (target.is_conj() or target.is_neg())
        if not alike or entry.nbytes % WORD_BYTES or target.data_ptr() % WORD_BYTES:
            target.copy_(source)
            return self._sum(entry.offset, entry.nbytes)
        into, words = (tensor.reshape(-1).view(torch.uint8).view(torch.int64) for tensor in (target, source))
        total = WordSum()
        if not target.is_cpu:
            total.add(into.copy_(words))  # the device sums up what has arrived there
            return total.total()
        pieces, parts = torch.split(into, _PIECE_WORDS), torch.split(words, _PIECE_WORDS)
        for piece, part in zip(pieces, parts, strict=True):
            total.add(piece.copy_(part))
        return total.total()

    def verify(self, only: Collection[Entry] | None = None) -> Header:
        """Compare its content with its sums, which are added if it has none yet.

        Args:
            only: tensors to compare beside the header; None for all.

        Raises:
            DamagedError: a tensor differs; the message names the first.
        """
        self.sum_up()
        header = self.header()
        chosen = header.entries if only is None else only
        self._compare_all(header, {entry.name: self._sum(entry.offset, entry.nbytes) for entry in chosen})
        return header

    def verify_tensor(self, entry: Entry, expected: int) -> None:
        """Compare one tensor with its sum from `sums`; raise DamagedError if it differs."""
        self._compare(entry.name, self._sum(entry.offset, entry.nbytes), expected)

    def compare(self, found: Mapping[str, int]) -> None:
        """Compare sums of tensors, by name, and the header's sum with the stored ones.

        Raises:
            DamagedError: a tensor differs; the message names the first.
        """
        self._compare_all(self.header(), found)

    def _compare_all(self, header: Header, found: Mapping[str, int]) -> None:
        written = self.sums(header)
        for entry, expected in zip(header.entries, written, strict=False):
            if entry.name in found:
                self._compare(entry.name, found[entry.name], expected)
        self._compare("its header", self._sum_of_header(header), written[-1])

    @staticmethod
    def _compare(what: str, sum_: int, expected: int) -> None:
        if sum_ != expected:
            raise DamagedError(f"{what} is not what was written: its sum is {sum_:#x}, not {expected:#x}")

    def take_control(self, control: bytes | bytearray) -> None:
        """Copy another slot's control words except the commit word."""
        words = memoryview(control).cast("q")
        self._words[ControlWord.MAGIC] = words[ControlWord.MAGIC]
        for word in range(ControlWord.STEP, len(ControlWord)):
            self._words[word] = words[word]

    def whole(self) -> Tensor:
        """Return a view of the whole slot, as bytes."""
        return torch.frombuffer(self._memory, dtype=torch.uint8)

    def map_pages(self) -> None:
        """Map its existing pages into this process."""
        map_pages(self._memory, self._descriptor)

    def bytes(self, start: int, stop: int) -> memoryview:
        """Return a view of a range, without a copy."""
        return self._memory[start:stop]

    def sums(self, header: Header) -> Sequence[int]:
        """Return the stored sums of each tensor, and of the header with the control words."""
        start = self._sums_at(header)
        return self._memory[start : start + WORD_BYTES * (len(header.entries) + 1)].cast("q")

    def _sum_of_header(self, header: Header) -> int:
        words = self._words[ControlWord.STEP :].tolist()[: len(ControlWord) - ControlWord.STEP]
        return wrapped(
            self._sum(header.end, words[-1]) + sum_of(bytearray(struct.pack(f"{len(words)}q", *words)))
        )

    def _sum(self, offset: int, nbytes: int) -> int:
        """Sum up the 64-bit words, weighted by their places; a last partial word is padded."""
        return sum_of(self._memory[offset : offset + nbytes])

    def _sums_at(self, header: Header) -> int:
        return header.end + padded(self._words[ControlWord.HEADER_BYTES])

    def _store_sums(self, header: Header, sums: Sequence[int]) -> None:
        start = self._sums_at(header)
        data = struct.pack(f"{len(sums)}q", *sums)
        self._memory[start : start + len(data)] = data


def _nbytes(entry: Entry) -> int | None:
    """Return the size of a tensor of that type and shape; None if torch has no such type."""
    dtype = getattr(torch, entry.dtype, None)
    return math.prod(entry.shape) * dtype.itemsize if isinstance(dtype, torch.dtype) else None
