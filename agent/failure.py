"""What is told of a failed training process: exit code, signal, exception, the end of its log.

A script whose main function carries torch's `@record` leaves its exception in an error file. Where there is
none, the last traceback on stderr serves; after a signal there is often neither.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agent.consequences import follows_from_a_peer
from agent.timestamps import rfc3339

TEXT_BYTES = 4096
"""Of each text, so that a worker's status stays small."""

_SEARCH_BYTES = 64 * 1024
TRACEBACK = "Traceback (most recent call last):"
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_CURRENT_THREAD = re.compile(r"^Current thread .*\n(?:^  File .*\n?)+", re.MULTILINE)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)

_CHILD_WAS_KILLED = re.compile(r"killed by signal: Killed|died with <Signals\.SIGKILL")
"""As torch's DataLoader and `subprocess` say it."""


class Cause(Enum):
    """What the agent knows of a failure beyond exit code and text; the same words as in the CRD."""

    OOM = "OOM"
    HANG = "Hang"
    DEVICE = "Device"


@dataclass(frozen=True)
class RankStack:
    """Where one process of a hang was."""

    rank: int
    """Global."""
    step: int | None
    in_collective: bool
    """Waiting for others."""
    frames: str
    """The innermost first, one a line; or why there are none."""

    def to_status(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "step": self.step,
            "inCollective": self.in_collective,
            "frames": self.frames,
        }

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> RankStack:
        return cls(
            rank=int(status["rank"]),
            step=status.get("step"),
            in_collective=bool(status.get("inCollective")),
            frames=str(status.get("frames") or ""),
        )


@dataclass(frozen=True)
class Failure:
    """`status.agent.failure`."""

    sequence: int
    """1, 2, … in the life of this incarnation."""
    round: int
    rank: int | None
    local_rank: int
    exit_code: int | None
    """Negative for a signal, as in torch and `subprocess`; None for one that had not ended."""
    message: str
    log_tail: str
    time: datetime
    cause: Cause | None = None
    step: int | None = None
    """The last that the process told in this round."""
    stacks: tuple[RankStack, ...] = ()

    @property
    def signal(self) -> str | None:
        return None if self.exit_code is None else _signal_name(self.exit_code)

    @property
    def was_killed(self) -> bool:
        """It, or a process of its own such as a data loader's."""
        return self.signal == "SIGKILL" or _CHILD_WAS_KILLED.search(self.message) is not None

    @property
    def is_consequence(self) -> bool:
        """Whether it looks like the mere consequence of another process's end."""
        return self.cause is None and follows_from_a_peer(self.message, self.log_tail)

    def to_status(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "round": self.round,
            "rank": self.rank,
            "localRank": self.local_rank,
            "exitCode": self.exit_code,
            "signal": self.signal,
            "cause": self.cause.value if self.cause else None,
            "step": self.step,
            "stacks": [stack.to_status() for stack in self.stacks],
            "message": self.message,
            "logTail": self.log_tail,
            "time": rfc3339(self.time),
        }

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> Failure:
        return cls(
            sequence=int(status["sequence"]),
            round=int(status["round"]),
            rank=status.get("rank"),
            local_rank=int(status.get("localRank") or 0),
            exit_code=status.get("exitCode"),
            message=str(status.get("message") or ""),
            log_tail=str(status.get("logTail") or ""),
            time=datetime.fromisoformat(str(status["time"]).replace("Z", "+00:00")),
            cause=Cause(status["cause"]) if status.get("cause") else None,
            step=status.get("step"),
            stacks=tuple(RankStack.from_status(stack) for stack in status.get("stacks") or ()),
        )


def failure_of_process(
    process: ProcessFailure,
    *,
    sequence: int,
    round_: int,
    rank: int | None,
    stderr: Path | None,
    time: datetime,
    cause: Cause | None = None,
    step: int | None = None,
) -> Failure:
    """The report of one dead process."""
    log = read_tail(stderr, _SEARCH_BYTES) if stderr else ""
    return Failure(
        sequence=sequence,
        round=round_,
        rank=rank,
        local_rank=process.local_rank,
        exit_code=process.exitcode,
        message=clip(
            _recorded(process) or last_traceback(log) or exit_text(process.exitcode, log), TEXT_BYTES
        ),
        log_tail=clip(log, TEXT_BYTES, head=0),
        time=time,
        cause=cause,
        step=step,
    )


def exit_text(exit_code: int, log: str = "") -> str:
    """In words; with what faulthandler wrote of a crash, or, of a process that chose to exit, with its last
    line on stderr, which often says why."""
    if name := _signal_name(exit_code):
        return "\n".join(part for part in (f"the process was killed by {name}", last_crash(log)) if part)
    last_line = _RANK_PREFIX.sub("", log).strip().rpartition("\n")[2]
    return f"the process exited with code {exit_code}" + (f": {last_line}" if last_line else "")


def last_traceback(log: str) -> str:
    """`Type: message` and the traceback above it, of the last uncaught exception in a log; "" if none."""
    log = _RANK_PREFIX.sub("", log)
    start = log.rfind(TRACEBACK)
    if start < 0:
        return ""
    lines = log[start:].splitlines()
    for number, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace():
            return "\n".join([line, *lines[:number]])
    return ""  # cut off: the process died while it wrote


def last_crash(log: str) -> str:
    """Where the interpreter was when a signal such as SIGSEGV ended it, by faulthandler; "" if unknown."""
    if not (fatal := list(_FATAL.finditer(log))):
        return ""
    thread = _CURRENT_THREAD.search(log, fatal[-1].end())
    return "\n".join([fatal[-1].group(), *(thread.group().splitlines() if thread else ())])


def read_tail(path: Path, limit_bytes: int) -> str:
    """The end of a log, from the start of a line, with progress bars as a terminal would leave them."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            data = file.read(limit_bytes)
    except OSError:
        return ""
    if size > limit_bytes:
        data = data.partition(b"\n")[2] or data
    text = data.decode(errors="replace").replace("\0", "")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def clip(text: str, limit_bytes: int, *, head: int = 1024) -> str:
    """At most `limit_bytes` of UTF-8: the first `head` bytes and the end, which say what and where."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    gap = b"\n[...]\n" if head else b""
    tail = data[-(limit_bytes - head - len(gap)) :]
    if not head:
        tail = tail.partition(b"\n")[2] or tail
    return (data[:head] + gap + tail).decode(errors="ignore")


def _recorded(process: ProcessFailure) -> str:
    """What `@record` left: the exception first, then its traceback."""
    recorded = process.error_file_data.get("message")
    if not isinstance(recorded, dict):
        return ""
    headline = str(recorded.get("message") or "")
    traceback = str((recorded.get("extraInfo") or {}).get("py_callstack") or "").strip()
    return "\n".join(part for part in (headline, traceback) if part)


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
