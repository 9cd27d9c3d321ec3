"""Environment of a training process (its rank, job, and agent's slots), and its reports of failed saves."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from agent.slots.process_files import ENV_CHECKPOINT_FILE, ProcessFile
from agent.slots.slot import Slot
from agent.whole_file import replace_text
from crds.checkpoint_files import AFTER_FAILURE, CheckpointTrouble, attempt_of
from crds.names import ENV_GROUP_INDEX, ENV_GROUPED_JOB, ENV_JOB_NAME, ENV_NAMESPACE
from crds.progress_record import ENV_PROGRESS_FILE, TROUBLE_SUFFIX

logger = logging.getLogger("dlr.checkpoint")


@dataclass(frozen=True)
class Surroundings(ProcessFile):
    """Rank and job of a training process, with the contents of its agent's file."""

    rank: int
    world_size: int
    job: str
    """Namespace and name of the job, of all replica groups together; empty outside of dlr."""
    attempt: str
    """Id of one start of the training processes, equal on all ranks: 12 characters, and the replica group.
    Unique under dlr; elsewhere starts with the same address and port of rank 0 share it."""
    file: str = ""
    """Path of the agent's file that lists its slots; empty without an agent."""
    group: dist.ProcessGroup | None = None
    """Process group of the ranks; None for the default one."""
    adopts: bool = False
    """Whether this job takes over another job's checkpoints."""
    replica_group: str = ""
    """Index of the replica group; empty in a job without groups."""

    @property
    def after_failure(self) -> str:
        """Attempt of the saves of the loaded checkpoint after a failure."""
        return attempt_of(f"{AFTER_FAILURE}{self.round}", self.replica_group)


def look_around(
    environ: Mapping[str, str] = os.environ, group: dist.ProcessGroup | None = None
) -> Surroundings:
    """Read the environment, the process group if there is one, and the agent's file.

    Raises:
        ValueError: this rank is not in the group.
    """
    file, given = environ.get(ENV_CHECKPOINT_FILE, ""), ProcessFile()
    if file:
        try:
            given = ProcessFile.read(file)
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read (%s): there are no checkpoints in memory", file, error)
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise ValueError(
                f"rank {dist.get_rank()} is not in process_group, which is to save together: make the "
                "Checkpointer on the ranks of the group alone, or give each rank a group that it is in"
            )
    else:
        rank, world_size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    namespace, own_job, grouped_job = map(environ.get, (ENV_NAMESPACE, ENV_JOB_NAME, ENV_GROUPED_JOB))
    job, own = ("/".join(filter(None, (namespace, name))) for name in (grouped_job or own_job, own_job))
    start: list[object] = [own, given.round]
    start += [environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    start += [environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")]
    replica_group = environ.get(ENV_GROUP_INDEX, "") if grouped_job else ""
    digest = hashlib.sha256(json.dumps(start).encode()).hexdigest()
    attempt = attempt_of(digest[:12], replica_group)
    more = {"replica_group": replica_group, **vars(given)}
    return Surroundings(rank, world_size, job, attempt, file, group, **more)


class GivenSlots:
    """The agent's slots for this process. Two processes in one slot would overwrite each other.

    Raises:
        RuntimeError: another Checkpointer uses them, in this process or in one that shares its environment.
    """

    def __init__(self, here: Surroundings) -> None:
        self.slots: list[Slot] = []
        self.refusal: str | None = None
        """Why there are none, though the agent has slots."""
        self.holds_another = False
        """Whether an earlier Checkpointer of this start has saved into them."""
        self._claim = -1
        if not here.slots:
            return
        try:
            self._claim = _claim(here.file)
            slots = [Slot.open(path) for path in here.slots]
        except (OSError, ValueError) as error:
            self.refusal = f"there are no checkpoints in memory, since the agent's cannot be opened: {error}"
            self.release()
            return
        if any(slot.mark is not None and slot.mark.round == here.round for slot in slots):
            self.holds_another = True
            self.refusal = (
                "there are no checkpoints in memory, since an earlier Checkpointer saved its own there"
            )
            self.release()
            return
        self.slots = slots

    def release(self) -> None:
        """Let another Checkpointer use the slots."""
        if self._claim >= 0:
            fcntl.flock(self._claim, fcntl.LOCK_UN)  # closing is not enough if a fork has the file open
            os.close(self._claim)
            self._claim = -1


def _claim(file: str) -> int:
    """Lock the agent's file that lists the slots of this start, and return its descriptor.

    Raises:
        OSError: the file cannot be opened.
        RuntimeError: the file is locked.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RuntimeError(
            "there is a Checkpointer in this process, or in another one that was started from it, and the "
            "agent's memory is for one: give it all of the state, or close() it first"
        ) from None
    return descriptor


class SaveTroubles:
    """Reports of failing checkpoints to the agent. Thread-safe.

    The reports become a condition and an Event of the job. They are in a file beside the progress record,
    which is written only when something begins to fail or works again. Outside of dlr there is no file.

    Args:
        environ: environment with the path of the progress record.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        record = environ.get(ENV_PROGRESS_FILE)
        self._path = Path(f"{record}{TROUBLE_SUFFIX}") if record else None
        self._lock = threading.Lock()
        self._messages: dict[CheckpointTrouble, str] = {}
        self._until: dict[CheckpointTrouble, float] = {}
        """Earliest end of a report, in monotonic time."""

    def tell(self, kind: CheckpointTrouble, message: str, at_least_seconds: float = 0.0) -> None:
        """Report a failure, in place of an earlier one of the same kind.

        Args:
            at_least_seconds: shortest time for which the report stays, so that it is noticed.
        """
        self._until[kind] = time.monotonic() + at_least_seconds
        self._write({kind: message})

    def works(self, *kinds: CheckpointTrouble) -> None:
        """End the reports of these kinds, including those of an earlier process of this rank."""
        now, messages = time.monotonic(), self._messages
        over = [it for it in kinds if messages.get(it) != "" and now >= self._until.get(it, 0.0)]
        if over:
            self._write(dict.fromkeys(over, ""))

    def _write(self, news: Mapping[CheckpointTrouble, str]) -> None:
        with self._lock:
            self._messages.update(news)
            if self._path is None:
                return
            with suppress(OSError):  # a failed report must not end the training
                replace_text(self._path, json.dumps(self._messages))


def quantity(nbytes: float) -> str:
    """Return a Kubernetes quantity of at least so many bytes: in Gi, or in Mi below 16 Gi."""
    unit, name = (2**30, "Gi") if nbytes >= 2**34 else (2**20, "Mi")
    return f"{math.ceil(nbytes / unit)}{name}"
