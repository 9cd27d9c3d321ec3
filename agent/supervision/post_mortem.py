"""Finds out why training processes ended: which failed by themselves, and which failure explains most."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agent.facts.failure import (
    TEXT_BYTES,
    TRACEBACK,
    LocalFailure,
    clip,
    end_of_log,
    failure_of_process,
    follows_from_a_peer,
    last_traceback,
    read_tail,
    times_out,
)
from agent.monitor import dump
from agent.monitor.oom import OomWatch
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.xid import DeviceFault
from agent.processes.processes import TrainingProcesses
from agent.signals import deferred
from agent.torch_compat.elastic import EXCEPTHOOK_PREFIX
from crds.agent_report import FailureCause, RankStack
from crds.failure_texts import FROM_OUTSIDE, KILLED_BY, KILLED_CHILD, early_finish_text

logger = logging.getLogger(__name__)

RAISED_GRACE_SECONDS = 1.0
"""Time for a process to end that has just raised an exception, since it may explain all other failures."""

JUST_NOW_SECONDS = 2.0
"""Age of the last write to a log up to which its exception counts as just raised; the same for a script's
end."""
CRASH_BYTES = 64 * 1024
"""Length of the end of a log that is searched for the stacks of a crash."""
RAISED_BYTES = 16 * 1024
"""Length of the end of a log that is searched for an exception."""

SHARED_MEMORY = "/dev/shm"
"""Mount point of a file system that is small by default."""
DEFAULT_BYTES = 64 << 20
"""Its size by container runtimes if the Pod template mounts nothing there."""

_WANT_OF_SHARED_MEMORY = re.compile(
    # torch's DataLoader, of a worker that wrote beyond the end of the file system
    r"DataLoader worker \(pid.*\) is killed by signal: Bus error"
    r"|out of shared memory|insufficient shared memory"
    # torch's shared tensors (MapAllocator), and NCCL's transport within a node
    r"|unable to (?:open|allocate|resize|mmap) [^\n]*shared memory|[Ee]rror while creating shared memory"
)


class Raised(Enum):
    """Kind of exception that a living process has just written, other than about the end of a peer."""

    NONE = "none"
    UNKNOWN = "one that may have been caught"
    UNCAUGHT = "one that was not caught"


class PostMortem:
    """Explains why the training processes of one start ended."""

    def __init__(self, logs: RoundLogsSpecs, files: ProgressFiles, oom: OomWatch) -> None:
        self._logs = logs
        self._files = files
        self._oom = oom
        self._seen: set[int] = set()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Forget the last processes. Call it just before others are started."""
        self._seen.clear()
        self._oom.reset()
        self._began = time.monotonic()

    def excuse(self, local_ranks: Collection[int]) -> None:
        """Do not count the ends of these processes as failures."""
        self._seen.update(local_ranks)

    def new_failures(self, processes: TrainingProcesses) -> list[ProcessFailure]:
        """Return the failures of ended processes that were not described or excused before."""
        processes.collect_exits()
        codes = {r: code for r, code in processes.exit_codes.items() if code != 0 and r not in self._seen}
        files = self._logs.latest.error_files
        return [process_failure(r, processes.pids[r], code, files.get(r, "")) for r, code in codes.items()]

    def with_scripts(self, processes: TrainingProcesses) -> dict[int, int]:
        """Return the ids of the living processes without a recorded end of their scripts, by local rank."""
        return {rank: pid for rank, pid in processes.alive().items() if self._files.script_end(rank) is None}

    def timed_out(self, processes: TrainingProcesses) -> list[int]:
        """Return the local ranks of living processes whose scripts ended by a collective's time-out."""
        ends = {rank: self._files.script_end(rank) for rank in processes.alive()}
        raised = [rank for rank, end in ends.items() if end is not None and end.raised]
        stderrs = {rank: Path(self._logs.latest.stderrs.get(rank) or "/nonexistent") for rank in raised}
        return [r for r, file in stderrs.items() if times_out(last_traceback(read_tail(file, RAISED_BYTES)))]

    def exit_codes(self, processes: TrainingProcesses) -> dict[int, int]:
        """Return the exit codes by local rank, including those of scripts whose processes still live."""
        ends = {rank: self._files.script_end(rank) for rank in processes.alive()}
        return {rank: end.code for rank, end in ends.items() if end is not None} | processes.exit_codes

    def failures_before_stop(self, processes: TrainingProcesses) -> list[ProcessFailure]:
        """Return the new failures, after giving processes that are just ending the time to end.

        A process is just ending if it has just raised an exception or its script has just ended, as by
        `sys.exit(3)`. Call it before the processes get a signal. An uncaught exception counts as a failure
        even if its process has not ended by then.
        """
        raised = {rank: self._raised(rank) for rank in processes.alive()}
        ending = [rank for rank, what in raised.items() if what is not Raised.NONE or self._has_ended(rank)]
        processes.await_ends(ending, RAISED_GRACE_SECONDS)
        failures = self.new_failures(processes)
        files = self._logs.latest.error_files
        for rank in processes.alive():
            if raised[rank] is Raised.UNCAUGHT and rank not in self._seen:
                failures.append(process_failure(rank, processes.pids[rank], 1, files.get(rank, "")))
        return failures

    def describe(
        self, failed: Collection[ProcessFailure], ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure:
        """Describe the failure that is least likely a consequence of the others; of several, the first.

        Args:
            failed: at least one.
            ranks: global ranks by local ones; negative before the first meeting.
            round_: the round of the processes.
            sequence: the number of the failure among those of this agent.
        """
        self._seen.update(process.local_rank for process in failed)
        pairs = [
            (self._describe_process(process, ranks, round_, sequence), process.timestamp)
            for process in failed
        ]
        return min(pairs, key=lambda pair: (_innocence(pair[0]), pair[1], pair[0].local_rank))[0]

    def describe_early_finish(
        self, codes: Mapping[int, int], ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure | None:
        """Describe, as the failure of the others, the first process of this round to end well.

        Args:
            codes: the exit codes of the processes that have ended, by local rank.

        Returns:
            The failure; None if no process has ended well.
        """
        local_rank = min((rank for rank, code in codes.items() if code == 0), default=None)
        if local_rank is None:
            return None
        rank = ranks.get(local_rank, -1)
        message = early_finish_text(f"rank {rank}", self._files.read_rank(local_rank).step)
        failure = self._failure(local_rank, rank if rank >= 0 else None, round_, sequence, message)
        return replace(failure, exit_code=0)

    def describe_device_fault(
        self, fault: DeviceFault, ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure:
        """Describe the fault as a failure of the process on that device, if the device is identified."""
        local_rank = fault.local_rank(len(ranks))
        rank = None if local_rank is None else ranks.get(local_rank)
        failure = self._failure(local_rank or 0, rank, round_, sequence, fault.message)
        return replace(failure, cause=FailureCause.DEVICE)

    def _failure(
        self, local_rank: int, rank: int | None, round_: int, sequence: int, message: str
    ) -> LocalFailure:
        """Describe a failure whose process has not failed by itself."""
        return LocalFailure(
            sequence=sequence,
            round=round_,
            rank=rank,
            local_rank=local_rank,
            message=message,
            log_tail=end_of_log(self._logs.latest.stderrs.get(local_rank)),
            time=datetime.now(timezone.utc),
            step=self._files.read_rank(local_rank).step,
            after_seconds=self._after_seconds(),
        )

    def _after_seconds(self) -> float:
        """Time since the processes were started."""
        return round(time.monotonic() - self._began, 3)

    def _describe_process(
        self, process: ProcessFailure, ranks: Mapping[int, int], round_: int, sequence: int
    ) -> LocalFailure:
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
        failure = replace(failure, after_seconds=self._after_seconds())
        if failure.cause is FailureCause.TIMED_OUT and stderr:
            failure = _with_own_hang(failure, read_tail(Path(stderr), CRASH_BYTES))
        ended_by = failure.signal or failure.child_signal
        if hint := shared_memory_hint(failure.message, failure.log_tail, ended_by):
            failure = replace(failure, message=clip(f"{failure.message}\n{hint}", TEXT_BYTES))
        if not (failure.was_killed and self._oom.has_killed()):
            return _with_signal_of_child(_with_sender(failure))
        message = f"out of memory{self._oom.limit_text()}: {failure.message}"
        return replace(failure, cause=FailureCause.OOM, message=clip(message, TEXT_BYTES))

    def _has_ended(self, local_rank: int) -> bool:
        """Whether the process's script has just ended without an exception."""
        end = self._files.script_end(local_rank)
        if end is None or end.raised:
            return False
        return time.monotonic() - end.at <= JUST_NOW_SECONDS

    def _raised(self, local_rank: int) -> Raised:
        """Search torch's error file and the end of stderr for an exception."""
        logs = self._logs.latest
        error_file = Path(logs.error_files.get(local_rank) or "/nonexistent")
        if error_file.is_file():
            is_of_a_peer = follows_from_a_peer(read_tail(error_file, RAISED_BYTES))
            return Raised.NONE if is_of_a_peer else Raised.UNCAUGHT
        stderr, end = Path(logs.stderrs.get(local_rank) or "/nonexistent"), self._files.script_end(local_rank)
        has_raised = end is not None and end.raised
        if not stderr.is_file():
            return Raised.NONE
        if not has_raised and time.time() - stderr.stat().st_mtime > JUST_NOW_SECONDS:
            return Raised.NONE
        log = read_tail(stderr, RAISED_BYTES)
        text = last_traceback(log)
        if not text or follows_from_a_peer(text):
            return Raised.NONE
        printed_by_hook = log.rpartition(TRACEBACK)[0].rpartition("\n")[2].startswith(EXCEPTHOOK_PREFIX)
        return Raised.UNCAUGHT if printed_by_hook or has_raised else Raised.UNKNOWN


def _with_own_hang(failure: LocalFailure, log: str) -> LocalFailure:
    """Turn a crash by a time-out into a hang if the main thread did not wait for other ranks.

    When a collective times out at one rank, NCCL ends all ranks, including the one that did not reach it.
    """
    _, crash, dumped = log.rpartition("Fatal Python error")
    frames = dump.with_source(dump.oldest_thread(dumped)) if crash else ()
    if not frames or failure.rank is None or dump.waits_for_others(frames):
        return failure
    stack = RankStack(failure.rank, failure.step, frames=dump.format_frames(frames))
    step = "before its first step" if failure.step is None else f"after step {failure.step}"
    place = f"rank {failure.rank}, {step}, was at {dump.innermost_place(frames)}"
    message = clip(f"{place}\n{failure.message}", TEXT_BYTES)
    return replace(failure, cause=FailureCause.HANG, message=message, stacks=(stack,), exit_code=None)


def _with_sender(failure: LocalFailure) -> LocalFailure:
    """Add that the signal came from outside: failures are examined before dlr sends any signal."""
    if failure.signal not in ("SIGKILL", "SIGTERM") or not failure.message.startswith(KILLED_BY):
        return failure
    killed = f"{KILLED_BY} {failure.signal}"
    return replace(failure, message=failure.message.replace(killed, f"{killed} {FROM_OUTSIDE}", 1))


def _with_signal_of_child(failure: LocalFailure) -> LocalFailure:
    """Begin the message with the signal that ended a child of the failed process.

    torch's last exception only states that a DataLoader worker "exited unexpectedly".
    """
    if failure.child_signal is None:
        return failure
    killed = failure.child_signal == "SIGKILL"
    sender = f" {FROM_OUTSIDE}" if killed else ""
    message = f"{KILLED_CHILD} {failure.child_signal}{sender}: {failure.message}"
    cause = FailureCause.KILLED_CHILD if killed else failure.cause
    return replace(failure, cause=cause, message=clip(message, TEXT_BYTES))


def explains_more(new: LocalFailure, reported: LocalFailure | None) -> bool:
    """Whether a failure has to replace the reported one: it is of a newer round, or nearer to the cause."""
    if reported is None or reported.round != new.round:
        return True
    return _innocence(new) < _innocence(reported)


def _innocence(failure: LocalFailure) -> tuple[bool, bool]:
    """Order causes before consequences, and among these a time-out before the loss of a peer."""
    return failure.is_consequence, failure.is_consequence and failure.cause is not FailureCause.TIMED_OUT


def process_failure(local_rank: int, pid: int, exit_code: int, error_file: str) -> ProcessFailure:
    """Return torch's description of a failure, without the error file's text if that cannot be read."""
    with deferred():
        try:
            return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file=error_file)
        except Exception as error:  # torch raises any error that json.load has with a half-written file
            logger.warning("the error file %s cannot be read: %s", error_file, error)
            return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file="")


def failure_by(message: str, exit_code: int, local_rank: int = 0, pid: int = 0) -> ProcessFailure:
    """Return torch's description of a failure without an error file."""
    failure = process_failure(local_rank, pid, exit_code, "")
    failure.error_file_data = {"message": {"message": message}}
    return failure


def shared_memory_hint(message: str, log_tail: str, signal: str | None) -> str:
    """Return one sentence on what to do, if this failure is for want of shared memory; "" otherwise.

    Args:
        log_tail: the end of the process's log.
        signal: the name of the signal that ended the process or its child; None if none did.
    """
    try:
        size = shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return ""
    bus_error = signal == "SIGBUS" and size <= DEFAULT_BYTES
    is_named_in = _WANT_OF_SHARED_MEMORY.search
    if not (bus_error or is_named_in(message) or (signal and is_named_in(log_tail))):
        return ""
    return (
        f"{SHARED_MEMORY} has {size / 2**20:.0f} MiB here, which data loaders with workers and NCCL share: "
        f"mount an emptyDir with `medium: Memory` at {SHARED_MEMORY} in the Pod template."
    )
