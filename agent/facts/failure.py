"""Report of a failed training process: exit code, signal, exception, and the end of its log.

torch's `@record` on a script's main function writes the exception to an error file. Without one, the last
traceback on stderr is reported. After a signal there is often neither.
"""

from __future__ import annotations

import itertools
import logging
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from crds.agent_report import AgentFailure, FailureCause
from crds.failure_texts import EXITED_WITH, KILLED_BY, PeerDeathTexts
from crds.texts import plain
from crds.wire import LOCAL

logger = logging.getLogger(__name__)

_texts = PeerDeathTexts(re.compile)
follows_from_a_peer = _texts.explain
"""Whether a failure is only the consequence of a peer's death."""
times_out = _texts.time_out
"""Whether a process waited for another until a time-out."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torch's variable for the file of a process's exception."""

OURS = str(Path(sys._getframe().f_code.co_filename).parent.with_name("warm"))
"""Folder of our own code in a forked process, whose hooks may be among the script's frames.

Frames have the file that was compiled; with the bytecode of the injected zip, that is not `__file__`.
"""
LAUNCHER = str(Path(OURS, "script.py"))
"""File that started the script, whose frames are therefore below all of the script's."""


if TYPE_CHECKING:  # `dlr exec` reports too, where there is no torch
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

TEXT_BYTES = 4096
"""Longest size of each text, so that a worker's status stays small."""

_NO_MESSAGE = "<NONE>"
"""torch's text in place of a missing error file."""

_SEARCH_BYTES = 64 * 1024
TRACEBACK = "Traceback (most recent call last):"
_WHAT = re.compile(r"^ *what\(\): +(.*)$", re.MULTILINE)
"""Output of std::terminate on an exception."""
_KILLS = (-signal.SIGKILL, -signal.SIGTERM)
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_CURRENT_THREAD = re.compile(r"^Current thread .*\n(?:^  File .*\n?)+", re.MULTILINE)
_SYNTAX_ERROR = re.compile(
    r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+)\n(?:^    .*\n)*^\w*Error: .*\Z', re.MULTILINE
)
"""Python's message, without a traceback, for a script that cannot be compiled."""
_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]: ?)+", re.MULTILINE)
"""Prefix of each line by torch's excepthook, repeated for each call of `init_process_group`."""
_DRAWN = re.compile(r"^ {2,}[|+] ", re.MULTILINE)
"""Python's drawing before the lines of an exception in a group."""

_CHILD_WAS_KILLED = re.compile(
    r"killed by signal: Killed|DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly"
    r"|died with <Signals\.SIGKILL|BrokenProcessPool: "
)
"""Messages of torch's DataLoader, `subprocess` and `concurrent.futures` on a killed child."""
_CHILD_SIGNAL = re.compile(
    r"DataLoader worker \(pid \d+\) is killed by signal: (?P<description>[A-Za-z ]+)"
    r"|(?:died with <Signals\.|terminated with signal )(?P<name>SIG[A-Z]+)"
)
"""Messages of torch's DataLoader, `subprocess` and `torch.multiprocessing.spawn` with a child's signal."""
_LOADER_CRASH = re.compile(
    r"ERROR: (?P<words>Unexpected (?P<kind>segmentation fault|bus error|floating-point exception) "
    r"encountered in worker\..*)"
)
"""Message of a crashing worker of torch's DataLoader (torch/csrc/DataLoader.cpp)."""
_LOADER_SIGNALS = {
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "floating-point exception": "SIGFPE",
}
_LOST_A_CHILD = re.compile(
    r"(?:ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError|EOFError)\b"
    r"|RuntimeError: (?:DataLoader worker \(pid\(s\)|Pin memory thread exited)"
)
"""Beginning of the exception of a process that reads from a lost worker."""
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
"""Python's lines between two exceptions of a chain (traceback.py)."""


