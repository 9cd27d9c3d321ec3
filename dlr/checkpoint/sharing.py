"""Agreement of the savers of all ranks on which rank writes what, through files in the checkpoint's folder.

Savers have no process group; that is the training's.

    plan-<rank>        the rank's pieces, with sums
    differing.json     by rank 0: names of tensors that differ between ranks, if any
    digest-<rank>.json digests of these tensors
    shares             by rank 0, which alone reads the files of all ranks: the pieces that each rank writes
    part-<rank>        the pieces that it has written, as its part of `.metadata`; after the last one, rank 0
                       completes the checkpoint
    gave-up-<rank>     why it does not write; then rank 0 gives up too, whose file alone the others watch

Rank 0's saver removes these files when the checkpoint is complete, which is the signal for the others. The
files that are opened and the bytes that are read are linear in the number of ranks.

Tensors of one name may have different contents on each rank, as in tensor or pipeline parallelism without
DTensors. Sums reveal which differ. Buffers may differ, such as BatchNorm's. Other tensors of data parallelism
may differ slightly by rounding errors of different hardware; then rank 0's stand for all. If any tensor
differs by more, ranks train different things, and each rank keeps its own of all differing tensors.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from agent.slots.format import Mark
from dlr.checkpoint.files import Files
from dlr.checkpoint.plan import Piece, Place, decode_plan, divide, own_name
from dlr.checkpoint.storage import GAVE_UP, MANIFEST, NOTES

T = TypeVar("T")

WAIT_SECONDS = 600.0
"""Longest wait for the other ranks' savers."""
GONE_SECONDS = 90.0
"""Time for which a new file may be invisible on a slow shared file system."""
_LOOKS_PER_SECOND = 1000
"""Highest rate of looks of all ranks together, after the first few."""

PLAN, _DIGEST, PART = "plan-{}", "digest-{}.json", "part-{}"
_DIFFERING, _SHARES = "differing.json", "shares"
_PLACE = struct.Struct("<QQ")
"""Start and length of a rank's share in the file of all shares, which begins with these, by rank."""


Digest = list[float]
"""Sums of the parts of a tensor."""

ROUNDING = 0.01
"""Relative difference of digests that counts as rounding. Data parallelism has the same gradients on all
ranks, so its rounding errors stay far below."""
_DIGEST_PARTS = 32
_AT_ONCE = 1 << 20
"""Number of elements that are converted to double precision at a time."""


class SaveError(Exception):
    """A step was not saved to storage; the message is one clause with the reason."""


@dataclass(frozen=True)
class SaveRequest:
    """Request to a saver to write a slot."""

    slot: str
    """Path of the slot."""
    step: int
    round: int
    rank: int
    world_size: int
    path: str
    """Folder of the checkpoints."""
    attempt: str
    job: str
    keep: int | None
    beside: str = ""
    """Attempt of the savers of the loaded checkpoint, which may still write; empty in their own requests."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def mark(self) -> Mark:
        return Mark(self.round, self.step, self.rank, self.world_size)


@dataclass(frozen=True)
class Share:
    """The pieces that one rank writes, by their indices among its pieces."""

    numbers: Sequence[int]
    renamed: Collection[int] = ()
    """Indices of the pieces of which each rank keeps its own, under a name of its own."""

    def of(self, pieces: Sequence[Piece], rank: int) -> list[Piece]:
        """Return the pieces, with their names in storage."""
        return [
            replace(pieces[n], name=own_name(pieces[n].name, rank)) if n in self.renamed else pieces[n]
            for n in self.numbers
        ]


@dataclass(frozen=True)
class RankShares:
    """Rank 0's decision about what each rank writes."""

    of_ranks: tuple[Share, ...]
    own: frozenset[str] = frozenset()
    """Names of floating-point tensors of which each rank keeps its own."""


