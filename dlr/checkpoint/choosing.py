"""Choice of the checkpoint in storage to load: all ranks agree on the newest whole one."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dlr.checkpoint import storage
from dlr.checkpoint.files import Files
from dlr.checkpoint.storage import File, Manifest, StorageError
from dlr.checkpoint.surroundings import Surroundings, logger
from dlr.ranks import are_connected, from_all, from_rank_0

T = TypeVar("T")

OUTAGE_SECONDS = 60.0
"""Time limit of `load` for unavailable storage, or for one file in it; then the process fails, at the cost
of a restart."""
HUNG_SECONDS = 10.0
"""Time limit for an answer of storage if memory has a checkpoint, too."""
_HUNG = f"storage has not answered for {HUNG_SECONDS:.0f} s"
_LOOK_SECONDS = 2.0
_AWAY = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""Errors of a network file system whose server does not answer."""


class _UnreadError(StorageError):
    """A rank could not check whether a checkpoint is whole."""

    def __init__(self, why: str) -> None:
        super().__init__(f"it cannot be read: {why}")


@dataclass(frozen=True)
class Listing:
    """Checkpoints that rank 0 finds in storage."""

    manifests: tuple[Manifest, ...] = ()
    """Manifests of the checkpoints, newest first."""
    damaged: tuple[str, ...] = ()
    """Checkpoints with an unusable manifest, each with the reason."""
    refusal: str | None = None
    """Why no checkpoint in the path may be used."""
    unreadable: str | None = None
    """Why the path cannot be read."""
    is_away: bool = False
    """Whether that error may be temporary."""

    @classmethod
    def of(cls, fields: Any) -> Listing:
        """Build a listing from the output of `asdict`, after a round trip through JSON.

        Raises:
            StorageError: these are not the fields of a listing.
        """
        try:
            manifests = tuple(Manifest.of(body) for body in fields["manifests"])
            damaged = tuple(map(str, fields["damaged"]))
            return cls(manifests, damaged, fields["refusal"], fields["unreadable"], bool(fields["is_away"]))
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"what rank 0 has sent lists no checkpoints: {error!r}") from error


def choose(
    path: Files, here: Surroundings, beyond: int | None = None, *, is_start: bool = False
) -> Manifest | None:
    """Agree on the newest checkpoint whose files are intact. All ranks call it.

    Each rank reads its share of the files, so that each file is read once.

    Args:
        beyond: step of the checkpoint in memory; only later ones in storage count, and unreadable storage is
            no error. None if memory has no checkpoint.
        is_start: whether this start has not saved anything yet, so that no checkpoint there is its own.

    Returns:
        its manifest; None if there is no checkpoint, or none that is newer.

    Raises:
        StorageError: the path or the newest checkpoint that may be whole cannot be read, the path is another
            job's, or all checkpoints are damaged.
        ValueError: a rank has sent an invalid answer.
    """
    grouped = are_connected()
    if beyond is not None and not grouped and here.world_size > 1:
        return None  # ranks that cannot agree might see different ones
    listed = asdict(_list_here(path, here, beyond, is_start)) if not grouped or here.rank == 0 else None
    listing = Listing.of(from_rank_0(listed, here.group))
    refusal = listing.refusal or (listing.unreadable if beyond is None else None)
    if refusal is not None:
        raise StorageError(refusal)
    damaged = list(listing.damaged)
    for manifest in listing.manifests:
        mine = manifest.files[here.rank :: here.world_size] if grouped else manifest.files
        found: tuple[str, bool] | None = None
        try:
            _verify_here(path, manifest, mine, beyond)
        except StorageError as error:
            found = f"{manifest.folder}: {error}", isinstance(error, _UnreadError)
        reports = [
            (str(reason), bool(is_unread)) for reason, is_unread in filter(None, from_all(found, here.group))
        ]
        if not reports:
            for reason in damaged:
                logger.warning("a checkpoint in %s is damaged, and an older one is used: %s", path, reason)
            return manifest
        unread = [reason for reason, is_unread in reports if is_unread]
        if unread and beyond is not None:
            logger.warning(
                "a checkpoint in %s is not used: %s; training goes on from memory", path, unread[0]
            )
            return None  # an older one could not be read either
        if len(unread) == len(reports):  # it may be whole, and an older one would lose steps
            raise StorageError(f"a checkpoint in {path} may be whole, and cannot be checked: {unread[0]}")
        damaged.append(next(reason for reason, is_unread in reports if not is_unread))
    if damaged and beyond is None:
        raise StorageError(
            f"no checkpoint in {path} is whole ({damaged[0]}): move what is there away to begin at step 0"
        )
    return None


