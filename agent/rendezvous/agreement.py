"""How the agents of a round agree upon a checkpoint, over the round's store. What to do, `resume` decides.

    here/<agent>        what the agent holds (an Inventory); "" where it takes no part
    all                 rank 0's first announcement
    fetch/<n>/<agent>   what the agent has to fetch, as announcement n asks: {rank: agent}
    fetched/<n>/<agent> the ranks that it could not get, and what it holds now: [list, Inventory]
    plan/<n>            announcement n, after the fetches of the one before
    shards              in a world of another size, who serves what: by address, ranks (deflated)
    storage             where the job's checkpoints are in storage (a StorageFile), by any agent that knows
    ring                the agents' order by which each has its peer, if that is not by rank (deflated)

An announcement is a JSON object: the checkpoint, or null, and who has to fetch. Once nobody has to, it is
final. `all` alone is what older agents know, so there is no fetch beside one.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from agent.checkpoints.agreed import Agreed, HeldReplicas
from agent.checkpoints.holder import CheckpointMemory, OutdatedMeetingError
from agent.slots.fetch import FetchError
from agent.slots.peers import peers_of, ring_of
from agent.slots.resume import Checkpoint, Inventory, Plan, decide, without
from crds.ranges import as_ranges, from_text, to_text

logger = logging.getLogger(__name__)

_FLAGS = ("shards", "lastResort", "ring", "persist")
"""What an announcement says besides."""
MAX_INFLATED_BYTES = 32 << 20
"""Length of what was deflated, at most. Of a world of 10,000 agents it has less than a megabyte."""
MAX_FETCH_ROUNDS = 4
"""To fetch what is missing; after that the checkpoint comes from storage."""


class Agreement:
    """One agent's part in it.

    Args:
        store: the agents' namespace of the round's.
        round_: the number of the round.
        agent: this agent's rank among the members.
        members: how many there are.
        memory: of this agent; None if it has none.
        wait: blocks until the store has these keys.
        abandoned: set once nobody waits for this meeting any more.
    """

    def __init__(
        self,
        store: Store,
        round_: int,
        agent: int,
        members: int,
        memory: CheckpointMemory | None,
        wait: Callable[[Store, list[str]], None],
        abandoned: threading.Event,
    ) -> None:
        self._store = store
        self._round = round_
        self._agent = agent
        self._members = members
        self._memory = memory
        self._wait = wait
        self._abandoned = abandoned

    def say_here(self) -> None:
        """Tell the others that this agent is here, and what it holds."""
        if self._memory is not None:
            self._memory.await_arrivals(self._round, self._abandoned)
            if (storage := self._memory.storage()) is not None:
                self._store.set("storage", json.dumps(storage))
        self._store.set(f"here/{self._agent}", self._held() if self._memory else "")

    def lead(self) -> None:
        """Decide, as rank 0's agent, when all are here."""
        store, inventories = self._store, self._inventories()
        plan, attempt = decide(inventories), 0
        while plan.fetches and attempt < MAX_FETCH_ROUNDS:
            for agent, ranks in plan.fetches.items():
                store.set(f"fetch/{attempt}/{agent}", json.dumps(ranks))
            self._announce(attempt, plan)
            inventories = self._after_fetches(attempt, plan, inventories)
            plan, attempt = decide(inventories), attempt + 1
        if plan.fetches:
            plan = Plan()
        if plan.shards:
            store.set("shards", _deflated(_by_address(plan, inventories)))
        ring = ring_of([member.place if member is not None else () for member in inventories])
        if ring is not None:
            store.set("ring", _deflated(ring))
        checkpoint = plan.checkpoint
        persists = (
            checkpoint is not None
            and self._memory is not None
            and self._memory.persists(checkpoint)
            and store.check(["storage"])
        )
        self._announce(attempt, plan, has_ring=ring is not None, persists=persists)
        from_peer = attempt > 0 or any(
            member is not None and member.from_peer and checkpoint in member.held for member in inventories
        )
        self._agree(
            checkpoint,
            from_peer,
            is_last_resort=plan.is_last_resort,
            resharded=bool(plan.shards),
            has_ring=ring is not None,
            persists=persists,
        )

    def follow(self) -> None:
        """Do what rank 0's agent announces, until it is final."""
        attempt = 0
        while True:
            key = _key(attempt)
            self._wait(self._store, [key])
            announced = _announcement(self._store.get(key))
            if not announced["fetch"]:
                break
            checkpoint = _checkpoint(announced)
            if checkpoint is not None and self._agent in from_text(announced["fetch"]):
                self._fetch(attempt, checkpoint)
            attempt += 1
        self._agree(
            _checkpoint(announced),
            attempt > 0,
            is_last_resort=announced["lastResort"],
            resharded=announced["shards"],
            has_ring=announced["ring"],
            persists=announced["persist"],
        )

    def _held(self) -> str:
        """What this agent holds, as text.

        Raises:
            OutdatedMeetingError: this meeting was abandoned.
        """
        assert self._memory is not None
        if self._abandoned.is_set():
            raise OutdatedMeetingError
        return self._memory.inventory(self._round).encode()

    def _inventories(self) -> list[Inventory | None]:
        if self._memory is None:
            return [None] * self._members
        said = self._store.multi_get([f"here/{agent}" for agent in range(self._members)])
        return [Inventory.decode(text.decode()) for text in said]

    def _announce(self, attempt: int, plan: Plan, *, has_ring: bool = False, persists: bool = False) -> None:
        if self._memory is None:
            announcement = ""
        else:
            c = plan.checkpoint
            announcement = json.dumps(
                {
                    "checkpoint": None if c is None else [c.round, c.step, c.world_size],
                    "fetch": to_text(sorted(plan.fetches)),
                    "shards": bool(plan.shards),
                    "lastResort": plan.is_last_resort,
                    "ring": has_ring,
                    "persist": persists,
                }
            )
        self._store.set(_key(attempt), announcement)

    def _agree(
        self,
        checkpoint: Checkpoint | None,
        from_peer: bool,
        *,
        is_last_resort: bool,
        resharded: bool,
        has_ring: bool,
        persists: bool,
    ) -> None:
        if self._memory is None:
            return
        shards: dict[str, frozenset[int]] = {}
        if resharded:
            self._wait(self._store, ["shards"])
            served: dict[str, str] = _inflated(self._store.get("shards"))
            shards = {address: frozenset(from_text(ranks)) for address, ranks in served.items()}
        if has_ring:
            self._wait(self._store, ["ring"])
        peers = _peers(self._store, self._members, has_ring=has_ring)
        peer = None if peers is None else self._address_of(peers[self._agent])
        held = None if peers is None else self._held_replicas(peers.index(self._agent))
        if self._abandoned.is_set():
            raise OutdatedMeetingError
        persist_to = json.loads(self._store.get("storage")) if persists else None
        self._memory.agree(
            Agreed(self._round, checkpoint, is_last_resort, shards, from_peer, peer, held, peers, persist_to)
        )

    def _fetch(self, attempt: int, checkpoint: Checkpoint) -> None:
        """Fetch what announcement `attempt` asks of this agent, and say what it could not get."""
        assert self._memory is not None
        key = f"fetch/{attempt}/{self._agent}"
        self._wait(self._store, [key])
        missing = []
        for rank, holder in json.loads(self._store.get(key)).items():
            try:
                address = self._address_of(holder) or ""
                self._memory.fetch(self._round, checkpoint, int(rank), address, self._abandoned)
            except FetchError as error:
                logger.warning("rank %s of step %d was not fetched: %s", rank, checkpoint.step, error)
                missing.append(int(rank))
        self._store.set(f"fetched/{attempt}/{self._agent}", json.dumps([missing, self._held()]))

    def _address_of(self, agent: int) -> str | None:
        return _address(self._store, agent)

    def _held_replicas(self, agent: int) -> HeldReplicas | None:
        inventory = _inventory(self._store, agent)
        return HeldReplicas(agent, inventory.address, inventory.ranks) if inventory else None

    def _after_fetches(
        self, attempt: int, plan: Plan, inventories: Sequence[Inventory | None]
    ) -> list[Inventory | None]:
        """Wait until all have fetched, this agent too, and return who holds what then."""
        checkpoint = plan.checkpoint
        assert checkpoint is not None
        if self._agent in plan.fetches:
            self._fetch(attempt, checkpoint)
        keys = [f"fetched/{attempt}/{agent}" for agent in plan.fetches]
        self._wait(self._store, keys)
        failed, fetched, held = [], [], list(inventories)
        for (agent, ranks), said in zip(plan.fetches.items(), self._store.multi_get(keys), strict=True):
            missing, text = json.loads(said)
            held[agent] = Inventory.decode(text)  # a fetch writes over what was there
            failed += [(holder, rank) for rank, holder in ranks.items() if rank in missing]
            fetched += [(agent, rank) for rank in ranks if rank not in missing]
        return without(held, checkpoint, failed, fetched)


