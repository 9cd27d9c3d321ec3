"""Finds the TCP connections of gloo's groups among all connections of this process.

Each rank publishes its address in the group's store: gloo writes the length of its host's name, the name, the
length of the addresses, and these as sockaddrs (ip(7), ipv6(7)). A connection is gloo's if one of its ends
has such an address.
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
"""Length of the part of a sockaddr with family, port and address, which identifies the end of a
connection."""
_SOCKADDR_BYTES = 128
_LENGTH_BYTES = 8
_libc: Any = ctypes.CDLL(None)
"""C library, for calls on bare descriptors: to make a Python socket of one may change its mode."""


class GroupConnections:
    """TCP connections of the newest groups of this process. Any thread may close them."""

    def __init__(self) -> None:
        self._is_forming = False
        self._addresses: set[bytes] = set()
        """Addresses at which this process's groups, and their peers, listen."""

    @contextlib.contextmanager
    def formed(self) -> Iterator[None]:
        """Forget the addresses of other rounds, and note those exchanged while the context is open."""
        self._addresses = set()
        self._is_forming = True
        try:
            yield
        finally:
            self._is_forming = False

    def note(self, datum: bytes) -> None:
        """Note a value that was set in the store, or read from it."""
        if self._is_forming:
            name_bytes = int.from_bytes(datum[:_LENGTH_BYTES], sys.byteorder)
            at = _LENGTH_BYTES + name_bytes + _LENGTH_BYTES
            if address := _tcp_address(datum[at : at + _SOCKADDR_BYTES]):
                self._addresses.add(address)

    def close(self) -> None:
        """Shut all of them down; gloo still owns the descriptors."""
        addresses = self._addresses
        for copy in _sockets():
            own, peers = _end(_libc.getsockname, copy), _end(_libc.getpeername, copy)
            if peers and (own in addresses or peers in addresses):
                _libc.shutdown(copy, socket.SHUT_RDWR)


def _sockets() -> Iterator[int]:
    """Yield a duplicate of each of this process's sockets, which the next step closes.

    A descriptor may be closed and reused at any time, but a duplicate is not. Only sockets are duplicated: to
    close the duplicate of a file would release the file's locks (fcntl(2)).
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
    """Return the TCP address of one end of a socket, in the form of a sockaddr; empty if it has none."""
    address = ctypes.create_string_buffer(_SOCKADDR_BYTES)
    if call(descriptor, address, ctypes.byref(ctypes.c_uint(_SOCKADDR_BYTES))):
        return b""
    return _tcp_address(address.raw)


def _tcp_address(sockaddr: bytes) -> bytes:
    """Return the family, port and address of a sockaddr; empty if it is of another family."""
    family = int.from_bytes(sockaddr[:2], sys.byteorder)
    return sockaddr[: _ADDRESS_BYTES.get(family, 0)]
