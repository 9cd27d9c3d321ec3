"""The evidence by which `silence.py` judges a silent agent: its Lease, its node's Lease, and its peers.

Leases of nodes are not watched, but read while an agent on the node is silent: kubelets of 5,000 nodes renew
500 Leases a second. https://kubernetes.io/docs/concepts/architecture/leases/#node-heart-beats
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from controller.errors import Forbidden, NotFound
from controller.resources import LEASES, NODES, PODS, Object
from controller.slices import Slices
from controller.store import Change, ObjectMemory
from crds.elasticworker import ElasticWorker, WorkerPhase
from reconcilers.observed.builder import heartbeat_seconds, labels_of, owner_reference
from reconcilers.observed.containers import containers_of, training_container
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.observed.silence import (
    DEFAULT_NODE_LEASE_SECONDS,
    Company,
    NodeLease,
    NodeWitness,
    Silence,
    SilenceVerdict,
    company_of,
    judge_silence,
    witness_of,
)
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.runtime.tools import Tools
from reconcilers.worker.assignment import Assignment
from reconcilers.worker.dialling import Dials
from reconcilers.worker.reach import Reach


def lease_of(
    worker: ElasticWorker, pod: dict[str, Any] | None, timeout_seconds: float, now: datetime
) -> dict[str, Any]:
    """The Lease to create for a worker; its agent renews it under the Pod's name.

    A Lease that replaces a deleted one counts as renewed now if the Pod's agent has reported: an agent that
    does not renew it is silent from now on. https://kubernetes.io/docs/concepts/architecture/leases/
    """
    spec: dict[str, Any] = {"leaseDurationSeconds": int(timeout_seconds)}
    if pod is not None and _has_reported(worker, pod):
        renewed = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec |= {"holderIdentity": pod["metadata"]["name"], "renewTime": renewed}
    metadata = {
        "name": worker.metadata.name,
        "namespace": worker.metadata.namespace,
        "labels": labels_of(worker),
        "ownerReferences": [owner_reference("ElasticWorker", worker.metadata.name, worker.metadata.uid)],
    }
    return LEASES.manifest(metadata, spec=spec)


RESTART_SECONDS = 60.0
"""Time in which a restarted container's agent listens again, at another port than before."""


class Heartbeats:
    """Ages of the workers' Leases."""

    def __init__(self, tools: Tools) -> None:
        pods, leases, clock = tools.cache.store(PODS), tools.cache.store(LEASES), tools.clock
        self._client, self._contact, self._clock = tools.client, tools.contact, clock
        self._runs = Observations(pods, clock.monotonic)
        """Current run of the training container, by Pod."""
        self._renewals = Observations(leases, clock.monotonic)
        self._renewed: ObjectMemory[bool] = leases.memory()

    def note(self, change: Change) -> None:
        """Handle a change of a Lease in the cache: note the time of a renewal. It triggers no reconciliation
        (`more_than_a_renewal`)."""
        uid, renewed = change.current["metadata"]["uid"], change.current.get("spec", {}).get("renewTime")
        self._renewals.age_seconds(uid, renewed)
        if change.old is not None and change.old.get("spec", {}).get("renewTime") != renewed:
            self._renewed.put(uid, True)

    def note_pod(self, change: Change) -> None:
        """Handle a change of a Pod in the cache: note when its training container started or ended."""
        self._runs.age_seconds(change.current["metadata"]["uid"], _run_of(change.current))

    def age_seconds(
        self, lease: dict[str, Any] | None, pod: dict[str, Any], worker: ElasticWorker
    ) -> float | None:
        """Time for which this Pod's agent has been silent; None if it was never heard.

        At most our own unbroken contact with the API server: during an outage, no agent can be heard.
        """
        renewed = _renewal(lease, pod)
        if lease is None or renewed is None or not _has_reported(worker, pod):
            return None
        uid = lease["metadata"]["uid"]
        return min(
            self._renewals.age_seconds(uid, renewed),
            self._runs.age_seconds(pod["metadata"]["uid"], _run_of(pod)),
            self._clock.monotonic() - self._contact.since,
        )

    def restarts(self, pod: dict[str, Any]) -> bool:
        """Whether the Pod's container was restarted lately, so that its agent may not listen yet."""
        _, ends = run = _run_of(pod)
        return ends > 0 and self._runs.age_seconds(pod["metadata"]["uid"], run) < RESTART_SECONDS

    def was_renewed(self, lease: dict[str, Any], within_seconds: float) -> bool:
        """Whether this process has lately seen the Lease change, rather than only read it when it started.

        Renewals during an outage of the API server are not counted, since they were not seen.
        """
        uid, renewed = lease["metadata"]["uid"], lease.get("spec", {}).get("renewTime")
        is_late = self._renewals.age_seconds(uid, renewed) >= within_seconds
        return self._renewed.get(uid) is True and not is_late

    def seconds_since_renewal(self, lease: dict[str, Any]) -> float | None:
        """Time since any Pod renewed the Lease; None if none ever did."""
        renewed = lease.get("spec", {}).get("renewTime")
        if not renewed:
            return None
        unchanged = self._renewals.age_seconds(lease["metadata"]["uid"], renewed)
        return min(unchanged, self._clock.monotonic() - self._contact.since)

    async def confirmed_age_seconds(
        self, lease: dict[str, Any], pod: dict[str, Any], worker: ElasticWorker
    ) -> float:
        """`age_seconds` of the Lease as the API server has it, so that no stalled watch makes a loss."""
        metadata = lease["metadata"]
        try:
            fresh = await self._client.get(LEASES, metadata["name"], metadata["namespace"])
        except NotFound:
            return self.age_seconds(lease, pod, worker) or 0.0
        return self.age_seconds(fresh, pod, worker) or 0.0