def _list_here(path: Files, here: Surroundings, beyond: int | None, is_start: bool) -> Listing:
    """List the path; if memory has a checkpoint too, do not wait for storage that hangs.

    Meanwhile all ranks wait for rank 0 in a collective, which has a time-out of its own.
    """

    def look() -> Listing:
        if here.rank == 0 and is_start:
            storage.clear_attempt(path, here.attempt)
        return _list_patiently(path, here.job, beyond, here.adopts and is_start)

    if beyond is None:
        return look()
    if (found := _begin(look)) in wait([found], HUNG_SECONDS).done:
        return found.result()
    sentence = f"{path} cannot be listed: {_HUNG}"
    logger.warning("%s; training goes on from memory", sentence)
    return Listing(unreadable=sentence)


def _verify_here(path: Files, manifest: Manifest, mine: Sequence[File], beyond: int | None) -> None:
    """Verify this rank's share of the files; if memory has a checkpoint too, give up when storage hangs.

    Raises:
        StorageError: a file differs, is missing, or cannot be read.
    """
    if beyond is None:
        _verify_patiently(path, manifest, mine, OUTAGE_SECONDS)
        return
    read, before = 0, -1

    def note_read() -> None:
        nonlocal read
        read += 1

    verified = _begin(lambda: _verify_patiently(path, manifest, mine, HUNG_SECONDS, note_read))
    while verified not in wait([verified], HUNG_SECONDS).done:
        if read == before:
            raise _UnreadError(_HUNG)
        before = read
    verified.result()


def _verify_patiently(
    path: Files,
    manifest: Manifest,
    mine: Sequence[File],
    patience: float,
    note_read: Callable[[], None] = lambda: None,
) -> None:
    """Verify files one after the other, and retry while storage is unavailable.

    Args:
        patience: time limit for each file, in seconds.

    Raises:
        StorageError: a file differs, is missing, or cannot be read.
    """
    for file in mine:
        deadline = None
        while True:
            try:
                storage.verify(path, manifest, [file], note_read)
                break
            except OSError as error:
                now = time.monotonic()
                deadline = deadline or now + patience
                if error.errno not in _AWAY or now >= deadline:
                    raise _UnreadError(f"{file.name}: {error}") from error
                logger.warning("%s in %s cannot be read (%s); it is tried again", file.name, path, error)
            note_read()
            time.sleep(min(_LOOK_SECONDS, patience))


def _begin(run: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread, which does not delay the end of the process."""
    future: Future[T] = Future()

    def carry_out() -> None:
        try:
            future.set_result(run())
        except BaseException as error:  # raised by `result`
            future.set_exception(error)

    threading.Thread(target=carry_out, name="dlr-storage", daemon=True).start()
    return future


def _list_patiently(path: Files, job: str, beyond: int | None, adopts: bool) -> Listing:
    """List a path as `list_path` does; if memory has no checkpoint, wait while storage is unavailable."""
    deadline = time.monotonic() + OUTAGE_SECONDS
    while (listing := list_path(path, job, beyond or 0, adopts)).is_away:
        if beyond is not None or time.monotonic() >= deadline:
            break
        logger.warning("%s; waiting for it, up to %.0f s", listing.unreadable, deadline - time.monotonic())
        time.sleep(_LOOK_SECONDS)  # a file system sends no notification
    return listing


def list_path(path: Files, job: str, beyond: int, adopts: bool = False) -> Listing:
    """Read the manifests of the checkpoints of steps greater than `beyond`.

    Args:
        adopts: whether this job takes over another job's checkpoints.
    """
    manifests, damaged = list[Manifest](), list[str]()
    try:
        are_ours = storage.check_owner(path, job, adopts)
        for found in storage.manifests_in(path, beyond):
            if isinstance(found, str):
                damaged.append(found)
            else:
                if job and found.job not in ("", job) and not are_ours:
                    if not adopts:
                        return Listing(refusal=storage.other_job(path, found.job, job))
                    storage.adopt(path, job)
                    are_ours = True
                manifests.append(found)
    except StorageError as error:
        return Listing(refusal=str(error))
    except OSError as error:
        reason = f"the checkpoints in {path} cannot be listed: {error}"
        return Listing(unreadable=reason, is_away=error.errno in _AWAY)
    return Listing(tuple(manifests), tuple(damaged))
