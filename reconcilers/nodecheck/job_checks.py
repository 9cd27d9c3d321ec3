"""The NodeChecks of a job (`JobChecks`), and their consequences for its workers (`Standing`). Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any

from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import NotFound
from controller.resources import NODES
from controller.slices import Slices, computed
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.findings import MAX_EVIDENCE, Verdict
from crds.nodecheck import NodeCheck, NodeCheckPhase
from reconcilers.findings.finished import FinishedCheck, FinishedChecks, has_fresh_pass, newest_on
from reconcilers.nodecheck.scope import MAX_STEM, stem
from reconcilers.nodecheck.suspicion import suspected_at
from reconcilers.observed.builder import owner_reference
from reconcilers.observed.domains import shared_labels
from reconcilers.observed.ownership import BY_JOB, owner_uids
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Act, create, deleted
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import NODECHECKS
from reconcilers.world.vetting import UNJUDGED, Claim, Standing, Vetting

VERDICTS_OF_A_WORKER = 4
"""Verdicts on nodes that take as long to process as a worker."""


@dataclass(frozen=True)
class JobChecks(Vetting):
    """The NodeChecks that concern a job, from one read."""

    of_job: tuple[NodeCheck, ...] = ()
    """Checks that name the job, the oldest first."""
    finished: tuple[FinishedCheck, ...] = ()
    """Checks of `of_job` that have finished."""
    on_node: Mapping[str, Sequence[FinishedCheck]] = field(default_factory=dict)
    """The checks whose verdicts count for the job, by node: its workers' nodes, and all faulty ones. None
    that ended before the node was added to the cluster: it tested another machine of that name."""
    nodes_created: Mapping[str, datetime] = field(default_factory=dict)
    """Times when these nodes were added to the cluster."""
    replaced: frozenset[str] = frozenset()
    """Nodes whose verdicts are all about another machine of that name."""
    taken: frozenset[str] = frozenset()
    """Names of all NodeChecks of the namespace."""
    owned: frozenset[str] = frozenset()
    """Uids of the NodeChecks that the job owns."""

    @property
    def look_size(self) -> int:
        """The time to process these checks, in workers: a small job may have many."""
        return len(self.of_job) + sum(map(len, self.on_node.values())) // VERDICTS_OF_A_WORKER

    @cached_property
    def active(self) -> NodeCheck | None:
        """The oldest unfinished check of the job, whose checks go one at a time."""
        return active_check(self.of_job)

    @cached_property
    def claim(self) -> Claim | None:
        """The claim of the active check."""
        if self.active is None:
            return None
        workers = self.active.spec.workers
        tested = None if workers is None else frozenset(workers)
        return Claim(self.active.metadata.name, tested, "node check")

    def follows_failures(self, job: ElasticJob) -> bool:
        return job.spec.node_check.enabled

    def standing(self, job: ElasticJob, workers: Workers, now: datetime) -> Standing:
        since = suspected_at(job, workers, now)
        return replace(standing_of(job, workers, self, since, now), suspected_at=since)

    def request(self, job: ElasticJob, workers: Sequence[int]) -> Act:
        """The creation of a NodeCheck of these workers."""
        name = job.metadata.name
        return create(NODECHECKS, new_check(job, check_name(name, next_number(name, self.taken)), workers))

    def leftovers(self) -> list[Act]:
        """Deletions of outdated checks."""
        return [deleted(NODECHECKS, old.metadata) for old in outdated(self.of_job, self.owned)]

    @cached_property
    def newest_first(self) -> tuple[FinishedCheck, ...]:
        return tuple(sorted(self.finished, key=lambda done: done.ended, reverse=True))

    @cached_property
    def newest(self) -> Mapping[str, FinishedCheck]:
        """The newest check on a node, by node."""
        found = ((node, newest_on(node, checks)) for node, checks in self.on_node.items())
        return {node: done for node, done in found if done is not None}

    def last_verdict(self, node: str) -> Verdict | None:
        done = self.newest.get(node)
        return None if done is None else done.verdicts[node]


def standing_of(
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    checks: JobChecks,
    suspected_at: datetime | None,
    now: datetime,
) -> Standing:
    """Judge the workers; unless checks are `enabled`, only faults found by a person's check count."""
    policy = job.spec.node_check
    if not policy.enabled and not checks.on_node:
        return UNJUDGED
    training = [worker for worker in workers if worker.spec.type == names.WORKER]
    reasons = {w.spec.index: _found_faulty(w, checks) for w in training}
    verdicts = {node: checks.last_verdict(node) for node in checks.newest}
    standing = Standing(
        faulty={index: reason for index, reason in reasons.items() if reason is not None},
        faulty_nodes=_faulty_nodes(checks, verdicts),
        cleared=checks.replaced.union(n for n, verdict in verdicts.items() if verdict is not Verdict.FAULTY),
    )
    if not policy.enabled:
        return standing
    since = suspected_at or LONG_AGO
    fresh_since = max(since, now - timedelta(seconds=policy.fresh_seconds))
    unvetted = (
        worker.spec.index
        for worker in training
        if not _passed_lately(_node(worker), checks, fresh_since)
        and not _vouched_for(worker, checks, since)
        and not _has_failed_check(worker, checks, since)
    )
    slow = (w.spec.index for w in training if verdicts.get(_node(w)) is Verdict.STRAGGLER)
    return replace(
        standing,
        unvetted=frozenset(unvetted),
        slow=frozenset(slow) if policy.exclude_stragglers else frozenset(),
    )


