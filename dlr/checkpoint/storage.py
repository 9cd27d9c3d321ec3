"""Checkpoints in storage: folders of torch.distributed.checkpoint, each with a manifest that makes it count.

    path/dlr-job.json           whose checkpoints these are
    path/step-120/              a complete checkpoint: it came to this name in one rename
        .metadata, __0_0.distcp, …
        manifest.json           job, step, world size, and each file's size and 64-bit sum
    path/.step-130.<attempt>/   one that is being written, by the processes of that start

What is not complete has another name, so no reader takes it for a checkpoint, whenever its writers are
killed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.slots.sums import WordSum, sum_of
from crds.checkpoint_files import AFTER_FAILURE

MANIFEST = "manifest.json"
OWNER = "dlr-job.json"
GAVE_UP = "gave-up-"
REPLACED = "replaced-"
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of renameat2(2)."""
_FOLDER = re.compile(r"step-(\d+)")
_WORKING = re.compile(r"\.step-(\d+)\.(.+)")
_CHUNK_BYTES = 1 << 24


class StorageError(Exception):
    """A checkpoint in storage cannot be used, or the path belongs to another job; one sentence says why."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    name: str
    nbytes: int
    sum: int
    """The sum of its words, modulo 2⁶⁴ (`agent.slots.sums`)."""


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint consists of."""

    job: str
    """Namespace and name; empty outside of dlr."""
    step: int
    world_size: int
    files: tuple[File, ...]

    def encode(self) -> bytes:
        """Return the file's content, with a sum of its own."""
        body = asdict(self)
        return json.dumps({"manifest": body, "sum": _sum(_canonical(body))}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read it.

        Raises:
            StorageError: it is not what was written.
        """
        try:
            document = json.loads(data)
            body = document["manifest"]
            if document["sum"] != _sum(_canonical(body)):
                raise StorageError("its manifest is not what was written: the sum differs")
            return cls.of(body)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StorageError(f"its manifest cannot be read: {error!r}") from error

    @classmethod
    def of(cls, body: Any) -> Manifest:
        """Make it of its fields, as `asdict` and JSON have them.

        Raises:
            ValueError, TypeError, KeyError: they are not a manifest's.
        """
        files = tuple(File(**file) for file in body["files"])
        if not all(isinstance(it.name, str) and it.name == Path(it.name).name != "" for it in files):
            raise ValueError("a file's name is none")
        numbers = [body["step"], body["world_size"], *(n for it in files for n in (it.nbytes, it.sum))]
        if not isinstance(body["job"], str) or not all(type(number) is int for number in numbers):
            raise ValueError("a field is of another type")
        return cls(body["job"], body["step"], body["world_size"], files)


def folder_of(path: Path, step: int) -> Path:
    return path / f"step-{step}"


def working_folder(path: Path, step: int, attempt: str) -> Path:
    """Return the folder in which the ranks of one start write a checkpoint before it is complete."""
    return path / f".step-{step}.{attempt}"


def steps_in(path: Path) -> list[int]:
    """Steps of the checkpoints in a path, the newest first; empty if it does not exist.

    Raises:
        OSError: the path cannot be read.
    """
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]) for name in names if (match := _FOLDER.fullmatch(name))), reverse=True)


def read_manifest(folder: Path) -> Manifest:
    """Read a complete checkpoint's manifest.

    Raises:
        StorageError: there is none, or it is damaged.
    """
    try:
        manifest = Manifest.decode((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise StorageError(f"its manifest cannot be read: {error}") from error
    if folder_of(folder.parent, manifest.step) != folder:
        raise StorageError(f"its manifest is of step {manifest.step}")
    return manifest


def verify(folder: Path, files: Sequence[File], note_read: Callable[[], None] = lambda: None) -> None:
    """Compare files with what their manifest says.

    Args:
        folder: of the checkpoint.
        files: as the manifest has them.
        note_read: called whenever a part has been read.

    Raises:
        StorageError: one of them differs, or cannot be read.
    """
    for file in files:
        try:
            found = describe(folder / file.name, note_read)
        except OSError as error:
            raise StorageError(f"{file.name} cannot be read: {error}") from error
        if found != file:
            raise StorageError(
                f"{file.name} is not what was written: {found.nbytes} bytes with the sum {found.sum:#x}, "
                f"not {file.nbytes} with {file.sum:#x}"
            )


def describe(path: Path, note_read: Callable[[], None] = lambda: None) -> File:
    """A file's size and sum.

    Args:
        path: of the file.
        note_read: as `verify` has it.

    Raises:
        OSError: it cannot be read.
    """
    total, nbytes = WordSum(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            total.add_bytes(bytearray(chunk))
            nbytes += len(chunk)
            note_read()
    return File(path.name, nbytes, total.total() % 2**64)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that nobody ever sees a part of it, and a crash of the machine does not lose it.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def give_up(working: Path, rank: int, reason: str) -> None:
    """Tell the other ranks' savers that this one does not write, if the storage lets it."""
    with suppress(OSError):
        write_atomically(working / f"{GAVE_UP}{rank}", reason.encode())


def publish(working: Path, path: Path, manifest: Manifest) -> None:
    """Make a checkpoint complete: its files are all in the working folder.

    Raises:
        OSError: it cannot be done; then it is not visible.
    """
    write_atomically(working / MANIFEST, manifest.encode())
    target = folder_of(path, manifest.step)
    if target.exists():  # of a history that ended otherwise, or damaged
        _replace(target, working, path)
    else:
        working.rename(target)
    _sync_folder(path)


def _replace(target: Path, working: Path, path: Path) -> None:
    """Give a checkpoint the name of another one, so that at each moment one of them has it.

    A file system that cannot exchange two names, as NFS, has for a moment none of that name; `put_back` mends
    what a kill in that moment leaves.
    """
    try:
        exchange(working, target)
        aside = working.rename(_aside(path))
    except OSError:
        aside = target.rename(path / f".{target.name}.{REPLACED}{secrets.token_hex(4)}")
        working.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two files or folders in one step (renameat2(2)).

    Raises:
        OSError: the file system, or the C library, cannot.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    if rename is None or rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno() or errno.ENOSYS
        raise OSError(number, os.strerror(number))


def put_back(path: Path) -> None:
    """Give a checkpoint its name back that was to be replaced, where the writer was killed in that moment.

    Raises:
        OSError: the path cannot be read.
    """
    if not path.exists():
        return
    for entry in list(path.iterdir()):
        match = _WORKING.fullmatch(entry.name)
        if match is None or not match[2].startswith(REPLACED):
            continue
        target = folder_of(path, int(match[1]))
        if not target.exists():
            with suppress(OSError):  # storage that cannot be written still has what it has
                entry.rename(target)


def clear(path: Path, step: int, attempt: str) -> None:
    """Remove what was never completed, and may be what fills the storage.

    Args:
        step: that is about to be written by the processes of the attempt. What they write of it stays, and
            so does a later step, where some are ahead. An agent's savers, which write after a failure, leave
            all later steps alone: training goes on, and writes them.

    Raises:
        OSError: the path cannot be read.
    """
    put_back(path)
    for entry in list(path.iterdir()):
        match = _WORKING.fullmatch(entry.name)
        if match is None:
            continue
        of_step, own = int(match[1]), match[2] == attempt
        later = of_step > step and attempt.startswith(AFTER_FAILURE)
        if not later and not (own and of_step >= step):
            _remove(entry, path)


def clear_attempt(path: Path, attempt: str) -> None:
    """Remove what an earlier start of the same name left, before this one writes anything.

    Outside of dlr a start has no name of its own where its address and port are always the same. What ranks
    wrote then would be taken for what they write now.
    """
    with suppress(OSError):
        for entry in list(path.iterdir()):
            if (match := _WORKING.fullmatch(entry.name)) and match[2] == attempt:
                _remove(entry, path)


def retire(path: Path, keep: int | None) -> None:
    """Remove checkpoints beyond the newest `keep`.

    Args:
        keep: None for all.

    Raises:
        OSError: the path cannot be read.
    """
    for step in [] if keep is None else steps_in(path)[keep:]:
        _remove(folder_of(path, step), path)


def _remove(folder: Path, path: Path) -> None:
    """Remove a folder that others may be using: it has another name before the first file goes.

    So nobody gives it a checkpoint's name meanwhile. What cannot be removed is tried again at the next save.
    """
    with suppress(OSError):
        shutil.rmtree(folder.rename(_aside(path)), ignore_errors=True)


def _aside(path: Path) -> Path:
    return path / f".step-0.old-{secrets.token_hex(4)}"


def check_owner(path: Path, job: str) -> None:
    """Make sure that the checkpoints in `path` are this job's, and write so there if nothing does.

    Args:
        job: namespace and name; empty outside of dlr: then any path will do.

    Raises:
        StorageError: they are another job's.
        OSError: the path cannot be read.
    """
    owner = path / OWNER
    if not owner.exists() and job:
        with suppress(OSError):  # storage that cannot be written still has what it has
            _claim(owner, job)
    try:
        found = json.loads(owner.read_bytes())["job"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return  # nobody's, or damaged: the manifests say it too
    if job and found != job:
        raise StorageError(other_job(path, found, job))


def other_job(path: Path, found: str, job: str) -> str:
    return (
        f"{path} has the checkpoints of job {found}, and this is job {job}: give each job a path of its own"
    )


def _claim(owner: Path, job: str) -> None:
    owner.parent.mkdir(parents=True, exist_ok=True)
    draft = owner.with_name(f".{OWNER}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(json.dumps({"job": job}).encode())
        os.link(draft, owner)  # of two jobs that do it at once, one fails
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _canonical(body: object) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _sum(data: bytes) -> int:
    return sum_of(bytearray(data)) % 2**64