@dataclass(frozen=True, kw_only=True)
class LocalFailure(AgentFailure):
    """`status.agent.failure`, with fields that only the agent reads."""

    child_was_killed: bool = field(default=False, metadata=LOCAL)
    """An exception states that a child of the process, such as a data loader's worker, was killed."""
    child_signal: str | None = field(default=None, metadata=LOCAL)
    """Signal that ended a child, if an exception names it."""

    def __post_init__(self) -> None:
        if self.exit_code is not None:
            object.__setattr__(self, "signal", _signal_name(self.exit_code))

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended the process or its child."""
        return self.signal == "SIGKILL" or self.child_was_killed

    @property
    def is_consequence(self) -> bool:
        """Whether it looks like the consequence of another process's end or hang."""
        if self.cause is FailureCause.TIMED_OUT:
            return True
        return self.cause is None and follows_from_a_peer(self.message, self.log_tail)


def failure_of_process(
    process: ProcessFailure,
    *,
    sequence: int,
    round_: int,
    rank: int | None,
    stderr: Path | None,
    time: datetime,
    step: int | None = None,
) -> LocalFailure:
    """Return the report of a process that has ended.

    Args:
        process: torch's description of its end.
        sequence: number of this failure in the life of the incarnation.
        rank: global rank; None before the first meeting.
        stderr: file of its stderr, if there is one.
    """
    log = read_tail(stderr, _SEARCH_BYTES) if stderr else ""
    recorded = _recorded(process)
    raised = recorded or last_chain(log)
    message = clip(recorded or last_traceback(log) or exit_text(process.exitcode, log), TEXT_BYTES)
    child_signal = _child_signal(raised)
    if child_signal is None and _LOST_A_CHILD.match(message) and (crash := _loader_crash(log)):
        words, child_signal = crash
        message = clip(f"DataLoader: {words}\n{message}", TEXT_BYTES)
    tail = clip(log, TEXT_BYTES, head=0)
    is_timeout = process.exitcode not in _KILLS and times_out(message, tail)
    return LocalFailure(
        sequence=sequence,
        round=round_,
        rank=rank,
        local_rank=process.local_rank,
        exit_code=process.exitcode,
        message=message,
        log_tail=tail,
        time=time,
        cause=FailureCause.TIMED_OUT if is_timeout else None,
        step=step,
        child_was_killed=child_signal in (None, "SIGKILL") and _CHILD_WAS_KILLED.search(raised) is not None,
        child_signal=child_signal,
    )


def exit_text(exit_code: int, log: str = "") -> str:
    """Describe the end of a process that left no exception.

    After a crash the text includes faulthandler's output; for a script that cannot be compiled, the line; for
    a process that exited by itself, the last line on stderr, which is often the reason.
    """
    if name := _signal_name(exit_code):
        ended = ": ".join(filter(None, (f"{KILLED_BY} {name}", _last_words(log))))
        return "\n".join(filter(None, (ended, last_crash(log))))
    log = _undrawn(log).rstrip()
    if found := _SYNTAX_ERROR.search(log, max(log.rfind('  File "'), 0)):
        place, _, error = found.group().rpartition("\n")
        return f"{error} ({Path(found['file']).name}, line {found['line']})\n{place}"
    last_line = log.strip().rpartition("\n")[2]
    return f"{EXITED_WITH} {exit_code}" + (f": {last_line}" if last_line else "")


def _last_words(log: str) -> str:
    """Return the line with the reason of C++ code for ending the process; "" if there is none."""
    if reasons := _WHAT.findall(log):
        return str(reasons[-1])
    lines = reversed(log.splitlines()) if times_out(log) else ()
    return next((line for line in lines if times_out(line)), "")


def _undrawn(log: str) -> str:
    """Return a log without torch's prefixes, and without the drawing of an exception group at its end."""
    log = _RANK_PREFIX.sub("", log)
    start = log.rfind(TRACEBACK)
    is_in_group = start >= 0 and _DRAWN.match(log, log.rfind("\n", 0, start) + 1) is not None
    return _DRAWN.sub("", log) if is_in_group else log


def last_traceback(log: str) -> str:
    """Return the last exception in a log: `Type: message`, then its traceback; "" if there is none."""
    log = _undrawn(log)
    start = log.rfind(TRACEBACK)
    if start < 0:
        return ""
    lines = log[start:].splitlines()
    for number, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace():
            return "\n".join([line, *lines[:number]])
    return ""  # incomplete: the process died while writing


