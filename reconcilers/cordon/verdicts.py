"""What finished NodeChecks and ended workers say about nodes.

Only those that decide something are verdicts: a check that could not tell, or found a node slow, neither
cordons nor lifts, and makes a suspicion. One with `cordon: false` is for reading only. Whose word counts is
said by `reconcilers/observed/trust.py`, before anything is parsed.
"""

from __future__ import annotations

from typing import Any

from controller.cache import Cache
from controller.slices import Slices
from controller.wording import shortened
from crds.elasticworker import ElasticWorker, ExitClass
from crds.further_nodes import whole
from crds.nodecheck import INTERMITTENT, NodeVerdict
from healthcheck.diagnosis import Cause
from reconcilers.cordon.policy import MAX_EVIDENCE, Verdict, VerdictReason
from reconcilers.nodecheck.actions import action_for_text
from reconcilers.nodecheck.finished import ACCUSERS, BY_VERDICT, FinishedCheck, FinishedChecks, judged_nodes
from reconcilers.nodecheck.record import CheckResult
from reconcilers.nodecheck.reference import Reference
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS


class Verdicts:
    """Read from the caches: those that count for the cluster, and apart from them the others."""

    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._workers = cache.store(ELASTICWORKERS)
        self._finished = FinishedChecks(cache)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._trust = Trust(cache)

    def on(self, node: str) -> list[Verdict]:
        """The verdicts on one node that count."""
        reports = self._trust.counting(self._workers.by_index(BY_VERDICT, node), CLUSTER)
        said = [verdict_of_check(done, node) for done in self._finished.on(node, CLUSTER)]
        said += map(verdict_of_worker, self._parse_worker.readable(reports))
        return [verdict for verdict in said if verdict is not None]

    async def ignored_on(self, node: str) -> list[Verdict]:
        """The verdicts on one node that do not count by themselves: they may be many, and long."""
        slices, found = Slices(), list[Verdict | None]()
        for done in self._finished.ignored_on(node):
            found.append(verdict_of_check(done, node))
            await slices.pause()
        for raw in self._workers.by_index(BY_VERDICT, node):
            if not self._trust.counts(raw["metadata"]["namespace"], CLUSTER):
                found += map(verdict_of_worker, self._parse_worker.readable([raw]))
            await slices.pause()
        return [verdict for verdict in found if verdict is not None]

    def suspicions(self, node: str) -> list[Verdict]:
        """What checks that could not tell, or found it slow, say of one node."""
        said = (suspicion_of_check(done, node) for done in self._finished.on(node, CLUSTER))
        return [suspicion for suspicion in said if suspicion is not None]

    def results(self, node: str) -> list[CheckResult]:
        """Returns the results for the node's record."""
        checks = self._finished.on(node, CLUSTER)
        found = (done.record.get(node) for done in checks if done.check.spec.cordon)
        return [result for result in found if result is not None]

    def references(self, node: str) -> list[tuple[FinishedCheck, Reference]]:
        """How fast its class was, by the checks that found it healthy and may cordon."""
        found = ((done, done.references.get(node)) for done in self._finished.on(node, CLUSTER))
        return [(done, known) for done, known in found if known is not None and done.check.spec.cordon]

    def accused(self) -> set[str]:
        """The nodes that are called faulty by what counts, be it the newest verdict on them or not."""
        reports = self._trust.counting(self._workers.by_index(BY_VERDICT, ACCUSERS), CLUSTER)
        return self._finished.accused(CLUSTER).union(*map(failed_nodes, reports))

    def accused_by_anybody(self) -> set[str]:
        """The same, by what does not count as well. Nothing is parsed for it."""
        reports = self._workers.by_index(BY_VERDICT, ACCUSERS)
        checks = self._checks.by_index(BY_VERDICT, ACCUSERS)
        return set[str]().union(*map(failed_nodes, reports), *map(accused_nodes, checks))

    def speaker(self, verdict: Verdict) -> dict[str, Any] | None:
        """The object that said so, if it is still there."""
        store = self._checks if verdict.kind == NODECHECKS.kind else self._workers
        return store.get(verdict.namespace, verdict.name)


