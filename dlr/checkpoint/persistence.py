"""This process's side of saving to storage: its saver, and what becomes of each save.

A saver (`dlr.checkpoint.saver`) is a process that reads a request a line, writes that slot to storage, and
ends with its input.
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
"""So long a saver may stand still before nobody waits for it any more, since storage does not answer. One
that writes, or looks for those of other ranks, does not stand still."""
AFTER_FAILURE_SECONDS = 5.0
"""From `load` to the request to write what was loaded, too: by then the restart is over."""
_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
"""For a saver that was killed. It does not end while its storage does not answer."""
PROGRAM = "dlr.checkpoint.saver"
NICENESS = 5
"""Nice value of a saver. Training has priority, at three to one; with more, a machine on which training
leaves no core idle would let savers wait for minutes, and training for them when it ends."""


class Persistence:
    """Saves to storage, one step at a time, while training goes on.

    Args:
        keep: how many checkpoints stay; None for all.
        trouble: is told what fails, and that it works again.
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
        """The last step that is not saved: set when the others can know."""
        self._skipped = False
        """Whether a step was skipped since that one began."""
        self.newest_stored = -1
        """The last step that has reached the storage."""
        self._leaves = False
        self._after_failure: list[Saver] = []
        """The savers of what this start goes on from."""
        self._ended = threading.Event()
        """Set when they have to end."""

    def begin_start(self, here: Surroundings, trouble: SaveTroubles) -> None:
        """Save for the next start of the training processes, in which this one lives; the saver stays."""
        self._end_after_failure()
        self._here, self._trouble = here, trouble
        self._leaves = False
        self._after_failure, self._ended = [], threading.Event()

    def prepare(self) -> None:
        """Start the saver, which takes seconds, before it is needed."""
        if not self._saver.runs:
            _start_thread(self._saver.start)

    def is_free(self, step: int) -> bool:
        """Whether this step can be saved; if the last one is still under way, say so, to the others too."""
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
        """Tell the savers of other ranks that this one has nothing to write: they would wait for minutes."""
        self._giving_up = done = threading.Event()
        if not _start_thread(self._give_up, step, reason, done):
            done.set()

    def save(self, mark: Mark, captured: Captured) -> None:
        """Save a state by way of a copy in memory of this process's own.

        Raises:
            OSError: there is no memory for it.
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
        """What is to follow a copy to memory: save that slot."""

        def begin(slot: Slot, summed: Future[None], release: Callable[[], None]) -> None:
            done = threading.Event()
            self._under_way, self._skipped = (mark.step, done), False
            if not _start_thread(self._run, self._request(mark, slot.path), summed, release, done):
                release()
                done.set()

        return begin

    def persist_resumed(self) -> None:
        """After a failure, have what this start goes on from written too, beside the training.

        The agents say which slots: this rank's, or after a change of the world's size some of the old ranks'.
        Each has a saver of its own, since the savers of all ranks wait for each other.
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
            slot.lock(shared=True)  # so that the processes here write into their other slots
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
        """Wait as `finish` does, before the last step of this start is saved.

        Until the next one this process writes itself what a saver would that has not saved anything yet:
        where many share few cores, the import of torch takes it longer than a process has that is to leave.
        """
        self.finish()
        self._leaves = True

    def wait(self) -> None:
        if self._private is not None:
            self._private.wait()

    def close(self) -> None:
        """Wait for the step that is under way, as `finish` does, and save no more."""
        if self._private is not None:
            self._private.close()
        self.finish()
        self._saver.close()
        if self._private is not None:
            self._private.discard()  # only now, as the saver opens its file by the name that it has here

    def finish(self) -> None:
        """Wait for the step that is under way, and until other ranks can know of one that is given up.

        A saver that stands still is left behind, which is told.
        """
        self._end_after_failure()
        with dlr.busy(math.inf):  # however little the job's limit for a hang is
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
            f"step {step} is not saved to {self._files}: the process that saves it has stood still "
            f"for {STILL_SECONDS:.0f} s, as where storage does not answer, and nobody waits for it "
            "any more"
        )
        logger.warning("%s", sentence)
        self._trouble.tell(CheckpointTrouble.STORAGE, sentence)

    def _comes(self, done: threading.Event) -> bool:
        """Wait until it is set, as long as the saver does anything."""
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
            elif not self._saver.is_abandoned:  # else it is told already
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
    """Decides when nobody waits any more for a saver that stands still."""

    def __init__(self, activity: tuple[bytes, ...], now: float) -> None:
        self._activity, self._since = activity, now

    def lasts(self, activity: tuple[bytes, ...], now: float) -> bool:
        """Whether the saver has done nothing for STILL_SECONDS, as of a look at it."""
        if activity != self._activity:
            self._activity, self._since = activity, now
        return now - self._since > STILL_SECONDS


