"""The nodes that unfinished checks have, so that one check at a time tests a node.

A check has its nodes from the write of `status.nodes` until it has settled them. In its own namespace, and
everywhere if that is an administrator's (`reconcilers/observed/trust.py`), it keeps others from them for all
of that time; elsewhere only while it tests them, so a check whose Pods never start delays no other.

No check waits for longer than its `timeoutSeconds`. Then it goes on without the nodes that others have. An
administrator's takes those of other namespaces, whose checks leave them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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

BY_NODE = "checked node"
"""Index of unfinished NodeChecks by their nodes."""
WAITING_FOR_CHECK = "WaitingForCheck"
YIELDED = Out("it was left to another check, which waited for it", reason="Yielded")


def checked_nodes(check: Object) -> Iterable[str]:
    """Index function: the nodes of an unfinished check."""
    is_over = is_finished(check) or check["metadata"].get("deletionTimestamp")
    return [] if is_over else check.get("status", {}).get("nodes") or []


class Claims:
    def __init__(self, cache: Cache) -> None:
        self._trust = Trust(cache)
        self._checks = cache.store(NODECHECKS)
        self._parse = cache.models(NODECHECKS, NodeCheck)

    async def on(self, check: NodeCheck, nodes: Collection[str]) -> dict[str, NodeCheck]:
        """The nodes that other checks keep from this one, each with that check."""
        slices, found, settled = Slices(), dict[str, NodeCheck](), dict[str, frozenset[str]]()
        for node in nodes:
            await slices.pause()
            for other in self._parse.readable(self._checks.by_index(BY_NODE, node)):
                uid = other.metadata.uid
                if uid == check.metadata.uid or not self._counts(other, check.metadata.namespace):
                    continue
                if node not in settled.setdefault(uid, settled_nodes(other.status)):
                    found[node] = other
        return found

    async def to_yield(self, check: NodeCheck) -> dict[str, Out]:
        """The nodes that a check leaves to an administrator's, which has waited for them."""
        if self._trust.is_administrators(check.metadata.namespace):
            return {}
        settled = settled_nodes(check.status)
        claims = await self.on(check, [node for node in check.status.nodes if node not in settled])
        return {node: YIELDED for node, other in claims.items() if self._goes_first(other, check)}

    def standing(self, check: NodeCheck, claims: Mapping[str, NodeCheck]) -> dict[str, NodeCheck]:
        """The claims that stay: a check of nodes by an administrator gets those of other namespaces."""
        if check.spec.job_name is not None:
            return dict(claims)
        return {node: other for node, other in claims.items() if not self._goes_first(check, other)}

    def others_on(self, check: Object) -> list[Request]:
        """The checks that have nodes of this one, and may have to leave them."""
        found = {
            Request(other["metadata"]["namespace"], other["metadata"]["name"])
            for node in checked_nodes(check)
            for other in self._checks.by_index(BY_NODE, node)
        }
        return [*(found - {Request(check["metadata"]["namespace"], check["metadata"]["name"])})]

    def _counts(self, other: NodeCheck, namespace: str) -> bool:
        """Whether a check keeps those of a namespace from its nodes."""
        made_in, tests = other.metadata.namespace, other.status.phase is NodeCheckPhase.RUNNING
        return tests or self._trust.counts(made_in, namespace)

    def _goes_first(self, check: NodeCheck, other: NodeCheck) -> bool:
        ours, theirs = (self._trust.is_administrators(each.metadata.namespace) for each in (check, other))
        return ours and not theirs


def sentence_on(claims: Mapping[str, NodeCheck], namespace: str) -> str:
    """The nodes that a check waits for, as a message in its namespace."""
    node, others = min(claims), len(claims) - 1
    more = f", and {counted(others, 'more node is', 'more nodes are')} too" if others else ""
    return f"waits: node {node} is being checked by {_named(claims[node], namespace)}{more}"


def left_out(check: NodeCheck, claims: Mapping[str, NodeCheck]) -> dict[str, Out]:
    """The nodes for which a check has waited in vain, each with the reason."""
    limit, namespace = f"all of timeoutSeconds ({check.spec.timeout_seconds} s)", check.metadata.namespace
    return {
        node: Out(f"{_named(other, namespace)} had it for {limit}", reason="Taken")
        for node, other in claims.items()
    }


def _named(check: NodeCheck, namespace: str) -> str:
    """The check as a message in a namespace may name it, which excludes objects of other namespaces."""
    is_ours = check.metadata.namespace == namespace
    return f"NodeCheck {namespace}/{check.metadata.name}" if is_ours else "a check in another namespace"
