"""The TCP connections of gloo's groups, found among all others of this process.

Each rank gives the others its address by the group's store: gloo writes the length of its host's name, the
name, the length of the addresses, and these as sockaddrs (ip(7), ipv6(7)). A connection is gloo's if one of
its ends has such an address.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any

_ADDRESS_BYTES: dict[int, int] = {socket.AF_INET: 8, socket.AF_INET6: 24}
"""Bytes of a sockaddr with family, port and address; what follows says nothing of a TCP connection."""
_SOCKADDR_BYTES = 128
_LENGTH_BYTES = 8
_libc: Any = ctypes.CDLL(None)
"""For calls that Python has for its own sockets alone; to make one of a descriptor may change its mode."""


class GroupConnections:
    """The TCP connections of the groups that this process has formed last. Any thread may close them."""

    def __init__(self) -> None:
        self._is_forming = False
        self._addresses: set[bytes] = set()
        """Addresses at which this process's groups, and their peers, listen."""

    @contextlib.contextmanager
    def formed(self) -> Iterator[None]:
        """Take note of the addresses that are exchanged meanwhile, and forget those of other rounds."""
        self._addresses = set()
        self._is_forming = True
        try:
            yield
        finally:
            self._is_forming = False

    def note(self, datum: bytes) -> None:
        """Take note of a datum that was set in the store, or read there."""
        if self._is_forming:
            name_bytes = int.from_bytes(datum[:_LENGTH_BYTES], sys.byteorder)
            at = _LENGTH_BYTES + name_bytes + _LENGTH_BYTES
            if address := _tcp_address(datum[at : at + _SOCKADDR_BYTES]):
                self._addresses.add(address)

    def close(self) -> None:
        """End them all; the descriptors stay gloo's."""
        addresses = self._addresses
        for copy in _sockets():
            own, peers = _end(_libc.getsockname, copy), _end(_libc.getpeername, copy)
            if peers and (own in addresses or peers in addresses):
                _libc.shutdown(copy, socket.SHUT_RDWR)


def _sockets() -> Iterator[int]:
    """Yield a duplicate of each of this process's sockets, which is closed with the next step.

    A descriptor may be another's by the next call, a duplicate not. What is no socket gets none: to close the
    duplicate of a file gives up the file's locks (fcntl(2)).
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # it has been closed
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                copy = os.dup(int(name))
                try:
                    yield copy
                finally:
                    os.close(copy)


def _end(call: Callable[..., int], descriptor: int) -> bytes:
    """Return the address of one end of a socket, as a sockaddr has it; empty if it has none of TCP's kind."""
    address = ctypes.create_string_buffer(_SOCKADDR_BYTES)
    if call(descriptor, address, ctypes.byref(ctypes.c_uint(_SOCKADDR_BYTES))):
        return b""
    return _tcp_address(address.raw)


def _tcp_address(sockaddr: bytes) -> bytes:
    """Return the part of a sockaddr that tells a TCP connection's end; empty if it is of another family."""
    family = int.from_bytes(sockaddr[:2], sys.byteorder)
    return sockaddr[: _ADDRESS_BYTES.get(family, 0)]
