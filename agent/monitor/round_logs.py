"""Log folders of an agent's rounds, limited in number and size.

torch names the folder by `TORCHELASTIC_RESTART_COUNT`, its count of one agent's failures, and clears it at
every start. Here the number of the round is used instead, which is equal on all ranks.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from agent.torch_compat.elastic import LOG_FOLDER_PREFIX, RESTART_COUNT

logger = logging.getLogger(__name__)

KEPT_ROUNDS = 8
"""Number of folders of ended rounds that are kept."""
LOOK_SECONDS = 2.0
"""Interval of the looks at the sizes of the running round's logs."""

TEMPORARY_BYTES = 64 << 20
"""Limit of the running round's logs, and again of those of ended rounds, in the container's own temporary
directory. A Pod that fills its container's file system is evicted."""
CHOSEN_BYTES = 1 << 30
"""Limit of the logs of ended rounds in a directory that the user chose (`--log-dir`)."""
MIN_FILE_BYTES = 256 << 10
"""Least limit of one log, since failures are explained by its end."""

_BLOCK_BYTES = 512
"""Unit of st_blocks, on all file systems (stat(2))."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""


@dataclass(frozen=True)
class LogLimits:
    """Limits of the logs on disk."""

    ended_bytes: int
    """Limit of all ended rounds together. The newest of them is kept in any case."""
    running_bytes: int | None
    """Limit of all logs of the running round together; None for no limit."""


class RoundLogsSpecs(LogsSpecs):
    """The given LogsSpecs with one folder for each round, `attempt_<round>`.

    Args:
        inner: the layout by torchrun's flags.
        round_: returns the round that is being started.
    """

    def __init__(self, inner: LogsSpecs, round_: Callable[[], int]) -> None:
        super().__init__()
        self._inner = inner
        self._round = round_
        self._keeper: LogKeeper | None = None
        self.latest = LogsDest()
        """Files of the current processes."""

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Lay out the files of a start; torch calls it at each."""
        restarts = envs[0].get(RESTART_COUNT, "0")
        envs[0][RESTART_COUNT] = str(self._round())  # which torch names the folder by
        self.latest = self._inner.reify(envs)
        envs[0][RESTART_COUNT] = restarts
        self._keep()
        return self.latest

    def _keep(self) -> None:
        folder = Path(next(iter(self.latest.error_files.values()), os.devnull)).parent.parent
        if not folder.name.startswith(LOG_FOLDER_PREFIX):
            return  # they go to /dev/null, or are laid out by a LogsSpecs of the user's own
        if self._keeper is None:
            self._keeper = LogKeeper(bounds_of(Path(self.root_log_dir)))
            self._keeper.start()
        logs = {Path(file) for file in (*self.latest.stdouts.values(), *self.latest.stderrs.values()) if file}
        self._keeper.keep(folder, logs)


class LogKeeper(threading.Thread):
    """Keeps the logs of one agent within their limits.

    This happens in the background, since a volume may be slow, and must not delay restarts.
    """

    def __init__(self, bounds: LogLimits) -> None:
        super().__init__(name="dlr-logs", daemon=True)
        self._bounds = bounds
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._running: tuple[Path, frozenset[Path]] | None = None
        self._can_cut = bounds.running_bytes is not None

    def keep(self, folder: Path, logs: set[Path]) -> None:
        """Note a new round: its folder, and the logs in it."""
        with self._lock:
            self._running = folder, frozenset(logs)
        self._news.set()

    def run(self) -> None:
        is_new_round = failed = False
        while True:
            if self._news.wait(LOOK_SECONDS):  # news after a time-out is not cleared, and so not lost
                self._news.clear()
                is_new_round = True
            try:
                self.look(is_new_round=is_new_round)
                is_new_round = failed = False
            except OSError as error:  # maybe only for a moment (a volume's ESTALE, EIO)
                if not failed:
                    logger.warning("the logs of training processes are not kept within bounds: %s", error)
                failed = True

    def look(self, *, is_new_round: bool) -> None:
        """Cut logs that are too long, and after a start remove old rounds."""
        with self._lock:
            running = self._running
        if running is None:
            return
        folder, logs = running
        if self._can_cut:
            self._cut(logs)
        if is_new_round:
            prune(folder, self._bounds.ended_bytes)

    def _cut(self, logs: frozenset[Path]) -> None:
        limit_bytes = max((self._bounds.running_bytes or 0) // max(len(logs), 1), MIN_FILE_BYTES)
        try:
            for log in logs:
                cut_middle(log, limit_bytes)
        except OSError as error:
            self._can_cut = False
            logger.warning(
                "the logs of training processes grow without bound in %s, because its file system cannot "
                "free the middle of a file (%s): mount an emptyDir there, or set --log-dir",
                self._running and self._running[0],
                error,
            )


def bounds_of(root: Path) -> LogLimits:
    """Return the limits of a log directory: low ones for torch's own temporary directory."""
    if not (root.parent == Path(tempfile.gettempdir()) and root.name.startswith("torchelastic_")):
        return LogLimits(ended_bytes=CHOSEN_BYTES, running_bytes=None)
    temporary = min(TEMPORARY_BYTES, shutil.disk_usage(root).total // 8)
    return LogLimits(ended_bytes=temporary, running_bytes=temporary)


def prune(running: Path, limit_bytes: int) -> None:
    """Remove the folders of the oldest ended rounds.

    Args:
        running: folder of the running round.
    """
    rounds = sorted((folder for folder in _round_folders(running.parent) if folder != running), key=_number)
    used_bytes = 0
    for age, folder in enumerate(reversed(rounds)):
        used_bytes += sum(_bytes_on_disk(file) for file in folder.rglob("*"))
        if age >= KEPT_ROUNDS or (age > 0 and used_bytes > limit_bytes):
            shutil.rmtree(folder, ignore_errors=True)


def cut_middle(log: Path, limit_bytes: int) -> None:
    """Free the middle of a log if it has more bytes on disk than the limit.

    Its beginning stays, with an eighth of the limit, and its end, with half of it. Writers and readers are
    not disturbed: positions are unchanged, and the freed part reads as zeros.

    Raises:
        OSError: the file system does not support holes.
    """
    try:
        fd = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # no process has opened it yet
    try:
        stat = os.fstat(fd)
        head, end = limit_bytes // 8, stat.st_size - limit_bytes // 2
        if stat.st_blocks * _BLOCK_BYTES > limit_bytes and end > head:
            _punch_hole(fd, head, end - head)
    finally:
        os.close(fd)


def _punch_hole(fd: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    mode = _PUNCH_HOLE | _KEEP_SIZE
    if libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _round_folders(parent: Path) -> list[Path]:
    return [
        folder
        for folder in parent.glob(f"{LOG_FOLDER_PREFIX}*")
        if folder.name[len(LOG_FOLDER_PREFIX) :].isdigit()
    ]


def _number(folder: Path) -> int:
    return int(folder.name[len(LOG_FOLDER_PREFIX) :])


def _bytes_on_disk(file: Path) -> int:
    try:
        return file.stat().st_blocks * _BLOCK_BYTES
    except OSError:
        return 0
