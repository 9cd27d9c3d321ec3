"""The Pods' /etc/hosts: each knows all others by address, as cluster DNS would.

torch asks for the name behind every address that it connects to. Without an answer at hand it asks the
machine's DNS, which knows nothing of our addresses, and may take seconds to say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Entry:
    path: Path
    line: bytes


class HostsFiles:
    """Of the Pods of all nodes. A newcomer is appended to the others' files, which may be mounted."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def introduce(self, address: str, hostname: str, path: Path, own: bytes) -> None:
        """Write a Pod's file before its first container starts; once is enough."""
        if address in self._entries:
            return
        # The second is the address as a socket for both versions of IP sees it.
        line = f"{address}\t{hostname}\n::ffff:{address}\t{hostname}\n".encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        others = list(self._entries.values())
        path.write_bytes(own + line + b"".join(other.line for other in others))
        for other in others:
            if other.path.exists():
                with other.path.open("ab") as file:
                    file.write(line)
        self._entries[address] = _Entry(path, line)

    def forget(self, address: str) -> None:
        self._entries.pop(address, None)
