"""Findings on single nodes: of finished NodeChecks, of ended workers, and those that the Nodes keep.

A check decides on a node that it found faulty, or that passed tests with others. A node that it could not
judge, or found slow, is suspected: no node is cordoned for it, and no cordon is lifted. Checks with
`cordon: false` do not count. `reconcilers/observed/trust.py` says whose findings count.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.slices import Slices
from controller.wording import shortened
from crds.elasticworker import ElasticWorker, ExitClass
from crds.findings import Cause, Finding, Verdict
from crds.further_nodes import whole
from reconcilers.cordon.policy import MAX_EVIDENCE
from reconcilers.nodecheck.actions import action_for_error
from reconcilers.nodecheck.finished import BY_VERDICT, FinishedCheck, FinishedChecks, judged_nodes
from reconcilers.nodecheck.nodes import created_at
from reconcilers.nodecheck.record import read_record, with_findings
from reconcilers.nodecheck.reference import Reference, read_reference
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS


class NodeFindings:
    """Reads the findings on nodes from the caches."""

    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._workers = cache.store(ELASTICWORKERS)
        self._finished = cache.shared(FinishedChecks)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._trust = Trust(cache)

    def deciding(self, raw: dict[str, Any], known: Finding | None = None) -> list[Finding]:
        """Return the findings on a raw Node that count for the cluster and decide.

        Args:
            known: the one that was acted upon last, whose source may be gone.
        """
        node = raw["metadata"]["name"]
        reports = self._trust.counting(self._workers.by_index(BY_VERDICT, node), CLUSTER)
        accused = [finding_of_worker(worker, raw) for worker in self._parse_worker.readable(reports)]
        errors = [finding for finding in accused if finding is not None]
        after = last_error([*errors, *([known] if known is not None else [])])
        return [*decisions_of(self._on(raw), node, after), *errors]

    async def ignored(self, raw: dict[str, Any]) -> list[Finding]:
        """Return those that would decide, but do not count for the cluster."""
        node, created = raw["metadata"]["name"], created_at(raw)
        slices, found = Slices(), list[Finding | None]()
        for done in self._finished.ignored_on(node):
            if done.is_of(created):
                found.append(decision_of(done, node))
            await slices.pause()
        for accuser in self._workers.by_index(BY_VERDICT, node):
            if not self._trust.counts(accuser["metadata"]["namespace"], CLUSTER):
                found += (finding_of_worker(worker, raw) for worker in self._parse_worker.readable([accuser]))
            await slices.pause()
        return [finding for finding in found if finding is not None]

    def suspicions(self, raw: dict[str, Any]) -> list[Finding]:
        """Return findings of checks that could not judge a raw Node, or found it slow."""
        found = (suspicion_of(done, raw["metadata"]["name"]) for done in self._on(raw))
        return [finding for finding in found if finding is not None]

    def record_of(self, raw: dict[str, Any]) -> list[Finding]:
        """Return a raw Node's record, with the findings of checks since it was written."""
        name, new = raw["metadata"]["name"], list[Finding]()
        for done in self._cordoning(raw):
            finding = done.finding_on(name)
            if finding is not None and name not in done.untested:
                new.append(finding)
        return with_findings(read_record(raw), new)

    def reference_of(self, raw: dict[str, Any]) -> Reference | None:
        """Return how fast the class of a raw Node was at first, as long as the Node is of that class."""
        name = raw["metadata"]["name"]
        found = [done.references[name] for done in self._cordoning(raw) if name in done.references]
        first, new = read_reference(raw), max(found, key=lambda reference: reference.time, default=None)
        same = first is not None and (new is None or first.hardware_class == new.hardware_class)
        return first if same else new

    def source(self, finding: Finding) -> dict[str, Any] | None:
        """Return the NodeCheck or ElasticWorker that a finding is from, if it is still there."""
        store = self._checks if finding.kind == NODECHECKS.kind else self._workers
        return store.get(finding.namespace, finding.name)

    def _on(self, raw: dict[str, Any]) -> list[FinishedCheck]:
        """Return the checks of this machine that count."""
        found, created = self._finished.on(raw["metadata"]["name"], CLUSTER), created_at(raw)
        return [done for done in found if done.is_of(created)]

    def _cordoning(self, raw: dict[str, Any]) -> Iterable[FinishedCheck]:
        """Return those of them that may cordon."""
        return (done for done in self._on(raw) if done.check.spec.cordon)