def _renewal(lease: dict[str, Any] | None, pod: dict[str, Any]) -> str | None:
    spec = (lease or {}).get("spec", {})
    if spec.get("holderIdentity") != pod["metadata"]["name"]:
        return None
    renewed = spec.get("renewTime")
    return str(renewed) if renewed else None


def _run_of(pod: dict[str, Any]) -> tuple[bool, int]:
    """A value that changes whenever the training container, and so its agent, ends or starts again."""
    training = training_container(containers_of(pod))
    return training.is_running, training.restarted_ends


def _has_reported(worker: ElasticWorker, pod: dict[str, Any]) -> bool:
    """Whether this Pod's agent has reported: the Lease may be from a Pod of the same name, from before the
    job was suspended."""
    report = worker.status.agent
    return report is not None and report.pod_uid == pod["metadata"]["uid"]


NODE_LEASE_NAMESPACE = "kube-node-lease"
READ_AGAIN_SECONDS = 1.0
"""Time for which the workers of one node share a read of its Lease."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NodeLeaseRead:
    """A read of a node's Lease; times are on our own monotonic clock."""

    renewal: str
    renewal_seen_at: float
    first_read_at: float
    read_at: float
    duration_seconds: float

    def lease(self, now: float, silent_seconds: float) -> NodeLease:
        unchanged, observed = now - self.renewal_seen_at, now - self.first_read_at
        most = silent_seconds  # never longer than our own contact with the API server
        return NodeLease(min(unchanged, most), min(observed, most), self.duration_seconds)


