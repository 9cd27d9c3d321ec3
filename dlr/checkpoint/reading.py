"""Reads a checkpoint of a world of another size from its slots, through torch.distributed.checkpoint.

Its import takes a second, so it is imported only when needed.
"""

from __future__ import annotations

import math
import mmap
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from agent.slots.format import CONTROL_BYTES, MAX_NUMBER, Entry, Mark, TensorPart, header_offset
from agent.slots.process_files import MemoryResume
from agent.slots.slot import DamagedError, Slot
from agent.slots.wire import have_checked, read
from dlr.checkpoint.dcp import metadata
from dlr.checkpoint.outlines import Outline, boxes_of, first_to_open, outline_of, overlapping
from dlr.checkpoint.own_slot import check_pickles
from dlr.checkpoint.plan import Piece, holders, owner_of, pieces_of
from dlr.checkpoint.sharing import different_pair, differing, digest, own_of_each
from dlr.checkpoint.state import RNG, VALUES
from dlr.checkpoint.tensors import local_tensor, part_of
from dlr.ranks import are_connected, from_all


class Resharded:
    """A checkpoint read by torch.distributed.checkpoint, which reshards its tensors.

    Args:
        same_world: whether equally many ranks wrote it; otherwise plain values are those of rank 0.
    """

    def __init__(self, reader: StorageReader, metadata: Metadata, rank: int, same_world: bool) -> None:
        self._reader = reader
        self._metadata = metadata
        self._rank = rank
        self._same_world = same_world
        described = self._metadata.state_dict_metadata
        self._tensors = {
            name: known for name, known in described.items() if isinstance(known, TensorStorageMetadata)
        }
        self._stored_as: dict[str, str] = {}
        """Names of the tensors in the checkpoint, by their names in the state."""
        self._of_each: set[str] = set()
        """Names of tensors of which each rank had its own."""
        for stored in sorted(self._tensors, key=lambda name: self._name_of(name)[0] or 0):
            owner, name = self._name_of(stored)
            if owner is None or not same_world or owner == rank:
                self._stored_as.setdefault(name, stored)
            if owner is not None and not same_world:
                self._of_each.add(name)
        self._read_values()
        self.parts = [
            TensorPart(name, str(known.properties.dtype).removeprefix("torch."), tuple(known.size), 0)
            for name, known in ((name, self._tensors[stored]) for name, stored in self._stored_as.items())
            if not name.startswith((VALUES, RNG))
        ]

    def own_of_each(self, names: Collection[str]) -> str | None:
        return min(self._of_each.intersection(names), default=None)

    def fill(self, targets: dict[str, Tensor]) -> None:
        """See `CheckpointSource`.

        Raises:
            DamagedError: a part of a tensor is missing.
        """
        stored = {self._stored_as[name]: target for name, target in targets.items()}
        self._load(stored, DefaultLoadPlanner(flatten_state_dict=False))

    def _load(self, state: dict[str, Any], planner: DefaultLoadPlanner) -> dict[str, Any]:
        """Load as torch.distributed.checkpoint.load does, but without collectives or wrapped errors."""
        reader = self._reader
        planner.set_up_planner(state, self._metadata, is_coordinator=True)
        reader.set_up_storage_reader(self._metadata, True)
        plan = planner.create_local_plan()
        found = _elements(plan)
        for name, target in state.items():
            if isinstance(target, Tensor) and found[name] < local_tensor(target).numel():
                raise DamagedError(f"of {name} only {found[name]:,} elements are there that are needed")
        plan = reader.prepare_local_plan(plan)
        (plan,) = reader.prepare_global_plan([plan])
        reader.read_data(planner.finish_plan(plan), planner).wait()
        return planner.state_dict

    def _name_of(self, stored: str) -> tuple[int | None, str]:
        """Return the rank that owns a tensor, None without one, and its name in the state."""
        return owner_of(stored)

    def _read_values(self) -> None:
        """Read the values that are no tensors."""
        self.values = self._bytes(f"{VALUES}.{self._rank if self._same_world else 0}")
        rng = f"{RNG}.{self._rank}"
        self.rng = self._bytes(rng) if rng in self._tensors else None

    def _bytes(self, name: str) -> bytes:
        size = self._tensors[name].size
        data = bytearray(math.prod(size))
        if data:
            self.fill({name: torch.frombuffer(data, dtype=torch.uint8).view(size)})
        return bytes(data)


def _elements(plan: LoadPlan) -> Counter[str]:
    """Return the number of elements that a plan fills, by tensor."""
    found: Counter[str] = Counter()
    for item in plan.items:
        found[item.dest_index.fqn] += math.prod(item.lengths)
    return found


# --- Slots of all ranks of a world of another size ---------------------------------------------------------


_GAP_BYTES, _ROW_BYTES = 1 << 20, 256 << 20
"""Largest gap between two tensors that one request fetches, and largest request."""
_LOOKED_AT = 8
"""Most tensors to compare of those that differ between ranks; if ranks train different things, nearly all
differ."""


