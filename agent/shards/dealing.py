"""Decides which parts of shard sets an agent's training processes get, and when. Pure.

`agent/shards/desk.py` passes it the messages of processes, the job's ShardSets, and the time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from agent.shards.holding import Holding
from agent.shards.job_sets import JobSet, refusal, sets_of, skipped_epoch, too_many_places, undone_of
from crds.agent_report import MAX_SHARDS_TEXT, MAX_UNDONE_TEXT, ShardsReport
from crds.intervals import Intervals, from_text, to_text
from crds.shard_set import MAX_SHARD_RANGES, MAX_SHARD_SETS, SetDefinition

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0
"""Time that a lease without processes is kept, for processes that return, as after a restart in place."""
FAILED_SECONDS = 1.0
"""Interval of reports on failed parts, so that many share one."""
SKIPPED_EPOCH_SECONDS = 10.0
"""Longest time for the news that an epoch has ended."""
LONGEST_WAIT_SECONDS = 86_400.0
"""Time limit of a wait; epoll allows no more than 24 days."""


@dataclass(eq=False)
class Process:
    """A connected process."""

    definition: SetDefinition | None = None
    in_hand: list[tuple[int, int]] = field(default_factory=list)
    """Parts that it works on."""
    restoration: int = 0
    """Number of a restoration that the set must have had before it gets a part."""
    asks_for: int = 0
    """Number of elements that it waits for; 0 while it works."""
    asked_at: float = 0.0
    patience_seconds: float = math.inf
    """Longest time that it waits."""


@dataclass
class _Set:
    """One epoch of a set that processes here pull from."""

    holding: Holding
    processes: list[Process] = field(default_factory=list)
    deserted_at: float | None = None
    """Time since which no process here pulls from it; None while one does."""
    reported: tuple[object, ...] = ()
    """`Holding.urgent` at the last look for news."""
    reported_failed: Intervals = ()
    """`Holding.failed` at the last look for news."""
    restoration: int = 0
    """Number of the set's last restoration when the holding began."""