def _passed_lately(node: str, checks: JobChecks, since: datetime) -> bool:
    return has_fresh_pass(node, checks.on_node.get(node, ()), checks.nodes_created.get(node), since)


def _faulty_nodes(checks: JobChecks, verdicts: Mapping[str, Verdict | None]) -> tuple[str, ...]:
    """The faulty nodes in order of their verdicts, the newest last."""
    faulty = [node for node, verdict in verdicts.items() if verdict is Verdict.FAULTY]
    return tuple(sorted(faulty, key=lambda node: (checks.newest[node].ended, node)))


def _found_faulty(worker: ElasticWorker, checks: JobChecks) -> str | None:
    """The evidence, if the last verdict on the worker's node is Faulty, as is that of the last check that the
    worker took part in."""
    node = _node(worker)
    if checks.last_verdict(node) is not Verdict.FAULTY:
        return None
    for done in checks.newest_first:
        verdict = done.verdict_on(worker, node)
        if verdict is not None:
            finding = done.evidence.get(node)
            evidence = f"node check {done.check.metadata.name} found {node} faulty"
            evidence = (
                f"{evidence}: {finding.message}" if finding is not None and finding.message else evidence
            )
            return evidence[:MAX_EVIDENCE] if verdict is Verdict.FAULTY else None
    return None


def _vouched_for(worker: ElasticWorker, checks: JobChecks, since: datetime) -> bool:
    """Whether the worker took part in a check that did not find its node faulty, and no later one did."""
    node = _node(worker)
    if checks.last_verdict(node) is Verdict.FAULTY:
        return False
    verdicts = (done.verdict_on(worker, node) for done in checks.finished if done.ended >= since)
    return any(verdict is not None and verdict is not Verdict.FAULTY for verdict in verdicts)


def _has_failed_check(worker: ElasticWorker, checks: JobChecks, since: datetime) -> bool:
    """Whether the worker's last check could not be carried out, which must not stop the job for ever.

    A check from before the worker's last end does not count, so that its next Pod gets another try.
    """
    last_exit = worker.status.last_exit
    since = max(since, last_exit.time) if last_exit is not None else since
    last = next((done for done in checks.newest_first if done.covers(worker)), None)
    failed = last is not None and last.check.status.phase is NodeCheckPhase.FAILED
    return last is not None and failed and last.ended >= since


def _node(worker: ElasticWorker) -> str:
    """The node of this incarnation's Pod; empty if it has none yet."""
    status = worker.status
    current = status.observed_incarnation == worker.spec.incarnation
    return (status.node_name or "") if current else ""


# --- the checks of a job ----------------------------------------------------------------------------------

KEPT_CHECKS = 5


def active_check(checks: Iterable[NodeCheck]) -> NodeCheck | None:
    """The oldest unfinished one of a job's checks, which go one at a time."""
    unfinished = [c for c in checks if not c.status.finished]
    return min(unfinished, key=_age, default=None)


def check_name(job: str, number: int) -> str:
    """`<job>-check-<n>`; a job's name that is too long is cut, with a digest added."""
    suffix = f"-{names.CHECK}-{number}"
    return stem(job, MAX_STEM - len(suffix)) + suffix


def next_number(job: str, taken: Collection[str]) -> int:
    """The next free number after the highest of the job's NodeChecks in the namespace."""
    numbers = (int(found[1]) for name in taken if (found := re.search(r"-check-([1-9]\d{0,8})$", name)))
    highest = max((number for number in numbers if check_name(job, number) in taken), default=0)
    return next(number for number in count(highest + 1) if check_name(job, number) not in taken)


def new_check(job: ElasticJob, name: str, workers: Sequence[int]) -> dict[str, Any]:
    """The NodeCheck object to create."""
    policy = job.spec.node_check
    metadata = {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {names.LABEL_JOB: job.metadata.name, names.LABEL_MANAGED_BY: names.MANAGER},
        "ownerReferences": [owner_reference("ElasticJob", job.metadata.name, job.metadata.uid)],
    }
    spec = {
        "jobName": job.metadata.name,
        "workers": list(workers),
        "cordon": policy.cordon,
        "timeoutSeconds": policy.timeout_seconds,
        "stragglerRatio": policy.straggler_ratio,
        "freshSeconds": policy.fresh_seconds,
        "topologyKeys": list(shared_labels(job.spec.elastic_policy.domain, policy.topology_keys)),
    }
    return NODECHECKS.manifest(metadata, spec=spec)


