"""Checkpoints in storage: folders that torch.distributed.checkpoint reads, each with a manifest.

    path/dlr-job.json                        whose checkpoints these are
    path/step-120/.metadata                  torch's, written last: by it a checkpoint is complete
    path/step-120/try-<attempt>/             what the processes of one start have written
        __0_0.distcp, …
        manifest.json                        job, step, world size, and each file's size and 64-bit sum
        notes/                               by which the processes agree, as long as they write

Nothing is renamed, so that object storage will do. A step that is written again gets files of its own, and
takes the place of the earlier one when `.metadata` is replaced. What has no `.metadata` is no checkpoint,
whenever its writers were killed. Where torch.distributed.checkpoint alone has written, there is no manifest.
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
"""torch's name of the file that says what is in a folder."""
MANIFEST = "manifest.json"
OWNER = "dlr-job.json"
_ADOPTED = "adopted"
"""Whether that file's job has the checkpoints of others, too."""
NOTES = "notes"
"""Folder of the files by which the savers of all ranks agree (`dlr.checkpoint.sharing`)."""
GAVE_UP = "gave-up-"
_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_TRY = "try-"
_MAX_MANIFEST_BYTES, _MAX_OWNER_BYTES = 64 << 20, 4 << 10
"""More is nothing that a saver has written: of 100,000 files a manifest has 15 MB."""
_MAX_NAME_BYTES = 255
_MOST_LISTED = 32
"""Checkpoints that are looked at for one that is whole."""


