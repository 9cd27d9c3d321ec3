"""The desk that the worker's training processes pull shards from, at a Unix socket.

A process connects once for each set, and sends one JSON object a line: first the set's definition, then the
results of parts, and the number of elements that it wants next. The answer comes when there are some, or when
the set is over. Desk and cluster exchange no requests: the desk reports its state (`status.agent.shards`),
and follows the leases in the job's ShardSets, from the first on, one more at a time, until it has found those
that its processes pull from.

    {"pull": {…}, "restore": 3, "undone": "0-41"}   the set, and the checkpoint of it to resume from, if any
    {"next": 10, "within": 0.5}                     answered by a part, [start, end]; over; drained; refused;
                                                    an empty part if there is none within the time limit
    {"done": [0, 10]}, {"failed": "why", "part": [0, 10]}
    {"leaves": true}
    {"checkpoint": {…}}                             answered by the undone elements, also without a pull
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.environment import bound
from agent.shards.dealing import Dealing, Process
from crds.agent_report import ShardsReport
from crds.names import LABEL_JOB_UID
from crds.shard_set import MAX_SHARD_SETS

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 16
Watch = Callable[[int], Callable[[], None]]


@dataclass(eq=False)
class _Line:
    """A connection."""

    connection: socket.socket
    process: Process = field(default_factory=Process)
    buffer: bytes = b""


class Desk(threading.Thread):
    """Serves the training processes of one agent, round after round.

    Args:
        worker: number of this worker in leases.
        incarnation: incarnation of this worker.
        monotonic: clock, in seconds.
    """

    def __init__(
        self, worker: int, incarnation: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="dlr-shards", daemon=True)
        self._monotonic = monotonic
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.path = bound(self._server, "shards")
        """Path of the socket."""
        self._server.listen(64)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not in `stop`: threads that follow the job may still write to it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Descriptor in reserve, to refuse a connection when no more files may be open."""
        self._lock = threading.Lock()
        self._job_uid = ""
        self._shown: dict[int, Mapping[str, Any] | None] = {}
        """ShardSets that are followed, by number; None for a missing one."""
        self._is_news = False
        self._watch: Watch | None = None
        self._unwatch: list[Callable[[], None]] = []
        self._dealing = Dealing(worker, incarnation)
        self._lines: dict[Process, _Line] = {}
        self._report_within: Callable[[float], None] = lambda _: None
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)

    def be_of(self, world: Mapping[str, Any]) -> None:
        """Note the job's uid from its ElasticWorld: an earlier job of the name may have left ShardSets."""
        uid = ((world.get("metadata") or {}).get("labels") or {}).get(LABEL_JOB_UID) or ""
        if uid != self._job_uid:
            self._job_uid, self._is_news = uid, True
            os.eventfd_write(self._wake_fd, 1)

    def see(self, number: int, shown: Mapping[str, Any] | None) -> None:
        """Note the newest state of a ShardSet; called by the thread that watches it.

        Args:
            number: its number among those of the job.
            shown: its state from `shown_of`; None for a missing one.
        """
        self._shown[number], self._is_news = shown, True
        os.eventfd_write(self._wake_fd, 1)

    def serve(self, report_within: Callable[[float], None], watch: Watch | None = None) -> None:
        """Begin to serve.

        Args:
            report_within: has the agent report `to_status` this many seconds after its last report, or with
                its next regular one, if that is sooner.
            watch: begins to call `see` for the ShardSet of a number; returns a function that ends it.
        """
        self._report_within, self._watch = report_within, watch
        self.start()

    def to_status(self) -> tuple[ShardsReport, ...] | None:
        """Return the section of the agent's next report; None as long as no process pulls."""
        with self._lock:
            return self._dealing.to_status()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopped = True
        os.eventfd_write(self._wake_fd, 1)
        if self.ident is not None:
            self.join()
        for unwatch in self._unwatch:
            unwatch()
        self._server.close()
        os.close(self._spare_fd)
        self._selector.close()
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def run(self) -> None:
        try:
            self._serve()
        finally:  # so that no process waits for ever
            self._server.close()
            for line in self._lines.values():
                line.connection.close()

    def _serve(self) -> None:
        while not self._stopped:
            events = self._selector.select(self._dealing.seconds_to_wait(self._monotonic()))
            with self._lock:
                if self._is_news:
                    self._is_news = False
                    self._dealing.follow(self._of_job(), self._monotonic())
                for key, _ in events:
                    self._take_in(key)
                self._dealing.release_deserted(self._monotonic())
                self._answer_all()
                news = self._dealing.news()
            self._look_further()
            if news is not None:
                self._report_within(news)

    def _of_job(self) -> list[Mapping[str, Any]]:
        """Return the job's ShardSets that have a status."""
        shown = [each for _, each in sorted(self._shown.items()) if each is not None]
        return [each for each in shown if "name" in each and each["jobUid"] == self._job_uid]

    def _look_further(self) -> None:
        """Follow one more ShardSet, if a process pulls from a set that is not among the existing ones."""
        number = len(self._shown)
        all_are_there = None not in self._shown.values()
        if self._watch and self._dealing.misses_sets and all_are_there and number < MAX_SHARD_SETS:
            self._shown[number] = None
            self._unwatch.append(self._watch(number))

    def _answer_all(self) -> None:
        """Send all answers; repeat if a process is gone, whose part another may get."""
        goes_on = True
        while goes_on:
            self._dealing.answer_all(self._monotonic())
            goes_on = not self._deliver()

    def _deliver(self) -> bool:
        """Send all answers, and return whether all receivers are still connected."""
        outgoing, self._dealing.outgoing = self._dealing.outgoing, []
        all_there = True
        for process, answer in outgoing:
            if (line := self._lines.get(process)) is not None:
                try:
                    line.connection.sendall(json.dumps(answer).encode() + b"\n")
                except OSError:
                    self._part_with(line)
                    all_there = False
        return all_there

    # Messages.

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
        except OSError as error:  # no more files may be open; if not accepted, it would wake us for ever
            logger.error("a process that wants to pull shards is refused: %s", error)
            os.close(self._spare_fd)
            with contextlib.suppress(OSError):
                self._server.accept()[0].close()
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            return
        connection.setblocking(False)
        line = _Line(connection)
        self._lines[line.process] = line
        self._selector.register(connection, selectors.EVENT_READ, line)

    def _read(self, line: _Line) -> None:
        try:
            got = line.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        line.buffer += got
        *texts, line.buffer = line.buffer.split(b"\n")
        try:
            if len(line.buffer) > MAX_LINE_BYTES:
                raise ValueError("a line is too long")
            for text in texts:
                self._dealing.receive(line.process, json.loads(text), self._monotonic())
                if not self._deliver():  # before the next text, by which it may leave or be disconnected
                    return
                if self._dealing.left:
                    self._dealing.left.clear()
                    self._disconnect(line)
                    return
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
            logger.warning("a message of a process that pulls shards is malformed: %r", error)
            got = b""
        if not got:
            self._part_with(line)

    def _part_with(self, line: _Line) -> None:
        self._disconnect(line)
        self._dealing.part_with(line.process, self._monotonic())

    def _disconnect(self, line: _Line) -> None:
        if self._lines.pop(line.process, None) is not None:
            self._selector.unregister(line.connection)
            line.connection.close()