class NodeLeases:
    """Reads the Leases of nodes, which tell about a node without its agents."""

    def __init__(self, tools: Tools) -> None:
        self._client, self._clock = tools.client, tools.clock
        self._nodes = tools.cache.store(NODES)
        self._seen: ObjectMemory[_NodeLeaseRead] = self._nodes.memory()
        self._is_forbidden = False

    async def witness(self, name: str, silent_seconds: float) -> NodeWitness:
        """The present evidence about a silent agent's node; takes at most one read.

        Args:
            silent_seconds: how long the agent has been silent.
        """
        node = self._nodes.get(None, name) if name else None
        if name and node is None:
            return witness_of(name, None, None, is_gone=await self._is_gone(name))
        lease = await self._lease(name, node, silent_seconds) if node is not None else None
        return witness_of(name, node, lease, is_gone=False)

    async def _is_gone(self, name: str) -> bool:
        """Whether the API server has no such node, either: the cache may be stale."""
        try:
            await self._client.get(NODES, name, metadata_only=True)
        except NotFound:
            return True
        return False

    async def _lease(self, name: str, node: Object, silent_seconds: float) -> NodeLease | None:
        """The node's Lease; None if there is none, or we may not read it."""
        uid, now = node["metadata"]["uid"], self._clock.monotonic()
        seen = self._seen.get(uid)
        if seen is None or now - seen.read_at >= READ_AGAIN_SECONDS:
            spec = await self._read(name)
            if spec is None:
                self._seen.forget(uid)
                return None
            seen = self._seen.put(uid, _after(seen, spec, self._clock.monotonic()))
        return seen.lease(self._clock.monotonic(), silent_seconds)

    async def _read(self, name: str) -> Object | None:
        try:
            lease = await self._client.get(LEASES, name, NODE_LEASE_NAMESPACE)
        except NotFound:
            return None
        except Forbidden as error:
            if not self._is_forbidden:
                log.warning(
                    "cannot read Leases of nodes, so a dead node is noticed only when Kubernetes calls it "
                    "not ready; allow the controller to get leases in %s error=%s",
                    NODE_LEASE_NAMESPACE,
                    error,
                )
            self._is_forbidden = True
            return None
        spec: Object = lease.get("spec") or {}
        return spec


def _after(seen: _NodeLeaseRead | None, spec: Object, now: float) -> _NodeLeaseRead:
    renewal = str(spec.get("renewTime", ""))
    duration = float(spec.get("leaseDurationSeconds") or DEFAULT_NODE_LEASE_SECONDS)
    if seen is None:
        return _NodeLeaseRead(renewal, now, now, now, duration)
    renewal_seen_at = seen.renewal_seen_at if renewal == seen.renewal else now
    return _NodeLeaseRead(renewal, renewal_seen_at, seen.first_read_at, now, duration)


SLACK_SECONDS = 0.1
LOOK_SECONDS = 10.0
"""Time between two looks at a silent agent."""
LOOKS_PER_SECOND = 50
"""Limit of looks at all silent agents of one owner; each costs two reads."""
COMPANY_SECONDS = 5.0
"""Time for which the silent agents of one owner share a count of their company."""
COMPANY_GAP_SECONDS = 30.0
"""Time without a count after which the next one counts as an owner's first."""


@dataclass(frozen=True)
class _Counted:
    """A count of a company; times are on our own monotonic clock."""

    at: float
    company: Company
    few_since: float
    """Time since which few agents are silent, if few are."""


