"""Decides which checkpoint a world resumes from, and which agents fetch parts of it. Pure.

Before the processes of a round start, its agents meet (`agent.rendezvous.meeting`). Each sends an `Inventory`
of its slots, and rank 0's agent decides for the newest checkpoint with slots of all ranks. In a world of the
same size each rank needs its part on its own agent, so parts that lie elsewhere are fetched first. In a world
of another size any process may read any part. Agents are identified by their ranks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TypeVar

from agent.facts.place import Place
from agent.slots.format import Mark
from crds.ranges import MAX_INDEX, as_ranges, from_text

INVENTORY_BYTES = 300
"""Largest size of an inventory; with 10,000 agents, rank 0's agent reads 3 MB."""

MAX_FETCHES = 512
"""Largest number of ranks whose slots are fetched before a round begins: 64 nodes with 8 devices. All wait
for the slowest. More are missing if a standby takes a lower place, so that the ranks of all agents after it
move; then thousands of whole states would cross the network, and storage is no slower."""
MAX_INFLATED_BYTES = 32 << 20
"""Largest size of a decision; a world of 10,000 agents needs less than a megabyte."""
MAX_ATTEMPTS = 2
"""Rounds in a row that may begin with the same checkpoint. After them it is suspected to end the rounds, and
any other is tried first. Rounds that end by plan do not count."""


@dataclass(frozen=True, order=True)
class Checkpoint:
    """Slots of all ranks from 0 to world_size - 1, ordered by age."""

    round: int
    """Round in which it was written."""
    step: int
    world_size: int

    @classmethod
    def of(cls, mark: Mark) -> Checkpoint:
        """Return the checkpoint that a slot is a part of."""
        return cls(mark.round, mark.step, mark.world_size)

    def part(self, rank: int) -> Mark:
        """Return the mark of that rank's slot."""
        return Mark(self.round, self.step, rank, self.world_size)


@dataclass(frozen=True)
class Inventory:
    """Checkpoints and processes of one agent before a round."""

    ranks: int
    """Number of processes that it starts."""
    address: str = ""
    """Address of its slot server."""
    held: Mapping[Checkpoint, frozenset[int]] = field(default_factory=dict)
    """Ranks whose slots it has, by checkpoint."""
    place: tuple[str, ...] = ()
    """Failure domains of its Pod, the largest first (`agent.slots.replication`)."""
    from_peer: bool = False
    """Whether it has fetched its slots from a peer, as a replacement does before its first meeting."""
    exhausted: Checkpoint | None = None
    """Checkpoint that is suspected to end rounds (`Attempts`)."""
    lives: int = 0
    """Number of its processes that live on into the round."""
    bound_to: Place | None = None
    """Only place that these can go on in: the rank of its first process, and the size of the world; None if
    they go on in any."""
    no_newcomers: bool = False
    """Whether its processes that join others fail before their loop, so that all have to start again."""

    def encode(self) -> str:
        """Encode as text of at most `INVENTORY_BYTES`; the oldest checkpoints are left out if need be."""
        held = [
            [c.round, c.step, c.world_size, as_ranges(sorted(ranks))]
            for c, ranks in sorted(self.held.items(), reverse=True)
        ]
        exhausted = self.exhausted and astuple(self.exhausted)
        living = self.lives, int(self.no_newcomers), self.bound_to
        rest = self.place, int(self.from_peer), exhausted, *living
        while len(text := _compact([self.ranks, self.address, held, *rest])) > INVENTORY_BYTES:
            held.pop()
        return text

    @classmethod
    def decode(cls, text: str) -> Inventory | None:
        """Decode it; return None if it is none, as from torchrun's agent."""
        try:
            fields = json.loads(text)
            ranks, address, held, place, from_peer, exhausted, lives, no_newcomers, bound_to = fields
            return cls(
                int(ranks),
                str(address),
                _at_most_all(_entry(*each) for each in held),
                tuple(map(str, place)),
                bool(from_peer),
                None if exhausted is None else Checkpoint(*map(int, exhausted)),
                int(lives),
                None if bound_to is None else Place(*map(int, bound_to)),
                bool(no_newcomers),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None


@dataclass(frozen=True)
class ResumeDecision:
    """Decision of rank 0's agent for all agents of the round. It is final if it needs no fetches."""

    checkpoint: Checkpoint | None = None
    """None if memory has no usable checkpoint, so that it comes from storage."""
    fetches: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Ranks whose slots an agent fetches first, with the agent that has each, by fetching agent."""
    shards: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Ranks of the checkpoint by address of the slot server, in a world of another size."""
    is_last_resort: bool = False
    """Whether a checkpoint in storage goes first, since rounds began with this one and saved nothing."""
    from_peer: bool = False
    """Whether any agent had to fetch a part of it from another."""
    persists: bool = False
    """Whether the processes write it to storage too, since the last round was broken by a failure."""
    ring: Sequence[int] | None = None
    """Order of the agents that determines peers; None for the order of their ranks."""
    lives_on: bool = False
    """Whether processes live on into the round, and the others join them in their loop."""

    def encode(self) -> str:
        shards = {address: as_ranges(sorted(ranks)) for address, ranks in self.shards.items()}
        checkpoint = self.checkpoint and astuple(self.checkpoint)
        flags = [self.is_last_resort, self.from_peer, self.persists, self.lives_on]
        text = _compact([checkpoint, self.fetches, shards, flags, self.ring])
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def decode(cls, data: bytes | str) -> ResumeDecision:
        """Decode it; raise ValueError if it is malformed or too long."""
        try:
            return cls._of(data)
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error) as error:
            raise ValueError(f"the decision of rank 0's agent is malformed: {error!s:.200}") from error

    @classmethod
    def _of(cls, data: bytes | str) -> ResumeDecision:
        inflating = zlib.decompressobj()
        text = inflating.decompress(base64.b64decode(data), MAX_INFLATED_BYTES)
        if inflating.unconsumed_tail:
            raise ValueError(f"the decision of rank 0's agent has more than {MAX_INFLATED_BYTES:,} bytes")
        checkpoint, fetches, shards, flags, ring = json.loads(text)
        is_last_resort, from_peer, persists, lives_on = map(bool, flags)
        return cls(
            None if checkpoint is None else Checkpoint(*checkpoint),
            {int(at): {int(rank): holder for rank, holder in of.items()} for at, of in fetches.items()},
            _at_most_all((address, frozenset(from_text(ranks))) for address, ranks in shards.items()),
            is_last_resort,
            from_peer,
            persists,
            None if ring is None else tuple(ring),
            lives_on,
        )


