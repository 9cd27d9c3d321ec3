"""What training processes say of their checkpoints, each in a file (`CheckpointerFile` of crds).

And the one thing that they are told while they run: how long a copy to the peer takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.whole_file import replace_text
from crds.agent_report import Resumed
from crds.checkpoint_files import StorageFile, Tier


def read_storage(files: Iterable[Path]) -> StorageFile | None:
    """Return where training processes reported their checkpoints to be; None if none has."""
    for file in files:
        try:
            told = _read(file)
            keep = told["keep"]
            return {
                "path": str(told["path"]),
                "job": str(told["job"]),
                "keep": None if keep is None else int(keep),
            }
        except (ValueError, TypeError, KeyError):
            continue
    return None


def read_resumed(files: Sequence[Path], round_: int) -> Resumed | None:
    """What all processes of that round have loaded; None before the last of them has, and for nothing."""
    found: Resumed | None = None
    for told in map(_read, files):
        try:
            if told["round"] != round_:
                return None
            found = Resumed(round_, Tier(told["tier"]), int(told["loaded"]))
        except (ValueError, TypeError, KeyError):
            return None
    return found


def read_every(files: Iterable[Path], round_: int) -> int | None:
    """Steps between two saves to memory, as the first process of that round says that tells."""
    for told in map(_read, files):
        every = told.get("every")
        if told.get("round") == round_ and isinstance(every, int) and every > 0:
            return every
    return None


def tell_copy_seconds(file: Path, seconds: float) -> None:
    """Say how long a copy takes. Where there is no room for the file, or no folder yet, nobody is told."""
    with suppress(OSError):
        replace_text(file, f"{seconds:.3f}")


def _read(file: Path) -> dict[str, Any]:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