class Savers:
    """The savers of all ranks, seen from one of them.

    Args:
        folder: the folder that they write to.
    """

    def __init__(self, files: Files, folder: str, rank: int, world_size: int) -> None:
        self._files = files
        self._folder = folder
        self._rank = rank
        self._world_size = world_size

    def tell(self, name: str, data: bytes) -> None:
        """Write a file of this rank for the other savers."""
        self._files.write(self._at(name.format(self._rank)), data)

    def lead(self, digests: Callable[[Collection[str]], Mapping[str, Digest | None]]) -> RankShares:
        """Decide what each rank writes, as rank 0.

        Args:
            digests: returns the digests of this rank's tensors with these names.

        Raises:
            SaveError, OSError: a rank does not take part.
        """
        plans = dict(enumerate(map(decode_plan, self.collect(PLAN))))
        own, numbers = set[str](), set[str]()
        if names := differing(plans):
            self._files.write(self._at(_DIFFERING), json.dumps(sorted(names)).encode())
            self.tell(_DIGEST, json.dumps(digests(names)).encode())
            found = dict(enumerate(map(json.loads, self.collect(_DIGEST))))
            own = own_of_each(plans, found)
            numbers = {name for each in found.values() for name, sums in each.items() if sums is not None}
        shares = _shares([*plans.values()], own)
        data = [json.dumps([share.numbers, share.renamed]).encode() for share in shares]
        self._files.write(self._at(_SHARES), _joined(data))
        return RankShares(tuple(shares), frozenset(own & numbers))

    def follow(
        self, pieces: Sequence[Piece], digests: Callable[[Collection[str]], Mapping[str, Digest | None]]
    ) -> list[Piece]:
        """Return the pieces that this rank writes, by rank 0's decision.

        Args:
            digests: as above.

        Raises:
            SaveError, OSError: rank 0 has given up, or does not decide.
        """
        files, shares, asked = self._files, self._at(_SHARES), self._at(_DIFFERING)
        if self.wait(lambda: next(filter(files.exists, (shares, asked)), None)) == asked:
            names = frozenset(json.loads(files.read(asked)))
            self.tell(_DIGEST, json.dumps(digests(names)).encode())
            self.wait(lambda: files.exists(shares) or None)
        start, length = _PLACE.unpack(files.read(shares, self._rank * _PLACE.size, _PLACE.size))
        numbers, renamed = json.loads(files.read(shares, start, length))
        return Share(numbers, set(renamed)).of(pieces, self._rank)

    def collect(self, name: str) -> Iterator[bytes]:
        """Wait for a file of every rank, and read them one after the other, as rank 0.

        Raises:
            SaveError: a rank does not take part.
        """
        wanted = {name.format(rank) for rank in range(self._world_size)}

        self.wait(lambda: wanted <= self._names() or None)
        for rank in range(self._world_size):
            yield self._files.read(self._at(name.format(rank)))

    def remove_notes(self) -> None:
        """Remove the files by which the savers have agreed, as rank 0."""
        self._files.remove(f"{self._folder}/{NOTES}")

    def wait_for_rank_0(self) -> None:
        """Wait until rank 0's saver has completed the checkpoint.

        Raises:
            SaveError, OSError: it has not.
        """
        files, shares, manifest = self._files, self._at(_SHARES), f"{self._folder}/{MANIFEST}"
        self.wait(lambda: (not files.exists(shares) and files.exists(manifest)) or None)

    def wait(self, look: Callable[[], T | None]) -> T:
        """Call `look` until it returns a value; a shared file system sends no notifications.

        Raises:
            SaveError: a rank has given up, or the time is over.
        """
        pause, slowest = self._files.look_seconds
        slowest = max(slowest, self._world_size / _LOOKS_PER_SECOND)
        seen_at = time.monotonic()
        deadline = seen_at + WAIT_SECONDS
        while (found := look()) is None:
            if self._files.exists(self._at(PLAN.format(self._rank))):
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > GONE_SECONDS:
                raise SaveError("rank 0 has given it up, and removed it")
            self._refuse_what_is_given_up()
            if time.monotonic() > deadline:
                raise SaveError(
                    f"other ranks have not saved it within {WAIT_SECONDS:.0f} s: do all see {self._files}?"
                )
            time.sleep(pause)
            pause = min(pause * 1.2, slowest)
        return found

    def _refuse_what_is_given_up(self) -> None:
        """Check whether rank 0 has given up, or, as rank 0, whether any rank has.

        Raises:
            SaveError: a rank has given up.
        """
        if self._rank == 0:
            gave_up = min((it for it in self._names() if it.startswith(GAVE_UP)), default="")
        else:
            gave_up = f"{GAVE_UP}0" if self._files.exists(self._at(f"{GAVE_UP}0")) else ""
        if not gave_up:
            return
        reason = self._files.read(self._at(gave_up)).decode(errors="replace")
        if not reason.startswith("rank "):  # otherwise rank 0 forwards another rank's reason
            reason = f"rank {gave_up.removeprefix(GAVE_UP)} has not saved it: {reason}"
        raise SaveError(reason)

    def _names(self) -> set[str]:
        return self._files.names(f"{self._folder}/{NOTES}")

    def _at(self, name: str) -> str:
        return f"{self._folder}/{NOTES}/{name}"


