"""Gathers what an agent's silence is judged by (`silence.py`): its Lease, its node's, and its company."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.cache import Cache
from controller.client import Client
from controller.contact import Contact
from controller.resources import LEASES, NODES, Object
from controller.slices import Slices
from crds.elasticworker import WorkerPhase
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.observed.silence import (
    Company,
    Silence,
    Verdict,
    company_of,
    judge_silence,
)
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.worker.assignment import Assignment
from reconcilers.worker.heartbeat import Heartbeats
from reconcilers.worker.node_leases import NodeLeases

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
    def __init__(self, client: Client, cache: Cache, contact: Contact, clock: Clock) -> None:
        self._clock = clock
        self._leases = cache.store(LEASES)
        self._workers = cache.store(ELASTICWORKERS)
        self._nodes = NodeLeases(client, cache.store(NODES), clock)
        self._companies: dict[str, _Counted] = {}
        """Owners that had silent agents lately, by uid."""
        self.heartbeats = Heartbeats(client, self._leases, contact, clock)
        cache.add_handler(LEASES, self.heartbeats.note)

    async def judge(
        self, assignment: Assignment, lease: Object, pod: Object
    ) -> tuple[Silence | None, float | None]:
        """What the silence of the Pod's agent means, None if it was never heard; and seconds until the next
        look at it."""
        worker, timeout_seconds = assignment.worker, assignment.heartbeat_timeout_seconds
        missed = min(missed_after_seconds(assignment.workers, timeout_seconds), timeout_seconds)
        age = self.heartbeats.age_seconds(lease, pod, worker)
        if age is None:
            return None, None
        if age >= timeout_seconds:
            age = await self.heartbeats.confirmed_age_seconds(lease, pod, worker)
        verdict = Verdict.HEARD if self.heartbeats.was_renewed(lease) else Verdict.UNDECIDED
        if age < missed:
            return Silence(age, verdict), missed - age + SLACK_SECONDS
        node = await self._nodes.witness(pod.get("spec", {}).get("nodeName") or "", age)
        if age < timeout_seconds:
            return Silence(age, verdict), timeout_seconds - age + SLACK_SECONDS
        company = await self._company(assignment)
        silence = judge_silence(age, timeout_seconds, node, company)
        wait = max(LOOK_SECONDS, company.silent / LOOKS_PER_SECOND)
        if node.judged_in_seconds:
            wait = node.judged_in_seconds + SLACK_SECONDS
        return silence, None if silence.is_loss else wait

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


def missed_after_seconds(workers: int, timeout_seconds: float) -> float:
    """Silence after which an agent has missed a renewal, and its node's Lease is watched."""
    return 1.1 * heartbeat_seconds(workers, timeout_seconds) + 1.0
