"""What takes torch.distributed.checkpoint to read: storage, and slots of a world of another size.

Importing it takes a second, so that nothing else here does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from agent.memory.layout import CONTROL_BYTES, MAX_NUMBER, Entry, Header, Part
from agent.memory.slot import DamagedError, Mark, Slot, header_offset
from agent.memory.wire import have_checked, read
from dlr.checkpoint.dcp import metadata
from dlr.checkpoint.folder_pickles import read_pickle
from dlr.checkpoint.own_slot import check_pickles
from dlr.checkpoint.plan import Piece, holders, owner_of, pieces_of
from dlr.checkpoint.state import RNG, VALUES
from dlr.checkpoint.surroundings import MemoryResume
from dlr.checkpoint.unshared import different_pair, differing, digest, own_of_each

METADATA = ".metadata"
"""torch's name of the file that says what is in a folder."""


class Resharded:
    """What torch.distributed.checkpoint reads; it cuts tensors anew where ranks share them otherwise.

    Args:
        reader: of the checkpoint.
        rank: of this process.
        same_world: whether as many ranks wrote it; else plain values are those of rank 0.
    """

    def __init__(self, reader: StorageReader, rank: int, same_world: bool) -> None:
        self._reader = reader
        self._metadata = reader.read_metadata()
        described = self._metadata.state_dict_metadata
        self._tensors = {
            name: known for name, known in described.items() if isinstance(known, TensorStorageMetadata)
        }
        self._stored_as: dict[str, str] = {}
        """What the checkpoint calls each tensor."""
        self._of_each: set[str] = set()
        """Of which each rank had its own."""
        for stored in sorted(self._tensors, key=lambda name: owner_of(name)[0] or 0):
            owner, name = owner_of(stored)
            if owner is None or not same_world or owner == rank:
                self._stored_as.setdefault(name, stored)
            if owner is not None and not same_world:
                self._of_each.add(name)
        self.values = self._bytes(f"{VALUES}.{rank if same_world else 0}")
        rng = f"{RNG}.{rank}"
        self.rng = self._bytes(rng) if rng in self._tensors else None
        self.parts = [
            Part(name, str(known.properties.dtype).removeprefix("torch."), tuple(known.size), 0)
            for name, known in ((name, self._tensors[stored]) for name, stored in self._stored_as.items())
            if not name.startswith((VALUES, RNG))
        ]

    def own_of_each(self, names: Collection[str]) -> str | None:
        """As `Source` says."""
        return min(self._of_each.intersection(names), default=None)

    def fill(self, targets: dict[str, Tensor]) -> None:
        """As torch.distributed.checkpoint.load does, but alone, and with errors as they are."""
        planner, reader = DefaultLoadPlanner(flatten_state_dict=False), self._reader
        stored = {self._stored_as[name]: target for name, target in targets.items()}
        planner.set_up_planner(stored, self._metadata, is_coordinator=True)
        reader.set_up_storage_reader(self._metadata, True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        reader.read_data(planner.finish_plan(plan), planner).wait()

    def _bytes(self, name: str) -> bytes:
        tensor = torch.empty(self._tensors[name].size, dtype=torch.uint8)
        self.fill({name: tensor})
        return bytes(tensor.tolist())


def in_storage(folder: Path, rank: int, same_world: bool) -> Resharded:
    """A complete checkpoint in storage.

    Raises:
        DamagedError: its metadata are not what torch writes.
    """
    return Resharded(_FolderReader(folder), rank, same_world)


class _FolderReader(FileSystemReader):
    """torch's, which would run what is pickled in the folder's metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_pickle((Path(self.path) / METADATA).read_bytes(), METADATA)
        if not isinstance(metadata, Metadata):
            raise DamagedError(f"{METADATA} is a {type(metadata).__name__}")
        return metadata


# --- Slots of all ranks of a world of another size ---------------------------------------------------------


_LOOKED_AT = 8
"""Of the tensors that differ between ranks; where ranks train different things, nearly all do."""


class Shard:
    """A rank's slot, here or in another Pod.

    Args:
        where: its path, or tcp://host:port of the agent that has it.
        mark: what it is to hold.
        key: the job's.

    Raises:
        OSError: it cannot be reached.
        DamagedError: it holds something else, or its header is damaged.
    """

    def __init__(self, where: str, mark: Mark, key: bytes) -> None:
        self.where = where
        self._key = key
        self.mark = mark
        self.is_here = not where.startswith("tcp://")
        self._address = where.removeprefix("tcp://")
        self.slot = Slot.open(where) if self.is_here else self._remote()
        self._verified: set[str] = set()
        if self.slot.mark != mark:
            raise DamagedError(f"{where} holds {self.slot.mark}, not {mark}")
        header = self._verify(only=())
        self._entries = {entry.name: entry for entry in header.entries}
        check_pickles(self._entries)
        self.pieces = pieces_of(self.slot, header, mark.rank)

    def tensor(self, name: str) -> Tensor:
        """A verified view of a tensor.

        Raises:
            OSError: the agent that has it does not answer.
            DamagedError: it is not what was written.
        """
        entry = self._entries[name]
        if name not in self._verified:
            if not self.is_here:
                self._fetch(entry.offset, entry.offset + entry.nbytes)
            self._verify(only=(entry,))
            self._verified.add(name)
        return self.slot.tensor(entry)

    def _verify(self, only: Collection[Entry]) -> Header:
        try:
            return self.slot.verify(only)
        except DamagedError:
            if self.is_here:
                self.slot.damaged()
            else:
                have_checked(self._address, self._key, self.mark)
            raise

    def _remote(self) -> Slot:
        """A slot in memory of our own, with all but the tensors; they are fetched when they are asked for."""
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


class SlotReader(StorageReader):
    """Reads a checkpoint from the slots of all ranks that wrote it.

    Args:
        shards: by rank, the lowest first.
    """

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        self._shards = shards
        self._holder: dict[MetadataIndex, tuple[str, Shard]] = {}
        pieces = []
        for having in holders({rank: shard.pieces for rank, shard in shards.items()}).values():
            rank, piece = min(having, key=lambda held: (not shards[held[0]].is_here, held[0]))
            own_name = (
                piece.name.removesuffix(f".{rank}") if piece.name.startswith((VALUES, RNG)) else piece.name
            )
            self._holder[MetadataIndex(piece.name, piece.global_offset)] = own_name, shards[rank]
            pieces.append(piece)
        self._metadata = metadata(pieces, ())

    def own_of_each(self, names: Collection[str]) -> str | None:
        """One of these tensors, if each rank has its own; only a few of those that differ are looked at."""
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
    """A checkpoint in the slots of a world of another size."""

    def __init__(self, reader: SlotReader, rank: int) -> None:
        super().__init__(reader, rank, same_world=False)
        self._slots = reader

    def own_of_each(self, names: Collection[str]) -> str | None:
        """As `Source` says."""
        return self._slots.own_of_each(names)


def in_slots(resume: MemoryResume, rank: int) -> Resharded:
    """What the slots of all ranks of another world hold.

    Raises:
        OSError, DamagedError: one of them cannot be used, or is not named.
    """
    if missing := set(range(resume.world_size)) - resume.shards.keys():
        raise DamagedError(f"of {resume.world_size} ranks' slots that of rank {min(missing)} is not named")
    shards = {
        old_rank: Shard(where, Mark(resume.round, resume.step, old_rank, resume.world_size), resume.key)
        for old_rank, where in sorted(resume.shards.items())
    }
    return ReshardedSlots(SlotReader(shards), rank)
