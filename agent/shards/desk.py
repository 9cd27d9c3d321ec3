"""The desk that the worker's training processes pull from: a Unix socket, and this worker's leases.

A process connects for each set that it pulls from, and says one JSON object a line: first the set's
definition, then each time what became of a part, and how many elements it would take next. It is answered
when there are some, or when the set is over. Between desk and cluster there is no request and no answer: the
desk reports what it holds and wants (`status.agent.shards`), and follows the leases in the job's status.

    {"pull": {…}, "restore": 3, "undone": "0-41"}   the set, and the checkpoint of it to go on from, if any
    {"next": 10, "within": 0.5}                     answered by a part, [start, end]; over; drained; refused;
                                                    an empty part if none comes in time, where that is limited
    {"done": [0, 10]}, {"failed": "why", "part": [0, 10]}
    {"leaves": true}
    {"checkpoint": {…}}                             answered by what is not done; the set need not be pulled
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import selectors
import shutil
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agent.environment import bound
from agent.shards.holding import Holding
from agent.shards.job_sets import JobSet, refusal, sets_of, skipped_epoch, too_many_places, undone_of
from crds.agent_report import MAX_SHARDS_TEXT, MAX_UNDONE_TEXT, ShardsReport
from crds.intervals import Intervals, from_text, to_text
from crds.shard_set import MAX_SHARD_RANGES, MAX_SHARD_SETS, Definition

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0
"""So long a lease waits for processes to come back, as after a restart in place. Then it is for others."""
FAILED_SECONDS = 1.0
"""So long after a report what fails is reported: where all parts fail, one a second tells of all."""
SKIPPED_EPOCH_SECONDS = 10.0
"""So long the news that an epoch is over may take."""
LONGEST_WAIT_SECONDS = 86_400.0
"""A longer wait is cut: epoll takes no more than 24 days."""
MAX_LINE_BYTES = 1 << 16


@dataclass
class _Process:
    """One connection."""

    connection: socket.socket
    buffer: bytes = b""
    definition: Definition | None = None
    in_hand: list[tuple[int, int]] = field(default_factory=list)
    restoration: int = 0
    """Before the set has had this one, nothing is given to it."""
    asks_for: int = 0
    """So many elements it waits for; 0: it works."""
    asked_at: float = 0.0
    patience_seconds: float = math.inf
    """So long it waits."""


@dataclass
class _Set:
    """A set, in one epoch, that processes here pull from."""

    holding: Holding
    processes: list[_Process] = field(default_factory=list)
    deserted_at: float | None = None
    """Time since which nobody here pulls from it."""
    told: tuple[object, ...] = ()
    told_failed: Intervals = ()
    restoration: int = 0
    """The set's last one when the holding began."""


