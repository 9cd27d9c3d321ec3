"""What finished NodeChecks say of a job's workers: who is unchecked, who is faulty, who is slow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeVerdict
from reconcilers.check.finished import LONG_AGO, FinishedCheck, has_fresh_pass, newest_on

MAX_EVIDENCE = 300
"""Characters of a verdict's evidence that a sentence on the job quotes."""


@dataclass(frozen=True)
class Checks:
    """The NodeChecks that concern a job, as one read shows them."""

    of_job: tuple[NodeCheck, ...] = ()
    """Those that name the job, the oldest first."""
    finished: tuple[FinishedCheck, ...] = ()
    """Those of them that have finished."""
    on_node: Mapping[str, Sequence[FinishedCheck]] = field(default_factory=dict)
    """Those of any namespace with a verdict, by node: of the workers, and all that were found faulty."""
    nodes_created: Mapping[str, datetime] = field(default_factory=dict)
    """When the workers' nodes were added to the cluster."""

    @cached_property
    def newest_first(self) -> tuple[FinishedCheck, ...]:
        return tuple(sorted(self.finished, key=lambda done: done.ended, reverse=True))

    @cached_property
    def newest(self) -> Mapping[str, FinishedCheck]:
        """By node, the check with the last word on it."""
        found = ((node, newest_on(node, checks)) for node, checks in self.on_node.items())
        return {node: done for node, done in found if done is not None}

    def last_word(self, node: str) -> NodeVerdict | None:
        done = self.newest.get(node)
        return None if done is None else done.verdicts[node]


@dataclass(frozen=True)
class Standing:
    """What they say of the job's training workers, by index."""

    unchecked: frozenset[int] = frozenset()
    """No check vouches for their nodes, and the job wants one."""
    faulty: Mapping[int, str] = field(default_factory=dict)
    """Why they are to leave their nodes."""
    slow: frozenset[int] = frozenset()
    """Rather to be left out of the world."""
    faulty_nodes: tuple[str, ...] = ()
    """All that there are, whoever was there; the newest last."""
    cleared: frozenset[str] = frozenset()
    """Nodes whose last word is another."""


UNJUDGED = Standing()


def standing_of(
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    checks: Checks,
    suspected_at: datetime | None,
    now: datetime,
) -> Standing:
    """Without `enabled` in the job's policy, only what a person's check of it found faulty counts."""
    policy = job.spec.node_check
    training = [worker for worker in workers if worker.spec.type == names.WORKER]
    reasons = {w.spec.index: _found_faulty(w, checks) for w in training}
    words = {node: checks.last_word(node) for node in checks.newest}
    standing = Standing(
        faulty={index: reason for index, reason in reasons.items() if reason is not None},
        faulty_nodes=_faulty_nodes(checks, words),
        cleared=frozenset(node for node, word in words.items() if word is not NodeVerdict.FAULTY),
    )
    if not policy.enabled:
        return standing
    since = suspected_at or LONG_AGO
    fresh_since = max(since, now - timedelta(seconds=policy.fresh_seconds))
    unchecked = (
        worker.spec.index
        for worker in training
        if not _passed_lately(_node(worker), checks, fresh_since)
        and not _vouched_for(worker, checks, since)
        and not _has_failed_check(worker, checks, since)
    )
    slow = (w.spec.index for w in training if words.get(_node(w)) is NodeVerdict.STRAGGLER)
    return replace(
        standing,
        unchecked=frozenset(unchecked),
        slow=frozenset(slow) if policy.exclude_stragglers else frozenset(),
    )


def _passed_lately(node: str, checks: Checks, since: datetime) -> bool:
    return has_fresh_pass(node, checks.on_node.get(node, ()), checks.nodes_created.get(node), since)


def _faulty_nodes(checks: Checks, words: Mapping[str, NodeVerdict | None]) -> tuple[str, ...]:
    """By the time of the verdict, the newest last."""
    faulty = [node for node, word in words.items() if word is NodeVerdict.FAULTY]
    return tuple(sorted(faulty, key=lambda node: (checks.newest[node].ended, node)))


def _found_faulty(worker: ElasticWorker, checks: Checks) -> str | None:
    """Why, if the last word on its node is that it is faulty, and a check that it took part in says so."""
    node = _node(worker)
    if checks.last_word(node) is not NodeVerdict.FAULTY:
        return None
    for done in checks.newest_first:
        verdict = done.verdict_on(worker, node)
        if verdict is not None:
            known = done.results.get(node)
            evidence = f"node check {done.check.metadata.name} found {node} faulty"
            evidence = f"{evidence}: {known.message}" if known is not None and known.message else evidence
            return evidence[:MAX_EVIDENCE] if verdict is NodeVerdict.FAULTY else None
    return None


def _vouched_for(worker: ElasticWorker, checks: Checks, since: datetime) -> bool:
    """Whether it took part in a check that holds nothing certain against its node, and nothing did later."""
    node = _node(worker)
    if checks.last_word(node) is NodeVerdict.FAULTY:
        return False
    verdicts = (done.verdict_on(worker, node) for done in checks.finished if done.ended >= since)
    return any(verdict is not None and verdict is not NodeVerdict.FAULTY for verdict in verdicts)


def _has_failed_check(worker: ElasticWorker, checks: Checks, since: datetime) -> bool:
    """Whether its last check could not be carried out: that must not keep the job from training for ever.

    What came after the worker's last end is another Pod, and gets another try.
    """
    last_exit = worker.status.last_exit
    since = max(since, last_exit.time) if last_exit is not None else since
    last = next((done for done in checks.newest_first if done.covers(worker)), None)
    failed = last is not None and last.check.status.phase is NodeCheckPhase.FAILED
    return last is not None and failed and last.ended >= since


def _node(worker: ElasticWorker) -> str:
    """Where this incarnation's Pod is; empty if it is nowhere yet."""
    status = worker.status
    current = status.observed_incarnation == worker.spec.incarnation
    return (status.node_name or "") if current else ""
