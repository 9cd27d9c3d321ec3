"""Creates the missing objects of a worker: rights, key, Lease and Pod.

The Pod comes last, since its agent needs the others at once. A refused object is tried again after a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.errors import ApiError, Forbidden, Refused, Unavailable
from controller.resources import EVENTS, LEASES, NODES, PODS, Object
from controller.shape import Shape
from controller.store import ObjectMemory
from crds.elasticjob import ElasticJob
from crds.elasticworker import MAX_MESSAGE, ElasticWorker
from crds.texts import shortened
from reconcilers.observed.builder import pod_name, service_account
from reconcilers.observed.groups import group_of, is_unknown_to, stranger_to
from reconcilers.observed.observations import Observations
from reconcilers.observed.options import PodOptions
from reconcilers.observed.ownership import Leftover, belongs_to, ensure
from reconcilers.observed.start import (
    AGAIN_SECONDS,
    LATE_SECONDS,
    EventsRead,
    Hindrance,
    is_starting,
    lacks_key,
    newest_warning,
    next_reading,
    unfinished_before_training,
)
from reconcilers.observed.worker_state import EARLIER_POD_STUCK, POD_REFUSED
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.refused import is_refusal, retry_seconds
from reconcilers.runtime.tools import Tools
from reconcilers.worker.access import MISSED_RECHECK_SECONDS, OwnerKeys, WorkerAccess
from reconcilers.worker.assignment import Assignment, Gate, Obstacle
from reconcilers.worker.image_volumes import images_mount
from reconcilers.worker.injection import inject_agent
from reconcilers.worker.pod_refusal import PodRefused, PodSource, refused_pod, with_unknown_fields
from reconcilers.worker.silences import lease_of

MOST_EVENTS = 50
"""Limit of Events that are read for a Pod."""
_EVENT = Shape(
    dict.fromkeys(("type", "reason", "message", "reportingComponent", "lastTimestamp", "eventTime"), 1_000)
    | {"source": 100}
)


class LatePods:
    """Finds out why Pods start late, from their Events."""

    def __init__(self, tools: Tools) -> None:
        self._client = tools.client
        self._monotonic = tools.clock.monotonic
        self._starting = Observations(tools.cache.store(PODS), tools.clock.monotonic)
        self._reads: ObjectMemory[EventsRead] = tools.cache.store(ELASTICJOBS).memory()

    async def hindrance_of(self, pod: Object, owner: Object) -> tuple[Hindrance | None, float | None]:
        """Why a late Pod does not start, and seconds until the next look at it.

        The reason is a container that runs before training, or an Event: None if Events were not read,
        `NOTHING` if they name no lasting reason.
        """
        if not is_starting(pod):
            return None, None
        age_seconds = self._starting.age_seconds(pod["metadata"]["uid"], True)
        if age_seconds < LATE_SECONDS:
            return None, LATE_SECONDS - age_seconds
        if (container := unfinished_before_training(pod)) is not None:
            return container, None
        uid = owner["metadata"]["uid"]
        reading = next_reading(self._reads.get(uid), pod["metadata"]["uid"], self._monotonic())
        if reading is None:
            return None, AGAIN_SECONDS
        self._reads.put(uid, reading)
        return await self._warning(pod), AGAIN_SECONDS

    async def _warning(self, pod: Object) -> Hindrance | None:
        """The reason in the Pod's Events; None if we may not read them, or they are too large."""
        metadata = pod["metadata"]
        selector = f"involvedObject.uid={metadata['uid']}"
        try:
            found = await self._client.list_page(
                EVENTS, metadata["namespace"], field_selector=selector, shape=_EVENT, page_size=MOST_EVENTS
            )
        except ApiError:
            return None
        return newest_warning(found["items"])


LEFTOVER_RETRY_SECONDS = 10.0
"""Time between two tries while leftovers exist. Their deletion triggers one, unless it is not watched."""
WAITING_FOR_JOB_SECONDS = 0.2
STUCK_SECONDS = 30.0
"""Time after its grace period in which a deleted Pod is gone, unless its node is lost."""


