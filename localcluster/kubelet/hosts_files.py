"""The Pods' /etc/hosts: each knows all others by address, as cluster DNS would.

torch asks for the name behind every address that it connects to. Without an answer at hand it asks the
machine's DNS, which knows nothing of our addresses, and may take seconds to say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GONE = b"#"
"""In the place of the first character of its address, this takes a Pod's line back."""


@dataclass(frozen=True)
class _Entry:
    path: Path
    line: bytes
    has_service_name: bool


class HostsFiles:
    """The hosts files of all nodes' Pods. A new Pod is appended to the others' files, which may be mounted.

    A Pod with hostname and subdomain has the name that a headless Service would give it, as long as it runs:
    the next Pod of that name has another address, and a look-up must not return the old one. So the old line
    is turned into a comment by one byte, and no reader ever sees half of a file.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def introduce(self, address: str, hostname: str, path: Path, own: bytes, service_name: str = "") -> None:
        """Write a Pod's file before its first container starts; once is enough."""
        if address in self._entries:
            return
        # The second is the address as a socket for both versions of IP sees it.
        names = f"{service_name} {hostname}" if service_name else hostname
        line = f"{address}\t{names}\n::ffff:{address}\t{hostname}\n".encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        others = list(self._entries.values())
        path.write_bytes(own + line + b"".join(other.line for other in others))
        for other in others:
            if other.path.exists():
                with other.path.open("ab") as file:
                    file.write(line)
        self._entries[address] = _Entry(path, line, bool(service_name))

    def forget(self, address: str) -> None:
        gone = self._entries.pop(address, None)
        if gone is None or not gone.has_service_name:
            return
        for path in (other.path for other in self._entries.values() if other.path.exists()):
            with path.open("r+b") as file:
                place = file.read().find(b"\n" + gone.line)
                if place >= 0:
                    file.seek(place + 1)
                    file.write(GONE)
