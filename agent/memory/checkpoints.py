"""Checkpoints in memory: what an agent keeps for its training processes, from its start to its end.

Between two rounds, when no process runs: `inventory` says what is here, `fetch` gets what is elsewhere, and
`agree` takes the decision. At each start `write_files` gives every local rank its slots. While processes run,
peers fetch replicas from here, and theirs come here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.environment import Environment, InvalidEnvironmentError
from agent.memory.fetch import DamagedCopyError, FetchError, fetch
from agent.memory.pool import (
    OWN_SLOTS,
    REPLICA_SLOTS,
    SMALLEST_BYTES,
    Pool,
    assign,
    oldest_first,
    slot_for_replica,
)
from agent.memory.replication import Replication
from agent.memory.resume import Checkpoint, Inventory
from agent.memory.server import SlotServer
from agent.memory.slot import Mark, Slot
from agent.memory.wire import have_checked
from agent.monitor.oom import OomWatch
from crds.protocol import ENV_CHECKPOINT_FILE, CheckpointFile, MemoryStatus, ResumedStatus, ResumeFile, Tier

logger = logging.getLogger(__name__)

FIELD = "replicaSpecs.worker.memoryCheckpoint"

REPLICA_SHARE = 0.5
"""Of the time that a replica's fetch may take of network and CPU, so that training has the rest."""

MAX_TRIES = 2
"""Rounds in a row that may begin with the same checkpoint. After that many it may be what ends them."""


class OutdatedMeetingError(Exception):
    """The meeting was abandoned, and may act on the memory no more."""


@dataclass(frozen=True)
class Agreed:
    """What the agents of a round have agreed upon."""

    round: int
    checkpoint: Checkpoint | None = None
    """None where memory has nothing, so that it comes from storage."""
    shards: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """In a world of another size: the ranks of the checkpoint, by the address of the slot server."""
    from_peer: bool = False
    """Whether any agent had to fetch a part of it from another."""
    peer: str | None = None
    """The slot server of who holds our replicas; None where nobody does."""
    peer_of: str | None = None
    """The slot server of whose replicas we hold; None where there is nobody. Others' offers are not taken."""


