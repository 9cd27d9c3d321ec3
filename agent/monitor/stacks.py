"""Python stacks of training processes, which they write on a signal.

The SDK (`dlr.report` and the others), and agent.warm.step_counter in forked processes, register Python's
faulthandler for it, which works even while a process hangs in C code. The signal ends a process that does not
handle it, so only processes that do get it. For the others the agent reports the kernel's state.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.monitor.dump import Frame, is_complete, main_thread, with_source
from agent.processes.devices import open_device
from crds.progress_record import ENV_STACKS_FILE, ENV_STACKS_SIGNAL

ENV_FAULTHANDLER = "PYTHONFAULTHANDLER"

DEFAULT_SIGNAL = int(signal.SIGRTMIN) + 5
"""A signal that no common program uses."""

PATIENCE_SECONDS = 3.0
"""Time limit for processes to write their stacks."""
SETTLED_SECONDS = 0.2
"""Time without growth after which a dump is complete."""

_POLL_SECONDS = 0.02
_HANDLED = re.compile(rb"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
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
    """Stacks of one process."""

    text: str = ""
    """The whole dump."""
    frames: tuple[Frame, ...] = ()
    """Frames of the main thread, the innermost first."""
    note: str = ""
    """Reason why there are no frames."""
    offered: bool = True
    """Whether the process handles the signal."""
    computes: bool = False
    """The main thread used a CPU meanwhile, or waited for one, and the process uses no accelerator."""


class StackFiles:
    """The files into which one agent's training processes write their stacks.

    Args:
        directory: folder of the files if the processes have no folders for their logs; created when needed,
            and removed by the caller.
    """

    def __init__(self, directory: Path) -> None:
        self._own_directory = directory
        self.files: dict[int, Path] = {}
        """File of each process, by local rank."""
        self.signal = signal_number(os.environ)

    def renew(self, round_: int, error_files: Mapping[int, str]) -> dict[int, dict[str, str]]:
        """Choose the files of processes that are about to start.

        Args:
            error_files: torch's error file of each process, by local rank; its stacks go beside it.

        Returns:
            The environment that names the files and the signal, by local rank. Unless the user has set it, it
            includes PYTHONFAULTHANDLER, by which Python writes its own stack when it crashes.
        """
        self.files = {rank: self._file(round_, rank, Path(file)) for rank, file in error_files.items()}
        crashes = {} if ENV_FAULTHANDLER in os.environ else {ENV_FAULTHANDLER: "1"}
        return {
            rank: {
                ENV_STACKS_FILE: str(file),
                ENV_STACKS_SIGNAL: str(self.signal),
                **crashes,
            }
            for rank, file in self.files.items()
        }

    @property
    def folder(self) -> Path | None:
        """Folder of the files of all processes of the round; None before the first."""
        return min(self.files.values()).parents[1] if self.files else None

    def folder_of(self, rank: int, default: Path) -> Path:
        """Return the folder of the process of a local rank."""
        return self.files[rank].parent if rank in self.files else default

    def _file(self, round_: int, rank: int, error_file: Path) -> Path:
        """Return the file beside the process's logs; if these go to /dev/null, in our own directory."""
        if str(error_file) != os.devnull:
            return error_file.with_name("stacks.txt")
        directory = self._own_directory / f"attempt_{round_}" / str(rank)
        directory.mkdir(parents=True, exist_ok=True)
        return directory / "stacks.txt"


def signal_number(environ: Mapping[str, str]) -> int:
    """Return the user's choice of a signal if it is valid, else the default."""
    chosen = environ.get(ENV_STACKS_SIGNAL, "")
    return int(chosen) if chosen.isdigit() and 0 < int(chosen) < signal.NSIG else DEFAULT_SIGNAL


def capture(pids: Mapping[int, int], files: Mapping[int, Path], signum: int) -> dict[int, Capture]:
    """Have living processes write their stacks, and read them, in at most `PATIENCE_SECONDS`.

    Args:
        pids: ids of the processes, by local rank.
        files: files into which they write their stacks, by local rank.
        signum: the signal for it.
    """
    asked, before = {}, {pid: _wanted_seconds(pid) for pid in pids.values()}
    begun_at = time.monotonic()
    for rank, pid in pids.items():
        file = files.get(rank)
        with contextlib.suppress(OSError, ValueError):  # it has ended, or does not handle the signal
            if file and handles(trainer := offering_process(file, pid), signum):
                asked[rank] = file, file.stat().st_size
                os.kill(trainer, signum)
    dumps, seconds = _await_dumps(asked), time.monotonic() - begun_at
    found = {rank: _captured(dumps.get(rank), pid) for rank, pid in pids.items()}
    busy = {rank: _wanted_seconds(pid) - before[pid] >= seconds / 2 for rank, pid in pids.items()}
    return {
        rank: replace(capture, computes=busy[rank] and not _uses_device(pids[rank]))
        for rank, capture in found.items()
    }


def _wanted_seconds(pid: int) -> float:
    """Return the time that the main thread has run or waited for a CPU (proc(5), schedstat); 0 if unknown."""
    try:
        ran, waited = Path(f"/proc/{pid}/schedstat").read_bytes().split()[:2]
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return 0.0


def _uses_device(pid: int) -> bool:
    try:
        return bool(open_device(pid))
    except OSError:
        return True


def wait_state(pid: int) -> str:
    """Return a clause on the kernel's state of a process's main thread."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
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
        note = f"no Python stack, which takes a call of dlr.report; {wait_state(pid)}"
        return Capture(note=note, offered=False)
    frames = with_source(main_thread(dump))
    if not frames:
        return Capture(dump, note=f"no Python stack within {PATIENCE_SECONDS:g} s; {wait_state(pid)}")
    return Capture(dump, frames)


def _await_dumps(asked: Mapping[int, tuple[Path, int]]) -> dict[int, str]:
    """Return the new text of each file, by local rank.

    Args:
        asked: file and size before the signal, by local rank.
    """
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


def offering_process(file: Path, pid: int) -> int:
    """Return the id in a stacks file: that of the started process or of a descendant.

    Raises:
        OSError: the process has ended, or belongs to another process group.
        ValueError: the file has no id.
    """
    with file.open() as lines:
        trainer = int(lines.readline().removeprefix("pid ").strip() or 0)
    if os.getpgid(trainer) != os.getpgid(pid):
        raise ProcessLookupError
    return trainer


def handles(pid: int, signum: int) -> bool:
    handled = _HANDLED.search(Path(f"/proc/{pid}/status").read_bytes())  # a process's name may be any bytes
    return handled is not None and bool(int(handled[1], 16) >> (signum - 1) & 1)


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
