"""The reconciler of jobs in queues: it observes, plans and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.errors import AlreadyExists, ApiError, Forbidden, NotFound, Refused, WebhookUnavailable
from controller.reconciler import Request, Result
from controller.resources import Object, Resource
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import is_grouped
from crds.job_status import QueueAdmission
from crds.model import MAX_CONDITION_MESSAGE
from crds.texts import all_plain, shortened
from reconcilers.kueue.conditions import finished
from reconcilers.kueue.gate import workloads_of
from reconcilers.kueue.manifest import Wish, wish_of
from reconcilers.kueue.multikueue import (
    OUT_OF_SYNC,
    PREBUILT,
    adoption_of,
    is_controlled,
    is_dispatched,
    prebuilt_name,
)
from reconcilers.kueue.plan import QUEUED, QueuePlan, QueueSeen, Verb, Write, let_go, plan_queue
from reconcilers.kueue.pods import PODS_PER_SECOND, PodsOfJobs
from reconcilers.kueue.sorting import JobWorkloads, sorted_workloads
from reconcilers.kueue.workload import (
    CLUSTERQUEUES,
    GROWTH_PRIORITY,
    LOCALQUEUES,
    POD_PRIORITIES,
    PRIORITIES,
    PRIORITY_LABEL,
    WORKLOADS,
    Workload,
    queue_of,
)
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import BY_JOB, belongs_to, spares_its_own
from reconcilers.observed.status_patch import merge_patch
from reconcilers.runtime.acts import write_status
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.managed_by import is_managed_here
from reconcilers.runtime.refused import is_refusal, not_served, retry_seconds
from reconcilers.runtime.tools import Tools, WithTools

FACTS_SECONDS = 30.0
AGAIN_SECONDS = 5.0
"""Time until a write is tried again after Kueue did not answer."""
GONE_SECONDS = 1.0
LEAVING_SECONDS = 10.0
"""Time between two looks while Pods are leaving or being created: they may be lost or refused without an
event."""
DISPATCHED = "it was dispatched by MultiKueue, and keeps its initial size"


@dataclass(frozen=True)
class QueueFacts:
    """Facts from Kueue's other objects."""

    priority: Object = field(default_factory=dict)
    """Class and value of the job's priority, as fields of a Workload's spec."""
    growth_priority: Object = field(default_factory=dict)
    forbids_slices: str = ""
    unreadable: str = ""
    """Why the facts could not be read, and are earlier ones; empty if they could."""


