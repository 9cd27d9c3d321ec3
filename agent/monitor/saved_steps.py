"""Which step a start goes on from: files that the job has saved, each with the step after which it was.

SGD keeps no number of its steps, and only the script reads what it loads. But the file that it loads is one
that an earlier start has saved, and at that moment the step was known. So a process notes what `torch.save`
has written (`agent.warm.resumed_step`), and its agent keeps the notes from start to start and hands them on:
all agents of a round go by those of rank 0's, beside their own. A file is known by its inode, its size and
the time of its last change, so also after it was renamed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.whole_file import replace_text

NOTES_KEPT = 32
"""Of each process, the newest."""
NOTES_SHARED = 64
"""Of rank 0's agent, the newest: 4 KB or so for each of the others."""
MOST_NOTES = 1024
"""Of an agent: of more processes than a node has devices, for several checkpoints of each."""
NEW = "new"
"""The line that says: the job has made no step yet, so a start that loads nothing begins with the first."""


class FileId(NamedTuple):
    """What stays of a file when it is renamed, and changes when it is written."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileId:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Position:
    """After which step a file was saved, or a process begins."""

    step: int
    known: bool = True
    """Whether this is the job's own number; else it is one of a start that counted from 1, as nobody knew."""


@dataclass(frozen=True)
class Notes:
    """What is known of saved files, the oldest note first."""

    files: Mapping[FileId, Position]
    new: bool = False
    """See `NEW`."""

    @classmethod
    def parse(cls, text: str) -> Notes:
        """Read what `__str__` wrote. What cannot be read is left out."""
        files, lines = {}, text.splitlines()
        for line in lines:
            with contextlib.suppress(ValueError):
                inode, size, changed_ns, step, known = map(int, line.split())
                files[FileId(inode, size, changed_ns)] = Position(step, bool(known))
        return cls(files, new=NEW in lines)

    @classmethod
    def read(cls, path: Path) -> Notes:
        try:
            return cls.parse(path.read_text())
        except (OSError, UnicodeDecodeError):
            return cls({})

    def __str__(self) -> str:
        lines = [f"{' '.join(map(str, file))} {at.step} {int(at.known)}" for file, at in self.files.items()]
        return "\n".join([*([NEW] if self.new else []), *lines, ""])

    def write(self, path: Path) -> None:
        """Replace the file as a whole.

        Raises:
            OSError: if that fails.
        """
        replace_text(path, str(self))

    def newest(self, count: int) -> Notes:
        return Notes(dict(list(self.files.items())[-count:]), self.new)


def merged(notes: Iterable[Notes]) -> Notes:
    """All of them, by the time at which the files were written; the newest, if they are very many."""
    files = {file: at for each in notes for file, at in each.files.items()}
    return Notes(dict(sorted(files.items(), key=lambda item: item[0].changed_ns))).newest(MOST_NOTES)


def common_file_in(directory: Path) -> Path:
    """What all processes read: the notes of all earlier starts."""
    return directory / "saved"


def own_file(record: Path) -> Path:
    """What a process writes, by its progress record: its own notes."""
    return record.with_name(f"saved.{record.name}")


def gathered(directory: Path) -> Notes:
    """All notes in an agent's directory."""
    return merged(Notes.read(path) for path in sorted(directory.glob("saved*")) if path.suffix != ".new")
