"""What finished NodeChecks say of a job's workers: who is unchecked, who is faulty, who is slow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeResult, NodeVerdict
from reconcilers.check.fresh import fresh_passes, newest_verdicts

LONG_AGO = datetime.min.replace(tzinfo=UTC)
MAX_EVIDENCE = 300
"""Characters of a verdict's evidence that a sentence on the job quotes."""


@dataclass(frozen=True)
class Checks:
    """The NodeChecks there are, as one read shows them."""

    of_job: tuple[NodeCheck, ...] = ()
    """Those that name the job, the oldest first."""
    everyones: tuple[NodeCheck, ...] = ()
    """All, of any namespace; those of the job too."""
    nodes_created: Mapping[str, datetime] = field(default_factory=dict)
    """When the workers' nodes were added to the cluster."""
    taken: frozenset[str] = frozenset()
    """Names that NodeChecks of the namespace have."""
    owned: frozenset[str] = frozenset()
    """Uids of those that the job made."""


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
    newest = newest_verdicts(checks.everyones)
    reasons = {w.spec.index: _found_faulty(w, checks.of_job, newest) for w in training}
    standing = Standing(
        faulty={index: reason for index, reason in reasons.items() if reason is not None},
        faulty_nodes=_faulty_nodes(checks.everyones, newest),
        cleared=frozenset(node for node, result in newest.items() if not _is(result, NodeVerdict.FAULTY)),
    )
    if not policy.enabled:
        return standing
    since = suspected_at or LONG_AGO
    fresh_since = max(since, now - timedelta(seconds=policy.fresh_seconds))
    fresh = fresh_passes(checks.everyones, checks.nodes_created, fresh_since)
    unchecked = (
        worker.spec.index
        for worker in training
        if _node(worker) not in fresh
        and not _vouched_for(worker, checks.of_job, newest, since)
        and not _given_up_on(worker, checks.of_job, since)
    )
    slow = (w.spec.index for w in training if _is(newest.get(_node(w)), NodeVerdict.STRAGGLER))
    return replace(
        standing,
        unchecked=frozenset(unchecked),
        slow=frozenset(slow) if policy.exclude_stragglers else frozenset(),
    )


def covers(check: NodeCheck, worker: ElasticWorker) -> bool:
    """Whether the check is to test the node of this slot."""
    return check.spec.workers is None or worker.spec.index in check.spec.workers


def finished_at(check: NodeCheck) -> datetime:
    return check.status.completion_time or check.metadata.creation_timestamp or LONG_AGO


def _faulty_nodes(checks: Sequence[NodeCheck], newest: Mapping[str, NodeResult]) -> tuple[str, ...]:
    """By the time of the verdict, the newest last."""
    found: dict[str, datetime] = {}
    for check in filter(_succeeded, checks):
        for node in check.status.faulty_nodes:
            if _is(newest.get(node), NodeVerdict.FAULTY):
                found[node] = max(found.get(node, LONG_AGO), finished_at(check))
    return tuple(sorted(found, key=lambda node: (found[node], node)))


def _found_faulty(
    worker: ElasticWorker, of_job: Sequence[NodeCheck], newest: Mapping[str, NodeResult]
) -> str | None:
    """Why, if the last word on its node is that it is faulty, and a check that it took part in says so."""
    node = _node(worker)
    if not _is(newest.get(node), NodeVerdict.FAULTY):
        return None
    for check in sorted(of_job, key=finished_at, reverse=True):
        result = _result_on(check, worker)
        if result is not None:
            evidence = f"node check {check.metadata.name} found {node} faulty: {result.message}"
            return evidence.removesuffix(": ")[:MAX_EVIDENCE] if _is(result, NodeVerdict.FAULTY) else None
    return None


def _vouched_for(
    worker: ElasticWorker, of_job: Sequence[NodeCheck], newest: Mapping[str, NodeResult], since: datetime
) -> bool:
    """Whether it took part in a check that holds nothing certain against its node, and nothing did later."""
    if _is(newest.get(_node(worker)), NodeVerdict.FAULTY):
        return False
    results = [_result_on(check, worker) for check in of_job if finished_at(check) >= since]
    return any(result is not None and not _is(result, NodeVerdict.FAULTY) for result in results)


def _given_up_on(worker: ElasticWorker, of_job: Sequence[NodeCheck], since: datetime) -> bool:
    """Whether its last check could not be carried out: that must not keep the job from training for ever.

    What came after the worker's last end is another Pod, and gets another try.
    """
    last_exit = worker.status.last_exit
    since = max(since, last_exit.time) if last_exit is not None else since
    finished = [c for c in of_job if c.status.phase is not None and c.status.phase.finished]
    last = max((c for c in finished if covers(c, worker)), key=finished_at, default=None)
    return last is not None and last.status.phase is NodeCheckPhase.FAILED and finished_at(last) >= since


def _result_on(check: NodeCheck, worker: ElasticWorker) -> NodeResult | None:
    """The verdict on this worker's node, if the check was of this very incarnation there.

    Of workers that share a node, one speaks for all. One that came there despite the verdict is another case.
    """
    status, index, node = check.status, worker.spec.index, _node(worker)
    if not _succeeded(check) or not covers(check, worker):
        return None
    spoke = (node, index, worker.spec.incarnation) in zip(
        status.nodes, status.workers, status.incarnations, strict=False
    )
    shared = index not in status.workers and node in status.nodes and node not in worker.spec.faulty_nodes
    if not spoke and not shared:
        return None
    return next((result for result in status.node_results if result.node == node), None)


def _node(worker: ElasticWorker) -> str:
    """Where this incarnation's Pod is; empty if it is nowhere yet."""
    status = worker.status
    current = status.observed_incarnation == worker.spec.incarnation
    return (status.node_name or "") if current else ""


def _succeeded(check: NodeCheck) -> bool:
    return check.status.phase is NodeCheckPhase.SUCCEEDED


def _is(result: NodeResult | None, verdict: NodeVerdict) -> bool:
    return result is not None and result.verdict is verdict
