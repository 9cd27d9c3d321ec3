"""Checkpoints in the agent's memory every few steps, and in storage now and then.

    ckpt = dlr.checkpoint.Checkpointer("/data/run1", {"model": model, "optimizer": optimizer})
    start = ckpt.load() or 0                # step of the newest checkpoint; None without one
    for step in range(start + 1, steps + 1):
        loss = train(batch)
        loss.backward()
        ckpt.wait()                         # only then may parameters change
        optimizer.step()
        if ckpt.step(step):                 # saved, and this process has to end
            sys.exit()

docs/checkpoints.md lists what is kept where, and what each failure costs.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import sys
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dlr
from agent.slots.format import Mark
from agent.slots.process_files import Notice, StoragePlace
from agent.slots.slot import TooSmallError
from crds.checkpoint_files import CheckpointTrouble, Tier
from crds.names import ENV_SPARE
from dlr.checkpoint import leaving
from dlr.checkpoint.files import files_at
from dlr.checkpoint.interval import SaveSchedule, find_board, is_due
from dlr.checkpoint.loading import Loading
from dlr.checkpoint.memory import Writer, needed_bytes
from dlr.checkpoint.persistence import Persistence
from dlr.checkpoint.state import Captured, capture
from dlr.checkpoint.surroundings import GivenSlots, SaveTroubles, Surroundings, logger, look_around, quantity
from dlr.checkpoint.tensors import local_tensor
from dlr.progress import number_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PREPARE_SECONDS = 5.0
"""Delay from the start of a process to the start of its saver, whose imports take seconds of CPU: by then a
restart is over, and the saver is ready for the first save to storage."""

StateForm = tuple[dict[str, bytes], dict[str, tuple[int, int, int]]]
"""Values of a state, and each tensor's address and version counters: equal forms mean an unchanged state."""

_OF_STORAGE = (CheckpointTrouble.STORAGE, CheckpointTrouble.SKIPPED)
_OF_MEMORY = (CheckpointTrouble.SLOT, CheckpointTrouble.MEMORY)


