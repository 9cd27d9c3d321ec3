"""Processes whose scripts have ended, but which a thread or an exit handler keeps alive.

They are reported after SAY_SECONDS, and ended after the job's limit for hangs with the exit code of their
script, so that finished training is not repeated. Steps of a thread that still trains, and `dlr.busy`,
restart the time. After a failed script they get FAILED_SECONDS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from agent.monitor import dump, stacks
from agent.monitor.dump import Frame
from agent.monitor.progress import ProgressFiles, RankProgress, ScriptEnd
from agent.monitor.stacks import Capture, StackFiles
from crds.agent_report import MAX_SENTENCE
from crds.texts import shortened

logger = logging.getLogger(__name__)

SAY_SECONDS = 20.0
"""Time for the interpreter to shut down before a report names what keeps it."""
FAILED_SECONDS = 10.0
"""Time for a process to end after its script has failed; the other ranks wait for its end."""


class LingeringStage(Enum):
    """Treatment of a process whose script has ended."""

    WAIT = "it has time"
    SAY = "a report names what keeps it"
    END = "it is ended"


def stage_of(end: ScriptEnd, progress: RankProgress, limit_seconds: float, now: float) -> LingeringStage:
    """Return the treatment of a process that still lives.

    Args:
        limit_seconds: the job's limit for hangs.
        now: the time (CLOCK_MONOTONIC).
    """
    silent_since = max(end.at, progress.last_report_at or 0.0, progress.busy_until or 0.0)
    seconds = now - silent_since
    if end.code != 0:
        return LingeringStage.END if seconds > min(FAILED_SECONDS, limit_seconds) else LingeringStage.WAIT
    if seconds > limit_seconds:
        return LingeringStage.END
    return LingeringStage.SAY if seconds > min(SAY_SECONDS, limit_seconds / 2) else LingeringStage.WAIT


def what_keeps_it(end: ScriptEnd, capture: Capture) -> str:
    """Describe what a process waits for after the end of its script, from its stacks."""
    main = capture.frames
    is_joining = not main or any(_joins_threads(frame) for frame in main)
    if not is_joining:
        if any(frame.file.endswith("multiprocessing/util.py") for frame in main):
            return "it waits for a process that it has started with multiprocessing"
        return f"at its exit it is at {dump.innermost_place(main)}"
    threads = dump.threads(capture.text)
    kept = {ident: name for ident, name in end.threads.items() if ident in threads or not threads}
    if end.threads and not kept:
        return "all its threads have ended, and the interpreter takes its objects apart"
    for ident, name in kept.items():
        place = dump.innermost_place(dump.with_source(threads.get(ident, ())))
        return f"thread {name} keeps it" + (f", at {place}" if place else "")
    return capture.note or "a thread keeps it"


def _joins_threads(frame: Frame) -> bool:
    return frame.file.endswith("threading.py") and frame.function == "_shutdown"


@dataclass
class _Found:
    """Report on one process."""

    rank: int
    keeps: str
    ended_after_seconds: float | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the agent has ended it."""
        return self.ended_after_seconds is not None

    def __str__(self) -> str:
        if self.ended_after_seconds is None:
            return f"rank {self.rank}: the script has ended, its process has not: {self.keeps}"
        seconds = f"{self.ended_after_seconds:.0f} s"
        return f"rank {self.rank}: its process was ended {seconds} after the script: {self.keeps}"


class Lingering:
    """Reports and ends processes whose scripts have ended."""

    def __init__(self, files: ProgressFiles, stack_files: StackFiles) -> None:
        self._files = files
        self._stack_files = stack_files
        self._found: Mapping[int, _Found] = {}

    def begin(self) -> None:
        """Forget the last processes, before others are started."""
        self._found = {}

    def to_status(self) -> str | None:
        """Return a sentence on the first of the processes and what keeps it; None if there is none."""
        found = list(self._found.values())
        if not found:
            return None
        more = f"; and {len(found) - 1} more of its processes" if len(found) > 1 else ""
        return shortened(str(found[0]), MAX_SENTENCE - len(more)) + more

    def look(
        self,
        pids: Mapping[int, int],
        ranks: Mapping[int, int],
        limit_seconds: float,
        end_process: Callable[[int, int], bool],
        now: float,
    ) -> bool:
        """End processes that have no time left; return whether `to_status` has changed. May take a moment.

        Args:
            pids: ids of the living processes, by local rank.
            ranks: global ranks, by local rank.
            end_process: ends the process of a local rank with an exit code; returns False if it cannot.
            now: the time (CLOCK_MONOTONIC).
        """
        before = {local: str(found) for local, found in self._found.items()}
        self._found = {local: each for local, each in self._found.items() if local in pids or each.is_ended}
        for local, pid in pids.items():
            end = self._files.script_end(local)
            if end is None or (local in self._found and self._found[local].is_ended):
                continue
            stage = stage_of(end, self._files.read_rank(local), limit_seconds, now)
            if stage is LingeringStage.WAIT:
                self._found = {each: found for each, found in self._found.items() if each != local}
                continue
            if local not in self._found:
                found = _Found(ranks[local], what_keeps_it(end, self._capture(local, pid)))
                self._found = {**self._found, local: found}
                logger.warning("%s", found)
            if stage is LingeringStage.END and end_process(local, end.code):
                self._found[local].ended_after_seconds = now - end.at
                logger.warning("%s", self._found[local])
        return before != {local: str(found) for local, found in self._found.items()}

    def _capture(self, local: int, pid: int) -> Capture:
        return stacks.capture({local: pid}, self._stack_files.files, self._stack_files.signal)[local]
