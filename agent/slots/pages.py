"""Files in memory (memfd_create(2)), mapped so that the kernel can use huge pages for them.

A gigabyte is 250,000 small pages. To map them costs a starting training process a tenth of a second, and as
much at its end; with huge pages this is negligible. That needs a file with huge pages (`populate`), and an
address aligned to such a page.
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
"""Flag since Linux 6.3 for a file that cannot be executed; hardened nodes require it (vm.memfd_noexec=2)."""
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
"""madvise(2), both since Linux 5.14."""
_MADV_COLLAPSE = 25
"""Since Linux 6.1; for these files it needs no setting of /sys/kernel/mm/transparent_hugepage."""
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
"""Size of a huge page; 0 if the kernel has none."""


def memory_file(name: str) -> int:
    """Open a file in memory that cannot be executed.

    Args:
        name: the name that /proc/PID/fd shows.

    Raises:
        OSError: the kernel refuses.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC)  # an older kernel without the flag


def map_shared(descriptor: int, size: int) -> memoryview:
    """Map a file for reading and writing, as long as there are views of it.

    Args:
        size: size of the file, in bytes, above 0.

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
    """Allocate and map the pages of a part of a mapped file, huge ones if possible. Its content is unchanged.

    Args:
        memory: part that begins at a page; it can become a huge page if it has the size and alignment of one.
    """
    address, nbytes = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    if nbytes == HUGE_PAGE_BYTES:
        bytes(memory[:1])  # the collapse needs a page to begin with
        if _libc.madvise(address, nbytes, _MADV_COLLAPSE) == 0:
            return
    if _libc.madvise(address, nbytes, _MADV_POPULATE_WRITE) != 0:
        bytes(memory[:: mmap.PAGESIZE])  # an older kernel


def map_pages(memory: memoryview, descriptor: int) -> None:
    """Map all existing pages of a mapped file into this process, so that no access has to wait for it later.

    Parts without pages are left out: they would get small ones.

    Args:
        memory: the file from its beginning.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start, stop in _with_pages(descriptor):
        if _libc.madvise(address + start, stop - start, _MADV_POPULATE_READ) != 0:
            bytes(memory[start : stop : mmap.PAGESIZE])  # an older kernel: a read maps many at once


def cpus_by_node() -> list[set[int]]:
    """Return the CPUs that this thread may run on, by NUMA node; nodes without any are left out."""
    own = os.sched_getaffinity(0)
    nodes = Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")
    found = [_cpus(file.read_text()) & own for file in sorted(nodes)]
    return [cpus for cpus in found if cpus]


def _cpus(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for first, *last in ranges for cpu in range(int(first), int((last or [first])[0]) + 1)}


def _with_pages(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that have pages (lseek(2), SEEK_DATA), each aligned to a page."""
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