class SavingGroups(Protocol):
    """The part of `dlr.replicas.Replicas` that checkpoints need."""

    @property
    def has_state(self) -> bool:
        """Whether this group has the state of the groups, and is not still receiving it."""

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this group writes the last step to storage; all groups have the same state."""


class Checkpointer:
    """Saves the state of a training, and loads it. Every rank has one, and makes the same calls.

    Tensors may have any shape, dtype and device. Each rank saves its local shard of a DTensor (FSDP2, tensor
    parallelism); the checkpoint records the global shape, so that `load` can cut it for another number of
    ranks. A plain tensor that is equal on all ranks is saved once; one that differs is saved for each rank,
    and loads into a world of the same size only. `load` fills the existing tensors, on their devices.

    Args:
        path: a folder in storage that all ranks see, or object storage that fsspec supports, such as
            `s3://bucket/run1`; each job has its own.
        state: names, and modules (plain, DDP, FSDP2), optimizers, schedulers, samplers, anything else with
            `state_dict` and `load_state_dict`, or plain values, which are read from the mapping at each save.
        every: steps between two saves to memory; "auto": as often as costs at most 0.5 % of the time, and no
            more often than the job's failure rate warrants. Without dlr nothing is saved to memory.
        persist_every: steps between two saves to storage; None: only before a planned exit.
        keep: how many checkpoints stay in storage; None for all.
        process_group: the ranks that save and load together; None for the default group. If it lacks some
            ranks, nothing is saved to memory.
        weights_only: as in `torch.load`: by default a checkpoint holds no objects of classes that are not
            registered with `torch.serialization.add_safe_globals`, and loading creates none. With False,
            anyone who can write a checkpoint can run code where it is loaded.
        rng_state: whether the random number generators of torch, Python, NumPy and the GPU are saved, and
            continue from there after `load`.
        adopt: whether `load` takes over another job's checkpoints in the path, to continue a run under a new
            name. The other job must have ended, and can save nothing there any more.

    Raises:
        ValueError: a number is invalid or below 1; process_group lacks this rank; a loader in the state has
            no state of its own; or there is no such kind of storage.
        ImportError: this kind of storage needs a package that is missing.
        RuntimeError: another Checkpointer that is not closed uses the agent's memory, in this process or in
            one that shares its environment.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: MutableMapping[str, Any],
        every: int | Literal["auto"] = "auto",
        persist_every: int | None = 1000,
        keep: int | None = 3,
        *,
        process_group: ProcessGroup | None = None,
        weights_only: bool = True,
        rng_state: bool = True,
        adopt: bool = False,
    ) -> None:
        _check("every", every, "auto")
        _check("persist_every", persist_every, None)
        _check("keep", keep, None)
        _refuse_loaders(state)
        self.state = state
        self._files = files_at(path)
        self._every = every
        self._persist_every = persist_every
        self._keep = keep
        self._weights_only = weights_only
        self._rng_state = rng_state
        self._adopt = adopt
        self._process_group = process_group
        self._begin_start()
        self._storage = Persistence(self._files, self._here, keep, self._trouble)
        to_storage = self._here.job or persist_every is not None
        self._prepare_at = time.monotonic() + PREPARE_SECONDS if to_storage else math.inf
        self._pid = os.getpid()
        before_step = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
        self._hook = register_optimizer_step_pre_hook(before_step)
        atexit.register(self._at_exit)
        self._live: LiveState | None = None
        """State that this process kept from the previous start; None after `load`."""
        self._groups: SavingGroups | None = None
        """The replica groups, in a job that has them."""
        self.lives_on = False
        """Whether this process can live on into the next start; set by `dlr.replicas`."""

    def _lacks_memory(self) -> bool:
        """Whether rank 0 asks for saves to memory in a job without checkpoint memory."""
        here, is_spare = self._here, ENV_SPARE in os.environ
        asks = self._every != "auto" and here.rank == 0 and here.group is None
        return asks and bool(here.job) and not here.slots and not is_spare

    def _begin_start(self) -> None:
        """Set up for one start of the training processes, from the environment and the agent's file."""
        self._trouble = SaveTroubles()
        here = _without_memory_of_others(look_around(group=self._process_group))
        self._here = replace(here, adopts=self._adopt)
        self._given = GivenSlots(self._here)
        if self._given.holds_another:
            self._here = replace(self._here, resume=None)
        if (refusal := self._given.refusal) is not None:
            logger.warning("%s", refusal)
            self._trouble.tell(CheckpointTrouble.MEMORY, refusal)
        slots = self._given.slots
        if refusal is None and self._lacks_memory():
            logger.warning(
                "every=%s saves nothing: the job has no memory for checkpoints, so a failure costs all steps "
                "since the last save to storage; set replicaSpecs.worker.memoryCheckpoint.size",
                self._every,
            )
        self._memory = Writer(slots) if slots else None
        self._loading = Loading(
            self._files,
            self._here,
            self._trouble,
            weights_only=self._weights_only,
            rng_state=self._rng_state,
        )
        self._trouble.works(*_unused(self._here, self._persist_every))
        self._pace = self._make_pace() if self._every == "auto" and slots else None
        self._trained_since: float | None = None
        """Time of the return of the last call of `step`; None before the first."""
        self._saved = False
        self._loaded = False
        self._left_after: int | None = None
        """Step for which `step` returned True."""
        self._rests = False
        self._stayed: LiveState | None = None
        """State of the last save of a start that ends by plan, if this process lives on."""
        self._newest = -1
        """Last step that was passed to `step` or loaded."""
        self._has_warned = False
        """Whether a warning was logged that the step does not rise."""
        leaving.take_part("memory" if slots else "storage")
        self._notice = Notice(self._here)
        if slots:
            place = str(self._files), self._here.job, self._keep, self._here.replica_group
            self._notice.tell_storage(StoragePlace(*place))

    def find(self) -> int | None:
        """Return the step of the checkpoint that `load` would load; None without one. All ranks call it.

        Raises:
            StorageError: as `load`.
        """
        self._refuse_forks()
        return self._loading.find(is_start=self._trained_since is None)

    def load(self) -> int | None:
        """Load the newest checkpoint, in place. Every rank calls it, before its first step.

        The ranks agree through the default process group, if there is one. NCCL uses the current GPU for
        that, so call `torch.cuda.set_device` first.

        Returns:
            the step of the checkpoint; None without one: then nothing has changed.

        Raises:
            DamagedCheckpointError: the checkpoint in memory is damaged; the state is undefined then.
            StorageError: storage has only damaged checkpoints, or another job's, or cannot be read.
            MismatchError: the checkpoint is of another model or optimizer (a name, a global shape or a dtype
                differs), or has objects of classes that the script has not registered with
                `torch.serialization.add_safe_globals`.
            RuntimeError: `step` was called before, and memory has a newer step; or this is a fork of the
                process; or the job has replica groups.
        """
        self._refuse_forks()
        self._refuse_lone_group()
        is_start = self._trained_since is None
        if not is_start and self._here.slots:
            raise RuntimeError(
                f"load() comes after step({self._newest}), and after a failure training would go on from "
                "there, since memory has it: call load() before the first step"
            )
        return self._load()

    def _load(self) -> int | None:
        self.wait()
        self._loaded, stayed, self._live = True, self._live, None
        is_live = stayed is not None and stayed.form is not None and stayed.form == self._form()
        live = stayed.mark if stayed is not None and is_live else None
        try:
            loaded = self._loading.load(self.state, is_start=self._trained_since is None, live=live)
        finally:
            self._prepare_memory()
        if loaded is None:
            self._newest = 0
            return None
        self._newest = loaded[0]
        self._notice.tell_loaded(*loaded)
        if loaded[1] is Tier.MEMORY:
            self._storage.persist_resumed()
        return self._newest

    def join(self, groups: SavingGroups, loads: bool) -> int | None:
        """Save as one of these replica groups from now on; called by `dlr.replicas.join`.

        Args:
            loads: whether this group loads the newest checkpoint, as `load` does.

        Returns:
            the step of the checkpoint; None without one.

        Raises:
            DamagedCheckpointError, StorageError, MismatchError: as `load`.
        """
        self._groups, self._loaded, self._newest = groups, True, 0
        if loads:
            return self._load()
        self._prepare_memory()
        return None

    def load_beyond(self, step: int) -> int | None:
        """Load the newest checkpoint if it is newer than the live state.

        Args:
            step: of the live state.

        Returns:
            the step of the checkpoint; None if none is newer.

        Raises:
            DamagedCheckpointError, StorageError, MismatchError: as `load`.
        """
        self._refuse_forks()
        self._loading.forget()
        found = self._loading.find(is_start=self._trained_since is None, beyond=step)
        is_older = found is None or found <= step
        return None if step and is_older else self._load()

    def rest(self) -> None:
        """Wait until all copies into the agent's memory have ended, and release it."""
        self._refuse_forks()
        self._rests = True
        if self._memory is not None:
            self._memory.discard()
            self._memory = None
        self._given.release()

    @property
    def stays(self) -> bool:
        """Whether this start ends by plan after the last save, and this process lives on."""
        return self._stayed is not None

    def begin_again(self) -> None:
        """Begin the next start of the training processes in this same process. Call `rest` first.

        The environment must already be that of the next start.
        """
        self._refuse_forks()
        self._live = self._stayed
        self._begin_start()
        self._storage.begin_start(self._here, self._trouble)

    def wait(self) -> None:
        """Wait until the tensors that are being saved may change; call it right before the optimizer's step.

        For tensors on a GPU the stream waits, not this process. A hook before each optimizer's step waits,
        too, so a forgotten call costs no checkpoint.

        Raises:
            RuntimeError: this is a fork of the process.
        """
        self._refuse_forks()
        if self._memory is not None:
            self._memory.wait()
        self._storage.wait()

    def step(self, step: int) -> bool:
        """Save the state after this step, if it is due. Every rank calls it, after the optimizer's step.

        A failed save does not end the training: it is logged, and a later save tries again.

        For a planned change (a rescale, a suspension, a drained node) all ranks leave after the same step:
        it is saved, the checkpointer is closed, and the process has to end. If the save fails, the reason is
        logged, and the next start continues from an earlier step. A process that leaves must skip whatever
        follows the training loop, such as an export.

        In `with step` of a process that lives on (docs/elasticity.md) a planned change does not end the
        process: the step is saved, this returns False, and `with step` waits for the others. Between a peer's
        death and the next step nothing is saved.

        Args:
            step: the number of optimizer steps so far, at least 1; or a step of `dlr.replicas`, which counts
                as its `number`. A step that is not greater than the last is not saved. If the numbers have
                gaps, the first at or beyond a multiple of `every` or `persist_every` is saved.

        Returns:
            Whether this process has to end, with exit code 0 or 143. The training continues elsewhere.

        Raises:
            TypeError: the step is no whole number.
            RuntimeError: at the first step, if an earlier run left checkpoints and `load` was not called; or
                this is a fork of the process; or an earlier call returned True; or the job has replica
                groups that were not joined.
        """
        self._refuse_forks()
        self._refuse_lone_group()
        if self._left_after is not None:
            raise RuntimeError(
                f"step({self._left_after}) returned True, and training went on to step {step}: end the "
                "process there, as in `if ckpt.step(step): sys.exit()`"
            )
        if self._rests or self._stayed is not None:
            return False  # the live state is no step that the other ranks have made
        step, last = operator.index(number_of(step)), self._newest
        if not self._rises(step):
            dlr.report(step)
            return False
        began = time.monotonic()
        if self._pace is not None and self._trained_since is not None:
            self._pace.trained((began - self._trained_since) / (step - last), self._saved)
        dlr.report(step)
        if began >= self._prepare_at:
            self._storage.prepare()
            self._prepare_at = math.inf
        to_memory = self._is_due(step, last) and self._has_state
        to_storage = (
            self._writes and self._persist_every is not None and is_due(step, last, self._persist_every)
        )
        leave_to = leaving.boundary(step)
        if leave_to is not None:
            if self.lives_on and leaving.stays():
                self._stay(step, leave_to)
                return False
            self._leave(step, leave_to)
            return True
        began = time.monotonic()
        self._saved = (to_memory or to_storage) and self._save(step, to_storage)
        self._trained_since = time.monotonic()
        if self._pace is not None and self._saved:
            self._pace.stalled(self._trained_since - began)
        return False

    def close(self) -> None:
        """Wait until all saves have ended, and save no more.

        It waits for unresponsive storage until the saver has made no progress for ten minutes. In a fork of
        the process it does nothing.
        """
        if os.getpid() != self._pid or self._left_after is not None:
            return
        self._hook.remove()
        atexit.unregister(self._at_exit)
        try:
            if self._memory is not None:
                self._memory.close()  # fails if the GPU has failed
        finally:
            self._storage.close()
        if self._memory is not None:
            self._memory.discard()  # not earlier: the saver opens a slot by this process's path to it
        self._given.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Checkpointer cannot be copied or sent to another process: keep it out of objects that are, "
            "such as the dataset of a DataLoader"
        )

    def _refuse_forks(self) -> None:
        """Refuse calls in a fork of the process, which has neither the copying threads nor a state to save.

        Raises:
            RuntimeError: this is a fork.
        """
        if (pid := os.getpid()) != self._pid:
            raise RuntimeError(
                f"this Checkpointer is of process {self._pid}, and this is process {pid}, a fork of it: call "
                "it only there"
            )

    def _refuse_lone_group(self) -> None:
        """Refuse calls before `join` in a job with replica groups.

        Raises:
            RuntimeError: the groups were not joined.
        """
        if self._here.replica_group and self._groups is None:
            raise RuntimeError(
                "the job has replica groups, of which only one writes to storage, and none loads another's "
                "memory: call dlr.replicas.join(…, checkpoint=…) with this Checkpointer instead of load()"
            )

    # Saving.

    @property
    def _has_state(self) -> bool:
        return self._groups is None or self._groups.has_state

    @property
    def _writes(self) -> bool:
        return self._has_state and (self._groups is None or self._groups.writes_checkpoints)

    def _prepare_memory(self) -> None:
        """Do the preparation that would slow down the first save."""
        if self._memory is not None:
            self._memory.prepare()

    def _make_pace(self) -> SaveSchedule:
        here = self._here
        return SaveSchedule(
            here.rank,
            lambda: find_board(here.world_size),
            here.failures_per_hour,
            here.copy_seconds,
        )

    def _is_due(self, step: int, last: int) -> bool:
        if self._memory is None:
            return False
        if self._pace is not None:
            due, interval = self._pace.is_due(step, last), self._pace.interval
        else:
            interval = int(self._every)
            due = is_due(step, last, interval)
        self._notice.tell_every(interval)
        return due

    def _save(self, step: int, to_storage: bool) -> bool:
        """Save to memory, if there is any, and to storage from there.

        Returns:
            whether the state was copied.
        """
        to_storage = to_storage and self._storage.is_free(step)
        if self._memory is None and not to_storage:
            return False
        mark = Mark(self._here.round, step, self._here.rank, self._here.world_size)
        try:
            captured = self._capture(self.state)
            if self._memory is not None:
                try:
                    self._memory.save(mark, captured, self._storage.then(mark) if to_storage else None)
                    self._trouble.works(CheckpointTrouble.STATE, CheckpointTrouble.LOST, *_OF_MEMORY)
                    return True
                except (TooSmallError, RuntimeError) as error:
                    self._give_up_memory(error, captured)
            if to_storage:
                self._storage.save(mark, captured)
                self._trouble.works(CheckpointTrouble.STATE, CheckpointTrouble.LOST)
                return True
        except Exception as error:  # a state_dict may raise anything, and training goes on
            self._not_saved(f"step {step} is not saved: {type(error).__name__}: {error}")
            if to_storage:
                self._storage.give_up(step, f"{type(error).__name__}: {error}")
        return False

    def _capture(self, state: Mapping[str, Any]) -> Captured:
        return capture(state, weights_only=self._weights_only, rng_state=self._rng_state)

    def _form(self) -> StateForm | None:
        with suppress(Exception):  # a state_dict may raise anything
            return _form_of(self._capture(self.state))
        return None

    def _give_up_memory(self, error: Exception, captured: Captured) -> None:
        """Save to storage only from now on."""
        sentence = f"there are no more checkpoints in memory: {error}"
        if isinstance(error, TooSmallError):
            if self._here.slots_of_pod:
                size = quantity(1.05 * needed_bytes(captured) * self._here.slots_of_pod)
                sentence += f"; set replicaSpecs.worker.memoryCheckpoint.size to {size} or more"
            self._trouble.tell(CheckpointTrouble.SLOT, sentence)
        else:
            self._trouble.tell(CheckpointTrouble.MEMORY, sentence)
        logger.warning("%s", sentence)
        self._memory = None
        leaving.take_part("storage")

    def _not_saved(self, sentence: str) -> None:
        logger.warning("%s", sentence)
        self._trouble.tell(CheckpointTrouble.STATE, sentence)

    def _rises(self, step: int) -> bool:
        """Whether a step is later than the last; if not, it is logged once.

        Raises:
            RuntimeError: see `step`.
        """
        if self._newest < 0 and not self._loaded:
            self._loading.refuse_earlier_run(step)
            logger.warning(
                "step(%s) was called without load(), so after a failure no checkpoint would be loaded: call "
                "load() before the first step",
                step,
            )
            self._prepare_memory()
        if step > self._newest:
            self._newest, self._has_warned = step, False
            return True
        if not self._has_warned:
            self._has_warned = True
            self._not_saved(
                f"step({step}) comes after step {self._newest}, so it is not saved: count the optimizer's "
                "steps through the whole training, from the step that load() returned"
            )
        return False

    def _leave(self, step: int, tier: str) -> None:
        """Save this step, and save no more."""
        to_storage, is_wanted = tier == "storage", self._has_state
        is_saved = is_wanted and not to_storage and self._save(step, False)
        if to_storage or (is_wanted and not is_saved and self._memory is None):
            self._storage.leave()
            to_storage = is_wanted = self._writes
            if not is_wanted:
                self._notice.withdraw_storage()
            is_saved = is_wanted and self._save(step, to_storage)  # other ranks, with equal states, do it too
        else:
            self._storage.leave_from_memory()
        with suppress(OSError):  # an exception would turn the planned exit into a failure
            self.close()
        if to_storage:
            is_saved = self._storage.newest_stored == step
        if is_wanted and not is_saved:
            logger.warning("step %s is not saved: the next start goes on from an earlier one", step)
        leaving.prepare_to_end()
        self._left_after = step

    def _stay(self, step: int, tier: str) -> None:
        """Save this step, and nothing further until the next start, into which this process lives on."""
        to_storage = tier == "storage"
        if to_storage:
            self._storage.leave()
        mark = Mark(self._here.round, step, self._here.rank, self._here.world_size)
        self._stayed = LiveState(mark, self._form())
        if self._has_state and not self._save(step, to_storage and self._writes):
            logger.warning("step %s is not saved: the next start goes on from an earlier one", step)
        if to_storage:
            self._storage.finish()
        else:
            self._storage.leave_from_memory()

    def _before_step(self, *_: object) -> None:
        """Wait before each optimizer's step; a fork of this process has no copying threads to wait for."""
        if os.getpid() == self._pid:
            self.wait()

    def _at_exit(self) -> None:
        """Close at the end of the script; a failed process leaves the rest to its saver."""
        if os.getpid() == self._pid and not hasattr(sys, "last_value"):
            self.close()


