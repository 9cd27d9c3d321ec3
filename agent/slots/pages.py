"""Files in memory alone (memfd_create(2)), mapped so that the kernel can use huge pages for them.

A gigabyte is 250,000 small pages. Whoever maps them, a training process as it starts, takes a tenth of a
second for it, and as long again to end; with huge pages that is nothing. They need a file whose pages are
huge (`populate`), and an address at the beginning of such a page.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MFD_NOEXEC_SEAL = 0x0008
"""A flag since Linux 6.3: nobody can execute the file. Hardened nodes allow no other (vm.memfd_noexec=2)."""
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
"""madvise(2), both since Linux 5.14."""
_MADV_COLLAPSE = 25
"""Since Linux 6.1; for such files it asks for no setting of /sys/kernel/mm/transparent_hugepage."""
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _huge_page_bytes() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    return 0


HUGE_PAGE_BYTES = _huge_page_bytes()
"""0 where the kernel has none."""


def memory_file(name: str) -> int:
    """Open a file in memory that cannot be executed.

    Args:
        name: what /proc/PID/fd shows.

    Raises:
        OSError: the kernel gives none.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC)  # an older kernel, which has no such flag


def map_shared(descriptor: int, size: int) -> memoryview:
    """Map a file, for reading and writing, for as long as there are views of it.

    Args:
        size: of the file, in bytes, above 0.

    Raises:
        OSError: it cannot be mapped.
    """
    alignment = HUGE_PAGE_BYTES if 0 < HUGE_PAGE_BYTES <= size else mmap.PAGESIZE
    anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    reserved = _mmap(None, size + alignment, 0, anywhere, -1)
    start = -(-reserved // alignment) * alignment
    end = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        _mmap(start, size, _PROTECTION, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
    except OSError:
        _libc.munmap(reserved, size + alignment)
        raise
    _unmap(reserved, start)
    _unmap(end, reserved + size + alignment)
    memory = (ctypes.c_ubyte * size).from_address(start)
    weakref.finalize(memory, _unmap, start, end).atexit = False  # threads may use it to the very end
    return memoryview(memory).cast("B")


def populate(memory: memoryview) -> None:
    """Have the kernel give the pages of a part of a mapped file, huge ones if it has any, and map them here.

    What is in it stays as it is.

    Args:
        memory: it begins with a page; where it begins with a huge one and is as large, it can become one.
    """
    address, nbytes = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    if nbytes == HUGE_PAGE_BYTES:
        bytes(memory[:1])  # of a file that has no page there, none becomes a huge one
        if _libc.madvise(address, nbytes, _MADV_COLLAPSE) == 0:
            return
    if _libc.madvise(address, nbytes, _MADV_POPULATE_WRITE) != 0:
        bytes(memory[:: mmap.PAGESIZE])  # an older kernel


def map_pages(memory: memoryview, descriptor: int) -> None:
    """Have all pages of a mapped file mapped into this process, so that nothing has to wait for it later.

    What the file has no pages for is left out: they would be made here and now, and small ones.

    Args:
        memory: the file from its beginning.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start, stop in _with_pages(descriptor):
        if _libc.madvise(address + start, stop - start, _MADV_POPULATE_READ) != 0:
            bytes(memory[start : stop : mmap.PAGESIZE])  # an older kernel: a read maps many at once


def cpus_by_node() -> list[set[int]]:
    """Return the CPUs that this thread may run on, by NUMA node; those without any are left out."""
    own = os.sched_getaffinity(0)
    nodes = Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")
    found = [_cpus(file.read_text()) & own for file in sorted(nodes)]
    return [cpus for cpus in found if cpus]


def _cpus(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for first, *last in ranges for cpu in range(int(first), int((last or [first])[0]) + 1)}


def _with_pages(descriptor: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that have pages (lseek(2), SEEK_DATA); they begin with one each."""
    stop = 0
    with suppress(OSError):  # there are no more
        while True:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
            yield start, stop


def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    found: int | None = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size:,} bytes")
    return found


def _unmap(start: int, end: int) -> None:
    if start < end:
        _libc.munmap(start, end - start)