class RankSlot:
    """A rank's slot, here or in another Pod.

    Args:
        where: path of the slot, or tcp://host:port of the agent that has it.

    Raises:
        OSError: the slot cannot be reached.
        DamagedError: the slot has another mark, or a damaged header.
    """

    def __init__(self, where: str, mark: Mark, key: bytes) -> None:
        self.where = where
        self._key = key
        self.mark = mark
        self.is_here = not where.startswith("tcp://")
        self._address = where.removeprefix("tcp://")
        self.slot = Slot.open(where) if self.is_here else self._remote()
        self._verified: set[str] = set()
        self._fetched: set[str] = set()
        if self.slot.mark != mark:
            raise DamagedError(f"{where} holds {self.slot.mark}, not {mark}")
        with self._telling_damage():
            header = self.slot.verify(only=())
        self._entries = {entry.name: entry for entry in header.entries}
        self._sums = dict(zip(self._entries, self.slot.sums(header), strict=False))
        check_pickles(self._entries)
        self.pieces = pieces_of(self.slot, header, mark.rank)

    def tensor(self, name: str) -> Tensor:
        """Return a verified view of a tensor.

        Raises:
            OSError: the agent that has it does not answer.
            DamagedError: the tensor is damaged.
        """
        entry = self._entries[name]
        if name not in self._verified:
            self.fetch([name])
            with self._telling_damage():
                self.slot.verify_tensor(entry, self._sums[name])
            self._verified.add(name)
        return self.slot.tensor(entry)

    def fetch(self, names: Collection[str]) -> None:
        """Fetch tensors of a remote slot in advance, adjacent ones with one request.

        Raises:
            OSError: the agent that has them does not answer.
        """
        if self.is_here:
            return
        wanted = [self._entries[name] for name in names if name not in self._fetched]
        for row in _rows(sorted(wanted, key=lambda entry: entry.offset)):
            self._fetch(row[0].offset, row[-1].offset + row[-1].nbytes)
            self._fetched.update(entry.name for entry in row)

    @contextmanager
    def _telling_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedError:
            if self.is_here:
                self.slot.damaged()
            else:
                have_checked(self._address, self._key, self.mark)
            raise

    def _remote(self) -> Slot:
        """Return a private copy of a remote slot, without the tensors, which are fetched on demand."""
        control = self._read(0, CONTROL_BYTES)
        start = header_offset(control)
        if not CONTROL_BYTES <= start <= MAX_NUMBER:
            raise DamagedError(f"the header of {self.where} is not within the slot")
        rest = self._read(start, None)
        slot = Slot(mmap.mmap(-1, start + len(rest), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        slot.bytes(0, CONTROL_BYTES)[:] = control
        slot.bytes(start, start + len(rest))[:] = rest
        return slot

    def _fetch(self, start: int, stop: int) -> None:
        if start < stop:
            self.slot.bytes(start, stop)[:] = self._read(start, stop)

    def _read(self, start: int, stop: int | None) -> bytearray:
        data = read(self._address, self._key, self.mark, start, stop)
        if stop is not None and len(data) != stop - start:
            raise DamagedError(f"{self.where} has sent {len(data):,} bytes, not {stop - start:,}")
        return data


def _rows(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Group entries that lie close together.

    Args:
        entries: in the order of their offsets.
    """
    row: list[Entry] = []
    for entry in entries:
        if row and (
            entry.offset - (row[-1].offset + row[-1].nbytes) > _GAP_BYTES
            or entry.offset + entry.nbytes - row[0].offset > _ROW_BYTES
        ):
            yield row
            row = []
        row.append(entry)
    if row:
        yield row


class SlotReader(StorageReader):
    """Reads a checkpoint from those slots of its ranks that have been opened.

    Args:
        open_slot: opens the slot of a rank.
        rank: rank of this process; spreads the reading of tensors that several slots have.
    """

    def __init__(self, open_slot: Callable[[int], RankSlot], rank: int) -> None:
        self._open_slot = open_slot
        self._rank = rank
        self._shards: dict[int, RankSlot] = {}
        self._holder: dict[MetadataIndex, tuple[str, RankSlot]] = {}
        self._metadata = metadata((), ())

    def open(self, ranks: Collection[int]) -> dict[int, RankSlot]:
        """Open these slots too; raise OSError or DamagedError if one of them cannot be used."""
        if fresh := sorted(set(ranks) - self._shards.keys()):
            opened = {**self._shards, **{rank: self._open_slot(rank) for rank in fresh}}
            self._shards = {rank: opened[rank] for rank in sorted(opened)}  # the lowest first
            self._look()
        return self._shards

    def _look(self) -> None:
        shards = self._shards
        pieces = []
        self._holder = {}

        def cost(held: tuple[int, Piece]) -> tuple[bool, int]:
            return not shards[held[0]].is_here, (held[0] - self._rank) % (max(shards) + 1)

        for having in holders({rank: shard.pieces for rank, shard in shards.items()}).values():
            rank, piece = min(having, key=cost)
            own_name = (
                piece.name.removesuffix(f".{rank}") if piece.name.startswith((VALUES, RNG)) else piece.name
            )
            self._holder[MetadataIndex(piece.name, piece.global_offset)] = own_name, shards[rank]
            pieces.append(piece)
        self._metadata = metadata(pieces, ())

    def own_of_each(self, names: Collection[str]) -> str | None:
        """Return one of these tensors if each rank has its own; compare only a few of those that differ."""
        pieces: dict[int, Sequence[Piece]] = {
            rank: [piece for piece in shard.pieces if piece.name in names]
            for rank, shard in self._shards.items()
        }
        candidates = sorted(differing(pieces))
        for name in candidates[:: len(candidates) // _LOOKED_AT + 1]:
            pair = different_pair(pieces, name)
            if own_of_each(pair, {rank: {name: digest(self._shards[rank].tensor(name))} for rank in pair}):
                return name
        return None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[RankSlot, list[str]] = defaultdict(list)
        for item in plan.items:
            name, shard = self._holder[item.storage_index]
            wanted[shard].append(name)
        for shard, names in wanted.items():
            shard.fetch(names)
        for item in plan.items:
            name, shard = self._holder[item.storage_index]
            source = shard.tensor(name)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class ReshardedSlots(Resharded):
    """A checkpoint in the slots of a world of another size.

    Args:
        reader: reader with the slots that have been opened.
        outlines: outlines of all slots, by old rank.
    """

    def __init__(self, reader: SlotReader, rank: int, outlines: Mapping[int, Outline]) -> None:
        self._slots = reader
        self._outlines = outlines
        super().__init__(reader, reader.read_metadata(), rank, same_world=False)

    def own_of_each(self, names: Collection[str]) -> str | None:
        return self._slots.own_of_each(names)

    def fill(self, targets: dict[str, Tensor]) -> None:
        """Fill the targets from the slots whose outlines overlap them, or from all if those lack parts."""
        parts = [part_of(name, target) for name, target in targets.items()]
        needed = boxes_of(
            (part.shape, part.global_shape, part.global_offset)
            for part in parts
            if part.global_shape is not None and part.global_offset is not None
        )
        self._slots.open(overlapping(self._outlines, needed))
        self._metadata = self._slots.read_metadata()
        if not self._covers(targets):
            self._slots.open(self._outlines)
            self._metadata = self._slots.read_metadata()
        super().fill(targets)

    def _covers(self, targets: Mapping[str, Tensor]) -> bool:
        """Whether the open slots have all parts of the targets."""
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(
            {self._stored_as[name]: target for name, target in targets.items()}, self._metadata, True
        )
        found = _elements(planner.create_local_plan())
        return all(
            found[self._stored_as[name]] == local_tensor(target).numel() for name, target in targets.items()
        )


def in_slots(
    resume: MemoryResume, rank: int, world_size: int = 1, group: dist.ProcessGroup | None = None
) -> Resharded:
    """Open the checkpoint in the slots of a world of another size. All ranks call it.

    Args:
        group: group of the ranks; None for the default one.

    Raises:
        OSError, DamagedError: a slot cannot be used, or is missing in `resume`.
    """
    if missing := set(range(resume.world_size)) - resume.shards.keys():
        raise DamagedError(f"of {resume.world_size} ranks' slots that of rank {min(missing)} is not named")

    def open_slot(old: int) -> RankSlot:
        mark = Mark(resume.round, resume.step, old, resume.world_size)
        return RankSlot(resume.shards[old], mark, resume.key)

    reader = SlotReader(open_slot, rank)
    if not are_connected() or world_size == 1:
        opened = reader.open(resume.shards)
        return ReshardedSlots(reader, rank, {old: outline_of(shard.pieces) for old, shard in opened.items()})
    outlines = _exchange_outlines(reader, range(rank, resume.world_size, world_size), group)
    reader.open(first_to_open(outlines, rank))
    return ReshardedSlots(reader, rank, outlines)


def _exchange_outlines(
    reader: SlotReader, share: Sequence[int], group: dist.ProcessGroup | None
) -> dict[int, Outline]:
    """Outline a share of the slots, and receive the outlines of the others from the other ranks.

    Raises:
        OSError, DamagedError: a slot cannot be used by some rank; then all ranks raise.
    """
    trouble: Exception | None = None
    mine: dict[int, Outline] = {}
    try:
        opened = reader.open(share)
        mine = {old: outline_of(opened[old].pieces) for old in share}
    except (OSError, DamagedError) as error:
        trouble = error
    wire = {old: outline.to_wire() for old, outline in mine.items()}
    answers = from_all([wire, "" if trouble is None else str(trouble)], group)
    if trouble is not None:
        raise trouble
    found: dict[int, Outline] = {}
    for rank, answer in enumerate(answers):
        try:
            outlines, reason = answer
            found |= {int(old): Outline.of_wire(fields) for old, fields in outlines.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(f"rank {rank} sends no outlines: {error!r}") from error
        if reason:
            raise DamagedError(f"rank {rank} finds: {reason}")
    return found