class Silences:
    def __init__(self, tools: Tools, dials: Dials) -> None:
        cache = tools.cache
        self._clock = tools.clock
        self._leases = cache.store(LEASES)
        self._workers = cache.store(ELASTICWORKERS)
        self._cache = cache
        self._nodes = NodeLeases(tools)
        self._companies: dict[str, _Counted] = {}
        """Companies of owners that had silent agents lately, by uid."""
        self._reach = Reach(tools, dials)
        self.heartbeats = Heartbeats(tools)
        cache.add_handler(LEASES, self.heartbeats.note)
        cache.add_handler(PODS, self.heartbeats.note_pod)

    async def judge(
        self, assignment: Assignment, lease: Object, pod: Object
    ) -> tuple[Silence | None, float | None]:
        """Verdict on the silence of the Pod's agent, None if it was never heard; and seconds until the next
        look at it."""
        worker, timeout_seconds = assignment.worker, assignment.heartbeat_timeout_seconds
        age = self.heartbeats.age_seconds(lease, pod, worker)
        if age is None:
            return None, None
        metadata, renewal = worker.metadata, heartbeat_seconds(assignment.workers, timeout_seconds)
        why, again = "", None
        if not self.heartbeats.restarts(pod):
            why, again = await self._reach.judge(metadata.namespace, metadata.name, age, renewal)
        if why:
            return Silence(age, SilenceVerdict.UNREACHABLE, why), None
        silence, wait = await self._by_heartbeat(assignment, lease, pod, age)
        if again is None:
            return silence, wait
        if silence.verdict is SilenceVerdict.HEARD:  # there would be no look before the next renewal is due
            silence = replace(silence, verdict=SilenceVerdict.UNDECIDED)
        return silence, again if wait is None else min(again, wait)

    async def _by_heartbeat(
        self, assignment: Assignment, lease: Object, pod: Object, age: float
    ) -> tuple[Silence, float | None]:
        """Judge a silence of `age` seconds by Leases alone; and return seconds until the next look."""
        worker, timeout_seconds = assignment.worker, assignment.heartbeat_timeout_seconds
        missed = _missed_after_seconds(assignment)
        if age >= timeout_seconds:
            age = await self.heartbeats.confirmed_age_seconds(lease, pod, worker)
        was_heard = self.heartbeats.was_renewed(lease, timeout_seconds)
        verdict = SilenceVerdict.HEARD if was_heard else SilenceVerdict.UNDECIDED
        if age < missed:
            return Silence(age, verdict), missed - age + SLACK_SECONDS
        node = await self._nodes.witness(pod.get("spec", {}).get("nodeName") or "", age)
        if age < timeout_seconds:
            silence = Silence(age, verdict, missed_renewal=True)
            return silence, timeout_seconds - age + SLACK_SECONDS
        company = await self._company(assignment)
        silence = replace(judge_silence(age, timeout_seconds, node, company), missed_renewal=True)
        wait = max(LOOK_SECONDS, company.silent / LOOKS_PER_SECOND)
        if node.judged_in_seconds:
            wait = node.judged_in_seconds + SLACK_SECONDS
        return silence, None if silence.is_loss else wait

    def seconds_to_miss(self, assignment: Assignment) -> Callable[[], float]:
        """Return a function that returns the seconds until the agent misses a renewal; 0 once its owner's
        spec changes. It keeps no object alive."""
        metadata, owner = assignment.worker.metadata, assignment.owner["metadata"]
        namespace, name = metadata.namespace, metadata.name
        owners = self._cache.store(assignment.resource)
        owner_name, generation = owner["name"], owner.get("generation")
        missed = _missed_after_seconds(assignment) + SLACK_SECONDS

        def seconds_left() -> float:
            lease, owner = self._leases.get(namespace, name), owners.get(namespace, owner_name)
            if lease is None or owner is None or owner["metadata"].get("generation") != generation:
                return 0.0
            age = self.heartbeats.seconds_since_renewal(lease)
            return 0.0 if age is None else missed - age

        return seconds_left

    async def _company(self, assignment: Assignment) -> Company:
        """Count the agents of the worker's owner that are heard and that are silent."""
        uid, now = assignment.owner["metadata"]["uid"], self._clock.monotonic()
        self._companies = {u: c for u, c in self._companies.items() if now - c.at < COMPANY_GAP_SECONDS}
        before = self._companies.get(uid)
        if before is not None and now - before.at < COMPANY_SECONDS:
            return before.company
        ages, slices = list[float](), Slices()
        for raw in self._workers.by_index(BY_OWNER, uid):
            metadata = raw["metadata"]
            lease = self._leases.get(metadata["namespace"], metadata["name"])
            if lease is not None and raw.get("status", {}).get("phase") == WorkerPhase.RUNNING:
                age = self.heartbeats.seconds_since_renewal(lease)
                ages += () if age is None else (age,)
            await slices.pause()
        company = company_of(ages, assignment.heartbeat_timeout_seconds)
        was_few = before is not None and before.company.is_few
        few_since = before.few_since if before is not None and was_few else now
        company = replace(company, few_seconds=now - few_since if company.is_few else 0.0)
        self._companies[uid] = _Counted(now, company, few_since)
        return company


def _missed_after_seconds(assignment: Assignment) -> float:
    timeout_seconds = assignment.heartbeat_timeout_seconds
    return min(missed_after_seconds(assignment.workers, timeout_seconds), timeout_seconds)


def missed_after_seconds(workers: int, timeout_seconds: float) -> float:
    """Silence after which an agent has missed a renewal, and its node's Lease is watched."""
    return 1.1 * heartbeat_seconds(workers, timeout_seconds) + 1.0
