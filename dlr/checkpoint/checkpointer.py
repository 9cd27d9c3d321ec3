"""Checkpoints in the agent's memory every few steps, and in storage now and then.

    ckpt = dlr.checkpoint.Checkpointer("/data/run1", {"model": model, "optimizer": optimizer})
    step = ckpt.load()                      # the newest there is; 0 if there is none
    for step in range(step + 1, steps + 1):
        loss = train(batch)
        loss.backward()
        ckpt.wait()                         # only then may parameters change
        optimizer.step()
        ckpt.step(step)

docs/checkpoints.md tells what is kept where, and what is lost when.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_pre_hook

import dlr
from agent.memory.slot import DamagedError, Mark, Slot, TooSmallError
from dlr.checkpoint import leaving, storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.interval import Pace, find_board
from dlr.checkpoint.memory import Source, Writer, verified
from dlr.checkpoint.persistence import Persistence
from dlr.checkpoint.state import capture, restore
from dlr.checkpoint.surroundings import MemoryResume, logger, look_around, tell_storage

PREPARE_SECONDS = 5.0
"""From the start of a job's process to that of its saver, whose imports take CPU for seconds: by then a
restart is over, and whoever has to leave for storage finds it ready."""


class DamagedCheckpointError(Exception):
    """A checkpoint in memory is not what was written. The next start goes on from another one."""


class Checkpointer:
    """Saves a training's state, and brings it back. Every rank has one, and makes the same calls.

    Args:
        path: a folder in storage that all ranks see; each job has its own.
        state: names, and modules (plain, DDP, FSDP2), optimizers, schedulers, samplers, anything else with
            `state_dict` and `load_state_dict`, or plain values, which are what the mapping has at the time.
            The random number generators of torch, Python, NumPy and the GPU are saved too.
        every: steps between two saves to memory; "auto": as often as costs 0.5 % of the time at most, and no
            more often than the job's failures make worth it. Without dlr there is no such memory.
        persist_every: steps between two saves to storage; None for none but those that leaving takes.
        keep: how many checkpoints stay in storage; None for all.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: MutableMapping[str, Any],
        every: int | Literal["auto"] = "auto",
        persist_every: int | None = 1000,
        keep: int | None = 3,
    ) -> None:
        for name, number in (("every", every), ("persist_every", persist_every), ("keep", keep)):
            if isinstance(number, int) and number < 1:
                raise ValueError(f"{name} is at least 1, not {number}")
        self.state = state
        self._path = Path(path).absolute()
        self._every = every
        self._persist_every = persist_every
        self._here = look_around()
        slots = _open_slots(self._here.slots)
        self._memory = Writer(slots) if slots else None
        self._storage = Persistence(self._path, self._here, keep)
        self._pace = self._make_pace() if every == "auto" and slots else None
        self._trained_since: float | None = None
        self._saved = False
        self._prepare_at = time.monotonic() + PREPARE_SECONDS if self._here.job else math.inf
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.wait())
        self._pid = os.getpid()
        atexit.register(self._at_exit)
        leaving.take_part("memory" if slots else "storage")
        tell_storage(self._here, self._path, keep)

    def load(self) -> int:
        """Bring back the newest checkpoint, in place. Every rank calls it, before its first step.

        The ranks agree by the default process group, if there is one. NCCL's uses the current GPU for that,
        so call `torch.cuda.set_device` first.

        Returns:
            its step; 0 if there is none, and then nothing has changed.

        Raises:
            DamagedCheckpointError: what memory has is damaged.
            StorageError: storage has another job's checkpoints, or damaged ones alone, or cannot be read.
            MismatchError: the checkpoint is of another model or optimizer.
        """
        resume = self._here.resume
        manifest = choose(self._path, self._here, beyond=0 if resume is None else resume.step)
        if manifest is None:
            if resume is None:
                return 0
            self._load_from_memory(resume)
            return resume.step
        same_world = manifest.world_size == self._here.world_size
        folder = storage.folder_of(self._path, manifest.step)
        from dlr.checkpoint.reading import in_storage  # takes a second to import

        self._restore(in_storage(folder, self._here.rank, same_world))
        return manifest.step

    def wait(self) -> None:
        """Wait until what is being saved may change: call it right before the optimizer's step.

        On a GPU its stream waits, not this process. Each optimizer's step does it too, so a call that was
        forgotten costs no checkpoint.
        """
        if self._memory is not None:
            self._memory.wait()
        self._storage.wait()

    def step(self, step: int) -> None:
        """A step is complete: save it if it is due. Every rank calls it, after the optimizer's step.

        A save that fails does not end the training: it logs a sentence, and a later one tries again.

        Args:
            step: the number of optimizer steps so far, at least 1.
        """
        began = time.monotonic()
        if self._pace is not None and self._trained_since is not None:
            self._pace.trained(began - self._trained_since, self._saved)
        dlr.report_step(step)
        if began >= self._prepare_at:
            self._storage.prepare()
            self._prepare_at = math.inf
        to_memory = self._is_due(step)
        to_storage = self._is_due_in_storage(step)
        leave_to = leaving.boundary(step)
        if leave_to is not None:
            self._leave(step, leave_to)
        began = time.monotonic()
        self._saved = (to_memory or to_storage) and self._save(step, to_storage)
        self._trained_since = time.monotonic()
        if self._pace is not None and self._saved:
            self._pace.stalled(self._trained_since - began)

    def close(self) -> None:
        """Wait until all that was saved is where it is to be, and save no more."""
        if self._memory is not None:
            self._memory.close()
        self._storage.close()
        self._hook.remove()
        atexit.unregister(self._at_exit)

    # Saving.

    def _make_pace(self) -> Pace:
        here = self._here
        return Pace(here.rank, find_board(here.world_size), here.failures_per_hour)

    def _is_due(self, step: int) -> bool:
        if self._memory is None:
            return False
        return self._pace.is_due(step) if self._pace is not None else step % int(self._every) == 0

    def _is_due_in_storage(self, step: int) -> bool:
        if self._persist_every is None:
            return False
        if step % self._persist_every == self._persist_every // 2:
            self._storage.prepare()
        return step % self._persist_every == 0

    def _save(self, step: int, to_storage: bool) -> bool:
        """Save to memory, if there is any, and have it written to storage from there.

        Returns:
            whether anything was copied.
        """
        to_storage = to_storage and self._storage.is_free(step)
        if self._memory is None and not to_storage:
            return False
        mark = Mark(self._here.round, step, self._here.rank, self._here.world_size)
        try:
            captured = capture(self.state)
            if self._memory is not None:
                try:
                    self._memory.save(mark, captured, self._storage.then(mark) if to_storage else None)
                    return True
                except (TooSmallError, RuntimeError) as error:
                    logger.warning("there are no more checkpoints in memory: %s", error)
                    self._memory = None
                    leaving.take_part("storage")
            if to_storage:
                self._storage.save(mark, captured)
                return True
        except Exception as error:  # a state_dict may raise anything, and training goes on
            logger.warning("step %s is not saved: %s: %s", step, type(error).__name__, error)
        return False

    def _leave(self, step: int, tier: str) -> None:
        """Save this step, and end the process."""
        self._storage.finish()
        self._save(step, tier == "storage")
        with suppress(OSError):  # that it left would look like a failure
            self.close()
        leaving.leave()

    def _at_exit(self) -> None:
        """At the end of the script; a process that failed leaves the rest to its saver."""
        if os.getpid() == self._pid and not hasattr(sys, "last_value"):
            self.close()

    # Loading.

    def _load_from_memory(self, resume: MemoryResume) -> None:
        here = self._here
        try:
            if resume.slot is not None:
                mark = Mark(resume.round, resume.step, here.rank, here.world_size)
                self._restore(verified(Slot.open(resume.slot), mark))
            else:
                from dlr.checkpoint.reading import in_slots  # takes a second to import

                self._restore(in_slots(resume, here.rank))
        except (DamagedError, OSError) as error:
            raise DamagedCheckpointError(
                f"the checkpoint of step {resume.step} in memory is not used: {error}; "
                "the next start goes on from another one"
            ) from error

    def _restore(self, source: Source) -> None:
        restore(self.state, source.values, source.rng, source.parts, source.fill)


def _open_slots(paths: Sequence[str]) -> list[Slot]:
    slots = []
    for path in paths:
        try:
            slots.append(Slot.open(path))
        except (OSError, ValueError) as error:
            logger.warning(
                "the slot %s cannot be opened, so there are no checkpoints in memory: %s", path, error
            )
            return []
    return slots