class PodMaker:
    def __init__(self, tools: Tools, options: PodOptions, gates: Sequence[Gate] = ()) -> None:
        cache = tools.cache
        self._client, self._recorder, self._clock = tools.client, tools.recorder, tools.clock
        self._leases = cache.store(LEASES)
        self._jobs = cache.store(ELASTICJOBS)
        self._nodes = cache.store(NODES)
        self._agent = options.agent
        self._access = WorkerAccess(tools.client, cache)
        self._keys = OwnerKeys(tools.client, cache, tools.clock.monotonic)
        self._gates = gates
        self._leftovers = Observations(cache.store(ELASTICWORKERS), tools.clock.monotonic)
        self._random = options.random

    async def start(self, assignment: Assignment) -> tuple[Object | None, Obstacle | None]:
        """Create the Pod of the incarnation; or return why that cannot be done yet."""
        if is_unknown_to(assignment.owner, self._grouped_job(assignment.owner)):
            message = "the status of its job does not have this replica group yet"
            return None, Obstacle("WaitingForJob", message, WAITING_FOR_JOB_SECONDS, is_reported=False)
        if assignment.job is not None:
            for gate in self._gates:
                if (obstacle := await gate.obstacle(assignment.worker, assignment.job)) is not None:
                    return None, obstacle
        try:
            return await self._create(assignment), None
        except Leftover as leftover:
            is_stuck = self._is_stuck(leftover.found, assignment.worker)
            reason = EARLIER_POD_STUCK if is_stuck else "WaitingForDeletion"
            wait_seconds = retry_seconds(assignment.workers, LEFTOVER_RETRY_SECONDS)
            return None, Obstacle(reason, str(leftover), wait_seconds)
        except PodRefused as refused:
            obstacle = self._refused(assignment, refused.reason, str(refused))
            return None, replace(obstacle, counts_ended=refused.counts_ended)
        except ApiError as error:
            if not is_refusal(error):
                raise
            message = f"Pod {pod_name(assignment.worker)} was refused: {error}"
            return None, self._refused(assignment, POD_REFUSED, message)

    def _is_stuck(self, found: Object | None, worker: ElasticWorker) -> bool:
        """Whether the leftover is a Pod that no kubelet ends; it stays until its Node is deleted."""
        if found is None or found["kind"] != PODS.kind:
            return False
        metadata = found["metadata"]
        grace_seconds = metadata.get("deletionGracePeriodSeconds")
        age_seconds = self._leftovers.age_seconds(worker.metadata.uid, (metadata["uid"], grace_seconds))
        return grace_seconds is not None and age_seconds >= grace_seconds + STUCK_SECONDS

    def _refused(self, assignment: Assignment, reason: str, message: str) -> Obstacle:
        return Obstacle(reason, shortened(message, MAX_MESSAGE), self._refused_retry_seconds(assignment))

    def _refused_retry_seconds(self, assignment: Assignment) -> float:
        """Return a random wait, so that tries do not coincide with a job that uses up a quota at regular
        times, such as one that probes for free nodes (`reconcilers/autoscaling`)."""
        return retry_seconds(assignment.workers) * self._random.uniform(0.5, 1.0)

    async def _create(self, assignment: Assignment) -> Object:
        """Create the Pod, after its rights, its key and its Lease.

        Raises:
            Leftover: an earlier worker's Lease or Pod still exists.
            Forbidden: the owner claims to be a replica group of a job that has no such group.
            PodRefused: the API server refuses the Pod.
            ApiError: the API server refuses another object.
        """
        owner = assignment.owner
        if why := stranger_to(owner, self._grouped_job(owner)):
            raise Forbidden(403, "Forbidden", why)
        source = assignment.source
        pod = with_unknown_fields(assignment.build_pod(), source.template)
        if assignment.job is not None:
            for gate in self._gates:
                gate.enlist(pod, assignment.worker, assignment.job)
        if self._agent is not None and assignment.wants_agent:
            inject_agent(pod, self._agent, images_mount=images_mount(self._nodes))
        account = service_account(pod["spec"])
        await self._access.ensure(assignment.owner, account)
        await self._keys.ensure(assignment.owner)
        if self._lease(assignment) is None:
            await ensure(self._client, LEASES, self._wanted_lease(assignment, None))
        try:
            return await self._make(pod, source, assignment.job)
        except PodRefused as refused:
            if not isinstance(refused.__cause__, Forbidden):
                raise
        await self._access.ensure(assignment.owner, account, missed=True)  # the account may be gone
        return await self._make(pod, source, assignment.job)

    def hold_of(self, assignment: Assignment, pod: Object | None) -> Obstacle | None:
        """Why a feature keeps the Pod from being scheduled; None if none does."""
        if pod is None or assignment.job is None:
            return None
        found = (gate.hold_of(pod, assignment.worker, assignment.job) for gate in self._gates)
        return next(filter(None, found), None)

    async def _make(self, pod: Object, source: PodSource, job: ElasticJob | None) -> Object:
        try:
            made = await ensure(self._client, PODS, pod, strict=True)
        except (Refused, Unavailable) as error:
            if (refused := refused_pod(error, source, pod)) is None:
                raise
            raise refused from error
        if job is not None:
            for gate in self._gates:
                gate.note_created(pod, made, job)
        return made

    def _grouped_job(self, owner: Object) -> Object | None:
        """The job of which the owner claims to be a replica group."""
        group = group_of(owner)
        return None if group is None else self._jobs.get(owner["metadata"]["namespace"], group.name)

    async def ensure_lease(
        self, assignment: Assignment, pod: Object | None
    ) -> tuple[Object | None, float | None]:
        """Create the Lease, rights and key of a Pod where they are missing.

        Args:
            pod: None for a worker without a Pod, or with an ended one: then nothing is created.

        Returns:
            the Lease, and seconds until the next try.
        """
        worker, lease = assignment.worker, self._lease(assignment)
        if assignment.released:
            self._keys.forget(assignment.owner)
        if pod is None or assignment.released:
            return lease, None
        try:
            if lacks_key(pod):
                await self._keys.ensure(assignment.owner, missed=True)
            if account := service_account(pod["spec"]):
                await self._access.ensure(assignment.owner, account)
            if lease is None:
                lease = await ensure(self._client, LEASES, self._wanted_lease(assignment, pod))
        except Leftover:
            return None, retry_seconds(assignment.workers, LEFTOVER_RETRY_SECONDS)
        except ApiError as error:
            if not is_refusal(error):
                raise
            message = f"the Lease, rights or key of {pod_name(worker)} could not be created again: {error}"
            self._recorder.event(assignment.owner, "Warning", "AgentAccessRefused", message)
            return lease, self._refused_retry_seconds(assignment)
        again_seconds = retry_seconds(assignment.workers, MISSED_RECHECK_SECONDS)
        return lease, again_seconds if lacks_key(pod) else None

    def _lease(self, assignment: Assignment) -> Object | None:
        metadata = assignment.worker.metadata
        found = self._leases.get(metadata.namespace, metadata.name)
        return found if found is not None and belongs_to(found, metadata.uid) else None

    def _wanted_lease(self, assignment: Assignment, pod: Object | None) -> Object:
        timeout_seconds = assignment.heartbeat_timeout_seconds
        return lease_of(assignment.worker, pod, timeout_seconds, self._clock.now())