class Dealing:
    """One worker's distribution of its leases among its processes.

    Args:
        worker: number of the worker in leases.
        incarnation: incarnation of the worker.
    """

    def __init__(self, worker: int, incarnation: int) -> None:
        self._worker, self._incarnation = worker, incarnation
        self.outgoing: list[tuple[Process, Mapping[str, Any]]] = []
        """Answers; the caller takes them out."""
        self.left: list[Process] = []
        """Processes to disconnect; the caller takes them out."""
        self._shards: Sequence[Mapping[str, Any]] = ()
        """Status of the job's ShardSets."""
        self._job: dict[str, JobSet] = {}
        self._sets: dict[tuple[str, int], _Set] = {}
        self._has_forgotten = False
        """A set was forgotten since the last look for news, and has to leave the report."""

    def to_status(self) -> tuple[ShardsReport, ...] | None:
        """Return the section of the agent's next report; None as long as no process pulls."""
        holdings = [each.holding for each in islice(self._sets.values(), MAX_SHARD_SETS)]
        room = (MAX_SHARDS_TEXT - sum(len(each.undone) for each in holdings)) // max(len(holdings), 1)
        return tuple(each.to_status(room) for each in holdings) or None

    def receive(self, process: Process, message: Mapping[str, Any], now: float) -> None:
        """Process a message of a training process.

        Raises:
            Exception: the message is malformed; the process has to be disconnected.
        """
        if "checkpoint" in message:
            self.outgoing.append(
                (process, {"undone": self._undone(SetDefinition.parse(message["checkpoint"]))})
            )
            return
        if "pull" in message:
            self._begin(process, SetDefinition.parse(message["pull"]))
        chosen = self._set_of(process)
        if "restore" in message:
            process.restoration = int(message["restore"])
            if process.restoration > chosen.restoration:
                undone = str(message["undone"])
                from_text(undone, MAX_SHARD_RANGES)
                others = (each.holding.undone for each in self._sets.values() if each is not chosen)
                if len(undone) + sum(map(len, others)) > MAX_UNDONE_TEXT:
                    self.outgoing.append(
                        (process, {"refused": too_many_places(chosen.holding.definition.name)})
                    )
                    return
                chosen.holding.ask_for_restoration(process.restoration, undone)
        settled = message.get("part") if "failed" in message else message.get("done")
        part = None if settled is None else (int(settled[0]), int(settled[1]))
        if part is not None and part in process.in_hand:  # else the set has gone back to a checkpoint
            process.in_hand.remove(part)
            if "failed" in message:
                chosen.holding.fail(part, str(message["failed"]))
            else:
                chosen.holding.finish(part)
        if "next" in message:
            process.asks_for, process.asked_at = max(int(message["next"]), 1), now
            process.patience_seconds = float(message.get("within", math.inf))
        if message.get("leaves"):
            self.part_with(process, now, at_once=True)
            self.left.append(process)

    def _begin(self, process: Process, wanted: SetDefinition) -> None:
        if process.definition is not None:
            raise ValueError("it pulls from two sets by one connection")
        process.definition = wanted
        chosen = self._sets.setdefault((wanted.name, wanted.epoch), _Set(Holding(wanted)))
        if not chosen.processes and chosen.holding.is_empty:
            chosen.holding = Holding(wanted)
        chosen.processes.append(process)
        chosen.deserted_at = None
        self._follow_one(chosen)

    def _undone(self, wanted: SetDefinition) -> str | None:
        """Return the undone elements of a set, as text; None if it was not begun."""
        here = self._sets.get((wanted.name, wanted.epoch))
        if here is not None and here.holding.is_to_be_restored:
            return here.holding.undone  # which the job does not have yet
        for shard_set in self._shards:
            if SetDefinition.parse(shard_set) == wanted:
                undone = undone_of(shard_set)
                return to_text(here.holding.without_done(undone) if here else undone)
        return None

    def part_with(self, process: Process, now: float, *, at_once: bool = False) -> None:
        """Take back the parts of a process that is gone.

        Args:
            at_once: it has left deliberately, and does not return soon.
        """
        if process.definition is None:
            return
        chosen = self._set_of(process)
        if process not in chosen.processes:
            return
        chosen.processes.remove(process)
        for part in process.in_hand:
            chosen.holding.put_back(part)
        process.in_hand.clear()
        if not chosen.processes:
            chosen.deserted_at = now - (RELEASE_SECONDS if at_once else 0.0)

    def _set_of(self, process: Process) -> _Set:
        if process.definition is None:
            raise ValueError("it names no set")
        return self._sets[process.definition.name, process.definition.epoch]

    # The job's ShardSets.

    @property
    def misses_sets(self) -> bool:
        """Whether a process pulls from a set without a ShardSet."""
        return any(each.processes and name not in self._job for (name, _), each in self._sets.items())

    def follow(self, shards: Sequence[Mapping[str, Any]], now: float) -> None:
        """Process the status of the job's ShardSets."""
        self._shards = shards
        if not shards and not self._sets:
            return
        try:
            self._job = sets_of(shards, self._worker, self._incarnation)
        except (KeyError, TypeError, ValueError) as error:
            logger.error("the status of the job's shard sets is malformed: %r", error)
            return
        for job_set in self._job.values():
            key = job_set.definition.name, job_set.definition.epoch
            if job_set.lease is not None and key not in self._sets:
                # Leased for processes that have just left, or to an earlier agent: it will be released.
                self._sets[key] = _Set(Holding(job_set.definition), deserted_at=now)
        for each in self._sets.values():
            self._follow_one(each)

    def _follow_one(self, chosen: _Set) -> None:
        wanted = chosen.holding.definition
        job_set = self._job.get(wanted.name)
        if job_set is not None and job_set.definition == wanted:
            is_another = chosen.holding.uid not in ("", job_set.uid)
            if is_another or job_set.restoration != chosen.restoration:
                chosen.restoration, before = job_set.restoration, chosen.holding
                chosen.holding = Holding(wanted)
                if is_another and before.is_to_be_restored:
                    chosen.holding.ask_for_restoration(*before.requested_restoration)
                for process in chosen.processes:
                    process.in_hand.clear()  # their results do not count any more
            chosen.holding.uid = job_set.uid
        chosen.holding.follow(job_set.lease if job_set and job_set.definition == wanted else None)
        if chosen.processes and chosen.holding.is_empty:
            chosen.holding.leaving = False  # only once it is empty: released elements may be leased elsewhere

    # Answers and news.

    def answer_all(self, now: float) -> None:
        """Answer all waiting processes for which there is an answer."""
        for chosen in list(self._sets.values()):
            for process in [p for p in chosen.processes if p.asks_for]:
                answer = self._answer(chosen, process, now)
                if answer is None and now - process.asked_at >= process.patience_seconds:
                    answer = {"part": (0, 0)}
                if answer is not None:
                    process.asks_for = 0
                    self.outgoing.append((process, answer))

    def _answer(self, chosen: _Set, process: Process, now: float) -> dict[str, Any] | None:
        assert process.definition is not None
        wanted = process.definition
        if sentence := refusal(wanted, self._job):
            return {"refused": sentence}
        job_set = self._job.get(wanted.name)
        if process.restoration > (job_set.restoration if job_set is not None else 0):
            return None
        if job_set is not None and job_set.definition.epoch > wanted.epoch:
            return {"over": "", "failed": 0}
        if job_set is not None and job_set.definition.epoch == wanted.epoch and job_set.is_over:
            return {"over": to_text(job_set.failed), "reason": job_set.reason}
        if job_set is not None and job_set.definition.epoch < wanted.epoch and not job_set.is_over:
            waited = now - process.asked_at
            return {"refused": skipped_epoch(wanted, job_set)} if waited > SKIPPED_EPOCH_SECONDS else None
        part = chosen.holding.take(process.asks_for)
        if part is not None:
            process.in_hand.append(part)
            return {"part": part}
        # A process with parts in hand must not wait when no other elements are left.
        is_last = job_set is not None and job_set.definition == wanted and not job_set.waiting
        return {"drained": True} if process.in_hand and is_last else None

    def release_deserted(self, now: float) -> None:
        """Release sets that no process here works on, and forget them when the job has accepted that."""
        for key, each in list(self._sets.items()):
            if each.deserted_at is None or now - each.deserted_at < RELEASE_SECONDS:
                continue
            each.holding.leaving = True
            job_set = self._job.get(key[0])
            if (
                each.holding.is_empty
                or job_set is None
                or job_set.definition.epoch != key[1]
                or job_set.is_over
            ):
                del self._sets[key]
                self._has_forgotten = True

    def news(self) -> float | None:
        """Return the time limit for the next report, as for `Desk.serve`; None if there is no news."""
        due = [0.0] * self._has_forgotten
        self._has_forgotten = False
        for each in self._sets.values():
            urgent, failed = each.holding.urgent, each.holding.failed
            if urgent != each.reported:
                due.append(0.0)
            elif failed != each.reported_failed:
                due.append(FAILED_SECONDS)
            elif each.processes:
                due.append(math.inf)
            each.reported, each.reported_failed = urgent, failed
        return min(due, default=None)

    def seconds_to_wait(self, now: float) -> float | None:
        """Return the time until a lease has to be released, or an answer is due; None for neither."""
        due = [
            each.deserted_at + RELEASE_SECONDS
            for each in self._sets.values()
            if each.deserted_at is not None and not each.holding.leaving
        ]
        for each in self._sets.values():
            patient = (p for p in each.processes if p.asks_for and p.patience_seconds < math.inf)
            due += [process.asked_at + process.patience_seconds for process in patient]
            job_set = self._job.get(each.holding.definition.name)
            if job_set is None or job_set.is_over:
                continue  # the next epoch begins with the job's next status: no answer is due
            if job_set.definition.epoch < each.holding.definition.epoch:
                due += [p.asked_at + SKIPPED_EPOCH_SECONDS + 0.01 for p in each.processes if p.asks_for]
        return max(min(min(due) - now, LONGEST_WAIT_SECONDS), 0.0) if due else None