class Desk(threading.Thread):
    """Serves the training processes of one agent, round after round.

    Args:
        worker: the number by which leases name this worker.
        incarnation: its own.
        monotonic: returns the time, in seconds.
    """

    def __init__(
        self, worker: int, incarnation: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="dlr-shards", daemon=True)
        self._worker, self._incarnation, self._monotonic = worker, incarnation, monotonic
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.path = bound(self._server, "shards")
        """The socket's."""
        self._server.listen(64)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not by `stop`: whoever follows the job may still write to it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Given up to turn a process away where no more files may be open."""
        self._lock = threading.Lock()
        self._said: Sequence[Mapping[str, Any]] = ()
        self._job: dict[str, JobSet] = {}
        self._sets: dict[tuple[str, int], _Set] = {}
        self._tell: Callable[[float], None] = lambda within_seconds: None
        self._has_forgotten = False
        """A set is to be in the next report no more."""
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)

    def see(self, world: Mapping[str, Any]) -> None:
        """Take in the ElasticWorld as it is now; called by the thread that watches it."""
        said = (world.get("spec") or {}).get("shards") or ()
        if said != self._said:
            self._said = said
            os.eventfd_write(self._wake_fd, 1)

    def serve(self, tell: Callable[[float], None]) -> None:
        """Begin.

        Args:
            tell: has the agent report what `to_status` says, so many seconds after its last report, or with
                its next regular one, if that is sooner.
        """
        self._tell = tell
        self.start()

    def to_status(self) -> tuple[ShardsReport, ...] | None:
        """What the agent's next report says; None as long as nobody pulls."""
        with self._lock:
            holdings = [each.holding for each in islice(self._sets.values(), MAX_SHARD_SETS)]
            room = (MAX_SHARDS_TEXT - sum(len(each.undone) for each in holdings)) // max(len(holdings), 1)
            said = tuple(each.to_status(room) for each in holdings)
        return said or None

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopped = True
        os.eventfd_write(self._wake_fd, 1)
        if self.ident is not None:
            self.join()
        self._server.close()
        os.close(self._spare_fd)
        self._selector.close()
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def run(self) -> None:
        try:
            self._serve()
        finally:  # whatever ended it: who pulls is not left to wait for ever
            self._server.close()
            for each in [p for s in self._sets.values() for p in s.processes]:
                each.connection.close()

    def _serve(self) -> None:
        said: Sequence[Mapping[str, Any]] = ()
        while not self._stopped:
            events = self._selector.select(self._seconds_to_wait())
            with self._lock:
                if self._said is not said:
                    said = self._said
                    self._follow(said)
                for key, _ in events:
                    self._take_in(key)
                self._release_deserted()
                self._answer_all()
                news = self._news()
            if news is not None:
                self._tell(news)

    # What comes in.

    def _take_in(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._server:
            self._accept()
        elif key.data is None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        else:
            self._read(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no more files may be open; left where it is, it would wake us for ever
            logger.error("a process that would pull shards is turned away: %s", error)
            os.close(self._spare_fd)
            with contextlib.suppress(OSError):
                self._server.accept()[0].close()
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Process(connection))

    def _read(self, process: _Process) -> None:
        try:
            got = process.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        process.buffer += got
        *lines, process.buffer = process.buffer.split(b"\n")
        try:
            if len(process.buffer) > MAX_LINE_BYTES:
                raise ValueError("a line is too long")
            for line in lines:
                if process.connection.fileno() < 0:
                    return  # it has left
                self._hear(process, json.loads(line))
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
            logger.warning("a process that pulls shards says what makes no sense: %r", error)
            got = b""
        if not got:
            self._part_with(process)

    def _hear(self, process: _Process, said: Mapping[str, Any]) -> None:
        if "checkpoint" in said:
            self._send(process, {"undone": self._undone(Definition.parse(said["checkpoint"]))})
            return
        if "pull" in said:
            self._begin(process, Definition.parse(said["pull"]))
        chosen = self._set_of(process)
        if "restore" in said:
            process.restoration = int(said["restore"])
            if process.restoration > chosen.restoration:
                undone = str(said["undone"])
                from_text(undone, MAX_SHARD_RANGES)
                others = (each.holding.undone for each in self._sets.values() if each is not chosen)
                if len(undone) + sum(map(len, others)) > MAX_UNDONE_TEXT:
                    self._send(process, {"refused": too_many_places(chosen.holding.definition.name)})
                    return
                chosen.holding.ask_for_restoration(process.restoration, undone)
        settled = said.get("part") if "failed" in said else said.get("done")
        part = None if settled is None else (int(settled[0]), int(settled[1]))
        if part is not None and part in process.in_hand:  # else the set has gone back to a checkpoint
            process.in_hand.remove(part)
            if "failed" in said:
                chosen.holding.fail(part, str(said["failed"]))
            else:
                chosen.holding.finish(part)
        if "next" in said:
            process.asks_for, process.asked_at = max(int(said["next"]), 1), self._monotonic()
            process.patience_seconds = float(said.get("within", math.inf))
        if said.get("leaves"):
            self._part_with(process, at_once=True)

    def _begin(self, process: _Process, wanted: Definition) -> None:
        if process.definition is not None:
            raise ValueError("it pulls from two sets by one connection")
        process.definition = wanted
        chosen = self._sets.setdefault((wanted.name, wanted.epoch), _Set(Holding(wanted)))
        if not chosen.processes and chosen.holding.is_empty:
            chosen.holding = Holding(wanted)
        chosen.processes.append(process)
        chosen.deserted_at = None
        self._follow_one(chosen)

    def _undone(self, wanted: Definition) -> str | None:
        """What is not done of a set, as far as this worker knows; None if nobody has begun it."""
        here = self._sets.get((wanted.name, wanted.epoch))
        if here is not None and here.holding.is_to_be_restored:
            return here.holding.undone  # the job has yet to hear of it
        for said in self._said:
            if Definition.parse(said) == wanted:
                undone = undone_of(said)
                return to_text(here.holding.without_done(undone) if here else undone)
        return None

    def _part_with(self, process: _Process, *, at_once: bool = False) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(process.connection)
        process.connection.close()
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
            chosen.deserted_at = self._monotonic() - (RELEASE_SECONDS if at_once else 0.0)

    def _set_of(self, process: _Process) -> _Set:
        if process.definition is None:
            raise ValueError("it names no set")
        return self._sets[process.definition.name, process.definition.epoch]

    # What the job says.

    def _follow(self, said: Sequence[Mapping[str, Any]]) -> None:
        if not said and not self._sets:
            return
        try:
            self._job = sets_of(said, self._worker, self._incarnation)
        except (KeyError, TypeError, ValueError) as error:
            logger.error("what the job says of its shard sets makes no sense: %r", error)
            return
        for known in self._job.values():
            key = known.definition.name, known.definition.epoch
            if known.lease is not None and key not in self._sets:
                # Given to those who have just left, or to an agent before this one: it goes back.
                self._sets[key] = _Set(Holding(known.definition), deserted_at=self._monotonic())
        for each in self._sets.values():
            self._follow_one(each)

    def _follow_one(self, chosen: _Set) -> None:
        wanted = chosen.holding.definition
        known = self._job.get(wanted.name)
        if known is not None and known.definition == wanted and known.restoration != chosen.restoration:
            chosen.restoration, chosen.holding = known.restoration, Holding(wanted)
            for process in chosen.processes:
                process.in_hand.clear()  # what is done of it counts no more
        chosen.holding.follow(known.lease if known and known.definition == wanted else None)
        if chosen.processes and chosen.holding.is_empty:
            chosen.holding.leaving = (
                False  # not before: what it was told to give back may be another's by now
            )

    # What goes out.

    def _answer_all(self) -> None:
        for chosen in list(self._sets.values()):
            for process in [p for p in chosen.processes if p.asks_for]:
                answer = self._answer(chosen, process)
                if answer is None and self._monotonic() - process.asked_at >= process.patience_seconds:
                    answer = {"part": (0, 0)}
                if answer is not None:
                    process.asks_for = 0
                    self._send(process, answer)

    def _send(self, process: _Process, answer: Mapping[str, Any]) -> None:
        try:
            process.connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            self._part_with(process)

    def _answer(self, chosen: _Set, process: _Process) -> dict[str, Any] | None:
        assert process.definition is not None
        wanted = process.definition
        if sentence := refusal(wanted, self._job):
            return {"refused": sentence}
        known = self._job.get(wanted.name)
        if process.restoration > (known.restoration if known is not None else 0):
            return None
        if known is not None and known.definition.epoch > wanted.epoch:
            return {"over": "", "failed": 0}
        if known is not None and known.definition.epoch == wanted.epoch and known.is_over:
            return {"over": to_text(known.failed), "reason": known.reason}
        if known is not None and known.definition.epoch < wanted.epoch and not known.is_over:
            waited = self._monotonic() - process.asked_at
            return {"refused": skipped_epoch(wanted, known)} if waited > SKIPPED_EPOCH_SECONDS else None
        part = chosen.holding.take(process.asks_for)
        if part is not None:
            process.in_hand.append(part)
            return {"part": part}
        # Who still has parts in hand would wait for itself, where there is nothing more to come.
        is_last = known is not None and known.definition == wanted and not known.waiting
        return {"drained": True} if process.in_hand and is_last else None

    def _release_deserted(self) -> None:
        """Give back what nobody here works on, and forget it when the job has taken it."""
        now = self._monotonic()
        for key, each in list(self._sets.items()):
            if each.deserted_at is None or now - each.deserted_at < RELEASE_SECONDS:
                continue
            each.holding.leaving = True
            known = self._job.get(key[0])
            if each.holding.is_empty or known is None or known.definition.epoch != key[1] or known.is_over:
                del self._sets[key]
                self._has_forgotten = True

    def _news(self) -> float | None:
        """How soon something is to be reported, as `serve` says it; None if nothing is."""
        due = [0.0] * self._has_forgotten
        self._has_forgotten = False
        for each in self._sets.values():
            told, failed = each.holding.must_tell, each.holding.failed
            if told != each.told:
                due.append(0.0)
            elif failed != each.told_failed:
                due.append(FAILED_SECONDS)
            elif each.processes:
                due.append(math.inf)
            each.told, each.told_failed = told, failed
        return min(due, default=None)

    def _seconds_to_wait(self) -> float | None:
        """Until a lease is to be given back, or an answer is due."""
        due = [
            each.deserted_at + RELEASE_SECONDS
            for each in self._sets.values()
            if each.deserted_at is not None and not each.holding.leaving
        ]
        for each in self._sets.values():
            patient = (p for p in each.processes if p.asks_for and p.patience_seconds < math.inf)
            due += [process.asked_at + process.patience_seconds for process in patient]
            known = self._job.get(each.holding.definition.name)
            if known is None or known.is_over:
                continue  # the next epoch begins as soon as the job has heard of it: no answer is due
            if known.definition.epoch < each.holding.definition.epoch:
                due += [p.asked_at + SKIPPED_EPOCH_SECONDS + 0.01 for p in each.processes if p.asks_for]
        return max(min(min(due) - self._monotonic(), LONGEST_WAIT_SECONDS), 0.0) if due else None
