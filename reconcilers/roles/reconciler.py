"""Where jobs with parameter servers are set apart from others, and the reconciler of their Service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from controller.cache import Cache
from controller.client import Client
from controller.errors import Refused
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import SERVICES, Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.job.plan import Plan
from reconcilers.job.seen import Seen
from reconcilers.job.strategy import Strategy
from reconcilers.roles.planner import plan_cluster
from reconcilers.roles.pods import RoleAssignment, service_of
from reconcilers.roles.tasks import counts_fault
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.companions import RECHECK_SECONDS, Companions


def in_cluster(job: ElasticJob) -> bool:
    """Whether the job has parameter servers, and so a cluster instead of a world."""
    spec = job.spec.replica_specs.get(names.PS)
    return spec is not None and spec.replicas > 0


def with_roles(others: Strategy) -> Strategy:
    """The strategy of all jobs, where those without parameter servers have the others'."""

    def plan(seen: Seen, now: datetime) -> Plan:
        return plan_cluster(seen, now) if in_cluster(seen.job) else others.plan(seen, now)

    def assign(worker: ElasticWorker, owner: Object, job: ElasticJob) -> JobAssignment:
        return (RoleAssignment if in_cluster(job) else others.assign)(worker, owner, job)

    def fault(job: ElasticJob, counts: Mapping[str, int]) -> tuple[str, str] | None:
        return (counts_fault if in_cluster(job) else others.counts_fault)(job, counts)

    return Strategy(plan, assign, fault)


class ServiceReconciler(Reconciler):
    """Keeps the headless Service of a job with parameter servers while the job is to run."""

    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder) -> None:
        self._companions = Companions(client, recorder)
        self._jobs = cache.store(ELASTICJOBS)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()  # garbage collection takes what the job made
        job, failures = self._parse_job.parse(raw), list[Refused]()
        if not in_cluster(job):
            return Result()
        runs = not (job.spec.suspend or job.status.finished)
        with self._companions.reporting(raw, SERVICES.kind, failures):
            found = await self._companions.get(SERVICES, job.metadata.name, job.metadata.namespace)
            await self._companions.keep(SERVICES, raw, found, service_of(job) if runs else None)
        if failures:
            raise failures[0]
        return Result(RECHECK_SECONDS if runs else None)
