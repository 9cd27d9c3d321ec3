"""Saves to storage on the side of the training process: its saver, and the outcome of each save.

A saver (`dlr.checkpoint.saver`) is a process that reads one request per line, writes that slot to storage,
and ends when its input ends.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import dlr
from agent import own_program
from agent.slots.format import Mark
from agent.slots.slot import Slot, TooSmallError
from crds.checkpoint_files import SAVER_PROCESS, CheckpointTrouble
from dlr.checkpoint import storage
from dlr.checkpoint.files import Files
from dlr.checkpoint.memory import Then, Writer, private_slot
from dlr.checkpoint.sharing import SaveRequest
from dlr.checkpoint.state import Captured
from dlr.checkpoint.surroundings import SaveTroubles, Surroundings, logger

STILL_SECONDS = 600.0
"""Time without any activity of a saver after which it is abandoned, since storage does not answer. Writing,
and looking for files of other ranks, is activity."""
AFTER_FAILURE_SECONDS = 5.0
"""Delay from `load` to the save of the loaded step to storage: by then the restart is over."""
LEAVING_SECONDS = 2.0
"""Time that a process whose last step is in memory waits for an earlier save to storage before it leaves."""
_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
"""Time limit for the end of a killed saver, which lives on while its storage does not answer."""
PROGRAM = "dlr.checkpoint.saver"
NICENESS = 5
"""Nice value of a saver. Training has priority, at three to one; with a higher value savers could wait for
minutes on a machine without an idle core, and training for them at its end."""


class Persistence:
    """Saves to storage, one step at a time, while training goes on.

    Args:
        keep: how many checkpoints stay; None for all.
        trouble: takes reports of failures, and of their end.
    """

    def __init__(self, files: Files, here: Surroundings, keep: int | None, trouble: SaveTroubles) -> None:
        self._files = files
        self._here = here
        self._keep = keep
        self._trouble = trouble
        self._saver = Saver()
        self._private: Writer | None = None
        self._under_way: tuple[int, threading.Event] | None = None
        self._giving_up: threading.Event | None = None
        """Set when the last skipped step has been announced to the other ranks."""
        self._skipped = False
        """Whether a step was skipped since the save under way began."""
        self.newest_stored = -1
        """Last step that has reached storage."""
        self._leaves = False
        self._after_failure: list[Saver] = []
        """Savers of the loaded checkpoint."""
        self._ended = threading.Event()
        """Set when those savers have to end."""

    def begin_start(self, here: Surroundings, trouble: SaveTroubles) -> None:
        """Save for the next start of the training processes, into which this one lives on, with its saver."""
        self._end_after_failure()
        self._here, self._trouble = here, trouble
        self._leaves = False
        self._after_failure, self._ended = [], threading.Event()

    def prepare(self) -> None:
        """Start the saver in advance, which takes seconds."""
        if not self._saver.runs:
            _start_thread(self._saver.start)

    def is_free(self, step: int) -> bool:
        """Whether this step can be saved; if the last save is still under way, log and announce the skip."""
        if self._under_way is None or self._under_way[1].is_set():
            return True
        earlier = self._under_way[0]
        saver_runs = self._saver.has_saved
        does = "is still being written" if saver_runs else "waits for the start of its writer"
        advice = "; if that happens often, raise persist_every" if saver_runs else ""
        sentence = f"step {step} is skipped in {self._files}, since step {earlier} {does}{advice}"
        logger.warning("%s", sentence)
        self._skipped = True
        if saver_runs:
            self._trouble.tell(CheckpointTrouble.SKIPPED, sentence)
        self.give_up(step, f"it still saves step {earlier}")
        return False

    def give_up(self, step: int, reason: str) -> None:
        """Tell the savers of other ranks not to wait for this one, which does not write the step."""
        self._giving_up = done = threading.Event()
        if not _start_thread(self._give_up, step, reason, done):
            done.set()

    def save(self, mark: Mark, captured: Captured) -> None:
        """Save a state through a copy in this process's own memory.

        Raises:
            OSError: there is too little memory.
        """
        if self._private is not None:
            with suppress(TooSmallError):
                self._private.save(mark, captured, self.then(mark))
                return
            self._private.discard()  # the state grew
            self._private = None
        self._private = Writer([private_slot(captured)])
        self._private.save(mark, captured, self.then(mark))

    def then(self, mark: Mark) -> Then:
        """Return the action after a copy to memory: save the slot to storage."""

        def begin(slot: Slot, summed: Future[None], release: Callable[[], None]) -> None:
            done = threading.Event()
            self._under_way, self._skipped = (mark.step, done), False
            if not _start_thread(self._run, self._request(mark, slot.path), summed, release, done):
                release()
                done.set()

        return begin

    def persist_resumed(self) -> None:
        """After a failure, save the loaded checkpoint to storage too, beside the training.

        The agents name the slots: this rank's, or, after a change of the world size, some of the old ranks'.
        Each slot gets a saver of its own, since the savers of all ranks wait for each other.
        """
        resume = self._here.resume
        if resume is None or self._after_failure:
            return
        for rank, path in resume.persist.items():
            mark = Mark(resume.round, resume.step, rank, resume.world_size)
            request = replace(self._request(mark, path), attempt=self._here.after_failure, beside="")
            try:
                slot = Slot.open(path)
            except OSError as error:
                logger.warning("step %d is not persisted after the failure: %s", mark.step, error)
                continue
            slot.lock(shared=True)  # makes training processes here write into their other slots
            self._after_failure.append(saver := Saver())
            if not _start_thread(self._persist_resumed, request, saver, slot):
                slot.close()

    def _persist_resumed(self, request: SaveRequest, saver: Saver, slot: Slot) -> None:
        what, ended = f"step {request.step} of rank {request.rank}", self._ended
        try:
            if ended.wait(AFTER_FAILURE_SECONDS):
                return
            error = saver.save(request, slot.unlock)
        finally:
            slot.close()
        if error is None:
            logger.info("%s is in %s too, after the failure", what, self._files)
        elif not ended.is_set():
            logger.warning("%s is not persisted to %s after the failure: %s", what, self._files, error)
        saver.close()

    def leave(self) -> None:
        """Wait as `finish` does, before the last step of this start is saved to storage.

        If the saver has not saved anything yet, this process writes the last step itself: with few cores, the
        saver's import of torch may take longer than the process has to leave.
        """
        self.finish()
        self._leaves = True

    def leave_from_memory(self) -> None:
        """Wait a moment for the save under way, then abandon it: the last step is in memory, and the
        next world waits for this process."""
        self._end_after_failure()
        if self._under_way is not None and not self._under_way[1].wait(LEAVING_SECONDS):
            self._saver.abandon()
            logger.info("step %d is not saved to %s: training leaves first", self._under_way[0], self._files)
        if self._giving_up is not None and not self._giving_up.wait(LEAVING_SECONDS):
            self._giving_up = None

    def wait(self) -> None:
        if self._private is not None:
            self._private.wait()

    def close(self) -> None:
        """Wait for the save under way, as `finish` does, and save no more."""
        if self._private is not None:
            self._private.close()
        self.finish()
        self._saver.close()
        if self._private is not None:
            self._private.discard()  # not earlier: the saver opens the slot by this process's path to it

    def finish(self) -> None:
        """Wait for the save under way, and for the announcement of a skipped one.

        A saver without activity is abandoned, and reported.
        """
        self._end_after_failure()
        with dlr.busy(math.inf):  # suspends the job's hang detection
            if self._under_way is not None and not self._saver.is_abandoned:
                self._await_saver(*self._under_way)
            if self._giving_up is not None:
                self._giving_up.wait(STILL_SECONDS)

    def _end_after_failure(self) -> None:
        self._ended.set()
        for saver in self._after_failure:
            saver.close()

    def _await_saver(self, step: int, done: threading.Event) -> None:
        if self._comes(done):
            return
        self._saver.abandon()
        sentence = (
            f"step {step} is not saved to {self._files}: the process that saves it has made no progress "
            f"for {STILL_SECONDS:.0f} s, as if storage did not answer, and was killed"
        )
        logger.warning("%s", sentence)
        self._trouble.tell(CheckpointTrouble.STORAGE, sentence)

    def _comes(self, done: threading.Event) -> bool:
        """Wait until the event is set, as long as the saver is active; return whether it was set."""
        stillness = Stillness(self._saver.activity(), time.monotonic())
        while not done.wait(_LOOK_SECONDS):
            if stillness.lasts(self._saver.activity(), time.monotonic()):
                return False
        return True

    def _request(self, mark: Mark, slot: str) -> SaveRequest:
        here = self._here
        return SaveRequest(
            slot,
            mark.step,
            mark.round,
            mark.rank,
            mark.world_size,
            str(self._files),
            here.attempt,
            here.job,
            self._keep,
            here.after_failure,
        )

    def _run(
        self,
        request: SaveRequest,
        summed: Future[None],
        release: Callable[[], None],
        done: threading.Event,
    ) -> None:
        try:
            failed = summed.exception()
            if failed is not None:
                self._give_up(request.step, str(failed), threading.Event())
            error = self._save(request, release) if failed is None else str(failed)
            if error is None:
                self.newest_stored = request.step
                dlr.checkpoint_saved(request.step)
                self._trouble.works(CheckpointTrouble.STORAGE)
                if not self._skipped:
                    self._trouble.works(CheckpointTrouble.SKIPPED)
            elif not self._saver.is_abandoned:  # otherwise reported already
                sentence = (
                    f"step {request.step} is not saved to {self._files}: {error}; the next save tries again"
                )
                logger.warning("%s", sentence)
                self._trouble.tell(CheckpointTrouble.STORAGE, sentence)
        finally:
            release()
            done.set()

    def _save(self, request: SaveRequest, release: Callable[[], None]) -> str | None:
        if not self._leaves or self._saver.has_saved:
            return self._saver.save(request, release)
        self._saver.close()
        from dlr.checkpoint.saver import try_to_persist  # takes most of a second to import

        return try_to_persist(request, release)

    def _give_up(self, step: int, reason: str, done: threading.Event) -> None:
        try:
            storage.give_up(self._files, step, self._here.attempt, self._here.rank, reason)
        finally:
            done.set()


class Stillness:
    """Decides when to abandon a saver without activity."""

    def __init__(self, activity: tuple[bytes, ...], now: float) -> None:
        self._activity, self._since = activity, now

    def lasts(self, activity: tuple[bytes, ...], now: float) -> bool:
        """Whether the saver has done nothing for STILL_SECONDS."""
        if activity != self._activity:
            self._activity, self._since = activity, now
        return now - self._since > STILL_SECONDS


class Saver:
    """The saver process, started on first use, and again if it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        self._saving = threading.Lock()
        self._number = 0
        """Number of the last request."""
        self.has_saved = False
        """Whether a save has ever ended, successfully or not."""
        self.is_abandoned = False
        """Whether it was killed for lack of activity."""

    @property
    def runs(self) -> bool:
        """Whether the process was started, and has not died."""
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start the process, if it does not run."""
        with self._starting, suppress(OSError):  # the next save reports it
            self._running()

    def save(self, request: SaveRequest, has_read: Callable[[], None]) -> str | None:
        """Let the saver write a slot to storage, and wait for it.

        Args:
            has_read: called as soon as the slot may be overwritten.

        Returns:
            None; or the reason of a failure, in one clause.
        """
        try:
            with self._saving:
                return self._save(request, has_read)
        except (OSError, ValueError) as error:
            return f"{SAVER_PROCESS} does not work: {error}"
        finally:
            self.has_saved = True

    def activity(self) -> tuple[bytes, ...]:
        """Return the process's counters of CPU time and I/O, which change as long as it is active."""
        found = []
        if (process := self._process) is not None:  # another thread may close it meanwhile
            for name in ("schedstat", "io"):
                with suppress(OSError):  # it has ended, or the kernel lacks the file
                    found.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
        return tuple(found)

    def abandon(self) -> None:
        """Kill the process without waiting for its end."""
        self.is_abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Kill the process, whatever it is doing, and wait a few seconds for its end."""
        with self._starting:
            if self._process is not None:
                self._process.kill()
                with suppress(OSError):  # it died before it had read a whole request
                    _stream(self._process.stdin).close()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)
                self._process = None

    def _save(self, request: SaveRequest, has_read: Callable[[], None]) -> str | None:
        with self._starting:
            process = self._running()
        requests, answers = _stream(process.stdin), _stream(process.stdout)
        self._number += 1
        try:
            requests.write(f"{self._number} {request.encode()}\n")
            requests.flush()
        except BrokenPipeError:
            return _end_of(process)
        for line in answers:
            answer = _answer_to(self._number, line)
            if answer is None:  # later lines could be mistaken for answers to the next request
                self.close()
                return f"{SAVER_PROCESS} has sent what is no answer to this request: {line!r:.200}"
            if "read" not in answer:
                return answer.get("error")
            has_read()
        return _end_of(process)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or not self.runs:
            self._process = start_saver()
            self.is_abandoned = False
        return self._process


def _end_of(process: subprocess.Popen[str]) -> str:
    """Describe the end of a saver that has closed its pipes."""
    code = process.wait()
    is_signal = -code in set(signal.Signals)
    how = f"was ended by {signal.Signals(-code).name}" if is_signal else f"ended with exit code {code}"
    return f"{SAVER_PROCESS} {how}, see the log of this rank"


def _answer_to(number: int, line: str) -> dict[str, Any] | None:
    """Parse an answer of the saver; None if it does not answer the request of that number."""
    with suppress(ValueError, RecursionError):
        answer = json.loads(line)
        is_ours = isinstance(answer, dict) and answer.get("number") == number
        if is_ours and answer.keys() & {"read", "done", "error"}:
            return cast(dict[str, Any], answer)
    return None


def start_saver() -> subprocess.Popen[str]:
    """Start a saver process; raise OSError if the system refuses another process."""
    saver = own_program.start(PROGRAM)
    os.setpriority(os.PRIO_PROCESS, saver.pid, os.nice(0) + NICENESS)
    return saver


def _start_thread(run: Callable[..., None], *arguments: object) -> bool:
    """Run a function in a thread; log and return False if the system refuses another thread."""
    try:
        threading.Thread(target=run, args=arguments, name="dlr-persist", daemon=True).start()
    except RuntimeError as error:
        logger.warning("what saves to storage cannot start: %s", error)
        return False
    return True


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # the process was started with pipes
    return stream
