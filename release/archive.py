"""Archives whose bytes depend only on their content: sorted names, one time, no owner."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

EXECUTABLE = 0o111


@dataclass(frozen=True)
class File:
    """A file of an archive."""

    content: Path | bytes
    executable: bool = False


def files_below(folder: Path, prefix: str) -> dict[str, File]:
    """Return the files of a folder by their paths in an archive, below a prefix."""
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}": File(path, bool(path.stat().st_mode & EXECUTABLE))
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_tar(out: IO[bytes] | gzip.GzipFile, files: Mapping[str, File], time: int) -> None:
    """Write files with their parent folders; `time` is the modification time of all of them."""
    folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(folders | files.keys()):
            entry = tarfile.TarInfo(name)
            entry.mtime = time
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            file = files[name]
            entry.mode = 0o755 if file.executable else 0o644
            content = io.BytesIO(file.content) if isinstance(file.content, bytes) else file.content.open("rb")
            with content:
                entry.size = content.seek(0, io.SEEK_END)
                content.seek(0)
                tar.addfile(entry, content)


def write_gzipped_tar(path: Path, files: Mapping[str, File], time: int) -> None:
    """Write a .tar.gz of these files."""
    with path.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=time) as zipped:
        write_tar(zipped, files, time)
