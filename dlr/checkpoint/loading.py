"""Finds the newest checkpoint in memory and in storage, and loads it into the live state."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from pickle import UnpicklingError
from typing import Any, Literal

from agent.slots.format import Mark
from agent.slots.process_files import MemoryResume
from agent.slots.slot import DamagedError
from controller.errors import Error
from crds.checkpoint_files import CheckpointTrouble, Tier
from dlr.checkpoint import storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import Files
from dlr.checkpoint.modules import MismatchError, trained_among
from dlr.checkpoint.own_slot import CheckpointSource, own_slot
from dlr.checkpoint.state import restore
from dlr.checkpoint.storage import Manifest, StorageError
from dlr.checkpoint.surroundings import SaveTroubles, Surroundings, logger
from dlr.checkpoint.values import NotAllowedError

LOST_SECONDS = 60.0
"""Shortest time for which a lost checkpoint is reported to the agent, though later saves work."""


class DamagedCheckpointError(Error):
    """A checkpoint in memory is damaged. The next start loads another one."""


class Loading:
    """The checkpoints that one start may load.

    Args:
        trouble: takes reports of lost checkpoints.
        weights_only: as in `torch.load`.
        rng_state: whether the random number generators are restored.
    """

    def __init__(
        self,
        files: Files,
        here: Surroundings,
        trouble: SaveTroubles,
        *,
        weights_only: bool = True,
        rng_state: bool = True,
    ) -> None:
        self._files = files
        self._here = here
        self._trouble = trouble
        self._weights_only = weights_only
        self._rng_state = rng_state
        self._found: Manifest | Literal[False] | None = False
        """Checkpoint in storage that has precedence over memory; False before the first look."""

    def find(self, *, is_start: bool, beyond: int = 0) -> int | None:
        """Return the step of the checkpoint that `load` would load; None without one. All ranks call it.

        Args:
            is_start: whether this start has not saved anything yet.
            beyond: step of the live state, if that can be kept: then only later checkpoints in storage count.

        Raises:
            StorageError: as `choose`.
        """
        resume, manifest = self._here.resume, self._find(is_start, beyond)
        if manifest is not None:
            return manifest.step
        return None if resume is None else resume.step

    def load(
        self, state: MutableMapping[str, Any], *, is_start: bool, live: Mark | None = None
    ) -> tuple[int, Tier] | None:
        """Load the newest checkpoint in place; return its step and tier, or None without one.

        Args:
            live: mark of the checkpoint that the live state equals, if any.

        Raises:
            DamagedCheckpointError, StorageError, MismatchError: as `Checkpointer.load`.
        """
        resume, manifest = self._here.resume, self._find(is_start)
        self._found = False  # a later call looks again
        lost = self._here.lost_step or 0
        if manifest is not None:
            self._load_from_storage(state, manifest)
            found = manifest.step, Tier.STORAGE
            if lost > manifest.step:
                self._tell_lost(lost, manifest.step)
                return found
        elif resume is not None:
            own = Mark(resume.round, resume.step, self._here.rank, self._here.world_size)
            if resume.slot is None or live != own:
                self._load_from_memory(state, resume)
            found = resume.step, Tier.MEMORY
        else:
            if lost:
                self._tell_lost(lost, 0)
            return None
        self._trouble.works(CheckpointTrouble.LOST)
        return found

    def forget(self) -> None:
        """Forget the result of `find`, so that the next `find` or `load` looks again."""
        self._found = False

    def refuse_earlier_run(self, step: int) -> None:
        """Refuse a training that begins at this step, without `load`, if there are checkpoints beyond it.

        Saves beside newer checkpoints would lose either those or the new ones.

        Raises:
            RuntimeError: there are such checkpoints.
        """
        resume = self._here.resume
        if resume is not None and resume.step >= step:
            raise RuntimeError(
                f"training has begun at step {step}, where the agents' memory has step {resume.step}: call "
                "load() before the first step"
            )
        with suppress(OSError):
            newest = next(storage.steps_in(self._files), 0)
            if newest >= step:
                raise RuntimeError(
                    f"{self._files} has checkpoints of an earlier run, up to step {newest}, and training "
                    f"has begun at step {step} without them: call load() before the first step, or give "
                    "this run a path of its own"
                )

    def _find(self, is_start: bool, beyond: int = 0) -> Manifest | None:
        """Return the checkpoint in storage that has precedence over memory; None without one."""
        if self._found is False:
            up_to = self._preferred_up_to()
            kept = max(up_to or 0, beyond) if beyond else up_to
            self._found = choose(self._files, self._here, kept, is_start=is_start)
        return self._found

    def _preferred_up_to(self) -> int | None:
        """Return the step up to which memory has precedence over storage; None if memory is empty."""
        resume = self._here.resume
        if resume is None:
            return None
        return 0 if resume.is_last_resort else resume.step

    def _load_from_storage(self, state: MutableMapping[str, Any], manifest: Manifest) -> None:
        from dlr.checkpoint.in_storage import in_storage  # takes a second to import

        where = f"{self._files}/{manifest.folder}"
        try:
            source = in_storage(self._files, manifest, self._here, state, self._weights_only)
            self._restore(state, source, where, manifest.world_size)
        except NotAllowedError as error:
            raise MismatchError(f"the checkpoint {where} is refused: {error}") from None
        except DamagedError as error:
            raise StorageError(f"the checkpoint {where} is not used: {error}") from error

    def _load_from_memory(self, state: MutableMapping[str, Any], resume: MemoryResume) -> None:
        here, where = self._here, f"step {resume.step} in memory"
        try:
            if resume.slot is not None:
                mark = Mark(resume.round, resume.step, here.rank, here.world_size)
                with own_slot(resume.slot, mark) as source:
                    self._restore(state, source, where, resume.world_size)
            else:
                from dlr.checkpoint.reading import in_slots  # takes a second to import

                resharded = in_slots(resume, here.rank, here.world_size, here.group)
                self._restore(state, resharded, where, resume.world_size)
        except (DamagedError, OSError) as error:
            raise DamagedCheckpointError(
                f"the checkpoint of step {resume.step} in memory is not used: {error}; "
                "the next start goes on from another one"
            ) from error

    def _restore(
        self, state: MutableMapping[str, Any], source: CheckpointSource, where: str, ranks: int
    ) -> None:
        name = source.own_of_each(trained_among((part.name for part in source.parts), state))
        if name is not None:
            raise MismatchError(
                f"the checkpoint {where} is for {ranks} ranks alone: of {name} each rank had one of its own, "
                f"under one name, which cannot be divided between {self._here.world_size} ranks; "
                f"go on with {ranks} ranks. If the ranks were to be equal, train in DistributedDataParallel "
                "or FSDP2; if not, give what they do not share names of their own"
            )
        try:
            rng = source.rng if self._rng_state else None
            restore(state, source.values, rng, source.parts, source.fill, weights_only=self._weights_only)
        except MismatchError as error:
            raise MismatchError(
                f"the checkpoint {where} does not fit: {error}; go on with the model and optimizer that it "
                "is of, or give this run a path of its own"
            ) from None
        except NotAllowedError as error:
            raise MismatchError(f"the checkpoint {where} is refused: {error}") from None
        except UnpicklingError as error:
            raise DamagedError(str(error)) from error

    def _tell_lost(self, lost: int, found: int) -> None:
        """Report that a later step in memory was lost; `found` is 0 if there is no checkpoint at all."""
        begins = f"training goes on from step {found}" if found else "training begins at step 0"
        has = f"no later checkpoint than step {found}" if found else "no checkpoint"
        sentence = (
            f"{begins}: of step {lost} in memory a part is lost, and {self._files} has {has}; "
            "memoryCheckpoint.replicas: 1 survives one loss at a time, a lower persist_every more"
        )
        logger.warning("%s", sentence)
        self._trouble.tell(CheckpointTrouble.LOST, sentence, LOST_SECONDS)