def last_error(findings: Iterable[Finding]) -> datetime:
    """Return when training last ended on a node by a hardware error."""
    return max((found.time for found in findings if Cause.HARDWARE_ERROR in found.causes), default=LONG_AGO)


def decisions_of(checks: Iterable[FinishedCheck], node: str, after: datetime) -> list[Finding]:
    """Return what checks decide on a node. One that began before it failed, at `after`, does not clear it."""
    found = ((done, decision_of(done, node)) for done in checks)
    return [said for done, said in found if said and not (said.healthy and done.began < after)]


def decision_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding if it decides. A node that passed no round is not cleared, though not accused."""
    finding = _finding_of(done, node)
    if finding is None:
        return None
    decides = finding.verdict is Verdict.FAULTY or (finding.healthy and finding.passed > 0)
    return finding if decides else None


def suspicion_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding if the node is slow, or was tested and could not be cleared."""
    finding = _finding_of(done, node)
    is_open = finding is not None and finding.verdict in (Verdict.STRAGGLER, Verdict.INCONCLUSIVE)
    return finding if is_open and node not in done.withdrawn else None


def _finding_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding as a mark keeps it; None if the check is for reading only, or has not ended."""
    if not done.check.spec.cordon or done.check.status.completion_time is None:
        return None
    finding = done.finding_on(node)
    if finding is None:
        return None
    evidence = "" if finding.healthy else shortened(finding.message, MAX_EVIDENCE)
    return finding.model_copy(update={"message": evidence, "figures": {}, "failed_with": ()})


def finding_of_worker(worker: ElasticWorker, raw: dict[str, Any]) -> Finding | None:
    """Return the finding on a raw Node, if the worker's last Pod ended there by a hardware error.

    A node that was not in the cache then is this machine if it is older than the worker.
    """
    end, metadata = worker.status.last_exit, worker.metadata
    if end is None or end.exit_class is not ExitClass.HARDWARE_ERROR:
        return None
    if end.node_uid:
        is_of = end.node_uid == raw["metadata"]["uid"]
    else:
        is_of = (metadata.creation_timestamp or LONG_AGO) >= created_at(raw)
    if end.node_name != raw["metadata"]["name"] or not is_of:
        return None
    return Finding(
        node=end.node_name,
        verdict=Verdict.FAULTY,
        causes=(Cause.HARDWARE_ERROR,),
        message=shortened(end.message, MAX_EVIDENCE),
        action=action_for_error(end.message),
        time=end.time,
        source=f"{metadata.namespace}/{metadata.name}",
    )


def decided_nodes(check: dict[str, Any]) -> list[str]:
    """Return the nodes that a NodeCheck which may cordon has a verdict on, the faulty ones first."""
    if not check["spec"].get("cordon"):
        return []
    faulty = accused_nodes(check)
    return sorted(judged_nodes(check), key=lambda node: (node not in faulty, node))


def accused_nodes(check: dict[str, Any]) -> set[str]:
    """Return the nodes that a NodeCheck found faulty."""
    return set(whole(check).get("status", {}).get("faultyNodes") or ())


def failed_nodes(worker: dict[str, Any]) -> list[str]:
    """Return the node that an ElasticWorker accuses, if it does; index function of `BY_VERDICT`."""
    end = worker.get("status", {}).get("lastExit") or {}
    accused = end.get("exitClass") == ExitClass.HARDWARE_ERROR and end.get("nodeName")
    return [end["nodeName"]] if accused else []
