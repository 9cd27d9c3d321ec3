"""The wire form of a NodeCheck's status, and whether it fits into etcd, which takes 1.5 MiB. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from crds.findings import Finding
from crds.nodecheck import MAX_NODES, NodeCheckSpec, NodeCheckStatus, Withdrawal
from crds.texts import json_bytes, shortened
from reconcilers.nodecheck.scope import Scope

MAX_TEXTS = 60_000
"""Bytes of JSON for all messages of the verdicts, and as many for those of the withdrawals."""
MAX_BYTES = 1_350_000
"""Limit of a check that publishes another round."""
FOUND_BYTES = 450_000
"""Upper bound of all verdicts, evidence, links, racks and withdrawals."""
MAX_BYTES_AT_THE_END = 1_550_000
FIRST_ROUND_BYTES_A_NODE = 44
"""Bytes of a node's index and incarnation, and of its half of a group's address, port and keys."""


Entry = TypeVar("Entry", Finding, Withdrawal)


def to_wire(status: NodeCheckStatus) -> dict[str, Any]:
    """The wire form, with messages shortened to fit."""
    update = {
        "withdrawn": _within_budget(status.withdrawn),
        "node_results": _within_budget(status.node_results),
    }
    wire = status.model_copy(update=update).to_wire()
    for done in wire["rounds"]:
        done["reasons"] = [_full(test) for test in done["reasons"]]
    wire["rounds"] = [_full(done) for done in wire["rounds"]]
    wire["withdrawn"] = [_full(left) for left in wire["withdrawn"]]
    return wire


def _within_budget(entries: Sequence[Entry]) -> list[Entry]:
    """Shorten the messages, so that all together keep to MAX_TEXTS."""
    most = MAX_TEXTS // max(1, sum(bool(entry.message) for entry in entries))
    return [
        entry
        if (message := shortened(entry.message, most)) == entry.message
        else entry.model_copy(update={"message": message})
        for entry in entries
    ]


def has_no_room(spec: NodeCheckSpec, scope: Scope) -> bool:
    """Whether there are too many nodes for one check."""
    return len(scope.nodes) > MAX_NODES or first_round_bytes(spec, scope) > MAX_BYTES


def has_room_for_round(spec: NodeCheckSpec, published: NodeCheckStatus) -> bool:
    """Whether there is room for a round's groups now, and later for the verdicts in their place."""
    wire = to_wire(published)
    # Spec and status, as etcd stores them.
    now = json_bytes(spec.to_wire()) + json_bytes(wire)
    kept = now - json_bytes(wire["groups"]) + json_bytes([])
    return now <= MAX_BYTES and kept + FOUND_BYTES <= MAX_BYTES_AT_THE_END


def first_round_bytes(spec: NodeCheckSpec, scope: Scope) -> int:
    """Approximate size of a check of these nodes in its first round; most of it is names."""
    copies = 3 if spec.nodes is not None else 2  # in `spec.nodes`, in `nodes`, and in `groups`
    names = copies * _bytes_of_names(scope.nodes) + _bytes_of_names(scope.reused)
    return names + len(scope.nodes) * FIRST_ROUND_BYTES_A_NODE


def _bytes_of_names(nodes: Iterable[str]) -> int:
    return sum(len(node) + len('"",') for node in nodes)


def _full(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if value not in ("", [], {})}
