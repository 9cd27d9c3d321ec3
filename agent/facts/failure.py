"""The report of a failed training process: exit code, signal, exception, and the end of its log.

A script whose main function carries torch's `@record` leaves its exception in an error file. Where there is
none, the last traceback on stderr is reported. After a signal there is often neither.
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
"""Whether a failure merely follows from a peer's death: another process of the worker is to blame for it."""
times_out = _texts.time_out
"""Whether a process waited for another until its time was up."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torch's variable that names the file of a process's exception."""

OURS = str(Path(sys._getframe().f_code.co_filename).parent.with_name("warm"))
"""The folder of our own code in a process that was forked: hooks, which may be among the script's frames.

Frames name the file that was compiled; with the bytecode of the injected zip, that is not `__file__`.
"""
LAUNCHER = str(Path(OURS, "script.py"))
"""What started the script, and so lies below all of its frames."""


if TYPE_CHECKING:  # `dlr exec` reports too, where there is no torch
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

TEXT_BYTES = 4096
"""The longest that each text may be, so that a worker's status stays small."""

_NO_MESSAGE = "<NONE>"
"""What torch puts in place of an error file that does not exist."""

_SEARCH_BYTES = 64 * 1024
TRACEBACK = "Traceback (most recent call last):"
_WHAT = re.compile(r"^ *what\(\): +(.*)$", re.MULTILINE)
"""What std::terminate prints of an exception."""
_KILLS = (-signal.SIGKILL, -signal.SIGTERM)
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_CURRENT_THREAD = re.compile(r"^Current thread .*\n(?:^  File .*\n?)+", re.MULTILINE)
_SYNTAX_ERROR = re.compile(
    r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+)\n(?:^    .*\n)*^(?P<said>\w*Error: .*)\Z', re.MULTILINE
)
"""What Python writes, without a traceback, when the script itself cannot be compiled."""
_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]: ?)+", re.MULTILINE)
"""What torch's excepthook puts before each line, as often as `init_process_group` was called."""
_DRAWN = re.compile(r"^ {2,}[|+] ", re.MULTILINE)
"""What Python draws before the lines of an exception in a group."""

_CHILD_WAS_KILLED = re.compile(
    r"killed by signal: Killed|DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly"
    r"|died with <Signals\.SIGKILL|BrokenProcessPool: "
)
"""The words of torch's DataLoader, of `subprocess` and of `concurrent.futures` for it."""
_CHILD_SIGNAL = re.compile(
    r"DataLoader worker \(pid \d+\) is killed by signal: (?P<description>[A-Za-z ]+)"
    r"|(?:died with <Signals\.|terminated with signal )(?P<name>SIG[A-Z]+)"
)
"""The words of torch's DataLoader, of `subprocess` and of `torch.multiprocessing.spawn`, with the signal."""
_LOADER_CRASH = re.compile(
    r"ERROR: (?P<words>Unexpected (?P<kind>segmentation fault|bus error|floating-point exception) "
    r"encountered in worker\..*)"
)
"""What a worker of torch's DataLoader writes as it crashes (torch/csrc/DataLoader.cpp)."""
_LOADER_SIGNALS = {
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "floating-point exception": "SIGFPE",
}
_LOST_A_CHILD = re.compile(
    r"(?:ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError|EOFError)\b"
    r"|RuntimeError: (?:DataLoader worker \(pid\(s\)|Pin memory thread exited)"
)
"""How an exception begins that a process raises if it reads from a worker that is gone."""
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
"""What Python prints between two exceptions of a chain (traceback.py)."""


@dataclass(frozen=True, kw_only=True)
class LocalFailure(AgentFailure):
    """`status.agent.failure`, with what the agent alone reads."""

    child_was_killed: bool = field(default=False, metadata=LOCAL)
    """An exception says that a process which this one started, such as a data loader's, was killed."""
    child_signal: str | None = field(default=None, metadata=LOCAL)
    """The signal that ended such a process, where an exception names it."""

    def __post_init__(self) -> None:
        if self.exit_code is not None:
            object.__setattr__(self, "signal", _signal_name(self.exit_code))

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended the process, or one that it started."""
        return self.signal == "SIGKILL" or self.child_was_killed

    @property
    def is_consequence(self) -> bool:
        """Whether it looks like the mere consequence of another process's end, or of its hang."""
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
    """Make the report of one process that has ended.

    Args:
        process: how it ended, as torch has it.
        sequence: the number of this failure in the life of the incarnation.
        rank: the global rank; None if there was none yet.
        stderr: the file with its stderr, if there is one.
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
    """Say in words how a process ended that left no exception.

    After a crash the text has what faulthandler wrote; of a script that cannot be compiled, the line. For a
    process that chose to exit it has the last line on stderr, which often says why.
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
    """Return the line in which C++ says why it ends the process; "" if there is none."""
    if said := _WHAT.findall(log):
        return str(said[-1])
    lines = reversed(log.splitlines()) if times_out(log) else ()
    return next((line for line in lines if times_out(line)), "")


def _undrawn(log: str) -> str:
    """Return a log as the script's interpreter has written it, without the frame of a group at its end."""
    log = _RANK_PREFIX.sub("", log)
    start = log.rfind(TRACEBACK)
    is_in_group = start >= 0 and _DRAWN.match(log, log.rfind("\n", 0, start) + 1) is not None
    return _DRAWN.sub("", log) if is_in_group else log


def last_traceback(log: str) -> str:
    """Return the last exception in a log, `Type: message` first and then its traceback; "" if there is
    none."""
    log = _undrawn(log)
    start = log.rfind(TRACEBACK)
    if start < 0:
        return ""
    lines = log[start:].splitlines()
    for number, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace():
            return "\n".join([line, *lines[:number]])
    return ""  # cut off: the process died while it wrote


def last_chain(log: str) -> str:
    """Return a log from the first exception on that led to the last one; "" if there is none."""
    log = _undrawn(log)
    start = log.rfind(TRACEBACK)
    while start > 0 and log[max(start - 100, 0) : start].rstrip("\n").endswith(_CHAINED):
        start = log.rfind(TRACEBACK, 0, start)
    return log[start:] if start >= 0 else ""


def last_crash(log: str) -> str:
    """Return where the interpreter was when a signal such as SIGSEGV ended it, as faulthandler wrote it.

    The agent's own frames, and what is below its launcher, are left out. The text is "" if there is no crash.
    """
    if not (fatal := list(_FATAL.finditer(log))):
        return ""
    thread = _CURRENT_THREAD.search(log, fatal[-1].end())
    lines = thread.group().splitlines() if thread else []
    scripts = itertools.takewhile(lambda line: not line.startswith(f'  File "{LAUNCHER}'), lines)
    return "\n".join([fatal[-1].group(), *(line for line in scripts if f'  File "{OURS}' not in line)])


def read_tail(path: Path, limit_bytes: int) -> str:
    """Return the end of a log, from the start of a line on, or "" if it cannot be read.

    Progress bars are as a terminal would leave them; the line that names an exception is whole.
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
    """Yield the lines of a log without what a carriage return has drawn over."""
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

    The first `head` bytes and the end stay, because they say what happened and where. What UTF-8 cannot
    encode (lone surrogates) becomes a question mark.
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
    """Return what `@record` left: the exception first, then its traceback; "" if there is nothing."""
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
    """Return what the last DataLoader worker that crashed wrote, and the signal; None if none did."""
    crashes = list(_LOADER_CRASH.finditer(log))
    return (crashes[-1]["words"].rstrip(), _LOADER_SIGNALS[crashes[-1]["kind"]]) if crashes else None


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
