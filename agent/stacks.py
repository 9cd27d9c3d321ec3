"""Where training processes are: their Python stacks, which the SDK makes them write on a signal.

The SDK (`dlr.report_step` and the others) registers Python's own faulthandler, so this works while a process
hangs in C code, and takes nothing that is not in every Python. It is a signal that ends a process which does
not handle it, so only those that do get it; of the others the kernel's word must do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from agent.dump import Frame, is_complete, main_thread, with_source

ENV_STACKS_FILE = "DLR_STACKS_FILE"
ENV_STACKS_SIGNAL = "DLR_STACKS_SIGNAL"
ENV_FAULTHANDLER = "PYTHONFAULTHANDLER"

DEFAULT_SIGNAL = int(signal.SIGRTMIN) + 5
"""One that nobody else is known to use."""

PATIENCE_SECONDS = 3.0
SETTLED_SECONDS = 0.2
"""A dump that has not grown for this long is whole."""

_POLL_SECONDS = 0.02
_HANDLED = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in a system call that cannot be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
}


@dataclass(frozen=True)
class Capture:
    """What one process showed."""

    text: str = ""
    """The whole dump."""
    frames: tuple[Frame, ...] = ()
    """Of the main thread, the innermost first."""
    note: str = ""
    """Why there are none."""


class StackLogsSpecs(LogsSpecs):
    """The given LogsSpecs, which also tells each process where to write its stacks, and on which signal.

    And has Python write its own stack when it crashes (PYTHONFAULTHANDLER), unless the user has a say in it.
    """

    def __init__(self, inner: LogsSpecs) -> None:
        super().__init__()
        self._inner = inner
        self._own_directory: Path | None = None
        self.files: dict[int, Path] = {}
        """Where each process writes, by local rank."""
        self.signal = signal_number(os.environ)

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        logs = self._inner.reify(envs)
        self.files = {rank: self._file(rank, Path(file)) for rank, file in logs.error_files.items()}
        for rank, file in self.files.items():
            envs[rank].update({ENV_STACKS_FILE: str(file), ENV_STACKS_SIGNAL: str(self.signal)})
            if ENV_FAULTHANDLER not in os.environ:
                envs[rank][ENV_FAULTHANDLER] = "1"
        return logs

    def _file(self, rank: int, error_file: Path) -> Path:
        """Beside the process's logs; where these go to /dev/null, in a directory of our own."""
        if str(error_file) != os.devnull:
            return error_file.with_name("stacks.txt")
        if self._own_directory is None:
            self._own_directory = Path(tempfile.mkdtemp(prefix="dlr_stacks_"))
        directory = self._own_directory / "attempt_0" / str(rank)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "stacks.txt").unlink(missing_ok=True)
        return directory / "stacks.txt"

    def keep(self, round_: int, dumps: Mapping[int, str]) -> Path | None:
        """Put whole dumps, by global rank, where the next start does not clear them away; the directory."""
        if not self.files:
            return None
        directory = _run_directory(min(self.files.values())) / f"stacks_round_{round_}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for rank, dump in dumps.items():
                (directory / f"rank_{rank}.txt").write_text(dump)
        except OSError:
            return None  # a full disk: the status has the gist
        return directory


def signal_number(environ: Mapping[str, str]) -> int:
    """The user's choice, if it is one."""
    chosen = environ.get(ENV_STACKS_SIGNAL, "")
    return int(chosen) if chosen.isdigit() and 0 < int(chosen) < signal.NSIG else DEFAULT_SIGNAL


def capture(pids: Mapping[int, int], files: Mapping[int, Path], signum: int) -> dict[int, Capture]:
    """The stacks of living processes; all by local rank. Takes at most `PATIENCE_SECONDS`."""
    asked = {}
    for rank, pid in pids.items():
        file = files.get(rank)
        with contextlib.suppress(OSError, ValueError):  # it has ended, or it does not offer any
            if file and _handles(trainer := _who_offers(file, pid), signum):
                asked[rank] = file, file.stat().st_size
                os.kill(trainer, signum)
    dumps = _await_dumps(asked)
    return {rank: _captured(dumps.get(rank), pid) for rank, pid in pids.items()}


def wait_state(pid: int) -> str:
    """What the kernel says of a process's main thread."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "the process has ended"
    try:
        place = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        place = ""
    where = f", in {place}" if place not in ("", "0") else ""
    return f"the process is {_STATES.get(state, f'in state {state}')}{where}"


def _captured(dump: str | None, pid: int) -> Capture:
    if dump is None:
        return Capture(note=f"no Python stack, which takes a call of dlr.report_step; {wait_state(pid)}")
    frames = with_source(main_thread(dump))
    if not frames:
        return Capture(dump, note=f"no Python stack within {PATIENCE_SECONDS:g} s; {wait_state(pid)}")
    return Capture(dump, frames)


def _await_dumps(asked: Mapping[int, tuple[Path, int]]) -> dict[int, str]:
    """What each file has gained; the number is its size before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    dumps = dict.fromkeys(asked, "")
    grown_at = dict.fromkeys(asked, time.monotonic())
    while True:
        now = time.monotonic()
        for rank, (path, size) in asked.items():
            if (dump := _read_from(path, size)) != dumps[rank]:
                dumps[rank], grown_at[rank] = dump, now
        settled = (is_complete(dumps[rank]) and now - grown_at[rank] >= SETTLED_SECONDS for rank in asked)
        if all(settled) or now >= deadline:
            return dumps
        time.sleep(_POLL_SECONDS)


def _who_offers(file: Path, pid: int) -> int:
    """The process that wrote its id into the file: what we started, or a descendant of that."""
    with file.open() as lines:
        trainer = int(lines.readline().removeprefix("pid ").strip() or 0)
    if os.getpgid(trainer) != os.getpgid(pid):
        raise ProcessLookupError
    return trainer


def _handles(pid: int, signum: int) -> bool:
    handled = _HANDLED.search(Path(f"/proc/{pid}/status").read_text())
    return handled is not None and bool(int(handled[1], 16) >> (signum - 1) & 1)


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _run_directory(file: Path) -> Path:
    """torch lays out `<run>/attempt_<n>/<local rank>/`, and clears the attempt at every start."""
    return file.parents[2]
