"""Why training processes ended: which of them failed by themselves, and which failure says most."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agent.consequences import follows_from_a_peer
from agent.failure import (
    TEXT_BYTES,
    TRACEBACK,
    Cause,
    Failure,
    clip,
    failure_of_process,
    last_traceback,
    read_tail,
)
from agent.oom import OomWatch
from agent.processes import TrainingProcesses
from agent.progress import ProgressFiles, TrackedLogsSpecs
from agent.xid import DeviceFault

logger = logging.getLogger(__name__)

RAISED_GRACE_SECONDS = 1.0
"""For a process that has just raised an exception and is about to end by it: it may be the reason for all."""

JUST_NOW_SECONDS = 2.0
RAISED_BYTES = 16 * 1024
"""Of a log, in which such an exception is looked for."""


class Raised(Enum):
    """What exception a living process has just written, other than about the end of a peer."""

    NONE = "none"
    UNKNOWN = "one that may have been caught"
    UNCAUGHT = "one that nobody caught"


class PostMortem:
    """Of the processes of one start after the other."""

    def __init__(self, logs: TrackedLogsSpecs, files: ProgressFiles, oom: OomWatch) -> None:
        self._logs = logs
        self._files = files
        self._oom = oom
        self._seen: set[int] = set()

    def begin(self) -> None:
        """Just before processes are started."""
        self._seen.clear()
        self._oom.reset()

    def failures(self, processes: TrainingProcesses) -> list[ProcessFailure]:
        """Of those that ended, and not well, and were not among the `described` yet."""
        processes.collect_exits()
        codes = {r: code for r, code in processes.exit_codes.items() if code != 0 and r not in self._seen}
        files = self._logs.latest.error_files
        return [process_failure(r, processes.pids[r], code, files.get(r, "")) for r, code in codes.items()]

    def last_failures(self, processes: TrainingProcesses) -> list[ProcessFailure]:
        """The same, before the processes get a signal: those that are just ending are given the time to.

        An exception that nobody caught is one even if the interpreter has not come to its end by then.
        """
        raised = {rank: self._raised(rank) for rank in processes.alive()}
        ending = [rank for rank, what in raised.items() if what is not Raised.NONE]
        processes.await_ends(ending, RAISED_GRACE_SECONDS)
        failures = self.failures(processes)
        files = self._logs.latest.error_files
        for rank in processes.alive():
            if raised[rank] is Raised.UNCAUGHT and rank not in self._seen:
                failures.append(process_failure(rank, processes.pids[rank], 1, files.get(rank, "")))
        return failures

    def described(
        self, failed: Collection[ProcessFailure], ranks: Mapping[int, int], round_: int, sequence: int
    ) -> Failure:
        """The one that looks least like a consequence of the others; of several, the first.

        Args:
            ranks: global ranks by local ones; negative where there are none yet.
        """
        self._seen.update(process.local_rank for process in failed)
        pairs = [(self._described(process, ranks, round_, sequence), process.timestamp) for process in failed]
        return min(pairs, key=lambda pair: (pair[0].is_consequence, pair[1], pair[0].local_rank))[0]

    def of_device(self, fault: DeviceFault, ranks: Mapping[int, int], round_: int, sequence: int) -> Failure:
        """Of the process that trains on a faulty device, if it can be said which: it had not ended."""
        known = fault.local_rank(len(ranks))
        local_rank = 0 if known is None else known
        stderr = self._logs.latest.stderrs.get(local_rank)
        return Failure(
            sequence=sequence,
            round=round_,
            rank=None if known is None else ranks.get(known),
            local_rank=local_rank,
            exit_code=None,
            message=fault.message,
            log_tail=clip(read_tail(Path(stderr), TEXT_BYTES), TEXT_BYTES, head=0) if stderr else "",
            time=datetime.now(timezone.utc),
            cause=Cause.DEVICE,
            step=self._files.read_rank(local_rank).step,
        )

    def _described(
        self, process: ProcessFailure, ranks: Mapping[int, int], round_: int, sequence: int
    ) -> Failure:
        rank = ranks.get(process.local_rank, -1)
        stderr = self._logs.latest.stderrs.get(process.local_rank)
        failure = failure_of_process(
            process,
            sequence=sequence,
            round_=round_,
            rank=rank if rank >= 0 else None,
            stderr=Path(stderr) if stderr else None,
            time=datetime.now(timezone.utc),
            step=self._files.read_rank(process.local_rank).step,
        )
        if not (failure.was_killed and self._oom.has_killed()):
            return failure
        message = f"out of memory{self._oom.limit_text()}: {failure.message}"
        return replace(failure, cause=Cause.OOM, message=clip(message, TEXT_BYTES))

    def _raised(self, local_rank: int) -> Raised:
        """By torch's error file, or what is on stderr."""
        logs = self._logs.latest
        if Path(logs.error_files.get(local_rank) or "/nonexistent").is_file():
            return Raised.UNCAUGHT
        stderr = Path(logs.stderrs.get(local_rank) or "/nonexistent")
        if not stderr.is_file() or time.time() - stderr.stat().st_mtime > JUST_NOW_SECONDS:
            return Raised.NONE
        log = read_tail(stderr, RAISED_BYTES)
        text = last_traceback(log)
        if not text or follows_from_a_peer(text):
            return Raised.NONE
        # The hook that torch.distributed sets for them puts the rank before each line.
        printed_by_hook = log.rpartition(TRACEBACK)[0].rpartition("\n")[2].startswith("[rank")
        return Raised.UNCAUGHT if printed_by_hook else Raised.UNKNOWN


def is_better(new: Failure, told: Failure | None) -> bool:
    """Whether it is to be told after that one: of a newer round, or a reason where that was a consequence."""
    return told is None or told.round != new.round or (told.is_consequence and not new.is_consequence)


def process_failure(local_rank: int, pid: int, exit_code: int, error_file: str) -> ProcessFailure:
    try:
        return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file=error_file)
    except Exception as error:  # torch raises whatever a half-written error file makes of json.load
        logger.warning("the error file %s cannot be read: %s", error_file, error)
        return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file="")
