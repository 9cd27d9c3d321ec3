"""How the savers of all ranks agree on who writes what: through files beside those that they write.

The process group is the training's, so that savers have none.

    plan-<rank>        what the rank has, with sums
    differing.json     by rank 0: of which tensors ranks hold different ones under one name, if of any
    digest-<rank>.json how different they are
    shares             by rank 0, which alone reads the files of all ranks: what each rank writes
    part-<rank>        what it has written, as its part of `.metadata`; when all are there, rank 0's makes the
                       folder complete
    gave-up-<rank>     why it does not write: then rank 0 gives up too, and the others look at its file alone

When the checkpoint is complete, rank 0's saver removes these files, and so tells the others. Both the files
that are opened and the bytes that are read are linear in the number of ranks.

Tensors may have contents of their own on each rank under one name, as by tensor or pipeline parallelism
without DTensors. Sums say which differ. Buffers may, as BatchNorm's do. All others of data parallelism differ
a little where ranks have different hardware, whose rounding errors add up; what rank 0 has stands for all of
these. Where any tensor differs by more, ranks train different things: then each rank keeps its own of all.
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
"""For the other ranks' savers, at most."""
GONE_SECONDS = 90.0
"""So long a file may seem to be gone on a shared file system that is slow to tell of a new name."""
_LOOKS_PER_SECOND = 1000
"""Of all ranks together, at most, once each has looked for a while."""

PLAN, _DIGEST, PART = "plan-{}", "digest-{}.json", "part-{}"
_DIFFERING, _SHARES = "differing.json", "shares"
_PLACE = struct.Struct("<QQ")
"""Where a rank's share begins in the file of all shares, and how long it is. These come first, by rank."""


Digest = list[float]
"""Sums of the parts of a tensor."""

ROUNDING = 0.01
"""Digests that differ by a smaller share are of the same tensor. Gradients are the same on all ranks of data
parallelism, so that rounding is far below it."""
_DIGEST_PARTS = 32
_AT_ONCE = 1 << 20
"""Elements of which there are double-precision copies at a time."""


class SaveError(Exception):
    """A step does not reach the storage; one clause says why."""


@dataclass(frozen=True)
class SaveRequest:
    """What a saver writes."""

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
    """Attempt of the savers of what this start goes on from, which may still write; empty in a request to
    those."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def mark(self) -> Mark:
        return Mark(self.round, self.step, self.rank, self.world_size)


@dataclass(frozen=True)
class Share:
    """What one rank writes of its pieces."""

    numbers: Sequence[int]
    renamed: Collection[int] = ()
    """The numbers that have names of the rank's own in storage."""

    def of(self, pieces: Sequence[Piece], rank: int) -> list[Piece]:
        """Return the pieces, with the names that they have in storage."""
        return [
            replace(pieces[n], name=own_name(pieces[n].name, rank)) if n in self.renamed else pieces[n]
            for n in self.numbers
        ]


@dataclass(frozen=True)
class RankShares:
    """What each rank writes, as rank 0 decides it."""

    of_ranks: tuple[Share, ...]
    own: frozenset[str] = frozenset()
    """Names of tensors of which each rank has its own, with numbers that a training rounds."""


class Savers:
    """The savers of all ranks, as one of them deals with the others.

    Args:
        folder: the one that they write in.
    """

    def __init__(self, files: Files, folder: str, rank: int, world_size: int) -> None:
        self._files = files
        self._folder = folder
        self._rank = rank
        self._world_size = world_size

    def tell(self, name: str, data: bytes) -> None:
        """Write a file of this rank's."""
        self._files.write(self._at(name.format(self._rank)), data)

    def lead(self, digests: Callable[[Collection[str]], Mapping[str, Digest | None]]) -> RankShares:
        """Decide what each rank writes, as rank 0.

        Args:
            digests: returns those of this rank's tensors of these names.

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
        """Return what this rank writes, as rank 0 decides it.

        Args:
            digests: as above.

        Raises:
            SaveError, OSError: rank 0 has given it up, or does not decide.
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
        """Read a file of every rank, one after the other, as soon as all are there, as rank 0.

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
        """Look until there is something; a shared file system cannot tell by itself.

        Raises:
            SaveError: a rank has given it up, or the time is over.
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
        """Look at what rank 0 says, or as rank 0 at what any rank says.

        Raises:
            SaveError: a rank has given it up.
        """
        if self._rank == 0:
            gave_up = min((it for it in self._names() if it.startswith(GAVE_UP)), default="")
        else:
            gave_up = f"{GAVE_UP}0" if self._files.exists(self._at(f"{GAVE_UP}0")) else ""
        if not gave_up:
            return
        reason = self._files.read(self._at(gave_up)).decode(errors="replace")
        if not reason.startswith("rank "):  # else rank 0 passes on why another rank has given it up
            reason = f"rank {gave_up.removeprefix(GAVE_UP)} has not saved it: {reason}"
        raise SaveError(reason)

    def _names(self) -> set[str]:
        return self._files.names(f"{self._folder}/{NOTES}")

    def _at(self, name: str) -> str:
        return f"{self._folder}/{NOTES}/{name}"


def _shares(plans: Sequence[Sequence[Piece]], own: Collection[str]) -> list[Share]:
    """Decide what each rank writes.

    Args:
        own: names of tensors of which each rank writes its own.
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
    """The file of all shares."""
    places, start = [], _PLACE.size * len(shares)
    for share in shares:
        places.append(_PLACE.pack(start, len(share)))
        start += len(share)
    return b"".join((*places, *shares))


# --- Tensors that differ between ranks ------------------------------------------------------------------


def digest(tensor: Tensor) -> Digest | None:
    """Sum up a tensor in parts; None where its numbers are no floating-point ones, which have no rounding.

    Nor have those of which torch has several in a byte, and no sum.
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
    """Names of tensors, but for buffers, of which ranks hold the same part with different contents."""
    return {piece.name for piece, _ in _pairs(pieces)}


def different_pair(pieces: Mapping[int, Sequence[Piece]], name: str) -> dict[int, Sequence[Piece]]:
    """Return a part of that tensor which two ranks hold with different contents, by rank."""
    return next(pair for piece, pair in _pairs(pieces) if piece.name == name)


def own_of_each(
    pieces: Mapping[int, Sequence[Piece]], digests: Mapping[int, Mapping[str, Digest | None]]
) -> set[str]:
    """Names of the tensors of which each rank has its own.

    Args:
        digests: likewise, of the tensors that are `differing`.
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
    """Each piece that differs from that of the first rank that has it, and both by rank."""
    first: dict[Place, tuple[int, Piece]] = {}
    for rank, of_rank in pieces.items():
        for piece in of_rank:
            if piece.is_buffer or piece.is_nothing:
                continue
            first_rank, known = first.setdefault(piece.place, (rank, piece))
            if piece.content != known.content:
                yield piece, {first_rank: [known], rank: [piece]}


def _is_close(one: Digest, other: Digest) -> bool:
    """Whether they differ by rounding alone. What is no finite number in both is left out."""
    pairs = [pair for pair in zip(one, other, strict=True) if any(map(math.isfinite, pair))]
    here, there = [sum_ for sum_, _ in pairs], [sum_ for _, sum_ in pairs]
    return math.dist(here, there) <= ROUNDING * math.hypot(*here)