def outdated(checks: Iterable[NodeCheck], owned: Collection[str]) -> list[NodeCheck]:
    """The finished checks to delete: all that the job owns (by uid) except the newest."""
    finished = [check for check in checks if check.metadata.uid in owned and check.status.finished]
    return sorted(finished, key=_age, reverse=True)[KEPT_CHECKS:]


def _age(check: NodeCheck) -> tuple[datetime, str]:
    return check.metadata.creation_timestamp or LONG_AGO, check.metadata.uid


# --- reading -----------------------------------------------------------------------------------------------


class JobChecksView:
    """Reads the NodeChecks of jobs."""

    def __init__(self, client: AsyncClient, cache: Cache) -> None:
        self._client = client
        self._checks = cache.store(NODECHECKS)
        self._nodes = cache.store(NODES)
        self._finished = cache.shared(FinishedChecks)
        self._parse = cache.models(NODECHECKS, NodeCheck)

    async def of(self, job: ElasticJob, workers: Sequence[ElasticWorker]) -> JobChecks:
        """The NodeChecks that concern the job and its workers."""
        namespace = job.metadata.namespace
        named = self._checks.by_index(BY_JOB, f"{namespace}/{job.metadata.name}")
        found, active = await computed(len(named), self._of, job, named)
        found = await self._confirmed(job, found, active)
        if not found and not job.spec.node_check.enabled:
            return JobChecks()
        of_job, finished = await computed(len(named), self._read, found)
        theirs = {w.status.node_name for w in workers if w.status.node_name}
        avoided = {node for worker in workers for node in worker.spec.faulty_nodes}
        concerned = theirs | avoided | self._finished.accused(namespace)
        created = self._nodes_created(concerned)
        on_node, replaced = await self._on_each(concerned, namespace, created)
        return JobChecks(
            of_job=of_job,
            finished=finished,
            on_node=on_node,
            nodes_created=created,
            replaced=replaced,
            taken=frozenset(raw["metadata"]["name"] for raw in self._checks.list(namespace)),
            owned=frozenset(raw["metadata"]["uid"] for raw in found if job.metadata.uid in owner_uids(raw)),
        )

    async def _on_each(
        self, nodes: Collection[str], namespace: str, created: Mapping[str, datetime]
    ) -> tuple[dict[str, Sequence[FinishedCheck]], frozenset[str]]:
        """The checks of these machines, by node, and the nodes whose checks are all of earlier machines."""
        on_node: dict[str, Sequence[FinishedCheck]] = {}
        replaced, slices = set[str](), Slices()
        for node in nodes:
            found, since = self._finished.on(node, namespace), created.get(node, LONG_AGO)
            on_node[node] = [done for done in found if done.is_of(since)]
            if found and not on_node[node]:
                replaced.add(node)
            await slices.pause()
        return on_node, frozenset(replaced)

    def _of(
        self, job: ElasticJob, named: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], NodeCheck | None]:
        """Select the checks that are not an earlier job's of that name, and the active one."""
        found = [raw for raw in named if _concerns(raw, job)]
        return found, active_check(self._parse.readable(found))

    def _read(self, found: list[dict[str, Any]]) -> tuple[tuple[NodeCheck, ...], tuple[FinishedCheck, ...]]:
        """Parse these checks: all, the oldest first, and those that have finished."""
        return tuple(sorted(self._parse.readable(found), key=_age)), self._finished.of(found)

    async def _confirmed(
        self, job: ElasticJob, found: list[dict[str, Any]], active: NodeCheck | None
    ) -> list[dict[str, Any]]:
        """Read a check from the API server before it begins, or if the cache lacks the current one.

        With a stale cache, a finished check would take the job's world apart again.
        """
        published = job.status.active_check
        name = active.metadata.name if active is not None else published
        others = [raw for raw in found if raw["metadata"]["name"] != name]
        is_sure = len(others) < len(found) and (active is None or name == published)
        if name is None or is_sure or job.stops:
            return found
        try:
            raw = await self._client.get(NODECHECKS, name, job.metadata.namespace)
        except NotFound:
            return others
        return [*others, raw] if _concerns(raw, job) else others

    def _nodes_created(self, nodes: set[str]) -> dict[str, datetime]:
        found = {name: self._nodes.get(None, name) for name in nodes}
        return {name: _time(raw) for name, raw in found.items() if raw is not None}


def _concerns(raw: dict[str, Any], job: ElasticJob) -> bool:
    return (
        not raw["metadata"].get("deletionTimestamp")
        and {job.metadata.uid}.issuperset(owner_uids(raw))
        and _time(raw) >= (job.metadata.creation_timestamp or LONG_AGO)
    )


def _time(raw: dict[str, Any]) -> datetime:
    created = raw["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(created) if created else LONG_AGO
