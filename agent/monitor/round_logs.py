"""The log folders of an agent's rounds: one for each, of which the last ones are kept within bounds.

torch names the folder by `TORCHELASTIC_RESTART_COUNT` and clears it at every start. It counts the failures of
one agent there; rounds are counted alike on all ranks.
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
"""Folders of ended rounds that are kept."""
LOOK_SECONDS = 2.0
"""Between two looks at the sizes of the running round's logs."""

TEMPORARY_BYTES = 64 << 20
"""For the logs of the running round, and again for those of ended rounds, where they are in the container's
own temporary directory. Who writes more and more to its container's file system is evicted one day."""
CHOSEN_BYTES = 1 << 30
"""For the logs of ended rounds in a directory that the user chose (`--log-dir`)."""
MIN_FILE_BYTES = 256 << 10
"""Of each log at least so much is kept, because failures are explained by its end."""

_BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own is (stat(2))."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""


@dataclass(frozen=True)
class LogLimits:
    """How much of the logs stays on disk."""

    ended_bytes: int
    """Limit of all ended rounds together. The newest of them is kept whole, however large it is."""
    running_bytes: int | None
    """Limit of all logs of the running round together; None if they may grow for ever."""


class RoundLogsSpecs(LogsSpecs):
    """The given LogsSpecs with one folder for each round, `attempt_<round>`.

    Args:
        inner: the layout that torchrun's flags ask for.
        round_: tells the round that is being started.
    """

    def __init__(self, inner: LogsSpecs, round_: Callable[[], int]) -> None:
        super().__init__()
        self._inner = inner
        self._round = round_
        self._keeper: LogKeeper | None = None
        self.latest = LogsDest()
        """The files of the processes that were started last."""

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Lay out the files of a start, as torch asks at each, and name them in the environments."""
        restarts = envs[0].get(RESTART_COUNT, "0")
        envs[0][RESTART_COUNT] = str(self._round())  # torch names the folder by it
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
    """Keeps the logs of one agent within bounds.

    It does so in the background, because a volume may be slow, and restarts must not be.
    """

    def __init__(self, bounds: LogLimits) -> None:
        super().__init__(name="dlr-logs", daemon=True)
        self._bounds = bounds
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._running: tuple[Path, frozenset[Path]] | None = None
        self._can_cut = bounds.running_bytes is not None

    def keep(self, folder: Path, logs: set[Path]) -> None:
        """Take note of a new round: its folder, and the logs in it."""
        with self._lock:
            self._running = folder, frozenset(logs)
        self._news.set()

    def run(self) -> None:
        is_new_round = failed = False
        while True:
            if self._news.wait(LOOK_SECONDS):  # what comes after a time-out is not cleared, and so not lost
                self._news.clear()
                is_new_round = True
            try:
                self.look(is_new_round=is_new_round)
                is_new_round = failed = False
            except OSError as error:  # of a volume, perhaps for a moment (ESTALE, EIO): so it looks again
                if not failed:
                    logger.warning("the logs of training processes are not kept within bounds: %s", error)
                failed = True

    def look(self, *, is_new_round: bool) -> None:
        """Cut what has become too long, and after a start remove what is too old."""
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
    """The bounds of a log directory: tight if it is torch's own temporary one, because nobody chose it."""
    if not (root.parent == Path(tempfile.gettempdir()) and root.name.startswith("torchelastic_")):
        return LogLimits(ended_bytes=CHOSEN_BYTES, running_bytes=None)
    temporary = min(TEMPORARY_BYTES, shutil.disk_usage(root).total // 8)
    return LogLimits(ended_bytes=temporary, running_bytes=temporary)


def prune(running: Path, limit_bytes: int) -> None:
    """Remove the folders of the oldest ended rounds.

    Args:
        running: the folder of the round that runs.
    """
    rounds = sorted((folder for folder in _round_folders(running.parent) if folder != running), key=_number)
    used_bytes = 0
    for age, folder in enumerate(reversed(rounds)):
        used_bytes += sum(_bytes_on_disk(file) for file in folder.rglob("*"))
        if age >= KEPT_ROUNDS or (age > 0 and used_bytes > limit_bytes):
            shutil.rmtree(folder, ignore_errors=True)


def cut_middle(log: Path, limit_bytes: int) -> None:
    """Give the middle of a log back to the file system, if there is more on disk than the limit.

    An eighth of the limit stays of its beginning and half of its end. Whoever writes or reads the file does
    not notice: positions stay as they are, and what is gone reads as zeros.

    Raises:
        OSError: if the file system has no holes.
    """
    try:
        fd = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # no process has opened it yet, or the log is not a file
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