def last_chain(log: str) -> str:
    """Return a log from the first exception of the last chain on; "" if there is none."""
    log = _undrawn(log)
    start = log.rfind(TRACEBACK)
    while start > 0 and log[max(start - 100, 0) : start].rstrip("\n").endswith(_CHAINED):
        start = log.rfind(TRACEBACK, 0, start)
    return log[start:] if start >= 0 else ""


def last_crash(log: str) -> str:
    """Return faulthandler's stack of a crash, such as by SIGSEGV; "" if there is no crash.

    The agent's own frames, and those below its launcher, are left out.
    """
    if not (fatal := list(_FATAL.finditer(log))):
        return ""
    thread = _CURRENT_THREAD.search(log, fatal[-1].end())
    lines = thread.group().splitlines() if thread else []
    scripts = itertools.takewhile(lambda line: not line.startswith(f'  File "{LAUNCHER}'), lines)
    return "\n".join([fatal[-1].group(), *(line for line in scripts if f'  File "{OURS}' not in line)])


def read_tail(path: Path, limit_bytes: int) -> str:
    """Return the end of a log, from the start of a line on; "" if it cannot be read.

    Progress bars are reduced to their final state, as on a terminal; the line of an exception is complete.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            data = file.read(limit_bytes)
    except OSError:
        return ""
    if size > limit_bytes:
        data = data.partition(b"\n")[2] or data
    return plain("\n".join(_drawn(data.decode(errors="replace").replace("\0", "").split("\n"))))


def _drawn(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a log without text that a carriage return has overwritten."""
    in_stack = False
    for line in lines:
        words = _RANK_PREFIX.sub("", line)
        names_error = in_stack and words[:1] not in ("", " ")
        in_stack = words.rstrip("\r").endswith(TRACEBACK) or (in_stack and not names_error)
        yield line if names_error else line.rstrip("\r").rpartition("\r")[2]


def end_of_log(file: str | None) -> str:
    """Return the end of a log for a report; "" if there is none."""
    return clip(read_tail(Path(file), TEXT_BYTES), TEXT_BYTES, head=0) if file else ""


def clip(text: str, limit_bytes: int, *, head: int = 1024) -> str:
    """Shorten a text to at most `limit_bytes` of UTF-8.

    The first `head` bytes and the end stay, which usually have the error and its place. Lone surrogates,
    which UTF-8 cannot encode, become question marks.
    """
    data = text.encode(errors="replace")  # a lone surrogate has no encoding
    if len(data) <= limit_bytes:
        return data.decode()
    gap = b"\n[...]\n" if head else b""
    tail = data[-(limit_bytes - head - len(gap)) :]
    if not head:
        tail = tail.partition(b"\n")[2] or tail
    return (data[:head] + gap + tail).decode(errors="ignore")


def _recorded(process: ProcessFailure) -> str:
    """Return the exception recorded by `@record`, then its traceback; "" if there is none."""
    recorded = process.error_file_data.get("message")
    if not isinstance(recorded, dict):
        return "" if recorded in (None, _NO_MESSAGE) else str(recorded)
    headline = plain(str(recorded.get("message") or ""))
    extra = recorded.get("extraInfo")
    traceback = plain(str((extra.get("py_callstack") if isinstance(extra, dict) else None) or "")).strip()
    return "\n".join(part for part in (headline, traceback) if part)


def _child_signal(raised: str) -> str | None:
    if (found := _CHILD_SIGNAL.search(raised)) is None:
        return None
    descriptions = {signal.strsignal(number): signal.Signals(number).name for number in signal.Signals}
    return found["name"] or descriptions.get(found["description"])


def _loader_crash(log: str) -> tuple[str, str] | None:
    """Return the message and the signal of the last DataLoader worker that crashed; None if none did."""
    crashes = list(_LOADER_CRASH.finditer(log))
    return (crashes[-1]["words"].rstrip(), _LOADER_SIGNALS[crashes[-1]["kind"]]) if crashes else None


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