class Saver:
    """The saver's process, started when it is first needed, and again if it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        self._saving = threading.Lock()
        self._number = 0
        """Of the last request."""
        self.has_saved = False
        """Whether it has ever got to the end of a save, if only to say that it failed."""
        self.is_abandoned = False
        """Whether nobody waits for it any more."""

    @property
    def runs(self) -> bool:
        """Whether it was started, and has not died."""
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start it, if it does not run."""
        with self._starting, suppress(OSError):  # told when something is to be saved
            self._running()

    def save(self, request: SaveRequest, has_read: Callable[[], None]) -> str | None:
        """Have a slot written to storage, and wait for it.

        Args:
            has_read: called as soon as the slot is needed no longer.

        Returns:
            None; or why the step is not there, in one clause.
        """
        try:
            with self._saving:
                return self._save(request, has_read)
        except (OSError, ValueError) as error:
            return f"{SAVER_PROCESS} does not work: {error}"
        finally:
            self.has_saved = True

    def activity(self) -> tuple[bytes, ...]:
        """What changes as long as it does anything: its processor time, and what it has read and written."""
        found = []
        if (process := self._process) is not None:  # another thread may close it meanwhile
            for name in ("schedstat", "io"):
                with suppress(OSError):  # it has ended, or the kernel does not say
                    found.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
        return tuple(found)

    def abandon(self) -> None:
        """Kill it, and wait for it no more."""
        self.is_abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End it. Nobody waits for what it does any more, which may be the import of torch."""
        with self._starting:
            if self._process is not None:
                self._process.kill()
                with suppress(OSError):  # it died, and part of a request is not sent
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
            if answer is None:  # what follows might be taken for an answer to the next request
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
    """Say how a saver has ended that closed its pipes."""
    code = process.wait()
    is_signal = -code in set(signal.Signals)
    how = f"was ended by {signal.Signals(-code).name}" if is_signal else f"ended with exit code {code}"
    return f"{SAVER_PROCESS} {how}, see the log of this rank"


def _answer_to(number: int, line: str) -> dict[str, Any] | None:
    """Read an answer of the saver; None if it is none to the request of that number."""
    with suppress(ValueError, RecursionError):
        answer = json.loads(line)
        is_ours = isinstance(answer, dict) and answer.get("number") == number
        if is_ours and answer.keys() & {"read", "done", "error"}:
            return cast(dict[str, Any], answer)
    return None


def start_saver() -> subprocess.Popen[str]:
    """Start a saver's process; raise OSError where there can be no other process."""
    saver = own_program.start(PROGRAM)
    os.setpriority(os.PRIO_PROCESS, saver.pid, os.nice(0) + NICENESS)
    return saver


def _start_thread(run: Callable[..., None], *arguments: object) -> bool:
    """Run it beside the training, which goes on without it where the system refuses another thread."""
    try:
        threading.Thread(target=run, args=arguments, name="dlr-persist", daemon=True).start()
    except RuntimeError as error:
        logger.warning("what saves to storage cannot start: %s", error)
        return False
    return True


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # it was asked for
    return stream
