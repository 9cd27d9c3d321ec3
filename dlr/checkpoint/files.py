"""Places that hold checkpoints: a folder of a file system, or a prefix of object storage.

Both write a file atomically: a reader never sees a part of it. Object storage cannot rename, so a checkpoint
is marked complete by a file that is written last (`dlr.checkpoint.storage`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 24
_PATTERN = re.compile(r"[*?[]")
_OF_FILES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors that the clients of object storage raise as file systems do."""


def files_at(path: str | os.PathLike[str]) -> Files:
    """Return the place at a path, or at an address such as `s3://bucket/run1`.

    Raises:
        ImportError: this kind of address needs a package that is missing.
        ValueError: there is no such kind of address, or checkpoints cannot be kept there.
    """
    if isinstance(path, str) and "://" in path and not path.startswith("file://"):
        return RemoteFiles(path)
    if not isinstance(path, str) and re.match(r"\w+:/", str(path)):
        raise ValueError(f"{path} is no address any more: give the Checkpointer text, not a Path")
    return LocalFiles(Path(str(path).removeprefix("file://")).absolute())


class LocalFiles:
    """A folder that all ranks see. Names of files are relative to it, separated by slashes.

    Its methods raise OSError if storage does not answer.

    Args:
        path: path of the folder, which need not exist.
    """

    look_seconds = (0.02, 0.5)
    """Shortest and longest pause between two looks for files of other ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def is_link(self, name: str) -> bool:
        """Whether that name is a symbolic link."""
        return (self._path / name).is_symlink()

    def names(self, folder: str = "") -> set[str]:
        """Return the names of a folder's direct entries; empty if there is no such folder."""
        try:
            return {entry.name for entry in (self._path / folder).iterdir()}
        except FileNotFoundError:
            return set()

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file directly in a folder, in bytes; empty if there is no such folder."""
        try:
            with os.scandir(self._path / folder) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        try:
            (self._path / name).stat()  # since Python 3.14 `Path.exists` hides all errors
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a file, or a part of it."""
        with (self._path / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a file in parts of CHUNK_BYTES, the last of which may be shorter."""
        with (self._path / name).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def write(self, name: str, data: bytes, *, lasting: bool = False, exclusive: bool = False) -> None:
        """Write a file atomically.

        Args:
            lasting: whether it has to survive a crash of the machine.
            exclusive: whether to raise FileExistsError instead of replacing an existing file.
        """
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with draft.open("wb") as stream:
                stream.write(data)
                stream.flush()
                if lasting:
                    os.fsync(stream.fileno())
            if exclusive:
                os.link(draft, path)  # fails for all but one of concurrent writers
            else:
                draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
        if lasting:
            for folder in (path.parent, path.parent.parent):
                _sync(folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents; errors are ignored."""
        path = self._path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()

    def writer(self, folder: str) -> Any:
        """Return torch.distributed.checkpoint's writer of a folder."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        return FileSystemWriter(self._path / folder)

    def reader(self, folder: str) -> Any:
        """Return torch.distributed.checkpoint's reader of a folder."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        return FileSystemReader(self._path / folder)


class RemoteFiles:
    """A prefix of object storage, accessed through fsspec, with the methods of `LocalFiles`.

    Credentials and endpoints come from the environment.

    Args:
        url: address, such as `s3://bucket/run1`.

    Raises:
        ImportError: this kind of address needs a package that is missing.
        ValueError: there is no such kind of address, or fsspec would take it for a pattern.
    """

    look_seconds = (0.1, 2.0)

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(self._url, use_listings_cache=False)
        except ImportError as error:
            raise ImportError(f"checkpoints in {self} need a package that is missing: {error}") from error
        except ValueError as error:
            raise ValueError(f"checkpoints cannot be kept in {self}: {error}") from error
        if pattern := _PATTERN.search(self._root):  # fsspec would remove all matches
            raise ValueError(
                f"checkpoints cannot be kept in {self}: fsspec takes {pattern[0]!r} in it for a pattern"
            )

    def __str__(self) -> str:
        return _without_password(self._url)

    def address(self, folder: str) -> str:
        """Return the address of a folder, with credentials; messages use `str`, which has none."""
        return f"{self._url}/{folder}"

    def is_link(self, name: str) -> bool:
        return False

    def names(self, folder: str = "") -> set[str]:
        with _as_os_errors():
            try:
                found = self._fs.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return set()
        return {name.rstrip("/").rpartition("/")[2] for name in found}

    def sizes(self, folder: str) -> dict[str, int]:
        with _as_os_errors():
            try:
                found = self._fs.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
        files = (it for it in found if it["type"] == "file")
        return {it["name"].rpartition("/")[2]: int(it["size"]) for it in files}

    def exists(self, name: str) -> bool:
        with _as_os_errors():
            try:
                self._fs.info(self._at(name))  # fsspec's `exists` hides all errors
            except FileNotFoundError:
                return False
        return True

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else start + length
        with _as_os_errors():
            return bytes(self._fs.cat_file(self._at(name), start=start, end=end))

    def chunks(self, name: str) -> Iterator[bytes]:
        with _as_os_errors(), self._fs.open(self._at(name), "rb", block_size=CHUNK_BYTES) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def write(self, name: str, data: bytes, *, lasting: bool = False, exclusive: bool = False) -> None:
        with _as_os_errors():
            self._fs.pipe_file(self._at(name), data, **({"mode": "create"} if exclusive else {}))

    def remove(self, name: str) -> None:
        with suppress(OSError), _as_os_errors():
            self._fs.rm(self._at(name), recursive=True)

    def writer(self, folder: str) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(self.address(folder), sync_files=False)

    def reader(self, folder: str) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(self.address(folder))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


Files = LocalFiles | RemoteFiles


def _without_password(url: str) -> str:
    """Return the address without user name and password, for messages."""
    return re.sub(r"://[^/]*@", "://", url)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise network and server errors of an object storage client as EIO, as file systems do.

    For an overloaded server s3fs raises EBUSY, and other clients raise errors without a number.
    """
    try:
        yield
    except _OF_FILES:
        raise
    except Exception as error:  # each client has error classes of its own
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system syncs files only
            raise
    finally:
        os.close(descriptor)
