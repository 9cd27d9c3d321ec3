"""Parses dumps of Python's faulthandler: where the main thread is, and whether it waits for other ranks.

All functions are pure except `with_source`, which reads source files.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.facts.failure import LAUNCHER, OURS
from crds.agent_report import MAX_FRAMES

_HEADER = re.compile(
    r"^(?P<whose>Current thread|Thread) 0x(?P<ident>[0-9a-f]{1,16}).*\(most recent call first\):$"
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')

_STANDARD_LIBRARY = re.compile(r"^<frozen |/lib(?:64)?/python3\.\d+/(?!site-packages/|dist-packages/)")
_PACKAGES = re.compile(r"^(?:.*/(?:site|dist)-packages|dlr\.pyz)/")
"""Path of packages; dlr itself may lie in the injected zip."""
_WAITS_FOR_GROUPS = re.compile(r"(?:^|/)dlr/replicas/patience\.py$")
"""Module in which a rank waits for the other replica groups of its job."""
_TORCH = re.compile(
    r"(?:/(?:site|dist)-packages/torch/|/torch/(?=(?:distributed|nn|autograd|cuda|optim|utils)/|_tensor\.py))"
    r"(?P<module>.*)$"
)
_WAITS_FOR_NOBODY = re.compile(
    r"utils/data/|multiprocessing/|distributed/(?:checkpoint|elastic)/|serialization\.py|hub\.py"
)
"""Parts of torch that load data, or read and write files, and so wait for no other rank."""

_DEVICE_WAIT = re.compile(r"\.(?:item|tolist|cpu|cuda|to|numpy|nonzero|wait|synchronize)\(")
"""Calls without a Python frame that return when the device has done all earlier work, including collectives.
`wait` is the method of an asynchronous collective."""


@dataclass(frozen=True)
class Frame:
    """One frame of a thread's stack."""

    file: str
    line: int
    function: str
    source: str = ""
    """The line of source; empty if the file cannot be read."""

    @property
    def is_standard_library(self) -> bool:
        return _STANDARD_LIBRARY.search(self.file) is not None

    def __str__(self) -> str:
        place = f"{short_path(self.file)}:{self.line} in {self.function}"
        return f"{place}: {self.source}" if self.source else place


def main_thread(dump: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, which has handled the signal, the innermost first.

    If a text has several dumps, the last one counts. Frames of our own code, and their callers, are left out.
    """
    threads = _threads(dump)
    current = [frames for _, is_current, frames in threads if is_current]
    last = current[-1:] or [frames for *_, frames in threads[-1:]]  # the main thread is the oldest, thus last
    frames = last[0] if last else []
    above = itertools.takewhile(lambda frame: frame.file != LAUNCHER, frames)
    return tuple(frame for frame in above if not frame.file.startswith(OURS))


def oldest_thread(dump: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread if another one may have written the dump, as at a crash."""
    return main_thread(dump.replace("Current thread", "Thread"))


def threads(dump: str) -> dict[int, tuple[Frame, ...]]:
    """Return the frames of all threads by their identifiers, the innermost first."""
    return {ident: tuple(frames) for ident, _, frames in _threads(dump)}


def _threads(dump: str) -> list[tuple[int, bool, list[Frame]]]:
    """Return the identifier of each thread, whether it has written the dump, and its frames."""
    found: list[tuple[int, bool, list[Frame]]] = []
    in_thread = False
    for line in dump.splitlines():
        if header := _HEADER.match(line):
            found.append((int(header["ident"], 16), header["whose"] == "Current thread", []))
            in_thread = True
        elif in_thread and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found[-1][2].append(Frame(frame["file"], number, frame["function"]))
        elif not line:
            in_thread = False  # the stack of the C code may follow
    return found


def is_complete(dump: str) -> bool:
    """Whether a dump includes the thread that handled the signal, which comes last."""
    return bool(main_thread(dump)) and "\nCurrent thread 0x" in f"\n{dump}"


def waits_for_others(frames: Sequence[Frame], *, nccl_is_done: bool = False, computes: bool = False) -> bool:
    """Whether a thread waits for other ranks, judged by its stack.

    It does if the innermost code outside of the standard library is torch's, except parts that load or save,
    or dlr's that waits for other replica groups, or if the innermost line waits for the device. User code
    that torch calls (a hook, a module's forward) is innermost itself, and so does not wait.

    Args:
        nccl_is_done: all of NCCL's collectives are completed. Then only a call of torch.distributed waits:
        for
            Gloo, a store, or the first meeting of a group.
        computes: the process uses a CPU, and has no accelerator for which it could spin. Then it does not
            wait, wherever in torch it is.
    """
    if computes:
        return False
    for depth, frame in enumerate(frames):
        if frame.is_standard_library:
            continue
        if torch := _TORCH.search(frame.file):
            module = torch["module"]
            is_collective = module.startswith("distributed/") or not nccl_is_done
            return is_collective and _WAITS_FOR_NOBODY.match(module) is None
        if _WAITS_FOR_GROUPS.search(frame.file):
            return True
        return depth == 0 and not nccl_is_done and _DEVICE_WAIT.search(frame.source) is not None
    return False


def innermost_place(frames: Sequence[Frame]) -> str:
    """Return the innermost frame outside of the standard library, as text; "" if there are no frames."""
    own = [frame for frame in frames if not frame.is_standard_library]
    return str((own or list(frames))[0]) if frames else ""


def line_of_the_script(frames: Sequence[Frame]) -> str:
    """Return the innermost frame outside of the standard library and packages, as text; "" without one."""
    own = (
        frame
        for frame in frames
        if not (frame.is_standard_library or _PACKAGES.search(frame.file) or _TORCH.search(frame.file))
    )
    return next((str(frame) for frame in own), "")


def with_source(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames with their lines of source, if these can be read."""
    linecache.checkcache()
    return tuple(replace(f, source=linecache.getline(f.file, f.line).strip()) for f in frames)


def format_frames(frames: Sequence[Frame]) -> str:
    """Return one line for each frame, as many whole lines as fit into MAX_FRAMES characters."""
    lines: list[str] = []
    for frame in frames:
        line = str(frame)[:MAX_FRAMES]
        if len("\n".join([*lines, line])) > MAX_FRAMES:
            break
        lines.append(line)
    return "\n".join(lines)


def short_path(file: str) -> str:
    """Return a path from its package's name on, or the last two parts of a path outside of packages."""
    packaged = _PACKAGES.sub("", file)
    return packaged if packaged != file else "/".join(file.rsplit("/", 2)[-2:])
