"""What finished NodeChecks say of nodes by now: who passed so lately that it need not be tested again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeResult, NodeVerdict


def fresh_passes(
    checks: Iterable[NodeCheck], nodes_created: Mapping[str, datetime], since: datetime
) -> frozenset[str]:
    """The nodes that passed the newest check on them, at or after `since`.

    A check that took a node's earlier pass for good tested it in part at most: that makes no new pass.

    Args:
        checks: finished or not, of any namespace.
        nodes_created: by name, of the nodes there are. A check from before a node's creation was of another
            machine, or of this one before its repair.
        since: passes of an earlier time count no more.
    """
    newest: dict[str, tuple[datetime, NodeResult]] = {}
    for check in checks:
        reused = {*check.status.reused}
        for ended, result in _results([check]):
            created = nodes_created.get(result.node)
            if created is None or ended < max(created, since):
                continue
            if result.node not in reused or result.verdict is not NodeVerdict.HEALTHY:
                _keep_newest(newest, ended, result)
    return frozenset(node for node, (_, result) in newest.items() if result.verdict is NodeVerdict.HEALTHY)


def newest_verdicts(checks: Iterable[NodeCheck]) -> dict[str, NodeResult]:
    """By node, the last word on it of all checks that succeeded."""
    newest: dict[str, tuple[datetime, NodeResult]] = {}
    for ended, result in _results(checks):
        _keep_newest(newest, ended, result)
    return {node: result for node, (_, result) in newest.items()}


def _keep_newest(newest: dict[str, tuple[datetime, NodeResult]], ended: datetime, result: NodeResult) -> None:
    """Of two verdicts of the same second, the one that is not Healthy stays."""
    known = newest.get(result.node)
    worse = result.verdict is not NodeVerdict.HEALTHY
    if known is None or ended > known[0] or (ended == known[0] and worse):
        newest[result.node] = (ended, result)


def _results(checks: Iterable[NodeCheck]) -> Iterable[tuple[datetime, NodeResult]]:
    for check in checks:
        status = check.status
        if status.phase is NodeCheckPhase.SUCCEEDED and status.completion_time is not None:
            for result in status.node_results:
                yield status.completion_time, result
