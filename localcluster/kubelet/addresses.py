"""A loopback address for each Pod: Linux answers on all of 127.0.0.0/8, so nothing needs to be set up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

HOSTS = 254 * 254


class AddressPool:
    """127.x.y.z, x by cluster, so that two clusters on one machine stay apart. Freed ones come round last."""

    def __init__(self, cluster: str, in_use: Iterable[str] = ()) -> None:
        digest = hashlib.sha256(cluster.encode()).digest()
        self._network = f"127.{1 + digest[0] % 254}"
        self._next = int.from_bytes(digest[1:3])
        self._used = set(in_use)

    def take(self) -> str:
        for _attempt in range(HOSTS):
            third, fourth = divmod(self._next % HOSTS, 254)
            self._next += 1
            address = f"{self._network}.{1 + third}.{1 + fourth}"
            if address not in self._used:
                self._used.add(address)
                return address
        raise RuntimeError("all addresses for Pods are in use")

    def keep_or_take(self, address: str | None) -> str:
        """The address a Pod had before its kubelet went away, else a new one."""
        if not address:
            return self.take()
        self._used.add(address)
        return address

    def free(self, address: str) -> None:
        self._used.discard(address)
