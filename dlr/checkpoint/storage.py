"""Checkpoints in storage: folders that torch.distributed.checkpoint reads, each with a manifest.

    path/dlr-job.json                        owner of the checkpoints
    path/step-120/.metadata                  torch's, written last: it makes a checkpoint complete
    path/step-120/try-<attempt>/             files that the processes of one start have written
        __0_0.distcp, …
        manifest.json                        job, step, world size, and each file's size and 64-bit sum
        notes/                               files through which the processes agree, while they write

Nothing is renamed, so object storage suffices. A step that is written again gets files of its own, and
replaces the earlier one when `.metadata` is replaced. A folder without `.metadata` is no checkpoint, whenever
its writers were killed. Checkpoints of torch.distributed.checkpoint without dlr have no manifest.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from agent.slots.sums import WordSum, sum_of
from controller.errors import Error
from crds.checkpoint_files import AFTER_FAILURE, group_of
from dlr.checkpoint.files import Files

METADATA = ".metadata"
"""torch's name of the file that describes a folder."""
MANIFEST = "manifest.json"
OWNER = "dlr-job.json"
_ADOPTED = "adopted"
"""Field of the owner's file: whether its job has taken over other jobs' checkpoints."""
NOTES = "notes"
"""Folder of the files by which the savers of all ranks agree (`dlr.checkpoint.sharing`)."""
GAVE_UP = "gave-up-"
_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_TRY = "try-"
_MAX_MANIFEST_BYTES, _MAX_OWNER_BYTES = 64 << 20, 4 << 10
"""Size limits of files that a saver writes: a manifest of 100,000 files has 15 MB."""
_MAX_NAME_BYTES = 255
_MOST_LISTED = 32
"""Most checkpoints to try in search of a whole one."""