def verdict_of_check(done: FinishedCheck, node: str) -> Verdict | None:
    """A node that passed no round is not cleared, even with nothing held against it."""
    found = done.verdicts.get(node)
    if found is NodeVerdict.HEALTHY and node in done.passed:
        return _said(done, node, VerdictReason.CHECK_PASSED)
    return _said(done, node, VerdictReason.CHECK_FAILED) if found is NodeVerdict.FAULTY else None


SUSPICIONS = {
    NodeVerdict.STRAGGLER: VerdictReason.STRAGGLER,
    NodeVerdict.INCONCLUSIVE: VerdictReason.INCONCLUSIVE,
}


def suspicion_of_check(done: FinishedCheck, node: str) -> Verdict | None:
    """That it is slow, or that it was tested and could not be cleared."""
    found = done.verdicts.get(node)
    if found not in SUSPICIONS or node in done.withdrawn:
        return None
    return _said(done, node, SUSPICIONS[found])


PASS_NOW_AND_THEN = frozenset({Cause.PAIR_TEST.value, INTERMITTENT})
"""Causes of faults that later tests may pass by luck."""


def _said(done: FinishedCheck, node: str, reason: VerdictReason) -> Verdict | None:
    """None of a check that is for reading only, or has not ended."""
    status, metadata = done.check.status, done.check.metadata
    if not done.check.spec.cordon or status.completion_time is None:
        return None
    result, tests = done.results.get(node), done.record.get(node)
    by_tests = result is None or not PASS_NOW_AND_THEN.isdisjoint(result.causes)
    return Verdict(
        time=status.completion_time,
        healthy=reason is VerdictReason.CHECK_PASSED,
        reason=reason,
        kind=NODECHECKS.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        evidence=shortened(result.message, MAX_EVIDENCE) if result is not None else "",
        action=result.action if result is not None else None,
        comes_and_goes=reason is VerdictReason.CHECK_FAILED
        and by_tests
        and tests is not None
        and tests.passed > 0,
    )


def verdict_of_worker(worker: ElasticWorker) -> Verdict | None:
    """Returns the verdict on the node where its last Pod ended, if that was for a hardware error."""
    end, metadata = worker.status.last_exit, worker.metadata
    if end is None or end.exit_class is not ExitClass.HARDWARE_ERROR or not end.node_name:
        return None
    return Verdict(
        time=end.time,
        healthy=False,
        reason=VerdictReason.HARDWARE_ERROR,
        kind=ELASTICWORKERS.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        evidence=shortened(end.message, MAX_EVIDENCE),
        action=action_for_text(end.message),
    )


def decided_nodes(check: dict[str, Any]) -> list[str]:
    """The nodes that a NodeCheck speaks of which may cordon, the faulty ones first."""
    if not check["spec"].get("cordon"):
        return []
    faulty = accused_nodes(check)
    return sorted(judged_nodes(check), key=lambda node: (node not in faulty, node))


def accused_nodes(check: dict[str, Any]) -> set[str]:
    """The nodes that a NodeCheck found faulty."""
    return set(whole(check).get("status", {}).get("faultyNodes") or ())


def failed_nodes(worker: dict[str, Any]) -> list[str]:
    """The node that an ElasticWorker accuses, if it does."""
    end = worker.get("status", {}).get("lastExit") or {}
    accused = end.get("exitClass") == ExitClass.HARDWARE_ERROR and end.get("nodeName")
    return [end["nodeName"]] if accused else []


def accusation_keys(worker: dict[str, Any]) -> list[str]:
    """Index function of `BY_VERDICT`."""
    failed = failed_nodes(worker)
    return [*failed, ACCUSERS] if failed else []
