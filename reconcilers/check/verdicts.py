"""What finished NodeChecks and ended workers say about nodes.

Only those that decide something: a check that could not tell, or found a node slow, neither cordons nor
lifts, and one with `cordon: false` is for reading only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.resources import ELASTICWORKERS, NODECHECKS
from crds.elasticworker import ElasticWorker, ExitClass
from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeVerdict
from reconcilers.cordon.mark import Verdict, VerdictReason

BY_EXIT_CLASS = "last-exit-class"


@dataclass(frozen=True)
class Evidence:
    """What one object says of nodes."""

    kind: str
    namespace: str
    name: str
    time: datetime
    accusation: VerdictReason
    faulty: frozenset[str]
    healthy: frozenset[str] = frozenset()

    def on(self, node: str) -> Verdict | None:
        if node not in self.faulty and node not in self.healthy:
            return None
        healthy = node not in self.faulty
        return Verdict(
            time=self.time,
            healthy=healthy,
            reason=VerdictReason.CHECK_PASSED if healthy else self.accusation,
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
        )


class Verdicts:
    """All verdicts there are, read from the caches."""

    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._of_checks: dict[tuple[str, str], Evidence | None] = {}

    def on(self, node: str) -> list[Verdict]:
        """Those on one node."""
        said = (evidence.on(node) for evidence in self._all())
        return [verdict for verdict in said if verdict is not None]

    def accused(self) -> set[str]:
        """The nodes that somebody calls faulty, be it the newest word on them or not."""
        return set[str]().union(*(evidence.faulty for evidence in self._all()))

    def speaker(self, verdict: Verdict) -> dict[str, Any] | None:
        """The object that said so, if it is still there."""
        store = self._checks if verdict.kind == NODECHECKS.kind else self._workers
        return store.get(verdict.namespace, verdict.name)

    def _all(self) -> list[Evidence]:
        checks = {_version(raw): raw for raw in self._checks.list() if is_decisive(raw)}
        known = self._of_checks
        self._of_checks = {
            version: known[version] if version in known else evidence_of_check(NodeCheck.model_validate(raw))
            for version, raw in checks.items()
        }
        failed = self._workers.by_index(BY_EXIT_CLASS, ExitClass.HARDWARE_ERROR)
        reports = [evidence_of_worker(self._parse_worker.parse(raw)) for raw in failed]
        return [said for said in (*self._of_checks.values(), *reports) if said is not None]


def evidence_of_check(check: NodeCheck) -> Evidence | None:
    """Of a finished check. A node that passed no round is not cleared, even with nothing held against it."""
    status, metadata = check.status, check.metadata
    if status.completion_time is None:
        return None
    faulty = {*status.faulty_nodes}
    passed = {
        member
        for round_ in status.rounds
        for group in round_.groups
        if group.passed
        for member in group.members
    }
    well = {result.node for result in status.node_results if result.verdict is NodeVerdict.HEALTHY}
    return Evidence(
        kind=NODECHECKS.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        time=status.completion_time,
        accusation=VerdictReason.CHECK_FAILED,
        faulty=frozenset(faulty),
        healthy=frozenset(well & passed),
    )


def evidence_of_worker(worker: ElasticWorker) -> Evidence | None:
    """On the node where its last Pod ended, if it did so for a hardware error."""
    end, metadata = worker.status.last_exit, worker.metadata
    if end is None or end.exit_class is not ExitClass.HARDWARE_ERROR or not end.node_name:
        return None
    return Evidence(
        kind=ELASTICWORKERS.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        time=end.time,
        accusation=VerdictReason.HARDWARE_ERROR,
        faulty=frozenset([end.node_name]),
    )


def is_decisive(check: dict[str, Any]) -> bool:
    """Whether a NodeCheck is finished and may cordon."""
    finished = check.get("status", {}).get("phase") == NodeCheckPhase.SUCCEEDED
    return finished and bool(check["spec"].get("cordon"))


def judged_nodes(check: dict[str, Any]) -> set[str]:
    """The nodes that a decisive NodeCheck speaks of."""
    if not is_decisive(check):
        return set()
    status = check["status"]
    return {result["node"] for result in status.get("nodeResults", ())} | {*status.get("faultyNodes", ())}


def failed_nodes(worker: dict[str, Any]) -> list[str]:
    """The node that an ElasticWorker accuses, if it does."""
    end = worker.get("status", {}).get("lastExit") or {}
    accused = end.get("exitClass") == ExitClass.HARDWARE_ERROR and end.get("nodeName")
    return [end["nodeName"]] if accused else []


def last_exit_classes(worker: dict[str, Any]) -> Iterable[str]:
    """Index function: how an ElasticWorker's last Pod ended."""
    end = worker.get("status", {}).get("lastExit")
    return [end["exitClass"]] if end else []


def _version(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
