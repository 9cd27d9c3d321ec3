"""Which collectives of NCCL a process waits for, by torch's flight recorder (ProcessGroupNCCL).

Collectives on a GPU are enqueued, and the host goes on: it waits in the next line that needs a number from
the device, which may look like any other (`if loss < best:`). The recorder keeps the last collectives with
their states, and writes them down when something is written into its pipe. Of a rank that keeps the others
waiting, all are completed: the others have joined each of them. Who waits has one that is not.

https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.signals import deferred
from agent.unpickling import Unpickler

MAX_BYTES = 4 << 20
"""Of a record, whose entries have about a kilobyte each."""
PATIENCE_SECONDS = 4.0
"""How long processes have to write: they look at their pipes once a second."""
_POLL_SECONDS = 0.02

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_SIZE_VARIABLES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
"""As torch has named them until and since `_RENAMED_IN`."""
_STACKS_VARIABLE = "TORCH_INCLUDE_STACK_TRACE"
_RENAMED_IN = (2, 10)
_COLLECTIVES = 256
"""So many are kept: those of a step, about. What is pending is among the last."""


def variables(
    folder: Path, local_rank: int, environ: Mapping[str, str], torch_version: str, records: Path
) -> dict[str, str]:
    """Return what has a process keep and offer its records.

    Nothing where the user has a say in it, or where no pipe can be made: torch ends a process in which that
    fails (`DumpPipe` of ProcessGroupNCCL.hpp, torch 2.13), and some network file systems have no pipes.

    Args:
        folder: for the pipe, the agent's own.
        records: the folder for what is written, which outlives the agent: NCCL writes there by itself when a
            collective takes too long.
    """
    if any(name in environ for name in (PIPE_VARIABLE, *_FILE_VARIABLES, *_SIZE_VARIABLES)):
        return {}
    if not _takes_pipes(folder / "probe"):
        return {}
    stem, file = str(folder / _stem(local_rank)), str(records / _RECORD)
    new = tuple(int(part) for part in torch_version.split(".")[:2]) >= _RENAMED_IN
    return {
        PIPE_VARIABLE: stem,
        _FILE_VARIABLES[new]: file,
        _SIZE_VARIABLES[new]: str(_COLLECTIVES),
        _STACKS_VARIABLE: "0",  # which take it seconds to write, and we have our own
    }


_RECORD = "nccl_trace_rank_"
"""How the name of a record begins, as torch has it; it adds the global rank."""


def _stem(local_rank: int) -> str:
    """How the name of a process's pipe begins; torch adds its global rank."""
    return f"nccl_{local_rank}_"


def _takes_pipes(probe: Path) -> bool:
    try:
        os.mkfifo(probe)
        probe.unlink()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Record:
    """What one process's recorder says."""

    pending: str
    """The first collective that is not completed, such as `all_reduce 57 of [3] in default_pg`; else ""."""


class Question:
    """Asks the recorders of processes, at once; `answers` waits for what they write.

    Args:
        folder: as `variables` was given it.
        ranks: their global ranks, by local rank.
        records: the folders of what they write, by local rank.
    """

    def __init__(self, folder: Path, ranks: Mapping[int, int], records: Mapping[int, Path]) -> None:
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self._files: dict[int, Path] = {}
        for local, rank in ranks.items():
            answer = records.get(local, folder) / f"{_RECORD}{rank}"
            with suppress(OSError):  # no NCCL, or no such process any more
                pipe_name = folder / f"{_stem(local)}{rank}.pipe"
                descriptor = os.open(pipe_name, os.O_WRONLY | os.O_NONBLOCK)
                answer.unlink(missing_ok=True)
                with os.fdopen(descriptor, "wb", buffering=0) as pipe:
                    pipe.write(b"1")
                self._files[local] = answer

    def answers(self) -> dict[int, Record]:
        """Return what has been written by the time that patience ends, by local rank."""
        found: dict[int, Record] = {}
        while len(found) < len(self._files):
            for local in self._files.keys() - found.keys():
                with (
                    suppress(OSError, ValueError, KeyError, TypeError, AttributeError),
                    self._files[local].open("rb") as file,
                ):
                    found[local] = read(file.read(MAX_BYTES + 1))
            if time.monotonic() >= self._deadline:
                break
            time.sleep(_POLL_SECONDS)
        return found


def read(data: bytes) -> Record:
    """Read what a recorder has written.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not complete, nothing is in it, or it is of
            another torch.
    """
    if len(data) > MAX_BYTES:
        raise ValueError("it is larger than a record")
    with deferred():
        try:
            written = Unpickler(data).load()
        except Exception as error:  # what is no pickle may raise anything
            raise ValueError(f"not a record: {error}") from error
    entries: list[dict[str, Any]] = written["entries"]
    if not entries:
        raise ValueError("no collective yet")
    waits = next((entry for entry in entries if entry["state"] != "completed"), None)
    return Record("" if waits is None else _describe(waits))


def _describe(entry: Mapping[str, Any]) -> str:
    name = str(entry["profiling_name"]).removeprefix("nccl:").lstrip("_")
    number = entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]
    sizes = ", ".join(map(str, entry["input_sizes"][:2]))
    _, group = entry["process_group"]
    return f"{name} {number} of {sizes}" + (f" in {group}" if group not in ("", "undefined") else "")
