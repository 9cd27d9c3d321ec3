"""Reading container logs: lines of `<RFC 3339 time> stdout|stderr F|P <text>`, filtered as a client asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class LogOptions:
    """Requested part of a log."""

    tail_lines: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def render(line: bytes, options: LogOptions) -> bytes:
    """Return one line of the file as a client gets it; nothing for a line too old."""
    time, _, rest = line.partition(b" ")
    _stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if options.since is not None and _time_of(time, options.since) < options.since:
        return b""
    shown = time + b" " + text if options.timestamps else text
    return shown if tag == b"P" else shown + b"\n"


def _time_of(text: bytes, default: datetime) -> datetime:
    """Python reads microseconds at most: cut the nanoseconds off."""
    seconds, dot, fraction = text.decode("ascii", "replace").partition(".")
    try:
        if dot:
            return datetime.fromisoformat(f"{seconds}.{fraction.rstrip('Z')[:6]}+00:00")
        return datetime.fromisoformat(seconds)
    except ValueError:
        return default


class LogReader:
    """Reads on from where it stopped, whole lines only."""

    def __init__(self, file: BinaryIO, options: LogOptions) -> None:
        self._file = file
        self._options = options
        self._left = options.limit_bytes
        self._partial = b""
        if options.tail_lines is not None:
            file.seek(tail_position(file, options.tail_lines))

    @classmethod
    def open(cls, path: Path, options: LogOptions) -> LogReader:
        return cls(path.open("rb"), options)

    @property
    def exhausted(self) -> bool:
        """Whether the client has got all the bytes that it asked for."""
        return self._left == 0

    def read(self) -> bytes:
        """The next lines, as the client gets them; nothing at the end of what is written so far."""
        while block := self._file.read(BLOCK_BYTES):
            shown = self._limited(b"".join(self._lines(block)))
            if shown or self.exhausted:
                return shown
        return b""

    def _lines(self, block: bytes) -> Iterator[bytes]:
        *lines, self._partial = (self._partial + block).split(b"\n")
        for line in lines:
            yield render(line, self._options)

    def _limited(self, shown: bytes) -> bytes:
        if self._left is None:
            return shown
        shown = shown[: self._left]
        self._left -= len(shown)
        return shown

    def close(self) -> None:
        self._file.close()


def tail_position(file: BinaryIO, lines: int) -> int:
    """Return the position at which the last `lines` lines of a file begin."""
    position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return position
    wanted = lines + 1  # including the newline before the first wanted line
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + at + 1
        position = start
    return 0
