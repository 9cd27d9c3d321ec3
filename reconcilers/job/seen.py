"""Everything that one look at a job decides from: `Seen`, and `JobView`, which reads it from the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.reconciler import Request
from controller.resources import ELASTICJOBS, ELASTICWORKERS, NODES, PODS
from controller.slices import Slices
from crds import names
from crds.elasticjob import ElasticJob, Rendezvous
from crds.elasticworker import ElasticWorker
from reconcilers.clock import Clock
from reconcilers.job.workers import Workers
from reconcilers.nodecheck.job_checks import JobChecks, JobChecksView
from reconcilers.observations import Observations
from reconcilers.scale.job_plans import JobPlans
from reconcilers.scale.uptake import Plans, Vacant
from reconcilers.worker import BY_JOB, owner_uids
from reconcilers.world.participants import Ages, checkpoint_of, is_waiting

Object = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    job: ElasticJob
    raw: Object
    """The job as it is stored."""
    workers: Workers = field(default_factory=lambda: Workers(()))
    plans: Plans = field(default_factory=Plans)
    vacant: Vacant = field(default_factory=dict)
    """Retired slots of which nothing is left."""
    checks: JobChecks = field(default_factory=JobChecks)
    pods: Mapping[str, str | None] = field(default_factory=dict)
    """The Pods that the cache shows, by name, with the digest of the resources that they were built with."""
    nodes: Sequence[Object] = ()
    ages: Ages = field(default_factory=Ages)
    account_age_seconds: float = 0.0
    """How long ago the job's account was written."""
    check_refused: str = ""
    """Why the API server does not take the NodeCheck that this look wants."""

    @property
    def published(self) -> Rendezvous:
        return self.job.status.rendezvous or Rendezvous()


class JobView:
    """Reads what is there. All ages are by our own clock, from when we first saw a thing."""

    def __init__(self, client: Client, cache: Cache, clock: Clock) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._pods = cache.store(PODS)
        self._nodes = cache.store(NODES)
        self._plans = JobPlans(client, cache)
        self._checks = JobChecksView(client, cache)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._joined = Observations(self._workers, clock.monotonic)
        self._saved = Observations(self._workers, clock.monotonic)
        self._accounted = Observations(self._jobs, clock.monotonic)

    async def of(self, request: Request) -> Seen | None:
        """None if the job is gone, or going: garbage collection takes everything that it made."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        job = self._parse_job.parse(raw)
        workers = Workers(await self._workers_of(job))
        if job.status.phase is not None and job.status.phase.finished:
            return Seen(job, raw, workers)
        plans, checks = await self._plans.read(job), await self._checks.of(job, workers)
        return Seen(
            job=job,
            raw=raw,
            workers=workers,
            plans=plans,
            vacant=self._plans.vacant(job),
            checks=checks,
            pods=self._digests(workers),
            nodes=self._nodes.list(),
            ages=await self._ages(workers, checks),
            account_age_seconds=self._account_age_seconds(job),
        )

    async def _workers_of(self, job: ElasticJob) -> list[ElasticWorker]:
        found = self._workers.by_index(BY_JOB, f"{job.metadata.namespace}/{job.metadata.name}")
        workers, slices = [], Slices()
        for raw in found:
            if job.metadata.uid in owner_uids(raw) and not raw["metadata"].get("deletionTimestamp"):
                workers.append(self._parse_worker.parse(raw))
            await slices.pause()
        return workers

    def _digests(self, workers: Workers) -> dict[str, str | None]:
        wanted = ((w.metadata.namespace, w.status.pod_name) for w in workers if w.status.pod_name)
        pods = {name: self._pods.get(namespace, name) for namespace, name in wanted}
        return {name: built_with(pod) for name, pod in pods.items() if pod is not None}

    async def _ages(self, workers: Workers, checks: JobChecks) -> Ages:
        checking = checks.active.metadata.name if checks.active else None
        joined, checkpoint, slices = {}, {}, Slices()
        for worker in workers:
            uid, step = worker.metadata.uid, checkpoint_of(worker)
            joined[uid] = self._joined.age_seconds(uid, (is_waiting(worker), checking))
            if step is not None:
                checkpoint[uid] = self._saved.age_seconds(uid, step)
            await slices.pause()
        return Ages(joined, checkpoint)

    def _account_age_seconds(self, job: ElasticJob) -> float:
        known = job.status.goodput
        version = (known.since, known.steps_timed, known.ratio) if known is not None else None
        return self._accounted.age_seconds(job.metadata.uid, version)


def built_with(pod: Object) -> str | None:
    """The digest of the resources that a Pod was built with; None of one from before Pods told."""
    digest: str | None = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_RESOURCES)
    return digest
