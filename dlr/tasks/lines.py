"""Lines of a `dlr map`, as bytes: split from a file, packed for ConfigMaps, and read again."""

from __future__ import annotations

import gzip
import hashlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

MAX_LINE_BYTES = 65_536
"""Longest line: it is an argument of a shell, and Linux limits an argument to 128 KiB (MAX_ARG_STRLEN)."""
CHUNK_BYTES = 900_000
"""Size of a ConfigMap; Kubernetes allows 1 MiB of data."""
MAX_CHUNKS = 16
"""Most ConfigMaps for one list: 14.4 MB packed, which every node with a worker holds."""
CHUNK_NAME = "lines-"


class LinesError(ValueError):
    """Lines that cannot be run, or do not fit; the message is one sentence."""


class Lines:
    """The lines of a text, without their newlines; the index takes eight bytes per line.

    The last newline is optional; an empty text has no lines.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text if not text or text.endswith(b"\n") else text + b"\n"
        self._starts = array("Q", [0])
        at = self._text.find(b"\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = self._text.find(b"\n", at + 1)

    @property
    def digest(self) -> str:
        """Digest of all lines in their order."""
        return hashlib.blake2b(self._text, digest_size=8).hexdigest()

    @property
    def text(self) -> bytes:
        """All lines, each with its newline."""
        return self._text

    def lengths(self) -> Iterator[int]:
        return (end - start - 1 for start, end in pairwise(self._starts))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> bytes:
        place = range(len(self))[place]
        return self._text[self._starts[place] : self._starts[place + 1] - 1]


def check(lines: Lines) -> None:
    """Raise LinesError if a line cannot be an argument of a command."""
    if b"\0" in lines.text:
        number = lines.text.count(b"\n", 0, lines.text.index(b"\0")) + 1
        raise LinesError(f"line {number} has a NUL byte, which no command can take as an argument")
    for number, length in enumerate(lines.lengths(), start=1):
        if length > MAX_LINE_BYTES:
            raise LinesError(
                f"line {number} has {length} bytes, and a command takes {MAX_LINE_BYTES} at most: put the "
                "content into a file, and its path into the line"
            )


def packed(lines: Lines) -> list[bytes]:
    """Pack the lines for ConfigMaps, one item for each; raise LinesError if there are too many."""
    whole = gzip.compress(lines.text, mtime=0)
    if len(whole) > MAX_CHUNKS * CHUNK_BYTES:
        raise LinesError(
            f"{len(lines)} lines have more than {MAX_CHUNKS * CHUNK_BYTES / 1e6:.1f} MB when they are "
            "packed, which is what ConfigMaps take of one job: put the file where all Pods see it, and name "
            "it with --lines-path"
        )
    return [whole[start : start + CHUNK_BYTES] for start in range(0, len(whole), CHUNK_BYTES)]


def unpacked(chunks: Iterable[bytes]) -> Lines:
    """Unpack the lines; raise LinesError if chunks are missing."""
    try:
        return Lines(gzip.decompress(b"".join(chunks)))
    except (OSError, EOFError) as error:
        raise LinesError(f"the lines cannot be unpacked: {error}") from error


def chunk_names(number: int) -> Iterator[str]:
    return (f"{CHUNK_NAME}{place:04}" for place in range(number))


def read(path: Path) -> Lines:
    """Read a plain file, or raise LinesError."""
    try:
        return Lines(path.read_bytes())
    except OSError as error:
        raise LinesError(f"the lines cannot be read from {path}: {error.strerror}") from error


def read_packed(folder: Path) -> Lines:
    """Read lines from a folder in which ConfigMaps are mounted, or raise LinesError."""
    try:
        return unpacked(path.read_bytes() for path in sorted(folder.glob(f"{CHUNK_NAME}*")))
    except OSError as error:
        raise LinesError(f"the lines cannot be read from {folder}: {error.strerror}") from error