class StorageError(Error):
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
    """Number of ranks that wrote it; 0 where torch.distributed.checkpoint alone did."""
    attempt: str
    files: tuple[File, ...]

    @property
    def folder(self) -> str:
        """Name of the folder that torch.distributed.checkpoint reads."""
        return folder_of(self.step)

    def place_of(self, file: File) -> str:
        """Return the name of one of its files below the path."""
        return f"{self.folder if file.name == METADATA else try_folder(self.step, self.attempt)}/{file.name}"

    def encode(self) -> bytes:
        """Return the file's content, with a sum of its own."""
        body = asdict(self)
        return json.dumps({"manifest": body, "sum": _sum(_canonical(body))}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read it; raise StorageError where it is not what was written."""
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
        names = [it.name for it in files] + [body["attempt"] or "-"]
        if not all(map(_is_name, names)):
            raise ValueError("a file's name is none")
        numbers = [body["step"], body["world_size"], *(n for it in files for n in (it.nbytes, it.sum))]
        if not isinstance(body["job"], str) or not all(type(number) is int for number in numbers):
            raise ValueError("a field is of another type")
        return cls(body["job"], body["step"], body["world_size"], body["attempt"], files)


def _is_name(name: object) -> bool:
    """Whether that can be the name of a file in a folder."""
    if not isinstance(name, str) or name != PurePosixPath(name).name or name in ("", "..") or "\0" in name:
        return False
    return len(name.encode()) <= _MAX_NAME_BYTES  # a surrogate has no bytes, which is a ValueError


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
    """Look for the steps of the checkpoints in a path, the newest first.

    Raises:
        OSError: the path cannot be read.
    """
    return (step for step in _begun_in(files) if is_complete(files, step))


def _begun_in(files: Files) -> list[int]:
    """Return the steps of which there is anything, the newest first."""
    return sorted((int(it[1]) for name in files.names() if (it := _FOLDER.fullmatch(name))), reverse=True)


def _own_in(files: Files) -> list[int]:
    """Return the steps as above, but for links: what these lead to may be another job's, and stays."""
    return [step for step in _begun_in(files) if not files.is_link(folder_of(step))]


def manifests_in(files: Files, beyond: int) -> Iterator[Manifest | str]:
    """Look for the checkpoints whose steps are greater than `beyond`, the newest first.

    Returns:
        their manifests; or why one cannot be used.

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
        OSError: it cannot be read, which tells nothing of it.
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
    if len(found) > 1:  # whoever took the place of an earlier one was killed before that was removed
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
        StorageError: it has more bytes than the limit.
        OSError: it cannot be read.
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
    """Compare files with what their manifest says.

    Args:
        which: some of the manifest's.
        note_read: called whenever a part has been read.

    Raises:
        StorageError: one of them differs, or is not there.
        OSError: one of them cannot be read, which tells nothing of it.
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
    """A file's size and sum.

    Args:
        place: its name below the path.
        note_read: as `verify` has it.

    Raises:
        OSError: it cannot be read.
    """
    total, nbytes = WordSum(), 0
    for chunk in files.chunks(place):
        total.add_bytes(bytearray(chunk))
        nbytes += len(chunk)
        note_read()
    return File(place.rpartition("/")[2], nbytes, total.total() % 2**64)


def described(name: str, data: bytes) -> File:
    """Size and sum of what is to be written."""
    return File(name, len(data), _sum(data))


def give_up(files: Files, step: int, attempt: str, rank: int, reason: str) -> None:
    """Tell the other ranks' savers that this one does not write, if the storage lets it."""
    with suppress(OSError):
        files.write(f"{try_folder(step, attempt)}/{NOTES}/{GAVE_UP}{rank}", reason.encode())


def publish(files: Files, manifest: Manifest, metadata: bytes) -> None:
    """Make a checkpoint complete whose files are all there, and remove what it takes the place of.

    Args:
        metadata: content of `.metadata`; the manifest has it without that file.

    Raises:
        StorageError: a file is not there, as where another process has removed it.
        OSError: it cannot be done; then it is no checkpoint.
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
    """Remove what was never completed, and may be what fills the storage.

    What another replica group has begun stays as long as there is no newer checkpoint: it may still be
    written. So what is older than the newest checkpoint but one was there, and removed, before.

    Args:
        step: that is about to be written by the processes of the attempt. What they write of it stays, and
            so does a later step, where some are ahead. An agent's savers, which write after a failure, leave
            all later steps alone: training goes on, and writes them.
        beside: attempt of other savers of this start, which may still write an earlier step. What they write
            stays, unless they have given it up.

    Raises:
        OSError: the path cannot be read, or a checkpoint that is to be written again cannot be removed.
    """
    own, group, has_newer = f"{_TRY}{attempt}", group_of(attempt), False
    for begun in _own_in(files):
        names = files.names(folder_of(begun))
        if METADATA in names:
            if begun == step and own in names:  # of an earlier start of the same name, and damaged
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
    """Remove what an earlier start of the same name left, before this one writes anything.

    Outside of dlr a start has no name of its own where its address and port are always the same. What ranks
    wrote then would be taken for what they write now.
    """
    with suppress(OSError):
        for begun in _own_in(files):
            names = files.names(folder_of(begun))
            if METADATA in names:
                return
            _remove_tries(files, begun, {f"{_TRY}{attempt}"} & names, names)


def _remove_tries(files: Files, step: int, wanted: set[str], names: set[str]) -> None:
    tries = {name for name in wanted if name.startswith(_TRY)}
    others = {name for name in names - tries if not name.startswith(f".{METADATA}.")}  # else a killed saver's
    for name in tries if others else [""]:
        files.remove(f"{folder_of(step)}/{name}".rstrip("/"))


def retire(files: Files, keep: int | None, newest: int) -> None:
    """Remove checkpoints beyond `keep`, of those that these processes have written.

    Args:
        keep: None for all.
        newest: the step that has just been written, the first that is kept. A later one stays, uncounted: it
            may be one that `load` has found damaged.

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
    """Make what there is of a step no checkpoint, before anything else of it is removed.

    Raises:
        OSError: it still is one. Without a manifest it would be taken for torch's own.
    """
    place = f"{folder_of(step)}/{METADATA}"
    files.remove(place)
    if files.exists(place):
        raise OSError(errno.EIO, f"{place} cannot be removed")


def _is_ours(files: Files, step: int) -> bool:
    """Whether savers wrote what there is of a step, not torch.distributed.checkpoint alone, or anybody."""
    names = files.names(folder_of(step))
    tries = [name for name in names if name.startswith(_TRY)]
    if METADATA not in names:
        return bool(tries)
    return any(files.exists(f"{folder_of(step)}/{name}/{MANIFEST}") for name in tries)


def check_owner(files: Files, job: str, adopts: bool = False) -> bool:
    """Make sure that the checkpoints in a path are this job's, and write so there if nothing does.

    Args:
        job: namespace and name; empty outside of dlr: then any path will do.
        adopts: whether another job's become this job's.

    Returns:
        whether other jobs' checkpoints there are this job's, too.

    Raises:
        StorageError: they are another job's.
        OSError: the path cannot be read.
    """
    if job and not files.exists(OWNER):
        with suppress(
            OSError
        ):  # another job was first, or storage that cannot be written still has what it has
            files.write(OWNER, json.dumps({"job": job}).encode(), lasting=True, exclusive=True)
    try:
        written = json.loads(_read(files, OWNER, _MAX_OWNER_BYTES))
        found, has_adopted = written["job"], written.get(_ADOPTED) is True
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError, StorageError):
        return False  # nobody's, or damaged: the manifests say it too
    if not job or found == job:
        return has_adopted
    if not adopts:
        raise StorageError(other_job(files, found, job))
    adopt(files, job)
    return True


def adopt(files: Files, job: str) -> None:
    """Make all checkpoints in a path this job's; savers of their earlier job write nothing there any more.

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