UNDECIDED = ResumeDecision()


class Attempts:
    """One agent's count of the rounds in a row that have begun with the same checkpoint."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        """Checkpoint of the last agreement."""
        self._rounds = 0
        self._is_planned = False

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Count a round that begins with this checkpoint, unless the round before ended by plan."""
        if checkpoint != self.checkpoint:
            self.checkpoint, self._rounds = checkpoint, 1
        elif not self._is_planned:
            self._rounds += 1
        self._is_planned = False

    def note_plan(self) -> None:
        """Note that the current round ends by plan. May be called again."""
        self._is_planned = True

    @property
    def exhausted(self) -> Checkpoint | None:
        """Checkpoint that MAX_ATTEMPTS rounds began with without saving, so that it may be what ends them."""
        return self.checkpoint if self._rounds >= MAX_ATTEMPTS and not self._is_planned else None


def decide(inventories: Sequence[Inventory | None]) -> ResumeDecision:
    """Decide what a world resumes from.

    Args:
        inventories: inventories of the members, in rank order; with a None, for an agent that cannot take
            part, memory is not used.
    """
    members = [inventory for inventory in inventories if inventory is not None]
    if len(members) < len(inventories):
        return UNDECIDED
    world_size = sum(member.ranks for member in members)
    exhausted, found = {member.exhausted for member in members}, _holders(members)
    for checkpoint in sorted(found, key=lambda each: (each not in exhausted, each), reverse=True):
        holders, is_last_resort = found[checkpoint], checkpoint in exhausted
        if len(holders) < checkpoint.world_size:
            continue
        lives_on = not is_last_resort and live_on(members)
        if checkpoint.world_size == world_size:
            fetches = _fetches(checkpoint, holders, members)
            if sum(map(len, fetches.values())) > MAX_FETCHES:
                continue
            return ResumeDecision(checkpoint, fetches, is_last_resort=is_last_resort, lives_on=lives_on)
        shards = _shards(holders, members)
        return ResumeDecision(checkpoint, {}, shards, is_last_resort, lives_on=lives_on)
    return UNDECIDED