def server_of_peer(store: Store, agent: int, members: int) -> str | None:
    """The slot server of who held an agent's replicas in a round that had begun; None if nobody did.

    Args:
        store: the agents' namespace of that round's.
        members: how many agents it had.
    """
    peers = _peers(store, members, has_ring=store.check(["ring"]))
    if peers is None or not store.check([f"here/{peers[agent]}"]):
        return None
    return _address(store, peers[agent])


def _peers(store: Store, members: int, *, has_ring: bool) -> tuple[int, ...] | None:
    return peers_of(_inflated(store.get("ring")) if has_ring else range(members))


def _inventory(store: Store, agent: int) -> Inventory | None:
    return Inventory.decode(store.get(f"here/{agent}").decode())


def _address(store: Store, agent: int) -> str | None:
    """Return the address of an agent's slot server; None where it has none."""
    inventory = _inventory(store, agent)
    return inventory.address if inventory else None


def _key(attempt: int) -> str:
    """Return the key of an announcement."""
    return f"plan/{attempt}" if attempt else "all"


def _by_address(plan: Plan, inventories: Sequence[Inventory | None]) -> dict[str, str]:
    """Return which agent serves which ranks, in a world of another size."""
    return {
        holder.address: as_ranges(sorted(ranks))
        for agent, ranks in plan.shards.items()
        if (holder := inventories[agent]) is not None
    }


def _deflated(content: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(content).encode())).decode()


def _inflated(text: bytes) -> Any:
    inflating = zlib.decompressobj()
    content = inflating.decompress(base64.b64decode(text), MAX_INFLATED_BYTES)
    if inflating.unconsumed_tail:
        raise ValueError(f"what rank 0's agent sent has more than {MAX_INFLATED_BYTES:,} bytes")
    return json.loads(content)


def _announcement(said: bytes) -> dict[str, Any]:
    """Read one; that of an agent without memory names no checkpoint."""
    unsaid = {"checkpoint": None, "fetch": "", **dict.fromkeys(_FLAGS, False)}
    return {**unsaid, **(json.loads(said) if said else {})}


def _checkpoint(announced: dict[str, Any]) -> Checkpoint | None:
    of = announced["checkpoint"]
    return None if of is None else Checkpoint(*map(int, of))
