"""What finished NodeChecks and ended workers say about nodes.

Only those that decide something are verdicts: a check that could not tell, or found a node slow, neither
cordons nor lifts, and makes a suspicion. One with `cordon: false` is for reading only.
"""

from __future__ import annotations

from typing import Any

from controller.cache import Cache
from controller.resources import ELASTICWORKERS, NODECHECKS
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


class Verdicts:
    """All verdicts there are, read from the caches."""

    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._workers = cache.store(ELASTICWORKERS)
        self._finished = FinishedChecks(cache)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    def on(self, node: str) -> list[Verdict]:
        """Those on one node."""
        said = [verdict_of_check(done, node) for done in self._finished.on(node)]
        reports = self._workers.by_index(BY_VERDICT, node)
        said += [verdict_of_worker(self._parse_worker.parse(raw)) for raw in reports]
        return [verdict for verdict in said if verdict is not None]

    def suspicions(self, node: str) -> list[Verdict]:
        """What checks that could not tell, or found it slow, say of one node."""
        said = (suspicion_of_check(done, node) for done in self._finished.on(node))
        return [suspicion for suspicion in said if suspicion is not None]

    def results(self, node: str) -> list[CheckResult]:
        """For its record."""
        found = (done.record.get(node) for done in self._finished.on(node) if done.check.spec.cordon)
        return [result for result in found if result is not None]

    def references(self, node: str) -> list[tuple[FinishedCheck, Reference]]:
        """How fast its class was, by the checks that found it healthy and may cordon."""
        found = ((done, done.references.get(node)) for done in self._finished.on(node))
        return [(done, known) for done, known in found if known is not None and done.check.spec.cordon]

    def accused(self) -> set[str]:
        """The nodes that somebody calls faulty, be it the newest word on them or not."""
        reports = self._workers.by_index(BY_VERDICT, ACCUSERS)
        return self._finished.accused().union(*map(failed_nodes, reports))

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
    """On the node where its last Pod ended, if it did so for a hardware error."""
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
    faulty = set(whole(check).get("status", {}).get("faultyNodes") or ())
    return sorted(judged_nodes(check), key=lambda node: (node not in faulty, node))


def failed_nodes(worker: dict[str, Any]) -> list[str]:
    """The node that an ElasticWorker accuses, if it does."""
    end = worker.get("status", {}).get("lastExit") or {}
    accused = end.get("exitClass") == ExitClass.HARDWARE_ERROR and end.get("nodeName")
    return [end["nodeName"]] if accused else []


def accusation_keys(worker: dict[str, Any]) -> list[str]:
    """Index function of `BY_VERDICT`."""
    failed = failed_nodes(worker)
    return [*failed, ACCUSERS] if failed else []
