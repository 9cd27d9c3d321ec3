"""Which step a training process goes on from, by the files that torch.load reads and torch.save has written.

Nothing is changed of what is saved, read or returned: after a call that went well, the file's state is looked
at (stat(2)). Only in the process that was forked, and in its main thread: what another thread writes may be
of an earlier step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.monitor.saved_steps import NOTES_KEPT, FileId, Notes, Position, common_file_in, own_file


class ResumedStep:
    """Which step this process goes on from, by the files that it has loaded.

    Args:
        record: its progress record, beside which the notes are.
        newest: the newest step that was counted in this process; None before the first.
    """

    def __init__(self, record: Path, newest: Callable[[], Position | None]) -> None:
        self._common, self._own = common_file_in(record.parent), own_file(record)
        self._newest = newest
        self._known: Notes | None = None
        self._noted: dict[FileId, Position] = {}
        self._loaded: set[Position] = set()

    def position(self) -> Position:
        """After which step this process begins: that of all files of this job's that it has loaded.

        Where these differ, or there are none, nobody knows, but of a job that has made no step yet.
        """
        if len(self._loaded) == 1:
            return next(iter(self._loaded))
        return Position(0, known=not self._loaded and self._notes().new)

    def note_saved(self, file: FileId) -> None:
        """It was written in the state after the newest step; what comes before the first is no checkpoint."""
        at = self._newest() or self.position()
        if at.step == 0:
            return
        self._noted.pop(file, None)
        self._noted[file] = at
        if len(self._noted) > NOTES_KEPT:
            del self._noted[next(iter(self._noted))]
        Notes(self._noted).write(self._own)

    def note_loaded(self, file: FileId) -> None:
        """It was read. After the first step, nothing follows from it."""
        at = self._notes().files.get(file) if self._newest() is None else None
        if at is not None:
            self._loaded.add(at)

    def _notes(self) -> Notes:
        if self._known is None:
            self._known = Notes.read(self._common)
        return self._known


def follow_files(resumed: ResumedStep) -> Callable[[], None]:
    """Have it hear of all files that torch.save writes and torch.load reads from now on.

    Returns:
        What ends it, for processes that this one forks.
    """
    import torch

    main, follows = threading.get_ident(), True

    def stop() -> None:
        nonlocal follows
        follows = False

    def heard(note: Callable[[FileId], None], file: Any) -> None:
        with contextlib.suppress(Exception):  # nothing that may keep a script from training
            if follows and threading.get_ident() == main:
                note(_id_of(file))

    torch_save, torch_load = torch.save, torch.load

    @functools.wraps(torch_save)
    def save(*args: Any, **kwargs: Any) -> Any:
        result = torch_save(*args, **kwargs)
        if not isinstance(_argument(args, kwargs, 0, "obj"), torch.Tensor):  # one of DCP's many
            heard(resumed.note_saved, _argument(args, kwargs, 1, "f"))
        return result

    @functools.wraps(torch_load)
    def load(*args: Any, **kwargs: Any) -> Any:
        result = torch_load(*args, **kwargs)
        heard(resumed.note_loaded, _argument(args, kwargs, 0, "f"))
        return result

    for module in (torch, torch.serialization):
        module.save, module.load = save, load  # type: ignore[attr-defined]
    return stop


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs[name]


def _id_of(file: Any) -> FileId:
    """Return the identity of a file, by path or open; what is still in its buffer belongs to it.

    Raises:
        Exception: it is none.
    """
    if isinstance(file, (str, os.PathLike)):
        return FileId.of(Path(file).stat())
    if file.writable():
        file.flush()
    return FileId.of(os.fstat(file.fileno()))
