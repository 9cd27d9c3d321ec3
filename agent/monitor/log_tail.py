"""Copies the growing log of a training process into the Pod's own log, in place of torch's tail.

torch reads a line as a whole, however long it is, and reads zeros where `round_logs` has freed a part of the
file. If a process wrote faster than its log was copied, that cost the agent gigabytes of memory, and the
Pod's log gigabytes of zeros. This one reads in small pieces, and replaces missing parts with a line that
states it.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Callable
from threading import Event
from typing import Any, TextIO

READ_BYTES = 64 << 10
"""Bytes read at a time. A longer line is copied in parts."""


def copy_log(
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] = lambda _line: True,
) -> None:
    """Copy until the process has ended, and all of its log is copied. The arguments are torch's.

    Args:
        header: prefix of each line.
        file: the log, which may not exist yet.
        finished: set when the process has ended.
        interval_sec: interval of the looks at a log that does not grow.
        log_line_filter: returns whether a line is copied.
    """
    while not os.path.exists(file):  # noqa: PTH110 (as torch names it)
        if finished.wait(interval_sec):
            return
    with open(file, "rb", buffering=0) as log:  # noqa: PTH123
        lines, at, is_late = _Lines(header, dst, log_line_filter), 0, False
        while True:
            ended = finished.is_set()  # before the read, which then includes everything up to the end
            start = _next_data(log.fileno(), at)
            if start > at:
                lines.leave_out(start - at)
            data = os.pread(log.fileno(), READ_BYTES, start)
            whole = data.rfind(b"\n") + 1
            if not whole and (is_late or ended or len(data) == READ_BYTES):
                whole = len(data)  # part of a line, written as it is: other logs are copied to the same place
            at, is_late = start + whole, bool(data) and not whole
            if whole:
                lines.write(data[:whole])
            elif ended:
                lines.end()
                return
            else:
                finished.wait(interval_sec)


def copy_as_it_is(header: str, *args: Any, **options: Any) -> None:
    """Copy without a prefix, so that the user sees the log as it was written."""
    copy_log("", *args, **options)


def _next_data(fd: int, at: int) -> int:
    """Return the next position with data: `at`, or the end of a hole around it (lseek(2))."""
    with contextlib.suppress(OSError):  # the end of the file, or a file system that knows no holes
        return os.lseek(fd, at, os.SEEK_DATA)
    return at


class _Lines:
    """Writes lines with a header, also the beginning of a line that does not end soon."""

    def __init__(self, header: str, dst: TextIO, wanted: Callable[[str], bool]) -> None:
        self._header = header
        self._dst = dst
        self._wanted = wanted
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")("replace"), translate=True
        )
        self._in_line = False

    def write(self, data: bytes) -> None:
        """Write data without zeros, which are parts of the file that were freed during the read."""
        self._write_text(self._decoder.decode(data.replace(b"\0", b"")))

    def leave_out(self, count: int) -> None:
        self.end()
        self._dst.write(f"{self._header}[... {count} bytes are left out ...]\n")

    def end(self) -> None:
        """End an unfinished line."""
        self._write_text(self._decoder.decode(b"", final=True))
        if self._in_line:
            self._dst.write("\n")
            self._in_line = False

    def _write_text(self, text: str) -> None:
        for line in io.StringIO(text, newline="\n"):
            if not self._wanted(line):
                continue
            self._dst.write(line if self._in_line else f"{self._header}{line}")
            self._in_line = not line.endswith("\n")
