"""Watches the agent's processes for hangs, and says of one which process is to blame, and where it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from agent import dump, hang, stacks
from agent.failure import TEXT_BYTES, Cause, Failure, RankStack, clip, read_tail
from agent.progress import ProgressFiles
from agent.stacks import Capture, StackLogsSpecs

logger = logging.getLogger(__name__)

MAX_STACKS = 16
"""Of one worker, in its status."""


@dataclass(frozen=True)
class Started:
    """The processes of one round."""

    round: int
    ranks: Mapping[int, int]
    """The global ranks, by local rank."""

    @property
    def first(self) -> bool:
        return 0 in self.ranks.values()


class HangGuard:
    """Not thread-safe. All its times are its own clock's, which stops for no one."""

    def __init__(self, files: ProgressFiles, stack_files: StackLogsSpecs, habit: hang.Habit) -> None:
        self._files = files
        self._stack_files = stack_files
        self._habit = habit
        self._started = Started(0, {})
        self._watch = hang.begin(habit, first=False, now=time.monotonic())

    def begin(self, started: Started) -> None:
        self._started = started
        self._watch = hang.begin(self._habit, first=started.first, now=time.monotonic())

    def look(self) -> None:
        """To be called every second or so."""
        told = [self._files.read_rank(rank) for rank in self._started.ranks]
        self._watch = hang.look(self._watch, told, time.monotonic())
        if self._watch.told_at is not None:
            self._habit = self._habit.with_step(first=self._started.first)

    def hangs(self, timeout_seconds: float) -> bool:
        return self._watch.hangs(timeout_seconds, time.monotonic())

    def may_hang(self, timeout_seconds: float) -> bool:
        return self._watch.may_hang(timeout_seconds, time.monotonic())

    def describe(
        self, pids: Mapping[int, int], stderrs: Mapping[int, str], sequence: int, timeout_seconds: float
    ) -> Failure:
        """Take the stacks of the living processes (by local rank), and tell. It takes a moment."""
        stalled_seconds = self._watch.stalled_seconds(time.monotonic())
        limit_seconds = self._watch.limit_seconds(timeout_seconds) or timeout_seconds
        captures = stacks.capture(pids, self._stack_files.files, self._stack_files.signal)
        found = {self._started.ranks[rank]: capture for rank, capture in captures.items()}
        suspects = hang.suspects_first([self._stack(rank, found) for rank in captures])
        blamed = suspects[0]
        local_rank = next(local for local, rank in self._started.ranks.items() if rank == blamed.rank)
        kept_in = self._stack_files.keep(
            self._started.round, {rank: capture.text for rank, capture in found.items() if capture.text}
        )
        stderr = stderrs.get(local_rank)
        return Failure(
            sequence=sequence,
            round=self._started.round,
            rank=blamed.rank,
            local_rank=local_rank,
            exit_code=None,
            message=clip(
                "\n".join(
                    (
                        f"no step for {stalled_seconds:.0f} s (the limit is {limit_seconds:.0f} s): "
                        f"{_whereabouts(blamed, found[blamed.rank])}",
                        *blamed.frames.splitlines(),
                        *(
                            [f"The stacks of all its threads are in {kept_in} of this Pod."]
                            if kept_in
                            else ()
                        ),
                    )
                ),
                TEXT_BYTES,
            ),
            log_tail=clip(read_tail(Path(stderr), TEXT_BYTES), TEXT_BYTES, head=0) if stderr else "",
            time=datetime.now(timezone.utc),
            cause=Cause.HANG,
            step=blamed.step,
            stacks=tuple(suspects[:MAX_STACKS]),
        )

    def _stack(self, local_rank: int, found: Mapping[int, Capture]) -> RankStack:
        rank = self._started.ranks[local_rank]
        capture = found[rank]
        return RankStack(
            rank=rank,
            step=self._files.read_rank(local_rank).step,
            in_collective=dump.waits_for_others(capture.frames),
            frames=dump.described(capture.frames) or capture.note,
        )


def _whereabouts(stack: RankStack, capture: Capture) -> str:
    step = "before its first step" if stack.step is None else f"after step {stack.step}"
    if not capture.frames:
        return f"rank {stack.rank}, {step}: {capture.note}"
    does = "waits for others" if stack.in_collective else "is"
    return f"rank {stack.rank}, {step}, {does} at {dump.place(capture.frames)}"
