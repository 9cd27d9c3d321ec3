"""Whose turn it is on a node: one check tests it at a time.

A check has its nodes from when its tests begin until it is through with them; where its word counts
(`reconcilers/observed/trust.py`), from when they are fixed in its status. So one whose Pods never start holds
up nobody elsewhere. A check that does not get a node waits, and looks again when others are through with
theirs. Checks begin one after the other, so each sees what the one before has.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import Object
from controller.slices import Slices
from controller.wording import counted
from crds.nodecheck import NodeCheck, NodeCheckPhase
from reconcilers.findings.finished import is_finished
from reconcilers.nodecheck.nodes import Out
from reconcilers.nodecheck.steps import settled_nodes
from reconcilers.observed.trust import Trust
from reconcilers.runtime.kinds import NODECHECKS

BY_TURN = "turn"
"""Index of unfinished NodeChecks by the nodes in their status; those that wait for others are under
`WAITING`, too."""
WAITING = ""
WAITING_FOR_CHECK = "WaitingForCheck"
MOST_CALLED = 32
"""Checks that look again when one is through with nodes; the others look after a while."""
NOBODY = frozenset[str]()

Contested = Mapping[str, str]
"""The nodes that a check does not get, each with the check that has it, in words."""


def turn_keys(check: Object) -> Iterable[str]:
    """Index function of `BY_TURN`."""
    if is_finished(check) or check["metadata"].get("deletionTimestamp"):
        return []
    nodes = check.get("status", {}).get("nodes") or ()
    return [*nodes, WAITING] if waits(check) else nodes


def waits(check: Object) -> bool:
    """Whether a raw check waits for another one."""
    conditions = check.get("status", {}).get("conditions") or ()
    waiting = ("Running", "False", WAITING_FOR_CHECK)
    return any((c["type"], c["status"], c["reason"]) == waiting for c in conditions)


class Turns:
    """The nodes that checks have, as the cache shows them."""

    def __init__(self, cache: Cache) -> None:
        self._trust = Trust(cache)
        self._checks = cache.store(NODECHECKS)
        self._parse = cache.models(NODECHECKS, NodeCheck)
        self._taking = asyncio.Lock()
        self._taker: Request | None = None
        """The check that takes nodes, until its look is over and its begin in the cache."""

    async def take(self, check: NodeCheck, nodes: Collection[str]) -> Contested:
        """Let a check have nodes, which it writes next; return those that others have."""
        await self._taking.acquire()
        self._taker = Request(check.metadata.namespace, check.metadata.name)
        slices, contested, theirs = Slices(), dict[str, str](), dict[str, AbstractSet[str]]()
        for node in nodes:
            for raw in self._checks.by_index(BY_TURN, node):
                uid = raw["metadata"]["uid"]
                if uid not in theirs:
                    theirs[uid] = NOBODY if uid == check.metadata.uid else self._had(raw, check)
                if node in theirs[uid]:
                    contested[node] = _named(raw, check.metadata.namespace)
            await slices.pause()
        return contested

    def looked(self, check: Request) -> None:
        """The look at a check is over."""
        if self._taker == check:
            self._taker = None
            self._taking.release()

    def next_after(self, check: Object) -> list[Request]:
        """Return the checks that look again when one is through with nodes: administrators' first, then those
        of other namespaces, and the older ones first."""
        namespace, is_first = check["metadata"].get("namespace"), dict[str, bool]()

        def order(raw: Object) -> tuple[bool, bool, str, str]:
            metadata = raw["metadata"]
            own = metadata["namespace"]
            if own not in is_first:
                is_first[own] = self._trust.is_administrators(own)
            created = str(metadata.get("creationTimestamp") or "")
            return not is_first[own], own == namespace, created, metadata["uid"]

        waiting = self._checks.by_index(BY_TURN, WAITING)
        called = (raw["metadata"] for raw in heapq.nsmallest(MOST_CALLED, waiting, key=order))
        return [Request(metadata["namespace"], metadata["name"]) for metadata in called]

    def _had(self, raw: Object, reader: NodeCheck) -> AbstractSet[str]:
        """The nodes that a check keeps from another one."""
        check = self._parse.parse_or_none(raw)
        if check is None:
            return NOBODY
        tests = check.status.phase is NodeCheckPhase.RUNNING
        if not (tests or self._trust.counts(check.metadata.namespace, reader.metadata.namespace)):
            return NOBODY
        return set(check.status.nodes) - settled_nodes(check.status)


def _named(check: Object, namespace: str) -> str:
    """A check, for a message in a namespace, which must not name objects of others."""
    metadata = check["metadata"]
    is_ours = metadata["namespace"] == namespace
    return f"NodeCheck {namespace}/{metadata['name']}" if is_ours else "a check in another namespace"


def reason_to_wait(contested: Contested) -> str:
    """What a check waits for, in words."""
    node, others = min(contested), len(contested) - 1
    more = f", and {counted(others, 'more node is', 'more nodes are')} too" if others else ""
    return f"waits: node {node} is being checked by {contested[node]}{more}"


def left_out(contested: Contested, seconds: float) -> dict[str, Out]:
    """The nodes that a job's check has waited for in vain, each with the reason."""
    late = f"had it for all of timeoutSeconds ({seconds} s), so training goes on without a test of it"
    return {node: Out(f"{who} {late}", reason="Taken") for node, who in contested.items()}