class KueueReconciler(WithTools):
    """Keeps the Workloads of one job, and the grant in its status."""

    def __init__(self, tools: Tools, pods: PodsOfJobs) -> None:
        super().__init__(tools)
        self._counts = pods
        self._workloads = tools.cache.store(WORKLOADS)
        self._slices = Observations(self._jobs, tools.clock.monotonic)
        self._replaced = Observations(self._jobs, tools.clock.monotonic)
        self._facts: ObjectMemory[tuple[object, float, QueueFacts]] = self._jobs.memory()
        self._refused: ObjectMemory[str] = self._jobs.memory()
        """Reason why the last write of a Workload was refused, by job."""
        self._looked_at: ObjectMemory[float] = self._jobs.memory()

    async def reconcile(self, request: Request) -> Result:
        """Look at the job of this name, and make one write."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None:
            return await self._orphans(request)
        if spares_its_own(raw) or is_grouped(raw) or not (is_managed_here(raw) or is_dispatched(raw)):
            return Result()
        job, queue = self._parse_job.parse(raw), queue_of(raw)
        owned = workloads_of(self._workloads, job.metadata.namespace, job.metadata.uid)
        if not (queue or owned or job.status.admission):
            return Result()
        if (why := self._cache.why_not_synced(WORKLOADS)) is not None:
            if queue and job.status.admission is None:  # one that has begun keeps its grant
                await self._grant_none(job, raw, queue, f"Kueue's Workloads cannot be read: {why}")
            return Result(AGAIN_SECONDS)
        if (wait_seconds := self._wait_seconds(job)) > 0:
            return Result(wait_seconds)
        await self._let_go_of_earlier(request, job)
        workloads = sorted_workloads(owned)
        facts = await self._facts_of(job, raw, queue, workloads.current)
        if facts.unreadable and workloads.current is None:
            await self._grant_none(job, raw, queue, facts.unreadable)
            return Result(AGAIN_SECONDS)
        pods = self._counts.count(job)
        wish = wish_of(job, queue, facts.priority, facts.growth_priority)
        if not owned and queue and (name := prebuilt_name(raw)) and not job.status.finished:
            return await self._adopt(job, raw, wish, name)
        seen = QueueSeen(
            job,
            wish,
            workloads,
            pods.there,
            pods.running,
            self._slices.age_seconds(job.metadata.uid, _slice_state(workloads)),
            self._replaced.age_seconds(job.metadata.uid, workloads.replaced and workloads.replaced.uid),
            DISPATCHED if prebuilt_name(raw) else facts.forbids_slices,
            self._refused.get(job.metadata.uid) or facts.unreadable,
            is_copy=bool(prebuilt_name(raw)),
        )
        plan = plan_queue(seen, self._clock.now())
        if pods.may_vanish:
            soon = min(LEAVING_SECONDS, plan.look_again_seconds or LEAVING_SECONDS)
            plan = replace(plan, look_again_seconds=soon)
        return await self._apply(seen, raw, plan)

    async def _grant_none(
        self, job: ElasticJob, raw: Object, queue: str, why: str, reason: str = "Unreadable"
    ) -> None:
        message = shortened(why, MAX_CONDITION_MESSAGE)
        await self._grant(job, raw, QueueAdmission(queue=queue, workers=0, reason=reason, message=message))

    async def _adopt(self, job: ElasticJob, raw: Object, wish: Wish, name: str) -> Result:
        """Adopt the Workload that MultiKueue created for the job, or report that it is another job's."""
        try:
            prebuilt = Workload(await self._client.get(WORKLOADS, name, job.metadata.namespace))
        except NotFound:
            prebuilt = None
        is_anothers = prebuilt is not None and is_controlled(prebuilt, other_than=job.metadata.uid)
        message = f"it waits for the Workload {name}, which MultiKueue creates"
        if is_anothers:
            message = f"the Workload {name} belongs to another job: remove the annotation {PREBUILT}"
        await self._grant_none(job, raw, wish.queue, message, QUEUED)
        if prebuilt is None or is_anothers:
            return Result(AGAIN_SECONDS)
        patch = adoption_of(job, wish, prebuilt)
        if patch is not None:
            await self._carry_out(Write(Verb.PATCH, patch, prebuilt))
        elif not prebuilt.is_finished:
            why = "the job requests other Pods than its Workload"
            status = finished(prebuilt, OUT_OF_SYNC, why, self._clock.now())
            await self._carry_out(Write(Verb.STATUS, status, prebuilt))
        return Result()

    async def _orphans(self, request: Request) -> Result:
        """Release the Workloads of a deleted job once its Pods are gone."""
        key = f"{request.namespace}/{request.name}"
        left = [
            found for found in map(Workload, self._workloads.by_index(BY_JOB, key)) if found.has_finalizer
        ]
        if not left:
            return Result()
        if self._counts.is_left(key):
            return Result(GONE_SECONDS)
        for found in left:
            await self._carry_out(let_go(found))
        return Result()

    async def _let_go_of_earlier(self, request: Request, job: ElasticJob) -> None:
        """Release the deleted Workloads of an earlier job of this name."""
        key, owner = f"{request.namespace}/{request.name}", job.metadata.uid
        for found in map(Workload, self._workloads.by_index(BY_JOB, key)):
            if not belongs_to(found.raw, owner) and found.is_deleted and found.has_finalizer:
                await self._carry_out(let_go(found))

    async def _facts_of(
        self, job: ElasticJob, raw: Object, queue: str, current: Workload | None
    ) -> QueueFacts:
        """Read the job's queue and classes, at most every FACTS_SECONDS. If a class cannot be read, the job
        keeps its present priority, so that it can still give quota back."""
        if not queue or job.status.finished or job.metadata.deletion_timestamp is not None:
            return QueueFacts()
        labels, now = raw["metadata"].get("labels") or {}, self._clock.monotonic()
        key = (queue, *map(labels.get, (PRIORITY_LABEL, GROWTH_PRIORITY)))
        found = self._facts.get(job.metadata.uid)
        if found is not None and found[0] == key and now - found[1] < FACTS_SECONDS:
            return found[2]
        try:
            facts = await self._read_facts(job, labels, queue)
        except Refused as error:
            why = f"its priority class cannot be read: {error}"
            self._recorder.event(raw, "Warning", "PriorityUnreadable", why)
            priority = {} if current is None else current.priority
            facts = QueueFacts(priority, priority, why, why)
        return self._facts.put(job.metadata.uid, (key, now, facts))[2]

    async def _read_facts(self, job: ElasticJob, labels: Mapping[str, str], queue: str) -> QueueFacts:
        worker = job.spec.replica_specs.get(names.WORKER)
        of_pods = worker.template["spec"].get("priorityClassName") if worker is not None else None
        if name := labels.get(PRIORITY_LABEL):
            priority = await self._priority(PRIORITIES, name)
        else:
            priority = await self._priority(POD_PRIORITIES, of_pods) if of_pods else {}
        growth = labels.get(GROWTH_PRIORITY)
        return QueueFacts(
            priority,
            await self._priority(PRIORITIES, growth) if growth else priority,
            await self._why_no_slices(job.metadata.namespace, queue),
        )

    async def _priority(self, resource: Resource, name: str) -> Object:
        found = await self._client.get(resource, name)
        reference = {"group": resource.group, "kind": resource.kind, "name": name}
        return {"priorityClassRef": reference, "priority": int(found.get("value") or 0)}

    async def _why_no_slices(self, namespace: str, queue: str) -> str:
        """Say why no slice may wait in a queue: at the head of a StrictFIFO queue it would block all others,
        and with admission checks Kueue finishes the old Workload before the new one is admitted."""
        try:
            local = await self._client.get(LOCALQUEUES, queue, namespace)
            name = local["spec"].get("clusterQueue", "")
            spec = (await self._client.get(CLUSTERQUEUES, name))["spec"]
        except NotFound:
            return ""
        except Forbidden as error:
            return f"its ClusterQueue cannot be read, so it does not grow: {error}"
        if spec.get("queueingStrategy") == "StrictFIFO":
            return f"the ClusterQueue {name} is StrictFIFO, where a job cannot wait for more"
        if spec.get("admissionChecks") or spec.get("admissionChecksStrategy"):
            return f"the ClusterQueue {name} has admission checks, with which a job cannot wait for more"
        return ""

    def _wait_seconds(self, job: ElasticJob) -> float:
        """Seconds until the next look at a job with many Pods, each of which triggers one."""
        now, last = self._clock.monotonic(), self._looked_at.get(job.metadata.uid)
        workers = job.spec.replica_specs.get(names.WORKER)
        wait_seconds = 0.0 if workers is None else workers.replicas / PODS_PER_SECOND
        if last is not None and now - last < wait_seconds and wait_seconds > 0.02:
            return wait_seconds - (now - last)
        self._looked_at.put(job.metadata.uid, now)
        return 0.0

    async def _apply(self, seen: QueueSeen, raw: Object, plan: QueuePlan) -> Result:
        """Write the grant into the job, and then the Workload.

        Raises:
            Conflict: job or Workload have changed since they were read.
        """
        await self._grant(seen.job, raw, plan.admission)
        if plan.write is not None:
            try:
                await self._carry_out(plan.write)
            except AlreadyExists:  # reported if the cache does not show it soon
                why = f"there is another Workload {plan.write.body['metadata']['name']}: delete it"
                self._refused.put(seen.job.metadata.uid, why)
                return Result(AGAIN_SECONDS)
            except ApiError as error:
                if isinstance(error, NotFound) and not not_served(error):
                    return Result()  # the Workload is gone, and the cache is late
                if not is_rejection(error):
                    raise
                message = f"Kueue's Workload could not be written: {error}"
                if message != seen.refused:
                    self._recorder.event(raw, "Warning", "WorkloadRefused", message)
                self._refused.put(seen.job.metadata.uid, message)
                return Result(AGAIN_SECONDS if isinstance(error, WebhookUnavailable) else retry_seconds())
        if self._refused.get(seen.job.metadata.uid):
            self._refused.put(seen.job.metadata.uid, "")
            return Result(0.0)
        if seen.forbids_slices and plan.look_again_seconds is None:
            return Result(FACTS_SECONDS)  # a change of its queue triggers no look
        return Result(plan.look_again_seconds)

    async def _grant(self, job: ElasticJob, raw: Object, admission: QueueAdmission | None) -> None:
        before, stored = job.status.admission, (raw.get("status") or {}).get("admission")
        wire = None if admission is None else all_plain(admission.to_wire())
        if wire == stored or is_dispatched(raw):  # a dispatched job has its copy's status
            return
        granted = "no limit."
        if admission is not None:
            granted = f"{admission.workers} Pods of workers. {admission.reason}: {admission.message}"
        if before is None or admission is None or before.workers != admission.workers:
            self._recorder.event(raw, "Normal", "Granted", f"the queue grants {granted}".strip())
        patch = merge_patch({"admission": stored} if stored else {}, {"admission": wire} if wire else {})
        await write_status(self._client, ELASTICJOBS, raw, patch)

    async def _carry_out(self, write: Write) -> None:
        if write.of is None:
            await self._client.create(WORKLOADS, write.body)
            return
        metadata = write.of.raw["metadata"]
        if write.verb is Verb.DELETE:
            await self._client.delete(
                WORKLOADS,
                write.of.name,
                metadata["namespace"],
                uid=write.of.uid,
                resource_version=metadata["resourceVersion"],  # Kueue may have admitted it since
            )
        elif write.verb is Verb.STATUS:
            await self._client.replace(
                WORKLOADS, WORKLOADS.named({**write.of.raw, "status": write.body}), subresource="status"
            )
        else:
            version = {"resourceVersion": metadata["resourceVersion"], **write.body.get("metadata", {})}
            await self._client.patch(
                WORKLOADS, write.of.name, {**write.body, "metadata": version}, metadata["namespace"]
            )


def is_rejection(error: ApiError) -> bool:
    """Whether an error means that Kueue rejects the write, does not answer, or is not installed."""
    return is_refusal(error) or isinstance(error, NotFound)


def _slice_state(workloads: JobWorkloads) -> object:
    """The state whose change restarts the waiting time of a slice."""
    held, slice_ = workloads.held, workloads.slice
    if held is None or slice_ is None:
        return None
    return slice_.uid, held.uid, held.is_evicted, held.granted(names.WORKER)
