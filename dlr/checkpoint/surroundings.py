"""What a training process is given (its rank, its job, its agent's slots), and what it tells of trouble."""

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
    """The rank and job of a training process, and what its agent gives it."""

    rank: int
    world_size: int
    job: str
    """Namespace and name, of all replica groups together; empty outside of dlr."""
    attempt: str
    """The same on all ranks of one start of the training processes: 12 characters, and the replica group.
    Under dlr no other start has it; elsewhere another may, where the address and port of rank 0 are always
    the same."""
    file: str = ""
    """The agent's file that describes its slots; empty without an agent."""
    group: dist.ProcessGroup | None = None
    """The group of the ranks; None for the default one."""
    adopts: bool = False
    """Whether the checkpoints of another job become this job's."""
    replica_group: str = ""
    """Index of the replica group; empty in a job without groups."""

    @property
    def after_failure(self) -> str:
        """The attempt in which what this start goes on from is written."""
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
    """The slots that the agent has for this process. Two processes in one slot would overwrite each other.

    Raises:
        RuntimeError: a Checkpointer uses them, of this process or of another one that has its environment.
    """

    def __init__(self, here: Surroundings) -> None:
        self.slots: list[Slot] = []
        self.refusal: str | None = None
        """Why there are none, though the agent has some."""
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
        """Let another Checkpointer use them."""
        if self._claim >= 0:
            fcntl.flock(self._claim, fcntl.LOCK_UN)  # forks of this process have the file open, too
            os.close(self._claim)
            self._claim = -1


def _claim(file: str) -> int:
    """Lock the file in which the agent names the slots, and return its descriptor. A start has its own file.

    Raises:
        OSError: it cannot be opened.
        RuntimeError: it is locked.
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
    """What does not work with this process's checkpoints, for the agent. Any thread may use it.

    It becomes a condition and an Event of the job. It is in a file beside the progress record, which is
    written when something begins to fail or works again, and not otherwise. Outside of dlr there is none.

    Args:
        environ: names the progress record.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        record = environ.get(ENV_PROGRESS_FILE)
        self._path = Path(f"{record}{TROUBLE_SUFFIX}") if record else None
        self._lock = threading.Lock()
        self._told: dict[CheckpointTrouble, str] = {}
        self._until: dict[CheckpointTrouble, float] = {}
        """Until when (monotonic) something stays, whatever works since."""

    def tell(self, kind: CheckpointTrouble, message: str, at_least_seconds: float = 0.0) -> None:
        """Say that this fails now. What it said of it before is replaced.

        Args:
            at_least_seconds: so long it stays, for all to hear of it.
        """
        self._until[kind] = time.monotonic() + at_least_seconds
        self._say({kind: message})

    def works(self, *kinds: CheckpointTrouble) -> None:
        """Say that these work, also after what an earlier process of this rank has told."""
        news = [kind for kind in kinds if self._told.get(kind) != ""]
        if news and (over := [kind for kind in news if time.monotonic() >= self._until.get(kind, 0.0)]):
            self._say(dict.fromkeys(over, ""))

    def _say(self, news: Mapping[CheckpointTrouble, str]) -> None:
        with self._lock:
            self._told.update(news)
            if self._path is None:
                return
            with suppress(OSError):  # to tell is a courtesy
                replace_text(self._path, json.dumps(self._told))


def quantity(nbytes: float) -> str:
    """At least so many bytes, as Kubernetes writes them: in whole Gi, or in Mi below 16 of these."""
    unit, name = (2**30, "Gi") if nbytes >= 2**34 else (2**20, "Mi")
    return f"{math.ceil(nbytes / unit)}{name}"
