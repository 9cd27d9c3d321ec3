"""The ElasticJob reconciler: the job's workers, its world, and its end.

It reads the job and its ElasticWorkers, asks the policies one after the other, and publishes what they
decide with one status write that carries the resourceVersion it decided from: two controllers can never
both publish the next round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, NotFound
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import ELASTICJOBS, ELASTICWORKERS, NODES
from crds.elasticjob import ElasticJob, ElasticJobStatus, JobPhase, Rendezvous
from crds.elasticworker import ElasticWorker
from reconcilers.account.ledger import Ledger
from reconcilers.account.state import failed_at
from reconcilers.clock import Clock
from reconcilers.failure.hardware_smell import suspected_at
from reconcilers.failure.memory import raised_memory
from reconcilers.failure.policy import Renewal, assess, given_up
from reconcilers.job import outcome as job_outcome
from reconcilers.job.relaunch import RESUMED, Relaunch, plan_relaunches, suspended_pods
from reconcilers.job.run_policy import seconds_to_deadline, seconds_to_expiry
from reconcilers.job.status import has_succeeded, training_types
from reconcilers.job.turn import Turn
from reconcilers.job.worker_set import new_worker, plan_workers
from reconcilers.nodecheck.job_checks import (
    CheckState,
    JobChecksView,
    Standing,
    finding_of,
    standing_of,
)
from reconcilers.nodecheck.job_world import Course, plan_world, waiting_since_the_check
from reconcilers.observations import Observations
from reconcilers.parallel import in_parallel
from reconcilers.parsing import Parser
from reconcilers.scale import rolling
from reconcilers.scale.job_plans import JobPlans
from reconcilers.scale.rolling import plan_roll
from reconcilers.scale.uptake import take_up, with_moves_done, with_sources
from reconcilers.worker import BY_JOB, owner_uids
from reconcilers.world.participants import Ages, bounds_of, checkpoint_of, is_waiting, participants_of
from reconcilers.world.slots import present_slots
from reconcilers.world.standby import standing_by, told_otherwise

MAX_CREATES = 100
"""ElasticWorkers in one look: others have a turn before the next, and the status tells how far it is."""
UNKNOWN_POD_RETRY_SECONDS = 1.0
"""Pods wake their worker, not its job."""


class ElasticJobReconciler(Reconciler):
    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._checks = JobChecksView(client, cache)
        self._parse_job = Parser(ElasticJob)
        self._parse_worker = Parser(ElasticWorker)
        self._joined = Observations(clock.monotonic)
        self._saved = Observations(clock.monotonic)
        self._plans = JobPlans(client, cache)
        self._nodes = cache.store(NODES)
        self._ledger = Ledger(clock.monotonic)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()  # garbage collection takes everything the job made
        job = self._parse_job.parse(raw)
        turn = Turn(job, raw, self._workers_of(job), self._clock.now())
        if job.status.phase is not None and job.status.phase.finished:
            return await self._expire(turn)

        await self._keep_workers(turn)
        await self._take_up(turn)
        if job.spec.suspend:
            status = job_outcome.suspended(turn)
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

    async def _keep_workers(self, turn: Turn) -> None:
        """An ElasticWorker for each slot; a surplus one goes once no world has it any more."""
        plan = plan_workers(turn.job, turn.workers, turn.published)
        missing = plan.missing[:MAX_CREATES]
        if missing:
            turn.event("Normal", "WorkersCreated", f"created {len(missing)} workers")
        await in_parallel([self._create_worker(turn.job, *slot) for slot in missing])
        turn.again_in(0.0 if len(missing) < len(plan.missing) else None)
        await in_parallel([self._delete_worker(worker) for worker in plan.surplus])
        gone = {worker.metadata.uid for worker in plan.surplus}
        turn.workers = [worker for worker in turn.workers if worker.metadata.uid not in gone]

    async def _create_worker(self, job: ElasticJob, type_: str, index: int) -> None:
        with contextlib.suppress(AlreadyExists):  # made before; the cache has yet to show it
            await self._client.create(ELASTICWORKERS, new_worker(job, type_, index))

    async def _delete_worker(self, worker: ElasticWorker) -> None:
        metadata = worker.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(ELASTICWORKERS, metadata.name, metadata.namespace, uid=metadata.uid)

    async def _take_up(self, turn: Turn) -> None:
        """What is asked of the job's scale becomes desired state; it is written with the status."""
        turn.fresh = self._plans.freshness(turn.job, turn.workers)
        turn.again_in(UNKNOWN_POD_RETRY_SECONDS if turn.fresh.unknown else None)
        managed_fields = turn.raw["metadata"].get("managedFields") or ()
        plans = await self._plans.read(turn.job)
        uptake = take_up(turn.job, plans, turn.fresh, managed_fields, turn.now)
        turn.job, turn.asked_anew = uptake.job, uptake.anew
        job_outcome.announce_scale(turn, uptake)

    async def _train(self, turn: Turn) -> ElasticJobStatus:
        """The status of a job that is to run: its world, or its end."""
        job = turn.job
        if has_succeeded(turn.workers, turn.published):
            return job_outcome.finished(turn, JobPhase.SUCCEEDED, "TrainingSucceeded", "all workers finished")
        remaining = seconds_to_deadline(job, turn.now)
        if remaining is not None and remaining <= 0:
            limit = job.spec.run_policy.active_deadline_seconds
            message = f"the job was active for longer than activeDeadlineSeconds {limit}"
            return job_outcome.finished(turn, JobPhase.FAILED, "DeadlineExceeded", message)
        turn.again_in(remaining)

        turn.suspected_at = suspected_at(job.status.suspected_at, turn.workers, turn.published, turn.now)
        turn.given_up = given_up(job, turn.workers)
        checks = await self._checks.of(job, turn.workers)
        turn.active_check = checks.active
        standing = standing_of(job, turn.workers, checks, turn.suspected_at, turn.now)
        course = self._plan_world(turn, standing)
        turn.broken_at = failed_at(course.decision, turn.published.round, turn.workers, turn.now)
        failures = assess(job, turn.workers, course.decision.breaks, turn.published.round, turn.now)
        if failures.ending is not None:
            return job_outcome.failed(turn, failures, failures.ending)
        course = course.held(turn.published, *failures.hold(turn.now), turn.now)
        turn.again_in(course.decision.look_again_seconds)

        refused = ""
        if course.check:
            refused = await self._checks.create(job, checks, course.check)
            course = course if not refused else course.without_check()
        await self._relaunch(turn, course.decision.rendezvous, standing, failures.renewals)
        await self._checks.prune(checks)
        job_outcome.announce_world(turn, course.decision, failures.incident)
        turn.job, done = with_moves_done(turn.job, turn.workers, course.decision.rendezvous)
        job_outcome.announce_moves(turn, done)
        state = CheckState(checks.finished, turn.active_check, refused, standing.unchecked, course.left_out)
        fresh = self._plans.freshness(turn.job, turn.workers) if turn.asked_anew else turn.fresh
        world, finding = course.decision.rendezvous, finding_of(job, state)
        turn.standing_by = standing_by(turn.job, turn.workers, world)
        status = job_outcome.progress(turn, world, finding, course.left_out, fresh)
        return status.model_copy(
            update={
                "restarts": failures.restarts,
                "failure_budget": failures.budget,
                "last_failure": failures.last_failure,
            }
        )

    def _plan_world(self, turn: Turn, standing: Standing) -> Course:
        job, active = turn.job, turn.active_check
        published = turn.published
        if job.status.active_check and active is None:
            published = waiting_since_the_check(published, turn.now)
        leaving = suspended_pods(job, turn.workers)
        staying = [worker for worker in turn.workers if worker.metadata.uid not in leaving]
        participants, bounds = participants_of(job, staying, self._ages(turn)), bounds_of(job)
        if active is None:
            without = standing.slow.union(
                w.spec.index for w in turn.workers if w.metadata.uid in turn.given_up
            )
            turn.roll = plan_roll(job, turn.workers, participants, published, bounds, turn.fresh, without)
            turn.job = with_sources(job, turn.roll.sources) if turn.roll.sources else job
        people = turn.roll.marked(participants)
        course = plan_world(published, people, bounds, standing, active, turn.now)
        turn.again_in(course.decision.look_again_seconds)
        return course

    def _ages(self, turn: Turn) -> Ages:
        checking = turn.active_check.metadata.name if turn.active_check else None
        joined, checkpoint = {}, {}
        for worker in turn.workers:
            uid, step = worker.metadata.uid, checkpoint_of(worker)
            joined[uid] = self._joined.age_seconds(uid, (is_waiting(worker), checking))
            if step is not None:
                checkpoint[uid] = self._saved.age_seconds(uid, step)
        return Ages(joined, checkpoint)

    async def _relaunch(
        self, turn: Turn, rendezvous: Rendezvous, standing: Standing, failed: Mapping[str, Renewal]
    ) -> None:
        """Raise the incarnation of slots whose Pod has ended, has to leave its node, or is to be another."""
        slots = {type_: present_slots(turn.job, type_) for type_ in training_types(turn.job)}
        present = [w for w in turn.workers if w.spec.index in slots.get(w.spec.type, ())]
        wanted = [w for w in present if w.metadata.uid not in turn.given_up]
        renewed = {worker.metadata.uid: rolling.REASON for worker in turn.roll.relaunches}
        renewed |= dict.fromkeys(suspended_pods(turn.job, turn.workers), RESUMED)
        renewed |= {uid: renewal.reason for uid, renewal in failed.items()}
        avoiding = {uid for uid, renewal in failed.items() if renewal.avoids_node}
        plan = plan_relaunches(wanted, rendezvous, turn.now, standing, renewed, avoiding)
        turn.again_in(plan.look_again_seconds)
        short = {uid for uid, renewal in failed.items() if renewal.out_of_memory}
        raises = [self._raise_incarnation(turn, r, r.worker.metadata.uid in short) for r in plan.relaunches]
        await in_parallel(raises)

    async def _raise_incarnation(self, turn: Turn, relaunch: Relaunch, out_of_memory: bool) -> None:
        worker = relaunch.worker
        spec: dict[str, Any] = {
            "incarnation": worker.spec.incarnation + 1,
            "excludedNodes": list(relaunch.excluded_nodes),
            "faultyNodes": list(relaunch.faulty_nodes),
        }
        nodes = self._nodes.list()
        raised = raised_memory(turn.job, worker, turn.workers, nodes, in_place=out_of_memory)
        if raised is not None:
            spec["resources"] = raised.resources.to_wire()
        metadata = worker.metadata
        patch = {"metadata": {"resourceVersion": metadata.resource_version}, "spec": spec}
        await self._client.patch(ELASTICWORKERS, metadata.name, patch, metadata.namespace)
        message = f"{metadata.name} gets a new Pod, incarnation {spec['incarnation']}"
        turn.event("Normal", "WorkerRelaunched", f"{message}: {relaunch.reason}")
        if raised is not None:
            turn.event("Normal", "MemoryRaised", raised.message)

    async def _write(self, turn: Turn, status: ElasticJobStatus) -> None:
        """The one status write, if anything changed; then the Events, which tell what has happened."""
        patch = self._ledger.patch(turn, status)
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
        changed = told_otherwise(turn.workers, turn.standing_by)
        await in_parallel([self._tell_standby(worker, turn.standing_by) for worker in changed])

    async def _tell_standby(self, worker: ElasticWorker, standing: frozenset[int]) -> None:
        metadata, patch = worker.metadata, {"standby": worker.spec.index in standing or None}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                ELASTICWORKERS, metadata.name, {"status": patch}, metadata.namespace, subresource="status"
            )

    async def _expire(self, turn: Turn) -> Result:
        """A finished job: counts follow its Pods, and it goes when its time is over."""
        metadata = turn.job.metadata
        remaining = seconds_to_expiry(turn.job, turn.now)
        if remaining is not None and remaining <= 0:
            with contextlib.suppress(NotFound):
                await self._client.delete(ELASTICJOBS, metadata.name, metadata.namespace, uid=metadata.uid)
            return Result()
        await self._write(turn, job_outcome.common(turn))
        turn.again_in(remaining)
        return turn.result()
