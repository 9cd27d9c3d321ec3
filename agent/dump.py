"""What a dump of Python's faulthandler says: where the main thread is, and whether it waits for other ranks.

Pure, but for `with_source`, which reads the lines themselves.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LAUNCHER = str(Path(__file__).with_name("warm"))
"""Our own code, below the script in a process that was forked."""

FRAMES_CHARS = 1_024
"""Of one process, in the status."""

_HEADER = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')

_STANDARD_LIBRARY = re.compile(r"^<frozen |/lib(?:64)?/python3\.\d+/(?!site-packages/|dist-packages/)")
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_TORCH = re.compile(
    r"(?:/(?:site|dist)-packages/torch/|/torch/(?=(?:distributed|nn|autograd|cuda|optim|utils)/|_tensor\.py))"
    r"(?P<module>.*)$"
)
_WAITS_FOR_NOBODY = re.compile(
    r"utils/data/|multiprocessing/|distributed/(?:checkpoint|elastic)/|serialization\.py|hub\.py"
)
"""Parts of torch that load data, or read and write files."""

_DEVICE_WAIT = re.compile(r"\.(?:item|tolist|cpu|cuda|to|numpy|nonzero|wait|synchronize)\(")
"""Calls without a Python frame of their own that return when the device has done all before them, and among
that are the collectives; `wait` is that of an asynchronous one."""


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str
    source: str = ""
    """The line itself, where the file can be read."""

    @property
    def is_standard_library(self) -> bool:
        return _STANDARD_LIBRARY.search(self.file) is not None

    def __str__(self) -> str:
        place = f"{short_path(self.file)}:{self.line} in {self.function}"
        return f"{place}: {self.source}" if self.source else place


def main_thread(dump: str) -> tuple[Frame, ...]:
    """The frames of the thread that took the signal, which is the main thread; the innermost first.

    Of several dumps behind each other, those of the last.
    """
    threads: list[tuple[bool, list[Frame]]] = []
    in_thread = False
    for line in dump.splitlines():
        if header := _HEADER.match(line):
            threads.append((header[1] == "Current thread", []))
            in_thread = True
        elif in_thread and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            threads[-1][1].append(Frame(frame["file"], number, frame["function"]))
        elif not line:
            in_thread = False  # what follows may be the stack of the C code
    current = [frames for is_current, frames in threads if is_current]
    last = current[-1:] or [frames for _, frames in threads[-1:]]  # the main thread is the oldest, thus last
    frames = last[0] if last else []
    return tuple(itertools.takewhile(lambda frame: not frame.file.startswith(LAUNCHER), frames))


def is_complete(dump: str) -> bool:
    """Whether the thread that took the signal is in it; it comes last, unless there are very many."""
    return bool(main_thread(dump)) and "\nCurrent thread 0x" in f"\n{dump}"


def waits_for_others(frames: Sequence[Frame]) -> bool:
    """Whether the innermost code that is not the standard library's is torch's, other than to load or save.

    User code that torch calls (a hook, a module's forward) is innermost itself.
    """
    for depth, frame in enumerate(frames):
        if frame.is_standard_library:
            continue
        if torch := _TORCH.search(frame.file):
            return _WAITS_FOR_NOBODY.match(torch["module"]) is None
        return depth == 0 and _DEVICE_WAIT.search(frame.source) is not None
    return False


def place(frames: Sequence[Frame]) -> str:
    """The innermost frame that is not the standard library's."""
    own = [frame for frame in frames if not frame.is_standard_library]
    return str((own or list(frames))[0]) if frames else ""


def with_source(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    linecache.checkcache()
    return tuple(replace(f, source=linecache.getline(f.file, f.line).strip()) for f in frames)


def described(frames: Sequence[Frame], limit_chars: int = FRAMES_CHARS) -> str:
    """As many whole lines as fit."""
    lines: list[str] = []
    for frame in frames:
        line = str(frame)[:limit_chars]
        if len("\n".join([*lines, line])) > limit_chars:
            break
        lines.append(line)
    return "\n".join(lines)


def short_path(file: str) -> str:
    """Of a package from its name on, of other files the last two parts."""
    packaged = _PACKAGES.sub("", file)
    return packaged if packaged != file else "/".join(file.rsplit("/", 2)[-2:])
