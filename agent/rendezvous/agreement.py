"""Agreement of a round's agents on a checkpoint, over the round's store. `agent.slots.resume` decides.

here/<agent>        the agent's `Inventory`; "" if it takes no part
plan/<n>            rank 0's n-th `ResumeDecision`; the first one without fetches is final
fetched/<n>/<agent> the ranks that the agent could not fetch for it, and its new inventory: [list, Inventory]
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch.distributed import Store  # type: ignore[attr-defined]

from agent.checkpoints.agreed import AgreedCheckpoint, ReplicaSource
from agent.checkpoints.holder import CheckpointHolder, OutdatedMeetingError
from agent.slots.replication import peers_of, ring_of
from agent.slots.resume import UNDECIDED, Inventory, ResumeDecision, decide, without
from agent.slots.wire import FetchError

logger = logging.getLogger(__name__)

MAX_FETCH_ROUNDS = 4
"""Number of attempts to fetch missing slots; after them the checkpoint comes from storage."""


class CheckpointAgreement:
    """One agent's part in the agreement.

    Args:
        store: the meeting's part of the round's store.
        agent: this agent's rank among the members.
        memory: this agent's checkpoints in memory; None if it keeps none.
        wait: blocks until the store has these keys.
        abandoned: set when the meeting is abandoned.
    """

    def __init__(
        self,
        store: Store,
        round_: int,
        agent: int,
        members: int,
        memory: CheckpointHolder | None,
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

    def publish_inventory(self) -> None:
        """Publish this agent's inventory, and thereby that it is here."""
        if self._memory is not None:
            self._memory.await_arrivals(self._round, self._abandoned)
        self._store.set(f"here/{self._agent}", self._own_inventory() if self._memory else "")

    def lead(self) -> None:
        """Decide, as rank 0's agent, once all inventories are there."""
        keys = [f"here/{agent}" for agent in range(self._members)]
        inventories = [Inventory.decode(text.decode()) for text in self._store.multi_get(keys)]
        ring = ring_of([member.place if member is not None else () for member in inventories])
        decision, attempt = decide(inventories), 0
        while decision.fetches and attempt < MAX_FETCH_ROUNDS:
            self._store.set(_key(attempt), decision.encode())
            inventories = self._after_fetches(attempt, decision, inventories)
            decision, attempt = decide(inventories), attempt + 1
        if decision.fetches:
            decision = UNDECIDED
        checkpoint = decision.checkpoint
        prefetched = any(it is not None and it.from_peer and checkpoint in it.held for it in inventories)
        decision = replace(
            decision,
            from_peer=attempt > 0 or prefetched,
            persists=checkpoint is not None and self._memory is not None and self._memory.persists,
            ring=ring,
        )
        self._store.set(_key(attempt), decision.encode())
        self._agree(decision)

    def follow(self) -> None:
        """Follow the decisions of rank 0's agent, up to the final one."""
        for attempt in itertools.count():
            self._wait(self._store, [_key(attempt)])
            decision = ResumeDecision.decode(self._store.get(_key(attempt)))
            if not decision.fetches:
                break
            self._fetch(attempt, decision)
        self._agree(decision)

    def _own_inventory(self) -> str:
        """Return this agent's inventory, encoded.

        Raises:
            OutdatedMeetingError: this meeting was abandoned.
        """
        assert self._memory is not None
        if self._abandoned.is_set():
            raise OutdatedMeetingError
        return self._memory.inventory(self._round).encode()

    def _agree(self, decision: ResumeDecision) -> None:
        if self._memory is None:
            return
        peers, peer, source = peers_of(decision.ring or range(self._members)), None, None
        if peers is not None:
            peer, agent = _address(self._store, peers[self._agent]), peers.index(self._agent)
            if (inventory := _inventory(self._store, agent)) is not None:
                source = ReplicaSource(agent, inventory.address, inventory.ranks)
        if self._abandoned.is_set():
            raise OutdatedMeetingError
        here = self._agent, self._members
        self._memory.agree(AgreedCheckpoint(self._round, decision, peers, peer, source, *here))

    def _fetch(self, attempt: int, decision: ResumeDecision) -> None:
        """Fetch the slots that a decision assigns to this agent, if any, and publish the result."""
        ranks, checkpoint, missing = decision.fetches.get(self._agent), decision.checkpoint, []
        if ranks is None or checkpoint is None or self._memory is None:
            return
        for rank, holder in ranks.items():
            try:
                address = _address(self._store, holder) or ""
                self._memory.fetch(self._round, checkpoint, rank, address, self._abandoned)
            except FetchError as error:
                logger.warning("rank %s of step %d was not fetched: %s", rank, checkpoint.step, error)
                missing.append(rank)
        self._store.set(f"fetched/{attempt}/{self._agent}", json.dumps([missing, self._own_inventory()]))

    def _after_fetches(
        self, attempt: int, decision: ResumeDecision, inventories: Sequence[Inventory | None]
    ) -> list[Inventory | None]:
        """Wait until all agents have fetched, including this one, and return the new inventories."""
        assert decision.checkpoint is not None
        self._fetch(attempt, decision)
        keys = [f"fetched/{attempt}/{agent}" for agent in decision.fetches]
        self._wait(self._store, keys)
        failed, fetched, held = [], [], list(inventories)
        answers = self._store.multi_get(keys)
        for (agent, ranks), answer in zip(decision.fetches.items(), answers, strict=True):
            missing, text = json.loads(answer)
            held[agent] = Inventory.decode(text)  # a fetch overwrites another slot
            failed += [(holder, rank) for rank, holder in ranks.items() if rank in missing]
            fetched += [(agent, rank) for rank in ranks if rank not in missing]
        return without(held, decision.checkpoint, failed, fetched)


def server_of_peer(store: Store, agent: int, members: int) -> str | None:
    """Return the slot server of an agent's peer, which has its replicas, in a round that had begun; else
    None.

    Args:
        store: the meeting's part of that round's store.
        agent: rank of the agent in that round.
        members: number of the round's agents.
    """
    keys = [_key(attempt) for attempt in range(MAX_FETCH_ROUNDS + 1) if store.check([_key(attempt)])]
    decision = ResumeDecision.decode(store.get(keys[-1])) if keys else None
    if decision is None or decision.fetches:
        return None
    peers = peers_of(decision.ring or range(members))
    if peers is None or not store.check([f"here/{peers[agent]}"]):
        return None
    return _address(store, peers[agent])


def _key(attempt: int) -> str:
    return f"plan/{attempt}"


def _inventory(store: Store, agent: int) -> Inventory | None:
    return Inventory.decode(store.get(f"here/{agent}").decode())


def _address(store: Store, agent: int) -> str | None:
    """Return the address of an agent's slot server; None if it has none."""
    inventory = _inventory(store, agent)
    return inventory.address if inventory else None