def _shares(plans: Sequence[Sequence[Piece]], own: Collection[str]) -> list[Share]:
    """Decide what each rank writes.

    Args:
        own: names of tensors of which each rank keeps its own.
    """
    named = [
        [replace(it, name=own_name(it.name, rank)) if it.name in own else it for it in pieces]
        for rank, pieces in enumerate(plans)
    ]
    shares = []
    for pieces, of_rank, written in zip(plans, named, divide(named), strict=True):
        at = {piece.place: number for number, piece in enumerate(of_rank)}
        numbers = sorted(at[piece.place] for piece in written)
        shares.append(Share(numbers, [n for n in numbers if pieces[n].name in own]))
    return shares


def _joined(shares: Sequence[bytes]) -> bytes:
    """Return the content of the file of all shares."""
    places, start = [], _PLACE.size * len(shares)
    for share in shares:
        places.append(_PLACE.pack(start, len(share)))
        start += len(share)
    return b"".join((*places, *shares))


# --- Tensors that differ between ranks ------------------------------------------------------------------


def digest(tensor: Tensor) -> Digest | None:
    """Sum up a tensor in parts; None for dtypes without rounding errors, such as integers.

    None, too, for packed dtypes, of which torch has no sum.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or str(tensor.dtype).endswith("_x2"):
        return None
    parts = tensor.reshape(-1).tensor_split(_DIGEST_PARTS)
    return [
        sum((piece.double().sum().item() for piece in torch.split(part, _AT_ONCE)), 0.0) for part in parts
    ]


def differing(pieces: Mapping[int, Sequence[Piece]]) -> set[str]:
    """Return the names of tensors, without buffers, of which ranks have the same part with other contents."""
    return {piece.name for piece, _ in _pairs(pieces)}


def different_pair(pieces: Mapping[int, Sequence[Piece]], name: str) -> dict[int, Sequence[Piece]]:
    """Return a part of that tensor that differs between two ranks, by rank."""
    return next(pair for piece, pair in _pairs(pieces) if piece.name == name)


def own_of_each(
    pieces: Mapping[int, Sequence[Piece]], digests: Mapping[int, Mapping[str, Digest | None]]
) -> set[str]:
    """Return the names of the tensors of which each rank has its own.

    Args:
        pieces: pieces of each rank.
        digests: digests of each rank's `differing` tensors.
    """
    names, rounded, is_far = differing(pieces), set[str](), False
    for piece, pair in _pairs(pieces):
        one, other = (digests[rank][piece.name] for rank in pair)
        if one is None or other is None:
            continue
        rounded.add(piece.name)
        (first,), (second,) = pair.values()
        is_far = is_far or first.shape != second.shape or not _is_close(one, other)
    return names if is_far else names - rounded


def _pairs(pieces: Mapping[int, Sequence[Piece]]) -> Iterator[tuple[Piece, dict[int, Sequence[Piece]]]]:
    """Yield each piece that differs from the first rank's, and both pieces by rank."""
    first: dict[Place, tuple[int, Piece]] = {}
    for rank, of_rank in pieces.items():
        for piece in of_rank:
            if piece.is_buffer or piece.is_nothing:
                continue
            first_rank, known = first.setdefault(piece.place, (rank, piece))
            if piece.content != known.content:
                yield piece, {first_rank: [known], rank: [piece]}


def _is_close(one: Digest, other: Digest) -> bool:
    """Whether two digests differ only by rounding. Sums that are not finite in either are left out."""
    pairs = [pair for pair in zip(one, other, strict=True) if any(map(math.isfinite, pair))]
    here, there = [sum_ for sum_, _ in pairs], [sum_ for _, sum_ in pairs]
    return math.dist(here, there) <= ROUNDING * math.hypot(*here)
