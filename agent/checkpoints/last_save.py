"""The last save of an agent: checkpoints that are only in its memory go to storage before it ends.

Its training processes have ended without saving them: they failed, or their peers did, or they were between
two saves. A program of the SDK writes them (`dlr.checkpoint.last_save`), since the agent has no access to
storage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from agent import own_program
from agent.checkpoints.agreed import AgreedCheckpoint
from agent.slots.format import Mark
from agent.slots.process_files import LastSave, StoragePlace
from agent.slots.wire import is_there

logger = logging.getLogger(__name__)

PROGRAM = "dlr.checkpoint.last_save"


def name_of(key: bytes, job: str, round_: int) -> str:
    """Return a name for the end of a job's agents in that round, which others cannot guess."""
    return hashlib.sha256(key + f"{job} {round_}".encode()).hexdigest()[:12]


def made_of(
    agreed: AgreedCheckpoint, whole: Mapping[str, Mark], name: str, storage: StoragePlace, seconds: float
) -> LastSave:
    """Return the save of an ending agent.

    Args:
        whole: marks of the slots that hold a checkpoint, by path.
    """
    source = agreed.source
    return LastSave(
        name,
        storage,
        agreed.agent,
        agreed.agents,
        (source.agent,) if source is not None and not is_there(source.address) else (),
        tuple((it.round, it.step, it.rank, it.world_size, path) for path, it in whole.items()),
        seconds,
    )


def newest_step(save: LastSave) -> int:
    """Return the newest step of any slot."""
    return max(step for _, step, *_ in save.slots)


def is_whole(save: LastSave) -> bool:
    """Whether this agent alone has a checkpoint of all ranks."""
    ranks: dict[tuple[int, int, int], set[int]] = {}
    for round_, step, rank, world_size, _ in save.slots:
        ranks.setdefault((round_, step, world_size), set()).add(rank)
    return any(len(found) == world_size for (_, _, world_size), found in ranks.items())


def carry_out(save: LastSave) -> str:
    """Write it to storage by a program; return an error as one clause, or "" on success."""
    try:
        program = own_program.start(PROGRAM, new_session=True)  # so that signals to the agent's group miss it
    except OSError as error:
        return f"the program that writes it cannot be started: {error}"
    try:
        answer, _ = program.communicate(save.encode(), save.seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        with suppress(subprocess.TimeoutExpired):  # it cannot end while its storage does not answer
            program.wait(1.0)
        return f"it was not written within {save.seconds:.0f} s, as long as the Pod has to end"
    return _error_of(answer, program.returncode)


def _error_of(answer: str, exit_code: int) -> str:
    try:
        found = json.loads(answer)
        if (error := found.get("error")) is not None:
            return str(error)
        logger.info("step %d of the memory is in storage, too", found["step"])
        return ""
    except (ValueError, AttributeError, KeyError, TypeError):
        return f"the program that writes it ended with {exit_code}"
