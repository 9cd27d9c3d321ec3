"""Verdicts and findings of finished NodeChecks: indexed once for each version of a check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from controller.store import ObjectMemory
from crds.elasticworker import ElasticWorker
from crds.findings import UNHEALTHY, Cause, Finding, Verdict
from crds.nodecheck import NodeCheck, NodeCheckPhase, nodes_in
from healthcheck.intermittent import NodeTests
from reconcilers.findings.machine import created_at
from reconcilers.findings.record import read_record, tests_in, untested_nodes, with_findings
from reconcilers.findings.reference import Reference, read_reference, references_left_by
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import NODECHECKS

TYPE_CHECKING = False
if TYPE_CHECKING:  # the CLI imports this module, and loads no client
    from controller.cache import Cache

BY_VERDICT = "verdict"
"""Index of NodeChecks and ElasticWorkers by the nodes on which they have a verdict."""
ACCUSERS = ""
"""Key in that index of all that found a node faulty."""


@dataclass(frozen=True)
class FinishedCheck:
    """A NodeCheck that has finished, with its look-up tables."""

    check: NodeCheck

    @property
    def ended(self) -> datetime:
        return self.check.status.completion_time or self.check.metadata.creation_timestamp or LONG_AGO

    @property
    def began(self) -> datetime:
        """When its nodes were chosen, before any test, so it has not seen any later failure."""
        return self.check.status.start_time or self.ended

    def is_of(self, created: datetime) -> bool:
        """Whether it tested the machine that was added to the cluster at that time, not another of its name.

        Both times are by the clock of the API server.
        """
        made = self.check.metadata.creation_timestamp or self.ended  # every stored object has the first
        return created <= (self.check.status.nodes_as_of or made)

    @property
    def succeeded(self) -> bool:
        return self.check.status.phase is NodeCheckPhase.SUCCEEDED

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """Verdicts on all its nodes, by name; empty unless it succeeded."""
        status = self.check.status
        if not self.succeeded:
            return {}
        verdicts = dict.fromkeys(status.nodes, Verdict.HEALTHY)
        for verdict in reversed(UNHEALTHY):
            verdicts |= dict.fromkeys(status.nodes_in(verdict), verdict)
        return verdicts

    @cached_property
    def evidence(self) -> Mapping[str, Finding]:
        """Findings whose evidence is kept, by node."""
        return {finding.node: finding for finding in self.check.status.node_results}

    def finding_on(self, node: str) -> Finding | None:
        """Return the finding on a node in the form of a Node's record; None if there is none."""
        verdict = self.verdicts.get(node)
        if verdict is None:
            return None
        metadata, away = self.check.metadata, node in self.withdrawn
        causes = (Cause.WITHDRAWN,) if away and verdict is Verdict.INCONCLUSIVE else ()
        finding = self.evidence.get(node) or Finding(node=node, verdict=verdict, causes=causes)
        source = {
            "verdict": verdict,
            "time": self.ended,
            "source": f"{metadata.namespace}/{metadata.name}",
            "uid": metadata.uid[:8],
        }
        tests = NodeTests() if away else self._tests.get(node, NodeTests())
        return tests.added_to(finding.model_copy(update=source))

    @cached_property
    def untested(self) -> Set[str]:
        """Nodes that the check did not test, or not to the end."""
        return untested_nodes(self.check.status, self._tests.keys())

    @cached_property
    def withdrawn(self) -> frozenset[str]:
        """Nodes that could not be tested to the end for a reason other than a fault."""
        return frozenset(self.check.status.nodes_in(Cause.WITHDRAWN))

    @cached_property
    def _tests(self) -> Mapping[str, NodeTests]:
        return tests_in(self.check.status, self.check.status.nodes_in(Verdict.FAULTY))

    @cached_property
    def references(self) -> Mapping[str, Reference]:
        """Speed of the hardware class of each node that it found healthy."""
        return references_left_by(self.check, self.verdicts)

    def covers(self, worker: ElasticWorker) -> bool:
        """Whether the check was to test the node of this slot."""
        return self._wanted is None or worker.spec.index in self._wanted

    def verdict_on(self, worker: ElasticWorker, node: str) -> Verdict | None:
        """Return the verdict on this worker's node, if the check tested this incarnation there.

        If workers share a node, the check of one counts for all, but not for one that came despite the
        verdict.
        """
        if not self.succeeded or not self.covers(worker):
            return None
        index = worker.spec.index
        is_own = self._testers.get(node) == (index, worker.spec.incarnation)
        is_shared = (
            node in self._testers and index not in self._indices and node not in worker.spec.faulty_nodes
        )
        return self.verdicts.get(node) if is_own or is_shared else None

    @cached_property
    def _wanted(self) -> frozenset[int] | None:
        workers = self.check.spec.workers
        return None if workers is None else frozenset(workers)

    @cached_property
    def _testers(self) -> Mapping[str, tuple[int, int]]:
        """Index and incarnation of the worker that tested a node, by node."""
        status = self.check.status
        return dict(zip(status.nodes, zip(status.workers, status.incarnations, strict=False), strict=False))

    @cached_property
    def _indices(self) -> frozenset[int]:
        return frozenset(self.check.status.workers)

    @cached_property
    def reused(self) -> frozenset[str]:
        return frozenset(self.check.status.reused)


