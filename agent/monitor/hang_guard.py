"""Watches the agent's processes for hangs, and describes the process that causes one by its stack."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from agent.facts.failure import TEXT_BYTES, LocalFailure, clip, end_of_log
from agent.monitor import dump, flight_recorder, hang, stacks
from agent.monitor.flight_recorder import CollectiveRecord
from agent.monitor.progress import ProgressFiles
from agent.monitor.stacks import Capture, StackFiles
from crds.agent_report import MAX_FRAMES, MAX_STACKS, FailureCause, RankStack
from crds.failure_texts import ASKED

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundProcesses:
    """Processes of one round."""

    round: int
    ranks: Mapping[int, int]
    """Global ranks, by local rank."""

    @property
    def first(self) -> bool:
        """Whether one of them has rank 0."""
        return 0 in self.ranks.values()


class HangGuard:
    """Applies `agent.monitor.hang` to the processes of one round after the other. Not thread-safe.

    Args:
        reporting: whether the processes of this slot have reported steps before.
    """

    def __init__(self, files: ProgressFiles, stack_files: StackFiles, reporting: hang.StepReporting) -> None:
        self._files = files
        self._stack_files = stack_files
        self._reporting = reporting
        self._started = RoundProcesses(0, {})
        self._began_at = time.monotonic()
        self._liveness = hang.begin(reporting, first=False, now=self._began_at)

    def begin(self, started: RoundProcesses) -> None:
        """Note processes that were just started."""
        self._started = started
        self._began_at = time.monotonic()
        self._liveness = hang.begin(self._reporting, first=started.first, now=self._began_at)

    def look(self) -> None:
        """Read the processes' reports. Call it about every second."""
        progress = [self._files.read_rank(rank) for rank in self._started.ranks]
        self._liveness = hang.look(self._liveness, progress, time.monotonic())
        if self._liveness.last_step_at is not None:
            self._reporting = self._reporting.with_step(first=self._started.first)

    def note_life(self) -> None:
        """Restart the time limit, since the processes are healthy."""
        self._liveness = replace(self._liveness, alive_at=time.monotonic())

    def hangs(self, timeout_seconds: float) -> bool:
        """Whether the limit has passed without a step, given the job's `hangTimeoutSeconds`."""
        return self._liveness.hangs(timeout_seconds, time.monotonic())

    def may_hang(self, timeout_seconds: float, *, asked: bool) -> bool:
        """Whether enough of the limit has passed that the world may have broken by a hang here.

        Args:
            asked: the world hangs, and the job asks where.
        """
        return self._liveness.may_hang(timeout_seconds, time.monotonic(), asked=asked)

    def describe(
        self,
        pids: Mapping[int, int],
        stderrs: Mapping[int, str],
        sequence: int,
        timeout_seconds: float,
        *,
        hangs: bool = True,
    ) -> LocalFailure | None:
        """Take the stacks of the living processes, and describe the hang. It takes a moment.

        Args:
            pids: ids of the living processes, by local rank.
            stderrs: log files of all processes, by local rank.
            hangs: False if they are healthy, and the job asks since others hang.

        Returns:
            The failure; None if no process lives any more. If the processes are healthy, or have made a step
            meanwhile, it has no cause and reads as a peer's.
        """
        last_step_at = self._liveness.last_step_at
        limit_seconds = self._liveness.limit_seconds(timeout_seconds) or timeout_seconds
        query = flight_recorder.RecordQuery({local: self._files.recorder_of(local) for local in pids})
        captures = stacks.capture(pids, self._stack_files.files, self._stack_files.signal)
        if not captures:
            return None
        self.look()
        hangs = hangs and self._liveness.last_step_at == last_step_at
        stalled_seconds = self._liveness.stalled_seconds(time.monotonic())
        records = query.answers()
        suspects = hang.order_by_suspicion(
            [self._stack(self._started, *each, records.get(each[0])) for each in captures.items()]
        )
        found = {self._started.ranks[local]: capture for local, capture in captures.items()}
        pending = {self._started.ranks[local]: record.pending for local, record in records.items()}
        blamed = suspects[0]
        local_rank = next(local for local, rank in self._started.ranks.items() if rank == blamed.rank)
        lines = [
            f"{_finding(stalled_seconds, limit_seconds, hangs=hangs)}: "
            f"{_whereabouts(blamed, found[blamed.rank], pending.get(blamed.rank, ''))}",
            *blamed.frames.splitlines(),
        ]
        if not hangs:
            lines.append(ASKED)
        if any(capture.text for capture in captures.values()):
            files = f"{self._stack_files.folder}/*/stacks.txt"
            lines.append(f"The stacks of all threads are in {files} of this Pod.")
        return LocalFailure(
            sequence=sequence,
            round=self._started.round,
            rank=blamed.rank,
            local_rank=local_rank,
            exit_code=None,
            message=clip("\n".join(lines), TEXT_BYTES),
            log_tail=end_of_log(stderrs.get(local_rank)),
            time=datetime.now(timezone.utc),
            cause=FailureCause.HANG if hangs else None,
            step=blamed.step,
            stacks=tuple(suspects[:MAX_STACKS]),
            after_seconds=round(max(self._liveness.alive_at - self._began_at, 0.0), 3),
        )

    def stacks_of(self, pids: Mapping[int, int]) -> Callable[[], list[RankStack]]:
        """Return a function that takes the stacks of processes of this round, in a moment and in any thread.

        Args:
            pids: ids of the living processes, by local rank.
        """
        started, files, signum = self._started, self._stack_files.files, self._stack_files.signal

        def take() -> list[RankStack]:
            captures = stacks.capture(pids, files, signum)
            return [self._stack(started, local, capture) for local, capture in captures.items()]

        return take

    def _stack(
        self,
        started: RoundProcesses,
        local_rank: int,
        capture: Capture,
        record: CollectiveRecord | None = None,
    ) -> RankStack:
        """Return the place of a process. Whether it waits is decided by NCCL's record before the stack."""
        frames = dump.format_frames(capture.frames) or capture.note
        if record is not None and record.pending:
            frames = f"NCCL: {record.pending} is not completed\n{frames}"[:MAX_FRAMES]
        return RankStack(
            rank=started.ranks[local_rank],
            step=self._files.read_rank(local_rank).step,
            in_collective=bool(record is not None and record.pending)
            or dump.waits_for_others(
                capture.frames, nccl_is_done=record is not None, computes=capture.computes
            ),
            frames=frames,
            offered=capture.offered,
        )


def _finding(stalled_seconds: float, limit_seconds: float, *, hangs: bool) -> str:
    if not hangs:
        return f"does not hang: its last sign of life is {stalled_seconds:.0f} s old"
    limit = f" (the limit is {limit_seconds:.0f} s)" if stalled_seconds > limit_seconds else ""
    return f"no step for {stalled_seconds:.0f} s{limit}"


def _whereabouts(stack: RankStack, capture: Capture, pending: str) -> str:
    step = "before its first step" if stack.step is None else f"after step {stack.step}"
    if not capture.frames:
        return f"rank {stack.rank}, {step}: {capture.note}"
    does = "waits for others" if stack.in_collective else "is"
    if pending:
        does += f" in NCCL's {pending},"
    place, line = dump.innermost_place(capture.frames), dump.line_of_the_script(capture.frames)
    called = f", called at {line}" if line not in ("", place) else ""
    return f"rank {stack.rank}, {step}, {does} at {place}{called}"
