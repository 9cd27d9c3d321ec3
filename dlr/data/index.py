"""Number of samples in each file, counted once by all ranks together, and stored."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from agent.whole_file import replace_text
from dlr.ranks import are_connected, from_all, from_rank_0

logger = logging.getLogger(__name__)

Read = Callable[[str, int], Iterable[Any]]
"""Function that yields the samples of a file, from the one with this number on."""


def sizes_of(files: Sequence[str], read: Read, index: Path | None) -> list[int]:
    """Return the number of samples in each file. All ranks call it, and share the counting.

    Args:
        index: file that stores the numbers for later starts; a file whose size in bytes has changed is
            counted again.

    Raises:
        ValueError: a file cannot be read twice, such as a pipe.
    """
    bytes_of = {file: _bytes_of(file) for file in files}
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if are_connected() else (0, 1)
    known = _lists_of(from_rank_0(_known(index) if rank == 0 else {}))
    missing = [file for file in bytes_of if known.get(file, [None])[1:] != [bytes_of[file]]]
    counted = {file: [sum(1 for _ in read(file, 0)), bytes_of[file]] for file in missing[rank::ranks]}
    for part in from_all(counted):
        known.update(_lists_of(part))
    if missing and index is not None and rank == 0:
        _write(index, known)
    return [int(known[file][0] or 0) for file in files]


def _bytes_of(file: str) -> int | None:
    """Return the size of a file; None if the operating system does not know it, as for a URL."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ValueError(
            f"{file} is a pipe or a device: its samples can be neither counted nor read again, so "
            "training could not continue where another worker stopped"
        )
    return status.st_size


def _known(index: Path | None) -> dict[str, list[int | None]]:
    """Return the numbers of an earlier start; empty if the index is damaged, since it can be rebuilt."""
    if index is None:
        return {}
    try:
        known = json.loads(index.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return _lists_of(known)


def _lists_of(known: Any) -> dict[str, list[int | None]]:
    if not isinstance(known, dict):
        return {}
    return {file: counted for file, counted in known.items() if isinstance(counted, list)}


def _write(index: Path, known: dict[str, list[int | None]]) -> None:
    """Store the index for later starts; log a failure, which only costs those the counting."""
    try:
        replace_text(index, json.dumps(known))
    except OSError as error:
        logger.warning(
            "the numbers of samples cannot be kept in the index %s, so each start counts them again: %s; "
            "give `index` a path that rank 0 can write",
            index,
            error,
        )