def live_on(members: Sequence[Inventory]) -> bool:
    """Whether processes live on in a world of these members: each can, and all others can join them."""
    world_size = sum(member.ranks for member in members)
    places = [Place(ranks.start, world_size) for ranks in ranks_of(members)]
    return (
        any(member.lives for member in members)
        and not any(member.no_newcomers for member in members)
        and all(
            not member.lives or member.bound_to in (None, place)
            for member, place in zip(members, places, strict=True)
        )
    )


def without(
    inventories: Sequence[Inventory | None],
    checkpoint: Checkpoint,
    failed: Iterable[tuple[int, int]],
    fetched: Iterable[tuple[int, int]],
) -> list[Inventory | None]:
    """Return the inventories after an attempt to fetch.

    Args:
        failed: pairs of an agent and a rank whose slot could not be fetched from it.
        fetched: pairs of an agent and a rank whose slot it has now.
    """
    lost, won = _by_agent(failed), _by_agent(fetched)
    return [
        member if member is None else _changed(member, checkpoint, lost.get(agent, ()), won.get(agent, ()))
        for agent, member in enumerate(inventories)
    ]


def ranks_of(members: Iterable[Inventory]) -> Iterator[range]:
    """Yield the global ranks of each agent's processes, as torch assigns them."""
    base = 0
    for member in members:
        yield range(base, base + member.ranks)
        base += member.ranks


def _compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


def _entry(round_: int, step: int, world_size: int, ranks: str) -> tuple[Checkpoint, frozenset[int]]:
    """Decode one checkpoint of an inventory; raise ValueError or TypeError if it is malformed."""
    if world_size < 1:
        raise ValueError("a world has one rank at least")
    found = frozenset(rank for rank in from_text(ranks) if rank < world_size)
    return Checkpoint(int(round_), int(step), int(world_size)), found


_K = TypeVar("_K")


def _at_most_all(entries: Iterable[tuple[_K, frozenset[int]]]) -> dict[_K, frozenset[int]]:
    """Collect ranks, up to the number that a world may have.

    Raises:
        ValueError: there are more, since a short text can name many.
    """
    found: dict[_K, frozenset[int]] = {}
    left = MAX_INDEX + 1
    for key, ranks in entries:
        found[key] = ranks
        left -= len(ranks)
        if left < 0:
            raise ValueError(f"it names more than {MAX_INDEX + 1:,} ranks")
    return found


def _holders(members: Sequence[Inventory]) -> dict[Checkpoint, dict[int, list[int]]]:
    """Return the agents that hold a slot, by checkpoint and rank."""
    holders: dict[Checkpoint, dict[int, list[int]]] = {}
    for agent, member in enumerate(members):
        for checkpoint, ranks in member.held.items():
            of = holders.setdefault(checkpoint, {})
            for rank in ranks:
                of.setdefault(rank, []).append(agent)
    return holders


def _fetches(
    checkpoint: Checkpoint, holders: Mapping[int, Sequence[int]], members: Sequence[Inventory]
) -> dict[int, dict[int, int]]:
    fetches: dict[int, dict[int, int]] = {}
    for agent, ranks in enumerate(ranks_of(members)):
        held = members[agent].held.get(checkpoint, frozenset())
        for rank in ranks:
            if rank not in held:
                fetches.setdefault(agent, {})[rank] = holders[rank][0]
    return fetches


def _shards(holders: Mapping[int, Sequence[int]], members: Sequence[Inventory]) -> dict[str, frozenset[int]]:
    shards: dict[int, set[int]] = {}
    for rank, agents in holders.items():
        shards.setdefault(agents[0], set()).add(rank)
    return {members[agent].address: frozenset(ranks) for agent, ranks in sorted(shards.items())}


def _by_agent(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for agent, rank in pairs:
        found.setdefault(agent, set()).add(rank)
    return found


def _changed(member: Inventory, checkpoint: Checkpoint, lost: Iterable[int], won: Iterable[int]) -> Inventory:
    ranks = (member.held.get(checkpoint, frozenset()) - frozenset(lost)) | frozenset(won)
    return replace(member, held={**member.held, checkpoint: ranks})