class FinishedChecks:
    """The finished checks in the cache whose verdicts count for a reader (`observed/trust.py`)."""

    def __init__(self, cache: Cache) -> None:
        self._store = cache.store(NODECHECKS)
        self._trust = Trust(cache)
        self._models = cache.models(NODECHECKS, NodeCheck)
        self._indexed_checks: ObjectMemory[FinishedCheck] = self._store.memory()

    def on(self, node: str, reader: str | None) -> tuple[FinishedCheck, ...]:
        """Return the checks whose verdict on the node counts for the reader (`Trust.counts`)."""
        return self.of(self._trust.counting(self._store.by_index(BY_VERDICT, node), reader))

    def of_machine(self, node: dict[str, Any]) -> list[FinishedCheck]:
        """Return the checks of a raw Node's machine that count for the cluster."""
        created = created_at(node)
        return [done for done in self.on(node["metadata"]["name"], CLUSTER) if done.is_of(created)]

    def record_of(self, node: dict[str, Any]) -> list[Finding]:
        """Return a raw Node's record, with the findings of later checks."""
        name, new = node["metadata"]["name"], list[Finding]()
        for done in self._cordoning(node):
            finding = done.finding_on(name)
            if finding is not None and name not in done.untested:
                new.append(finding)
        return with_findings(read_record(node), new)

    def reference_of(self, node: dict[str, Any]) -> Reference | None:
        """Return the first speed of a raw Node's hardware class, as long as the Node is of that class."""
        name = node["metadata"]["name"]
        found = [done.references[name] for done in self._cordoning(node) if name in done.references]
        first, new = read_reference(node), max(found, key=lambda reference: reference.time, default=None)
        same = first is not None and (new is None or first.hardware_class == new.hardware_class)
        return first if same else new

    def _cordoning(self, node: dict[str, Any]) -> list[FinishedCheck]:
        return [done for done in self.of_machine(node) if done.check.spec.cordon]

    def ignored_on(self, node: str) -> tuple[FinishedCheck, ...]:
        """Return the checks with a verdict on the node that does not count for the cluster."""
        return self.of(
            raw
            for raw in self._store.by_index(BY_VERDICT, node)
            if not self._trust.counts(raw["metadata"]["namespace"], CLUSTER)
        )

    def accused(self, reader: str | None) -> set[str]:
        """Return the nodes that any check that counts found faulty, even if it is not the newest one."""
        accusers = self._trust.counting(self._store.by_index(BY_VERDICT, ACCUSERS), reader)
        checks = self._models.readable(accusers)
        return {node for check in checks for node in check.status.nodes_in(Verdict.FAULTY)}

    def of(self, raws: Iterable[dict[str, Any]]) -> tuple[FinishedCheck, ...]:
        """Return the finished checks among these that are readable and not being deleted."""
        ended = (raw for raw in raws if is_finished(raw) and not raw["metadata"].get("deletionTimestamp"))
        return tuple(map(self._indexed, self._models.readable(ended)))

    def _indexed(self, check: NodeCheck) -> FinishedCheck:
        found = self._indexed_checks.get(check.metadata.uid)
        if found is None or found.check is not check:
            found = self._indexed_checks.put(check.metadata.uid, FinishedCheck(check))
        return found


def newest_on(node: str, checks: Iterable[FinishedCheck]) -> FinishedCheck | None:
    """Return the newest check on the node. Of two of the same second, a pass counts less."""
    return max(
        checks, key=lambda done: (done.ended, done.verdicts[node] is not Verdict.HEALTHY), default=None
    )


def has_fresh_pass(
    node: str, checks: Sequence[FinishedCheck], created: datetime | None, since: datetime
) -> bool:
    """Whether the node passed the newest check on it, and that began at or after `since` (`last_pass`)."""
    passed = _newest_pass(node, checks, created)
    return passed is not None and passed.began >= since


def last_pass(node: str, checks: Sequence[FinishedCheck], created: datetime | None) -> datetime | None:
    """Return when the node passed the newest check on it; None if it did not pass that (`_newest_pass`)."""
    passed = _newest_pass(node, checks, created)
    return None if passed is None else passed.ended


def _newest_pass(
    node: str, checks: Sequence[FinishedCheck], created: datetime | None
) -> FinishedCheck | None:
    """Return the newest check on the node, if the node passed it.

    A check that reused a node's earlier pass tested at most a part of it, so it is no new pass.

    Args:
        checks: checks with a verdict on the node.
        created: when the node was added; None if it is gone. An earlier check tested another machine, or this
            one before its repair.
    """
    if created is None:
        return None
    own = (
        done
        for done in checks
        if done.is_of(created) and (node not in done.reused or done.verdicts[node] is not Verdict.HEALTHY)
    )
    newest = newest_on(node, own)
    return newest if newest is not None and newest.verdicts[node] is Verdict.HEALTHY else None


def is_finished(check: dict[str, Any]) -> bool:
    phase = check.get("status", {}).get("phase")
    return phase in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


def judged_nodes(check: dict[str, Any]) -> set[str]:
    """Return the nodes on which a NodeCheck has a verdict."""
    status = check.get("status", {})
    return {*status.get("nodes", ())} if status.get("phase") == NodeCheckPhase.SUCCEEDED else set()


def decided_nodes(check: dict[str, Any]) -> list[str]:
    """Return the nodes with a verdict of a NodeCheck that may cordon, the faulty ones first."""
    if not check["spec"].get("cordon"):
        return []
    faulty = accused_nodes(check)
    return sorted(judged_nodes(check), key=lambda node: (node not in faulty, node))


def accused_nodes(check: dict[str, Any]) -> set[str]:
    """Return the nodes that a NodeCheck found faulty."""
    return {*nodes_in(check.get("status", {}), Verdict.FAULTY)}


def verdict_keys(check: dict[str, Any]) -> set[str]:
    """Index function of `BY_VERDICT`."""
    judged = judged_nodes(check)
    is_accuser = judged and Verdict.FAULTY in check["status"].get("nodeSets", ())
    return judged | {ACCUSERS} if is_accuser else judged
