"""What a training process is given: its rank, its job, and its agent's files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from agent.whole_file import replace_text
from crds.checkpoint_files import ENV_CHECKPOINT_FILE, Tier
from crds.names import ENV_JOB_NAME, ENV_NAMESPACE

logger = logging.getLogger("dlr.checkpoint")


@dataclass(frozen=True)
class MemoryResume:
    """What memory has of the checkpoint to go on from."""

    round: int
    step: int
    world_size: int
    slot: str | None
    """Path of this rank's, if the world is as large as it was."""
    shards: Mapping[int, str]
    """Else where each old rank's is: a path, or tcp://host:port."""
    is_last_resort: bool = False
    """Whether any checkpoint in storage goes first: starts in a row began with this one and saved nothing."""
    key: bytes = field(default=b"", repr=False)
    """The key of the job, for what the agents of other Pods have."""


@dataclass(frozen=True)
class Surroundings:
    """The rank and job of a training process, and its agent's files."""

    rank: int
    world_size: int
    job: str
    """Namespace and name; empty outside of dlr."""
    attempt: str
    """The same on all ranks of one start of the training processes: 12 characters. Under dlr no other start
    has it; elsewhere another may, where the address and port of rank 0 are always the same."""
    round: int = 0
    slots: tuple[str, ...] = ()
    """Paths of the slots that this process may write into."""
    resume: MemoryResume | None = None
    failures_per_hour: float | None = None
    slots_of_pod: int | None = None
    """Among how many slots the memory that the job asks for is divided; None if the agent does not say."""
    file: str = ""
    """The agent's file that describes its slots; empty without an agent."""
    storage_file: str = ""
    """The agent's file for what this process does with checkpoints."""
    copy_seconds_file: str = ""
    """The agent's file that has the seconds of a copy to another Pod."""
    lost_step: int | None = None
    """The newest that was in memory here, where nothing in memory is of use any more."""
    group: dist.ProcessGroup | None = None
    """The group of the ranks; None for the default one."""


def look_around(
    environ: Mapping[str, str] = os.environ, group: dist.ProcessGroup | None = None
) -> Surroundings:
    """Read the environment, the process group if there is one, and the agent's file."""
    given = _read(environ.get(ENV_CHECKPOINT_FILE, ""))
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    else:
        rank, world_size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    job = "/".join(filter(None, (environ.get(ENV_NAMESPACE), environ.get(ENV_JOB_NAME))))
    start = [job, given.get("round")]
    start += [environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    start += [environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")]
    return Surroundings(
        rank,
        world_size,
        job,
        hashlib.sha256(json.dumps(start).encode()).hexdigest()[:12],
        given.get("round", 0),
        tuple(given.get("slots", ())),
        _memory_resume(given.get("resume")),
        given.get("failuresPerHour"),
        given.get("slotsOfPod"),
        environ.get(ENV_CHECKPOINT_FILE, ""),
        given.get("storageFile", ""),
        given.get("copySecondsFile", ""),
        given.get("lostStep"),
        group,
    )


def copy_seconds(here: Surroundings) -> float:
    """What the last copy to another Pod took, in seconds; 0 where there has been none."""
    try:
        return float(Path(here.copy_seconds_file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0


class Notice:
    """What this process tells its agent of its checkpoints (`CheckpointerFile`), if there is an agent.

    Args:
        path: of the checkpoints in storage, so that the agent can have some written there; None if it cannot.
        keep: how many checkpoints stay there; None for all.
    """

    def __init__(self, here: Surroundings, path: str | None, keep: int | None) -> None:
        self._file = here.storage_file
        self._content: dict[str, Any] = {"job": here.job, "keep": keep, "round": here.round}
        if path is not None:
            self._content["path"] = path
        self._write()

    def tell_loaded(self, step: int, tier: Tier) -> None:
        """`load` has brought back that step, from there."""
        self._content["loaded"], self._content["tier"] = step, tier
        self._write()

    def tell_every(self, steps: int) -> None:
        """So many steps are between two saves to memory."""
        if self._content.get("every") != steps:
            self._content["every"] = steps
            self._write()

    def _write(self) -> None:
        if self._file:
            with suppress(OSError):  # then the agent does not know
                replace_text(Path(self._file), json.dumps(self._content))


def _read(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            given: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): there are no checkpoints in memory", path, error)
        return {}
    return given


def _memory_resume(given: Mapping[str, Any] | None) -> MemoryResume | None:
    if not given or given["tier"] != "memory":
        return None
    shards = {int(rank): where for rank, where in given.get("shards", {}).items()}
    return MemoryResume(
        given["round"],
        given["step"],
        given["worldSize"],
        given.get("slot"),
        shards,
        given.get("lastResort", False),
        bytes.fromhex(given.get("key", "")),
    )