class CheckpointMemory:
    """The slots of one agent, and who may use them.

    Raises:
        InvalidEnvironmentError: there is no room for the slots that the job asks for.
    """

    def __init__(self, me: Environment, local_world_size: int) -> None:
        count = local_world_size * (OWN_SLOTS + REPLICA_SLOTS * me.memory_replicas)
        _check_room(me, count)
        try:
            self._pool = Pool(me.memory_bytes, count)
        except OSError as error:
            raise InvalidEnvironmentError(f"{FIELD}: no memory for {count} slots: {error}") from error
        self._local_world_size = local_world_size
        self._lock = threading.Lock()
        """Of what follows."""
        self._agreed = Agreed(0)
        self._meeting = 0
        """The newest round whose meeting this agent has come to: older ones' threads may act no more."""
        self._tries: tuple[Checkpoint | None, int] = (None, 0)
        """The checkpoint last agreed upon, and how many rounds in a row began with it."""
        self._own: list[list[Slot]] = []
        """The slots of the processes that run, by local rank; none while none runs."""
        self._incoming: list[Slot] = []
        """Those that a fetch writes into now."""
        self._resumed: ResumedStatus | None = None
        self._replicated_step: int | None = None
        """The newest step that the peer holds for all local ranks."""
        self._server = SlotServer(self._pool, me.pod_ip, self._take_replica)
        self._replication = Replication(self.own_marks, self.address, self._replicated)
        if me.memory_replicas:
            self._replication.start()
        self._pool.touch()

    @property
    def address(self) -> str:
        """Of the slot server."""
        return self._server.address

    def close(self) -> None:
        self._replication.stop()
        self._server.close()
        self._pool.close()

    # Between two rounds.

    def inventory(self, round_: int) -> Inventory:
        """What is here, now that no process runs, for the meeting of that round.

        Raises:
            OutdatedMeetingError: that of a newer one has begun.
        """
        with self._lock:
            self._check_meeting(round_)
            self._meeting = round_
            self._replication.follow(None)
            self._own = []
            self._pool.sum_up()
            held: dict[Checkpoint, frozenset[int]] = {}
            for _, mark in self._pool.held():
                checkpoint = Checkpoint(mark.round, mark.step, mark.world_size)
                if self._tries != (checkpoint, MAX_TRIES):
                    held[checkpoint] = held.get(checkpoint, frozenset()) | {mark.rank}
            return Inventory(self._local_world_size, self.address, held)

    def fetch(
        self, round_: int, checkpoint: Checkpoint, rank: int, address: str, abandoned: threading.Event
    ) -> None:
        """Get a rank's slot of that checkpoint from a peer, unless it is here.

        Raises:
            FetchError: it could not be had; the message says why.
            OutdatedMeetingError: the meeting of a newer round than `round_` has begun.
        """
        mark = Mark(checkpoint.round, checkpoint.step, rank, checkpoint.world_size)
        with self._lock:
            self._check_meeting(round_)
            if abandoned.is_set():
                raise OutdatedMeetingError
            if self._pool.find(checkpoint, rank) is not None:
                return
            free = [
                slot
                for slot in oldest_first(self._pool.slots)
                if slot not in self._incoming and not _is_of(slot, checkpoint)
            ]
            if not free:
                raise FetchError("every slot here holds a part of that checkpoint already")
            target = free[0]
            target.begin()  # before a newer meeting says what is here
            self._incoming.append(target)
        try:
            self._fetch_into(target, mark, address, self._agreed, abandoned, share=1.0)
        except DamagedCopyError:
            have_checked(address, mark)
            raise

    def agree(self, agreed: Agreed) -> None:
        """Take what the members have agreed upon; what is newer is of no use any more.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        checkpoint = agreed.checkpoint
        with self._lock:
            self._check_meeting(agreed.round)
            self._agreed = agreed
            last, tries = self._tries
            self._tries = checkpoint, tries + 1 if checkpoint == last else 1
            self._pool.forget_after(checkpoint)
            self._resumed = None
            self._replicated_step = None
            if checkpoint is not None:
                tier = Tier.PEER if agreed.from_peer else Tier.MEMORY
                self._resumed = {"round": agreed.round, "step": checkpoint.step, "tier": tier}
                logger.info("round=%d resumes from %s, step=%d", agreed.round, tier, checkpoint.step)
            elif agreed.round > 1:
                self._resumed = {"round": agreed.round, "step": None, "tier": Tier.STORAGE}
                logger.info("round=%d: no checkpoint in memory is complete", agreed.round)
            self._replication.follow(agreed.peer)

    def write_files(
        self, directory: Path, ranks: Sequence[int], failures_per_hour: float | None
    ) -> list[dict[str, str]]:
        """Give each process that is about to start its slots, and tell it what it resumes from.

        Args:
            directory: for the files.
            ranks: the global ranks, by local rank.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: they cannot be written.
        """
        with self._lock:
            agreed, checkpoint = self._agreed, self._agreed.checkpoint
            reshard = bool(agreed.shards)
            resumed = [
                self._pool.find(checkpoint, rank) if checkpoint is not None and not reshard else None
                for rank in ranks
            ]
            usable = [slot for slot in self._pool.slots if slot not in self._incoming]
            self._own = assign(usable, resumed)
            own = self._own
        environments = []
        for local_rank, (slots, slot) in enumerate(zip(own, resumed, strict=True)):
            content: CheckpointFile = {
                "round": agreed.round,
                "slots": [each.path for each in slots],
                "resume": self._resume(agreed, slot),
                "slotsOfPod": len(self._pool.slots),
            }
            if failures_per_hour is not None:
                content["failuresPerHour"] = round(failures_per_hour, 4)
            path = directory / f"checkpoint.{local_rank}"
            path.write_text(json.dumps(content))
            environments.append({ENV_CHECKPOINT_FILE: str(path)})
        return environments

    # While processes run.

    def own_marks(self) -> list[Mark] | None:
        """The newest checkpoint in memory, of each local rank; None if one has none, or no process runs."""
        with self._lock:
            own, held = self._own, dict(self._pool.held())
        marks = [max((held[slot] for slot in slots if slot in held), default=None) for slots in own]
        found = [mark for mark in marks if mark is not None]
        return found if found and len(found) == len(marks) else None

    def to_status(self) -> MemoryStatus:
        """`status.agent.memory`."""
        marks = self.own_marks()
        return {
            "step": min(mark.step for mark in marks) if marks else None,
            "replicatedStep": self._replicated_step,
            "resumed": self._resumed,
        }

    def _check_meeting(self, round_: int) -> None:
        """Refuse what a meeting's thread asks for that was abandoned. The lock is held.

        Raises:
            OutdatedMeetingError: the meeting of a newer round has begun.
        """
        if round_ < self._meeting:
            raise OutdatedMeetingError

    def _replicated(self, step: int) -> None:
        self._replicated_step = step

    def _take_replica(self, mark: Mark, address: str) -> bool:
        """Fetch what a peer offers, and tell whether it is here."""
        with self._lock:
            if address != self._agreed.peer_of:
                logger.debug("%s offers a replica, and is none of ours", address)
                return False
            if any(held == mark for _, held in self._pool.held()):
                return True
            taken = [*(slot for slots in self._own for slot in slots), *self._incoming]
            target = None
            if self._own:  # else the next round is being agreed upon
                target = slot_for_replica((p for p in self._pool.slots if p not in taken), mark.rank)
            if target is None:
                return False
            self._incoming.append(target)
            agreed = self._agreed
        try:
            self._fetch_into(target, mark, address, agreed, threading.Event(), share=REPLICA_SHARE)
        except FetchError as error:
            logger.debug("a replica of rank %d, step %d was not taken: %s", mark.rank, mark.step, error)
            return False
        return True

    def _fetch_into(
        self,
        target: Slot,
        mark: Mark,
        address: str,
        agreed: Agreed,
        abandoned: threading.Event,
        *,
        share: float,
    ) -> None:
        """Fetch into a slot that is among the incoming ones, and take it out of them.

        Raises:
            FetchError: it could not be had, or another round has begun meanwhile.
        """

        def goes_on() -> bool:
            return self._agreed is agreed and not abandoned.is_set()

        try:
            fetch(address, mark, target, goes_on=goes_on, share=share)
            with self._lock:
                if not goes_on():
                    raise FetchError("it is not wanted any more")
                target.seal()
                if target.mark != mark:
                    target.begin()
                    raise FetchError(f"{address} sent another checkpoint")
        finally:
            with self._lock:
                self._incoming.remove(target)

    def _resume(self, agreed: Agreed, slot: Slot | None) -> ResumeFile:
        checkpoint = agreed.checkpoint
        if checkpoint is None:
            return {"tier": Tier.STORAGE}
        resume: ResumeFile = {
            "tier": Tier.MEMORY,
            "round": checkpoint.round,
            "step": checkpoint.step,
            "worldSize": checkpoint.world_size,
        }
        if agreed.shards:
            resume["shards"] = self._shards(checkpoint, agreed.shards)
        elif slot is not None:
            resume["slot"] = slot.path
        return resume

    def _shards(self, checkpoint: Checkpoint, shards: Mapping[str, frozenset[int]]) -> dict[str, str]:
        found = {str(rank): f"tcp://{address}" for address, ranks in shards.items() for rank in ranks}
        for slot, mark in self._pool.held():
            if Checkpoint(mark.round, mark.step, mark.world_size) == checkpoint:
                found[str(mark.rank)] = slot.path
        return found


def _is_of(slot: Slot, checkpoint: Checkpoint) -> bool:
    mark = slot.mark
    return mark is not None and Checkpoint(mark.round, mark.step, mark.world_size) == checkpoint


def _check_room(me: Environment, count: int) -> None:
    if me.memory_bytes // count < SMALLEST_BYTES:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes} bytes, too little for {count} slots: each takes "
            f"{SMALLEST_BYTES} at least"
        )
    limit = OomWatch.of_pod(me.pod_uid).limit_bytes()
    if limit is not None and me.memory_bytes >= limit:
        raise InvalidEnvironmentError(
            f"{FIELD}.size is {me.memory_bytes / 2**20:.0f} MiB, which does not fit into the container's "
            f"memory limit of {limit / 2**20:.0f} MiB beside the training: raise the limit, or lower the size"
        )
