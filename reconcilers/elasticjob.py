"""The ElasticJob reconciler: the job's workers, its world, and its end.

It reads the job and its ElasticWorkers, asks the policies one after the other, and publishes what they
decide with one status write that carries the resourceVersion it decided from: two controllers can never
both publish the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, NotFound
from controller.events import EventRecorder, EventType
from controller.reconciler import Reconciler, Request, Result
from controller.resources import ELASTICJOBS, ELASTICWORKERS
from crds import names
from crds.elasticjob import ElasticJob, ElasticJobStatus, JobPhase, Rendezvous, RendezvousPhase
from crds.elasticworker import ElasticWorker
from crds.model import Condition
from reconcilers import job_status
from reconcilers.clock import Clock
from reconcilers.failure_policy import over_budget
from reconcilers.incidents import Incident, incident_of, with_incident
from reconcilers.observations import Observations
from reconcilers.parsing import Parser
from reconcilers.participants import bounds_of, is_waiting, participants_of
from reconcilers.relaunch import Relaunch, plan_relaunches
from reconcilers.rendezvous import Decision, decide, dissolve
from reconcilers.run_policy import seconds_to_deadline, seconds_to_expiry
from reconcilers.status_patch import merge_patch
from reconcilers.worker import BY_JOB, owner_uids
from reconcilers.worker_set import new_worker, plan_workers

PARALLEL_WRITES = 16


@dataclass
class _Turn:
    """One look at one job: what was read, and what is to be written at the end."""

    job: ElasticJob
    raw: dict[str, Any]
    workers: list[ElasticWorker]
    now: datetime
    events: list[tuple[EventType, str, str]] = field(default_factory=list)
    look_again: list[float] = field(default_factory=list)

    @property
    def published(self) -> Rendezvous:
        return self.job.status.rendezvous or Rendezvous()

    def event(self, type_: EventType, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def again_in(self, seconds: float | None) -> None:
        if seconds is not None:
            self.look_again.append(max(seconds, 0.0))

    def result(self) -> Result:
        return Result(min(self.look_again) + 0.01 if self.look_again else None)


class ElasticJobReconciler(Reconciler):
    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse_job = Parser(ElasticJob)
        self._parse_worker = Parser(ElasticWorker)
        self._joined = Observations(clock.monotonic)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()  # garbage collection takes everything the job made
        job = self._parse_job.parse(raw)
        turn = _Turn(job, raw, self._workers_of(job), self._clock.now())
        if job.status.phase is not None and job.status.phase.finished:
            return await self._expire(turn)

        await self._keep_workers(turn)
        if job.spec.suspend:
            status = self._suspended(turn)
        else:
            status = await self._train(turn)
        await self._write(turn, status)
        return turn.result()

    def _workers_of(self, job: ElasticJob) -> list[ElasticWorker]:
        metadata = job.metadata
        found = self._workers.by_index(BY_JOB, f"{metadata.namespace}/{metadata.name}")
        mine = [
            raw
            for raw in found
            if metadata.uid in owner_uids(raw) and not raw["metadata"].get("deletionTimestamp")
        ]
        return sorted((self._parse_worker.parse(raw) for raw in mine), key=lambda w: w.spec.index)

    async def _keep_workers(self, turn: _Turn) -> None:
        """As many ElasticWorkers as the spec wants; a surplus one goes once no world has it any more."""
        plan = plan_workers(turn.job, turn.workers, turn.published)
        if plan.missing:
            turn.event("Normal", "WorkersCreated", f"created {len(plan.missing)} workers")
        await _in_parallel([self._create_worker(turn.job, *slot) for slot in plan.missing])
        await _in_parallel([self._delete_worker(worker) for worker in plan.surplus])
        gone = {worker.metadata.uid for worker in plan.surplus}
        turn.workers = [worker for worker in turn.workers if worker.metadata.uid not in gone]

    async def _create_worker(self, job: ElasticJob, type_: str, index: int) -> None:
        with contextlib.suppress(AlreadyExists):  # made before; the cache has yet to show it
            await self._client.create(ELASTICWORKERS, new_worker(job, type_, index))

    async def _delete_worker(self, worker: ElasticWorker) -> None:
        metadata = worker.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(ELASTICWORKERS, metadata.name, metadata.namespace, uid=metadata.uid)

    async def _train(self, turn: _Turn) -> ElasticJobStatus:
        """The status of a job that is to run: its world, or its end."""
        job, published = turn.job, turn.published
        if job_status.has_succeeded(turn.workers, published):
            return self._finished(turn, JobPhase.SUCCEEDED, "TrainingSucceeded", "all workers finished")
        remaining = seconds_to_deadline(job, turn.now)
        if remaining is not None and remaining <= 0:
            limit = job.spec.run_policy.active_deadline_seconds
            message = f"the job was active for longer than activeDeadlineSeconds {limit}"
            return self._finished(turn, JobPhase.FAILED, "DeadlineExceeded", message)
        turn.again_in(remaining)

        decision = self._decide(turn)
        incident = incident_of(decision.breaks, turn.workers)
        restarts = with_incident(job.status.restarts, incident)
        budgets = {type_: spec.restart_count for type_, spec in job.spec.replica_specs.items()}
        excess = over_budget(restarts, turn.workers, budgets)
        if excess is not None:
            return self._out_of_budget(turn, excess, incident, restarts)
        await self._relaunch(turn, decision.rendezvous)
        self._announce(turn, decision)
        status = self._progress(turn, decision.rendezvous)
        return status.model_copy(
            update={
                "restarts": restarts,
                "last_failure": incident.failure if incident else status.last_failure,
            }
        )

    def _decide(self, turn: _Turn) -> Decision:
        ages = {
            worker.metadata.uid: self._joined.age_seconds(worker.metadata.uid, is_waiting(worker))
            for worker in turn.workers
        }
        participants = participants_of(turn.job, turn.workers, ages)
        decision = decide(turn.published, participants, bounds_of(turn.job), turn.now)
        turn.again_in(decision.look_again_seconds)
        return decision

    async def _relaunch(self, turn: _Turn, rendezvous: Rendezvous) -> None:
        """Raise the incarnation of slots whose Pod has ended."""
        wanted = [w for w in turn.workers if w.spec.index < turn.job.spec.replica_specs[w.spec.type].replicas]
        plan = plan_relaunches(wanted, rendezvous, turn.now)
        turn.again_in(plan.look_again_seconds)
        await _in_parallel([self._raise_incarnation(relaunch) for relaunch in plan.relaunches])
        for relaunch in plan.relaunches:
            name = relaunch.worker.metadata.name
            message = f"{name} gets a new Pod, incarnation {relaunch.worker.spec.incarnation + 1}"
            turn.event("Normal", "WorkerRelaunched", f"{message}: {relaunch.reason}")

    async def _raise_incarnation(self, relaunch: Relaunch) -> None:
        worker = relaunch.worker
        patch = {
            "metadata": {"resourceVersion": worker.metadata.resource_version},
            "spec": {
                "incarnation": worker.spec.incarnation + 1,
                "excludedNodes": list(relaunch.excluded_nodes),
            },
        }
        await self._client.patch(ELASTICWORKERS, worker.metadata.name, patch, worker.metadata.namespace)

    def _announce(self, turn: _Turn, decision: Decision) -> None:
        published, new = turn.published, decision.rendezvous
        if decision.breaks:
            turn.event("Warning", "WorldBroken", f"round {published.round}: {new.reason}")
        if new.phase is RendezvousPhase.FORMED and new.round != published.round:
            turn.event(
                "Normal",
                "WorldFormed",
                f"round {new.round}: {len(new.members)} workers, {new.world_size} processes, "
                f"rank 0 is worker {new.members[0]} at {new.master_address}:{new.master_port}",
            )

    def _progress(self, turn: _Turn, rendezvous: Rendezvous) -> ElasticJobStatus:
        """The status of a job that goes on."""
        job = turn.job
        phase = job_status.phase_of(job, turn.workers, rendezvous)
        conditions = job_status.progress_conditions(job, turn.workers, phase, rendezvous, turn.now)
        self._announce_scheduling(turn, conditions)
        return self._common(turn).model_copy(
            update={
                "phase": phase,
                "conditions": conditions,
                "rendezvous": rendezvous,
                "start_time": job.status.start_time or turn.now,
                "last_failure": job_status.last_failure(job, turn.workers),
            }
        )

    def _announce_scheduling(self, turn: _Turn, conditions: Sequence[Condition]) -> None:
        before = {c.type: (c.status, c.message) for c in turn.job.status.conditions}
        for condition in conditions:
            unseen = before.get(condition.type) != (condition.status, condition.message)
            if condition.type == job_status.WORKERS_SCHEDULED and condition.message and unseen:
                turn.event("Warning", condition.reason, condition.message)
            if condition.type == job_status.MASTER_IGNORED and unseen:
                turn.event("Normal", job_status.MASTER_IGNORED, condition.message)

    def _suspended(self, turn: _Turn) -> ElasticJobStatus:
        job, phase = turn.job, JobPhase.SUSPENDED
        rendezvous = dissolve(turn.published, "the job is suspended")
        if job.status.phase is not phase:
            turn.event("Normal", "Suspended", "the job is suspended: its Pods are deleted")
        conditions = job_status.progress_conditions(job, turn.workers, phase, rendezvous, turn.now)
        return self._common(turn).model_copy(
            update={
                "phase": phase,
                "conditions": conditions,
                "rendezvous": rendezvous,
                "start_time": None,
            }
        )

    def _out_of_budget(
        self, turn: _Turn, excess: str, incident: Incident | None, restarts: dict[str, int]
    ) -> ElasticJobStatus:
        failure = incident.failure if incident else job_status.last_failure(turn.job, turn.workers)
        message = f"{excess}; last: {failure.worker}: {failure.message}" if failure else excess
        status = self._finished(turn, JobPhase.FAILED, "RestartLimitExceeded", message[:4_096])
        return status.model_copy(update={"restarts": restarts, "last_failure": failure})

    def _finished(self, turn: _Turn, phase: JobPhase, reason: str, message: str) -> ElasticJobStatus:
        turn.event("Normal" if phase is JobPhase.SUCCEEDED else "Warning", reason, message)
        conditions = job_status.final_conditions(turn.job.status.conditions, phase, reason, message, turn.now)
        return self._common(turn).model_copy(
            update={
                "phase": phase,
                "conditions": conditions,
                "completion_time": turn.now,
                "last_failure": job_status.last_failure(turn.job, turn.workers),
            }
        )

    def _common(self, turn: _Turn) -> ElasticJobStatus:
        """What every status says, whatever the phase."""
        job = turn.job
        selector = {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}
        return job.status.model_copy(
            update={
                "observed_generation": job.metadata.generation,
                "replica_statuses": job_status.replica_statuses(job, turn.workers),
                "replicas": sum(w.spec.type == names.WORKER for w in turn.workers),
                "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
            }
        )

    async def _write(self, turn: _Turn, status: ElasticJobStatus) -> None:
        """The one status write, if anything changed; then the Events, which tell what has happened."""
        patch = merge_patch(turn.raw.get("status", {}), status.to_wire())
        if patch:
            metadata = turn.job.metadata
            await self._client.patch(
                ELASTICJOBS,
                metadata.name,
                {"metadata": {"resourceVersion": metadata.resource_version}, "status": patch},
                metadata.namespace,
                subresource="status",
            )
        for type_, reason, message in turn.events:
            self._recorder.event(turn.raw, type_, reason, message)

    async def _expire(self, turn: _Turn) -> Result:
        """A finished job: counts follow its Pods, and it goes when its time is over."""
        metadata = turn.job.metadata
        remaining = seconds_to_expiry(turn.job, turn.now)
        if remaining is not None and remaining <= 0:
            with contextlib.suppress(NotFound):
                await self._client.delete(ELASTICJOBS, metadata.name, metadata.namespace, uid=metadata.uid)
            return Result()
        await self._write(turn, self._common(turn))
        turn.again_in(remaining)
        return turn.result()


async def _in_parallel(calls: Sequence[Any]) -> None:
    """Run writes side by side, a bounded number at once; the first error is raised when all have ended."""
    gate = asyncio.Semaphore(PARALLEL_WRITES)

    async def gated(call: Any) -> None:
        async with gate:
            await call

    results = await asyncio.gather(*(gated(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