class StorageError(Error):
    """A checkpoint in storage cannot be used, or the path belongs to another job; the message says why."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    name: str
    nbytes: int
    sum: int
    """Sum of its words, modulo 2⁶⁴ (`agent.slots.sums`)."""


@dataclass(frozen=True)
class Manifest:
    """Description of a complete checkpoint."""

    job: str
    """Namespace and name of the job; empty outside of dlr."""
    step: int
    world_size: int
    """Number of ranks that wrote it; 0 for torch.distributed.checkpoint without dlr."""
    attempt: str
    files: tuple[File, ...]

    @property
    def folder(self) -> str:
        """Name of the folder that torch.distributed.checkpoint reads."""
        return folder_of(self.step)

    def place_of(self, file: File) -> str:
        """Return the path of one of its files, relative to the checkpoints' path."""
        return f"{self.folder if file.name == METADATA else try_folder(self.step, self.attempt)}/{file.name}"

    def encode(self) -> bytes:
        """Return the content of the manifest file, including its own sum."""
        body = asdict(self)
        return json.dumps({"manifest": body, "sum": _sum(_canonical(body))}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Parse a manifest file; raise StorageError if it is damaged."""
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
        """Build a manifest from the output of `asdict`, after a round trip through JSON.

        Raises:
            ValueError, TypeError, KeyError: these are not the fields of a manifest.
        """
        files = tuple(File(**file) for file in body["files"])
        names = [it.name for it in files] + [body["attempt"] or "-"]
        if not all(map(_is_name, names)):
            raise ValueError("a file's name is none")
        numbers = [body["step"], body["world_size"], *(n for it in files for n in (it.nbytes, it.sum))]
        if not isinstance(body["job"], str) or not all(type(number) is int for number in numbers):
            raise ValueError("a field is of another type")
        return cls(body["job"], body["step"], body["world_size"], body["attempt"], files)


def _is_name(name: object) -> bool:
    """Whether that is a valid file name."""
    if not isinstance(name, str) or name != PurePosixPath(name).name or name in ("", "..") or "\0" in name:
        return False
    return len(name.encode()) <= _MAX_NAME_BYTES  # raises ValueError for a surrogate


def folder_of(step: int) -> str:
    return f"step-{step}"


def try_folder(step: int, attempt: str) -> str:
    """Return the folder in which the ranks of one start write a checkpoint."""
    return f"{folder_of(step)}/{_TRY}{attempt}"


def is_complete(files: Files, step: int) -> bool:
    """Whether there is a checkpoint of that step.

    Raises:
        OSError: the path cannot be read.
    """
    return files.exists(f"{folder_of(step)}/{METADATA}")


def steps_in(files: Files) -> Iterator[int]:
    """Yield the steps of the checkpoints in a path, the newest first.

    Raises:
        OSError: the path cannot be read.
    """
    return (step for step in _begun_in(files) if is_complete(files, step))


def _begun_in(files: Files) -> list[int]:
    """Return the steps that have a folder, the newest first."""
    return sorted((int(it[1]) for name in files.names() if (it := _FOLDER.fullmatch(name))), reverse=True)


def _own_in(files: Files) -> list[int]:
    """Return the steps as above, without symbolic links, whose targets may belong to another job."""
    return [step for step in _begun_in(files) if not files.is_link(folder_of(step))]


def manifests_in(files: Files, beyond: int) -> Iterator[Manifest | str]:
    """Yield the checkpoints of steps greater than `beyond`, the newest first.

    Returns:
        for each its manifest, or why it cannot be used.

    Raises:
        OSError: the path cannot be read.
    """
    for number, step in enumerate(steps_in(files)):
        if step <= beyond or number == _MOST_LISTED:
            return
        try:
            yield read_manifest(files, step)
        except StorageError as error:
            yield f"{folder_of(step)}: {error}"


def read_manifest(files: Files, step: int) -> Manifest:
    """Read a complete checkpoint's manifest.

    Raises:
        StorageError: it is damaged.
        OSError: it cannot be read, so its state is unclear.
    """
    folder, found, reason = folder_of(step), list[Manifest](), ""
    tries = sorted(name for name in files.names(folder) if name.startswith(_TRY))
    for name in tries:
        try:
            found.append(_manifest_of(files, step, name.removeprefix(_TRY)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except StorageError as error:
            reason = str(error)
    if len(found) > 1:  # rank 0's saver was killed after it had replaced a checkpoint
        reason = f"{METADATA} is not what was written"
        try:
            metadata = describe(files, f"{folder}/{METADATA}")
        except FileNotFoundError as error:  # it has just been removed
            raise StorageError(reason) from error
        found = [manifest for manifest in found if metadata in manifest.files]
    if found:
        return found[0]
    if reason:
        raise StorageError(reason)
    return Manifest("", step, 0, "", ())


def _manifest_of(files: Files, step: int, attempt: str) -> Manifest:
    data = _read(files, f"{try_folder(step, attempt)}/{MANIFEST}", _MAX_MANIFEST_BYTES)
    manifest = Manifest.decode(data)
    if (manifest.step, manifest.attempt) != (step, attempt):
        raise StorageError(f"its manifest is of step {manifest.step}")
    return manifest


def _read(files: Files, place: str, limit: int) -> bytes:
    """Read a file.

    Raises:
        StorageError: the file is larger than the limit, in bytes.
        OSError: the file cannot be read.
    """
    data = bytearray()
    for chunk in files.chunks(place):
        data += chunk
        if len(data) > limit:
            raise StorageError(f"{place.rpartition('/')[2]} has more than {limit:,} bytes")
    return bytes(data)


def verify(
    files: Files, manifest: Manifest, which: Sequence[File], note_read: Callable[[], None] = lambda: None
) -> None:
    """Compare files with their manifest.

    Args:
        which: files of the manifest to compare.
        note_read: called after each part that was read.

    Raises:
        StorageError: a file differs, or is missing.
        OSError: a file cannot be read, so its state is unclear.
    """
    for file in which:
        try:
            found = describe(files, manifest.place_of(file), note_read)
        except FileNotFoundError as error:
            raise StorageError(f"{file.name} is not there: {error}") from error
        if found != file:
            raise StorageError(
                f"{file.name} is not what was written: {found.nbytes} bytes with the sum {found.sum:#x}, "
                f"not {file.nbytes} with {file.sum:#x}"
            )


def describe(files: Files, place: str, note_read: Callable[[], None] = lambda: None) -> File:
    """Read a file, and return its size and sum.

    Args:
        place: path of the file, relative to the checkpoints' path.
        note_read: as in `verify`.

    Raises:
        OSError: the file cannot be read.
    """
    total, nbytes = WordSum(), 0
    for chunk in files.chunks(place):
        total.add_bytes(bytearray(chunk))
        nbytes += len(chunk)
        note_read()
    return File(place.rpartition("/")[2], nbytes, total.total() % 2**64)


def described(name: str, data: bytes) -> File:
    """Return the size and sum of a file with this content."""
    return File(name, len(data), _sum(data))


def give_up(files: Files, step: int, attempt: str, rank: int, reason: str) -> None:
    """Announce to the other ranks' savers that this one does not write; errors are ignored."""
    with suppress(OSError):
        files.write(f"{try_folder(step, attempt)}/{NOTES}/{GAVE_UP}{rank}", reason.encode())


def publish(files: Files, manifest: Manifest, metadata: bytes) -> None:
    """Make a checkpoint complete, and remove earlier files of the same step.

    Args:
        manifest: its manifest, without `.metadata`.
        metadata: content of `.metadata`.

    Raises:
        StorageError: a file is missing, since another process has removed it, for example.
        OSError: storage fails; then there is no checkpoint.
    """
    own = try_folder(manifest.step, manifest.attempt)
    sizes = files.sizes(own)
    for file in manifest.files:
        if (found := sizes.get(file.name)) != file.nbytes:
            state = "gone" if found is None else f"{found} bytes long, not {file.nbytes}"
            raise StorageError(f"{manifest.place_of(file)} is {state}, though it was written")
    whole = replace(manifest, files=(*manifest.files, described(METADATA, metadata)))
    files.write(f"{own}/{MANIFEST}", whole.encode(), lasting=True)
    files.write(f"{manifest.folder}/{METADATA}", metadata, lasting=True)
    with suppress(OSError):
        for name in files.names(manifest.folder):
            if name.startswith(_TRY) and f"{manifest.folder}/{name}" != own:
                files.remove(f"{manifest.folder}/{name}")


def clear(files: Files, step: int, attempt: str, beside: str = "") -> None:
    """Remove incomplete checkpoints, which may fill the storage.

    Files of another replica group stay as long as there is no newer checkpoint, since the group may still
    write them. Folders before the last but one complete checkpoint were cleared earlier, and are skipped.

    Args:
        step: step that the processes of the attempt are about to write. Their files of it, and of a later
            step, stay, since other ranks may be ahead. An agent's savers, which write after a failure, leave
            all later steps alone: training continues, and writes those.
        beside: attempt of other savers of this start, which may still write an earlier step. Their files
            stay, unless they have given up.

    Raises:
        OSError: the path cannot be read, or a checkpoint of the same step and attempt cannot be removed.
    """
    own, group, has_newer = f"{_TRY}{attempt}", group_of(attempt), False
    for begun in _own_in(files):
        names = files.names(folder_of(begun))
        if METADATA in names:
            if begun == step and own in names:  # damaged, of an earlier start with the same attempt
                _withdraw(files, step)
                files.remove(f"{folder_of(step)}/{own}/{MANIFEST}")
            elif begun < step:
                if has_newer:
                    return
                has_newer = True
            continue
        if begun > step and attempt.startswith(AFTER_FAILURE):
            continue
        kept = {own} if begun >= step else set()
        if not has_newer:
            kept |= {name for name in names if group_of(name) != group}
        if f"{_TRY}{beside}" in names and not _is_given_up(files, begun, beside):
            kept.add(f"{_TRY}{beside}")
        _remove_tries(files, begun, names - kept, names)


def _is_given_up(files: Files, step: int, attempt: str) -> bool:
    return files.exists(f"{try_folder(step, attempt)}/{NOTES}/{GAVE_UP}0")


def clear_attempt(files: Files, attempt: str) -> None:
    """Remove files of an earlier start with the same attempt, before this one writes.

    Outside of dlr, starts with the same address and port have the same attempt, and the ranks' old files
    would be mistaken for new ones.
    """
    with suppress(OSError):
        for begun in _own_in(files):
            names = files.names(folder_of(begun))
            if METADATA in names:
                return
            _remove_tries(files, begun, {f"{_TRY}{attempt}"} & names, names)


def _remove_tries(files: Files, step: int, wanted: set[str], names: set[str]) -> None:
    tries = {name for name in wanted if name.startswith(_TRY)}
    others = {name for name in names - tries if not name.startswith(f".{METADATA}.")}  # left by a kill
    for name in tries if others else [""]:
        files.remove(f"{folder_of(step)}/{name}".rstrip("/"))


def retire(files: Files, keep: int | None, newest: int) -> None:
    """Remove savers' checkpoints beyond the newest `keep`.

    Args:
        keep: None keeps all.
        newest: step that was just written, the first to keep. Later ones stay, and do not count: `load` may
            have found them damaged.

    Raises:
        OSError: the path cannot be read, or a checkpoint cannot be removed.
    """
    if keep is None:
        return
    kept = 0
    for step in _own_in(files):
        if step > newest or not _is_ours(files, step):
            continue
        if kept < keep:
            kept += is_complete(files, step)
        else:
            _withdraw(files, step)
            files.remove(folder_of(step))


def _withdraw(files: Files, step: int) -> None:
    """Remove a step's `.metadata`, before its other files are removed.

    Raises:
        OSError: it cannot be removed. Without its manifest the checkpoint would be mistaken for torch's own.
    """
    place = f"{folder_of(step)}/{METADATA}"
    files.remove(place)
    if files.exists(place):
        raise OSError(errno.EIO, f"{place} cannot be removed")


def _is_ours(files: Files, step: int) -> bool:
    """Whether savers wrote the folder of a step, and not, for example, torch without dlr."""
    names = files.names(folder_of(step))
    tries = [name for name in names if name.startswith(_TRY)]
    if METADATA not in names:
        return bool(tries)
    return any(files.exists(f"{folder_of(step)}/{name}/{MANIFEST}") for name in tries)


def check_owner(files: Files, job: str, adopts: bool = False) -> bool:
    """Make sure that a path belongs to this job, and claim it if it has no owner.

    Args:
        job: namespace and name; empty outside of dlr, where any path is allowed.
        adopts: whether this job takes over another job's checkpoints.

    Returns:
        whether this job has taken over other jobs' checkpoints there.

    Raises:
        StorageError: the path belongs to another job.
        OSError: the path cannot be read.
    """
    if job and not files.exists(OWNER):
        with suppress(OSError):  # another job was first, or the storage is read-only
            files.write(OWNER, json.dumps({"job": job}).encode(), lasting=True, exclusive=True)
    try:
        written = json.loads(_read(files, OWNER, _MAX_OWNER_BYTES))
        found, has_adopted = written["job"], written.get(_ADOPTED) is True
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError, StorageError):
        return False  # no owner, or a damaged file: the manifests name the job, too
    if not job or found == job:
        return has_adopted
    if not adopts:
        raise StorageError(other_job(files, found, job))
    adopt(files, job)
    return True


def adopt(files: Files, job: str) -> None:
    """Take over all checkpoints in a path; savers of the earlier job can write nothing there any more.

    Raises:
        OSError: the path cannot be written.
    """
    files.write(OWNER, json.dumps({"job": job, _ADOPTED: True}).encode(), lasting=True)


def other_job(files: Files, found: str, job: str) -> str:
    return (
        f"{files} has the checkpoints of job {found}, and this is job {job}: give each job a path of its "
        f"own, or, once {found} has ended, continue from its checkpoints with Checkpointer(…, adopt=True)"
    )


def _canonical(body: object) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _sum(data: bytes) -> int:
    return sum_of(bytearray(data)) % 2**64
