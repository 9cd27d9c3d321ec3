"""One memory slot: a whole checkpoint of one rank, in a file in memory that its agent owns.

The agent makes the file (memfd_create(2)); a training process maps it, copies its tensors into it, and
commits. A slot is opened (its commit word is set to OPEN) before anything in it changes, and committed when
all of it is there, in a single store of eight bytes. So whenever a writer is killed, the slot is either whole
or says that it is not; every rank has three, and never writes into its newest. The sums follow the commit.
Where the writer was ended before it had added them, the slot is WHOLE but not SUMMED, and who reads it adds
them.

A reader cannot keep its rank from writing into a slot, so it compares the sums, or looks at the mark again
when it has read. A saver, which reads for long, holds flock(2)'s lock meanwhile, shared, and a writer prefers
a slot that it can lock alone.
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
"""Of what is copied out of a slot, so much is summed up at once: it fits into a core's own cache, or nearly
so, and a large state has few enough of them."""


class DamagedError(Exception):
    """What is in a slot is not what was written into it."""


class TooSmallError(Exception):
    """The state does not fit into the slot."""


class Slot:
    """A slot, mapped.

    Args:
        memory: all of it, writable bytes.
        descriptor: of its file, to lock it; `close` closes it.
    """

    def __init__(self, memory: memoryview | mmap.mmap, descriptor: int = -1) -> None:
        self.size = len(memory)
        self._memory = memoryview(memory)
        self._descriptor = descriptor
        self._words = self._memory[:CONTROL_BYTES].cast("q")

    @classmethod
    def create(cls, name: str, size: int) -> Slot:
        """Make a slot in memory alone (memfd_create(2)); `name` is for whoever looks at this process.

        Raises:
            OSError: the kernel gives none.
        """
        return cls._map(memory_file(name), size)

    @classmethod
    def open(cls, path: str) -> Slot:
        """Map the slot in that file, such as /proc/1/fd/12; raise OSError where there is none."""
        return cls._map(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @classmethod
    def _map(cls, descriptor: int, size: int | None = None) -> Slot:
        """Map a file, which is closed where that fails; with a size, it is given that first."""
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
        """Path by which another process of this user opens it, as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def lock(self, *, shared: bool) -> bool:
        """Take the lock, if that needs no waiting. `unlock` gives it back.

        Args:
            shared: to read; else to write.
        """
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give back its file. The memory stays mapped as long as there are views of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # Writing.

    def begin(self) -> None:
        """Say that nothing is in it, until `commit`."""
        self._words[ControlWord.COMMIT] = CommitWord.OPEN

    def commit(self, mark: Mark, header: Header) -> None:
        """Say that all tensors of `header` are in it. They have no sums yet.

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

    def sum_up(self, known: Mapping[str, int] | None = None) -> None:
        """Write down the sums of what is in it, if it is whole and has none yet.

        Args:
            known: sums of tensors, by name, that need not be added again.

        Raises:
            DamagedError: the header cannot be read.
        """
        if (mark := self.mark) is None or self.commit_word is not CommitWord.WHOLE:
            return
        header, known = self.header(), known or {}
        sums = [
            known[entry.name] if entry.name in known else self._sum(entry.offset, entry.nbytes)
            for entry in header.entries
        ]
        self._store_sums(header, [*sums, self._sum_of_header(header)])
        if self.mark == mark:  # else it was opened meanwhile
            self._words[ControlWord.COMMIT] = CommitWord.SUMMED

    def seal(self) -> None:
        """Say that all is there that was copied into it from another slot, and `verify` found it whole.

        Everything but the commit word was copied, which has been OPEN since `begin`.
        """
        self._words[ControlWord.COMMIT] = CommitWord.SUMMED

    def damaged(self) -> None:
        """Say that nobody is to use it."""
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
        """What is in it.

        Raises:
            DamagedError: it cannot be read, or makes no sense.
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
        """A view of one tensor, without a copy.

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
        """A copy of the bytes of one tensor."""
        return bytes(self._memory[entry.offset : entry.offset + entry.nbytes])

    def copy(self, entry: Entry, target: Tensor) -> int:
        """Copy a tensor out of it, and return the sum of what has arrived.

        Where the target's memory is as that of the slot, it is read while it is in the processor's cache, or
        by the device that it is on.

        Args:
            target: of the tensor's shape, anywhere.

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
        """Compare what is in it with its sums; where it has none yet, add them.

        Args:
            only: these tensors and the header; None for all.

        Raises:
            DamagedError: it names the first tensor that differs.
        """
        self.sum_up()
        header = self.header()
        chosen = header.entries if only is None else only
        self._compare_all(header, {entry.name: self._sum(entry.offset, entry.nbytes) for entry in chosen})
        return header

    def verify_tensor(self, entry: Entry, expected: int) -> None:
        """Compare one tensor with its sum, which `sums` has given; raise DamagedError where it differs."""
        self._compare(entry.name, self._sum(entry.offset, entry.nbytes), expected)

    def compare(self, found: Mapping[str, int]) -> None:
        """Compare sums of tensors, by name, and that of the header with those that were written down.

        Raises:
            DamagedError: it names the first tensor that differs.
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
        """Copy another slot's control words, but for the commit word."""
        words = memoryview(control).cast("q")
        self._words[ControlWord.MAGIC] = words[ControlWord.MAGIC]
        for word in range(ControlWord.STEP, len(ControlWord)):
            self._words[word] = words[word]

    def whole(self) -> Tensor:
        """A view of all of it, as bytes."""
        return torch.frombuffer(self._memory, dtype=torch.uint8)

    def map_pages(self) -> None:
        """Have all of it mapped into this process, as far as it has pages."""
        map_pages(self._memory, self._descriptor)

    def bytes(self, start: int, stop: int) -> memoryview:
        """A view of a range of it, without a copy."""
        return self._memory[start:stop]

    def sums(self, header: Header) -> Sequence[int]:
        """Return the stored sums: of each tensor, and of the header with the control words."""
        start = self._sums_at(header)
        return self._memory[start : start + WORD_BYTES * (len(header.entries) + 1)].cast("q")

    def _sum_of_header(self, header: Header) -> int:
        words = self._words[ControlWord.STEP :].tolist()[: len(ControlWord) - ControlWord.STEP]
        return wrapped(
            self._sum(header.end, words[-1]) + sum_of(bytearray(struct.pack(f"{len(words)}q", *words)))
        )

    def _sum(self, offset: int, nbytes: int) -> int:
        """Sum up the 64-bit words by their places; what a tensor leaves of its last word is not its own."""
        return sum_of(self._memory[offset : offset + nbytes])

    def _sums_at(self, header: Header) -> int:
        return header.end + padded(self._words[ControlWord.HEADER_BYTES])

    def _store_sums(self, header: Header, sums: Sequence[int]) -> None:
        start = self._sums_at(header)
        data = struct.pack(f"{len(sums)}q", *sums)
        self._memory[start : start + len(data)] = data


def _nbytes(entry: Entry) -> int | None:
    """What a tensor of that type and shape has; None where torch has no such type."""
    dtype = getattr(torch, entry.dtype, None)
    return math.prod(entry.shape) * dtype.itemsize if isinstance(dtype, torch.dtype) else None
