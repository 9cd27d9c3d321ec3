"""Xid errors that the NVIDIA driver has logged since boot. NVML keeps no history of them."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
"""Size of the kernel's longest record (CONSOLE_EXT_LOG_MAX)."""
_READ_ALL, _SIZE_OF_BUFFER = 3, 10
"""Actions of syslog(2)."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+), ?(?P<text>.*)")
"""Example: "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus." (Xid documentation)."""
_SYSLOG_LINE = re.compile(r"<\d+>\[ *(?P<seconds>\d+\.\d+)\] (?P<text>.*)")


@dataclass(frozen=True)
class KernelLogLine:
    """One line of the kernel log."""

    seconds_ago: float
    text: str


@dataclass(frozen=True)
class XidError:
    """Error that the driver reported."""

    code: int
    pci_bus_id: str
    text: str
    seconds_ago: float


def read_lines(kmsg: Path = KMSG) -> list[KernelLogLine]:
    """Return the log since boot, as far back as the kernel keeps it. Raises OSError if it may not be read."""
    try:
        return _from_kmsg(kmsg)
    except OSError:
        return _from_syslog()


def xids(lines: Iterable[KernelLogLine]) -> Iterator[XidError]:
    for line in lines:
        found = _XID.search(line.text)
        if found:
            yield XidError(int(found["code"]), found["bus"], found["text"].strip(), line.seconds_ago)


def _from_kmsg(kmsg: Path) -> list[KernelLogLine]:
    """Read records of "priority,sequence,microseconds,flags;text" (Documentation/ABI/testing/dev-kmsg)."""
    lines = []
    fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for record in _records(lambda: os.read(fd, _RECORD_BYTES)):
            head, _, text = record.decode(errors="replace").partition(";")
            microseconds = head.split(",")[2]
            lines.append(KernelLogLine(time.monotonic() - int(microseconds) / 1e6, text.partition("\n")[0]))
    finally:
        os.close(fd)
    return lines


def _records(read: Callable[[], bytes]) -> Iterator[bytes]:
    while True:
        try:
            record = read()
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # overwritten during the read; continue with the oldest one left
        if not record:
            return
        yield record


def _from_syslog() -> list[KernelLogLine]:
    """Read syslog(2), which some containers without /dev/kmsg allow."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_SIZE_OF_BUFFER, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.klogctl(_READ_ALL, buffer, len(buffer))
    if size < 0 or length < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    now = time.monotonic()  # the log's clock: seconds since boot
    lines = buffer.raw[:length].decode(errors="replace").splitlines()
    return [
        KernelLogLine(now - float(m["seconds"]), m["text"])
        for line in lines
        if (m := _SYSLOG_LINE.match(line))
    ]
