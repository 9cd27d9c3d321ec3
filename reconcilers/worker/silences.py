"""What an agent's silence is judged by (`silence.py`): its Lease, its node's, and its company.

Leases of nodes are read while an agent on the node is silent, and not watched: kubelets of 5,000 nodes renew
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

    One that is made again, since somebody deleted it, counts as renewed just now if the Pod's agent has
    reported: so an agent that never renews it is silent from now on.
    https://kubernetes.io/docs/concepts/architecture/leases/
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
"""Time in which a container that was started again has an agent that listens, at another port than before."""


class Heartbeats:
    """Ages of the workers' Leases."""

    def __init__(self, tools: Tools) -> None:
        pods, leases, clock = tools.cache.store(PODS), tools.cache.store(LEASES), tools.clock
        self._client, self._contact, self._clock = tools.client, tools.contact, clock
        self._runs = Observations(pods, clock.monotonic)
        """By Pod, the run of its training container."""
        self._renewals = Observations(leases, clock.monotonic)
        self._renewed: ObjectMemory[bool] = leases.memory()

    def note(self, change: Change) -> None:
        """A handler of the cache: when we have seen a renewal. It wakes nobody (`more_than_a_renewal`)."""
        uid, renewed = change.current["metadata"]["uid"], change.current.get("spec", {}).get("renewTime")
        self._renewals.age_seconds(uid, renewed)
        if change.old is not None and change.old.get("spec", {}).get("renewTime") != renewed:
            self._renewed.put(uid, True)

    def note_pod(self, change: Change) -> None:
        """A handler of the cache: when we have seen a Pod's container run, also as a standby."""
        self._runs.age_seconds(change.current["metadata"]["uid"], _run_of(change.current))

    def age_seconds(
        self, lease: dict[str, Any] | None, pod: dict[str, Any], worker: ElasticWorker
    ) -> float | None:
        """How long this Pod's agent has been silent; None if it was never heard.

        Never longer than our own unbroken contact with the API server: its outage is nobody's silence.
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
        """Whether the Pod's container was started again lately, so that its agent may not listen yet."""
        _, ends = run = _run_of(pod)
        return ends > 0 and self._runs.age_seconds(pod["metadata"]["uid"], run) < RESTART_SECONDS

    def was_renewed(self, lease: dict[str, Any], within_seconds: float) -> bool:
        """Whether this process has seen a renewal come lately, and did not only find one when it began.

        What it did not see while it had no contact with the API server is no renewal.
        """
        uid, renewed = lease["metadata"]["uid"], lease.get("spec", {}).get("renewTime")
        is_late = self._renewals.age_seconds(uid, renewed) >= within_seconds
        return self._renewed.get(uid) is True and not is_late

    def seconds_since_renewal(self, lease: dict[str, Any]) -> float | None:
        """How long the Lease has not been renewed, by any Pod; None if it never was."""
        renewed = lease.get("spec", {}).get("renewTime")
        if not renewed:
            return None
        unchanged = self._renewals.age_seconds(lease["metadata"]["uid"], renewed)
        return min(unchanged, self._clock.monotonic() - self._contact.since)

    async def confirmed_age_seconds(
        self, lease: dict[str, Any], pod: dict[str, Any], worker: ElasticWorker
    ) -> float:
        """The same after asking the API server itself, so that a stalled watch of ours condemns nobody."""
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
    """A value that changes whenever the training container ends or is started again, and so its agent."""
    training = training_container(containers_of(pod))
    return training.is_running, training.restarted_ends


def _has_reported(worker: ElasticWorker, pod: dict[str, Any]) -> bool:
    """What the Lease says may be a Pod's of the same name, from before the job was suspended."""
    report = worker.status.agent
    return report is not None and report.pod_uid == pod["metadata"]["uid"]


