"""Leases of nodes, read while an agent on the node is silent, and of no other node.

Kubelets of 5,000 nodes renew 500 Leases a second; a watch of them would cost more than all else that the
controller hears. So a Lease is read when an agent has missed a renewal, and again when its time-out is over.
https://kubernetes.io/docs/concepts/architecture/leases/#node-heart-beats
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from controller.client import Client
from controller.errors import Forbidden, NotFound
from controller.resources import LEASES, NODES, Object
from controller.store import Memory, Store
from reconcilers.observed.silence import (
    DEFAULT_NODE_LEASE_SECONDS,
    NodeLease,
    NodeWitness,
    witness_of,
)
from reconcilers.runtime.clock import Clock

NODE_LEASE_NAMESPACE = "kube-node-lease"
READ_AGAIN_SECONDS = 1.0
"""Workers of one node share what was read, for so long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Seen:
    """A node's Lease as it was read; times are by our own monotonic clock."""

    renewal: str
    renewal_seen_at: float
    first_read_at: float
    read_at: float
    duration_seconds: float

    def lease(self, now: float, silent_seconds: float) -> NodeLease:
        unchanged, observed = now - self.renewal_seen_at, now - self.first_read_at
        most = silent_seconds  # which is never longer than our own contact with the API server
        return NodeLease(min(unchanged, most), min(observed, most), self.duration_seconds)


class NodeLeases:
    """What nodes say of themselves, beside their agents."""

    def __init__(self, client: Client, nodes: Store, clock: Clock) -> None:
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._seen: Memory[_Seen] = nodes.memory()
        self._is_forbidden = False

    async def witness(self, name: str, silent_seconds: float) -> NodeWitness:
        """What is known now of the node of an agent that has been silent for so long; by one read at most."""
        node = self._nodes.get(None, name) if name else None
        if name and node is None:
            return witness_of(name, None, None, is_gone=await self._is_gone(name))
        lease = await self._lease(name, node, silent_seconds) if node is not None else None
        return witness_of(name, node, lease, is_gone=False)

    async def _is_gone(self, name: str) -> bool:
        """Whether the API server itself has no such node: the cache may be behind."""
        try:
            await self._client.get(NODES, name)
        except NotFound:
            return True
        return False

    async def _lease(self, name: str, node: Object, silent_seconds: float) -> NodeLease | None:
        """None if there is none, or we may not read it."""
        uid, now = node["metadata"]["uid"], self._clock.monotonic()
        seen = self._seen.get(uid)
        if seen is None or now - seen.read_at >= READ_AGAIN_SECONDS:
            spec = await self._read(name)
            if spec is None:
                self._seen.forget(uid)
                return None
            seen = self._seen.put(uid, _after(seen, spec, self._clock.monotonic()))
        return seen.lease(self._clock.monotonic(), silent_seconds)

    async def _read(self, name: str) -> Object | None:
        try:
            lease = await self._client.get(LEASES, name, NODE_LEASE_NAMESPACE)
        except NotFound:
            return None
        except Forbidden as error:
            if not self._is_forbidden:
                log.warning(
                    "cannot read Leases of nodes, so a dead node is noticed only when Kubernetes calls it "
                    "not ready; allow the controller to get leases in %s error=%s",
                    NODE_LEASE_NAMESPACE,
                    error,
                )
            self._is_forbidden = True
            return None
        spec: Object = lease.get("spec") or {}
        return spec


def _after(seen: _Seen | None, spec: Object, now: float) -> _Seen:
    renewal = str(spec.get("renewTime", ""))
    duration = float(spec.get("leaseDurationSeconds") or DEFAULT_NODE_LEASE_SECONDS)
    if seen is None:
        return _Seen(renewal, now, now, now, duration)
    renewal_seen_at = seen.renewal_seen_at if renewal == seen.renewal else now
    return _Seen(renewal, renewal_seen_at, seen.first_read_at, now, duration)