@dataclass(frozen=True)
class LiveState:
    """Last save of a process in a start that ended by plan, if the process lives on into the next start."""

    mark: Mark
    form: StateForm | None
    """Form of the state at that time; None if it could not be captured."""


def _form_of(captured: Captured) -> StateForm:
    """Return the form of a captured state."""
    tensors = {name: (local_tensor(each), each._version) for name, each in captured.tensors.items()}
    return captured.pickles, {
        name: (local.data_ptr(), local._version, version) for name, (local, version) in tensors.items()
    }


def _unused(here: Surroundings, persist_every: int | None) -> list[CheckpointTrouble]:
    """Return the troubles that cannot occur here, even if a process of an earlier Pod reported them."""
    return [*(() if here.slots else _OF_MEMORY), *(() if persist_every is not None else _OF_STORAGE)]


def _refuse_loaders(state: Mapping[str, Any]) -> None:
    """Refuse loaders over `dlr.data`: their state would reset its position to the beginning of the epoch.

    Raises:
        ValueError: the state has such a loader.
    """
    for name, value in state.items():
        dealing = (getattr(value, kind, None) for kind in ("batch_sampler", "dataset"))
        if any(getattr(each, "has_no_loader_state", False) for each in dealing):
            raise ValueError(
                f"state[{name!r}] is a loader over a sampler or stream of dlr.data, which says itself where "
                "training is: put that into the state, and leave the loader out"
            )


def _without_memory_of_others(here: Surroundings) -> Surroundings:
    """Drop the checkpoint memory if some ranks save apart, since the agents' memory is for all ranks."""
    if here.group is None or not here.slots or here.world_size == (ranks := dist.get_world_size()):
        return here
    logger.warning(
        "there are no checkpoints in memory, since process_group has %s of %s ranks", here.world_size, ranks
    )
    return replace(here, slots=(), resume=None)


def _check(name: str, number: object, or_else: str | None) -> None:
    """Raise ValueError unless it is a whole number, at least 1, or the default `or_else`."""
    if number != or_else and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise ValueError(f"{name} is {or_else!r} or a whole number, at least 1, not {number!r}")