NODE_LEASE_NAMESPACE = "kube-node-lease"
READ_AGAIN_SECONDS = 1.0
"""Workers of one node share what was read, for so long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NodeLeaseRead:
    """A node's Lease as it was read; times are by our own monotonic clock."""

    renewal: str
    renewal_seen_at: float
    first_read_at: float
    read_at: float
    duration_seconds: float

    def lease(self, now: float, silent_seconds: float) -> NodeLease:
        unchanged, observed = now - self.renewal_seen_at, now - self.first_read_at
        most = silent_seconds  # which is never longer than our own contact with the API server
        return NodeLease(min(unchanged, most), min(observed, most), self.duration_seconds)


class NodeLeases:
    """What nodes say of themselves, beside their agents."""

    def __init__(self, tools: Tools) -> None:
        self._client, self._clock = tools.client, tools.clock
        self._nodes = tools.cache.store(NODES)
        self._seen: ObjectMemory[_NodeLeaseRead] = self._nodes.memory()
        self._is_forbidden = False

    async def witness(self, name: str, silent_seconds: float) -> NodeWitness:
        """What is known now of the node of an agent that has been silent for so long; by one read at most."""
        node = self._nodes.get(None, name) if name else None
        if name and node is None:
            return witness_of(name, None, None, is_gone=await self._is_gone(name))
        lease = await self._lease(name, node, silent_seconds) if node is not None else None
        return witness_of(name, node, lease, is_gone=False)

    async def _is_gone(self, name: str) -> bool:
        """Whether the API server itself has no such node: the cache may be behind."""
        try:
            await self._client.get(NODES, name, metadata_only=True)
        except NotFound:
            return True
        return False

    async def _lease(self, name: str, node: Object, silent_seconds: float) -> NodeLease | None:
        """None if there is none, or we may not read it."""
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
"""Time between two looks at a silent agent: as long as between two renewals of one that is heard."""
LOOKS_PER_SECOND = 50
"""Looks at one owner's silent agents, which cost two reads each, however many are silent."""
COMPANY_SECONDS = 5.0
"""For so long the silent agents of one owner share what was counted of their company."""
COMPANY_GAP_SECONDS = 30.0
"""A company that was not counted for longer is counted as if for the first time."""


@dataclass(frozen=True)
class _Counted:
    """A company as it was counted; times are by our own monotonic clock."""

    at: float
    company: Company
    few_since: float
    """Time from which it is few, if it is."""


class Silences:
    def __init__(self, tools: Tools, dials: Dials) -> None:
        cache = tools.cache
        self._clock = tools.clock
        self._leases = cache.store(LEASES)
        self._workers = cache.store(ELASTICWORKERS)
        self._cache = cache
        self._nodes = NodeLeases(tools)
        self._companies: dict[str, _Counted] = {}
        """Owners that had silent agents lately, by uid."""
        self._reach = Reach(tools, dials)
        self.heartbeats = Heartbeats(tools)
        cache.add_handler(LEASES, self.heartbeats.note)
        cache.add_handler(PODS, self.heartbeats.note_pod)

    async def judge(
        self, assignment: Assignment, lease: Object, pod: Object
    ) -> tuple[Silence | None, float | None]:
        """What the silence of the Pod's agent means, None if it was never heard; and seconds until the next
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
        if silence.verdict is SilenceVerdict.HEARD:  # which would end the looks until the next renewal is due
            silence = replace(silence, verdict=SilenceVerdict.UNDECIDED)
        return silence, again if wait is None else min(again, wait)

    async def _by_heartbeat(
        self, assignment: Assignment, lease: Object, pod: Object, age: float
    ) -> tuple[Silence, float | None]:
        """Judge by Leases alone: what a silence of `age` seconds means, and seconds until the next look."""
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
        """Return what says how long the agent has yet to renew its Lease; 0 once its owner's spec changes.

        It keeps no object alive.
        """
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
        """Counts the agents of the worker's owner that are heard and that are silent."""
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
