"""The Worker reconciler: one Pod for each incarnation of an ElasticWorker, and the status of that Pod.

The desired state is `spec.incarnation`. `status` reports its Pod, and the owner's reconciler (of a job or a
check) decides what follows. The Pod's name contains the incarnation, so it cannot be created twice.

Every reconciliation ensures the Pod, its Lease and its rights: it creates what is missing, and waits for
leftovers of an earlier worker of the same name. It makes no request if everything exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.errors import ApiError, Conflict, NotFound
from controller.reconciler import Request, Result
from controller.resources import PODS, Object
from crds import names
from crds.elasticworker import ElasticWorker, ElasticWorkerStatus
from crds.model import ConditionStatus
from reconcilers.observed.builder import pod_name
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.observed.containers import containers_of, has_ended, may_run, training_container
from reconcilers.observed.device_taints import NO_EXECUTE, DeviceTaints
from reconcilers.observed.options import PodOptions
from reconcilers.observed.ownership import (
    BY_OWNER,
    belongs_to,
    in_namespace,
    number_label,
    spares_its_own,
    staying,
)
from reconcilers.observed.silence import Silence, SilenceVerdict, why_not_ready
from reconcilers.observed.start import Hindrance
from reconcilers.observed.status_patch import validated_patch
from reconcilers.observed.worker_state import ENDED, SCHEDULED
from reconcilers.runtime.acts import in_parallel, telling_refusals
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.runtime.refused import is_refusal, retry_seconds
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.worker.assignment import (
    STARTS_PER_SECOND,
    Assignment,
    Assignments,
    AssignToJob,
    Gate,
    JobAssignment,
    Obstacle,
    OtherOwner,
)
from reconcilers.worker.dialling import Dials, TcpDials
from reconcilers.worker.leavers import LOOK_SECONDS, NOBODY_LEAVES, Leavers, SlotPods
from reconcilers.worker.maker import LatePods, PodMaker
from reconcilers.worker.silences import Silences
from reconcilers.worker.worker_status import REPORT_READABLE, Observation, is_on_its_way, is_over, observe

BY_NODE = "node"
_OF_OTHERS = ("agent", "standby")
"""Fields of the status that the agent and the job's reconciler write."""
START_SECONDS = 3.0
"""Time that a worker's first Pod has to start before the status reports it as pending."""


@dataclass(frozen=True)
class UnrecordedPod:
    """A Pod that exists, and that its worker's status does not name yet."""

    life: tuple[str, int]
    """Uid of the worker, and incarnation."""
    pod_uid: str
    seen_at: float
    """Time of the first sight, on the monotonic clock."""


class WorkerReconciler(WithTools):
    def __init__(
        self,
        tools: Tools,
        options: PodOptions,
        assign_to_job: AssignToJob = JobAssignment,
        gates: Sequence[Gate] = (),
        owners: Sequence[OtherOwner] = (),
        dials: Dials | None = None,
    ) -> None:
        super().__init__(tools)
        self._assignments = Assignments(tools.cache, assign_to_job, owners)
        self._silences = Silences(tools, dials or TcpDials(tools.clock.monotonic))
        self._maker = PodMaker(tools, options, gates)
        self._late = LatePods(tools)
        self._taints = tools.cache.shared(DeviceTaints)
        self._slots = SlotPods(tools)
        self._unrecorded: dict[Request, UnrecordedPod] = {}
        self._ending: dict[Request, Object] = {}
        """Ended Pods whose end is not written yet: once they are deleted, nothing else has the reason."""

    async def reconcile(self, request: Request) -> Result:
        namespace = request.namespace or ""
        raw = self._workers.get(namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            self._unrecorded.pop(request, None)
            self._ending.pop(request, None)
            if raw is not None and not spares_its_own(raw):
                await self._delete_pods_of(raw)
            return Result()
        worker = self._parse_worker.parse(raw)
        assignment = self._assignments.of(worker, raw)
        if assignment is None:
            return Result()

        delete_in = await self._delete_earlier_pods(assignment)
        earlier = self._earlier(request, assignment)
        pod = await self._find_pod(worker, earlier)
        leavers = self._slots.of(worker) if assignment.trains else NOBODY_LEAVES
        if pod is None and earlier is None and _wants_pod(assignment):
            pod, obstacle = await self._start(assignment, raw, leavers)
            if obstacle is not None:
                return Result(obstacle.retry_seconds)
            lease, again = None, None  # the Lease is new, and no agent has renewed it yet
        else:
            living = pod if pod is not None and not has_ended(pod) else None
            lease, again = await self._maker.ensure_lease(assignment, living)
        silence, overdue_in = await self._silence(assignment, lease, pod)
        warning, late_in = await self._warning(assignment, pod)
        hold = None if assignment.released else self._maker.hold_of(assignment, pod)
        seen = Observation(
            pod=pod if pod is not None else self._gone_with_its_end(request, assignment),
            assignment=assignment,
            leavers=leavers,
            gone_pod_uid=earlier.pod_uid if earlier else None,
            silence=silence,
            node_lost=self._node_lost(pod, lease, worker),
            node=self._node_of(pod, worker),
            device_taint=self._taints.of(pod["metadata"]["uid"], NO_EXECUTE) if pod is not None else None,
            warning=warning,
            hold=Hindrance(hold.reason, hold.message) if hold is not None and hold.is_reported else None,
        )
        start_in = await self._record(request, assignment, raw, seen)
        clean_in = await self._clean(assignment, pod)
        hold_in, leave_in = hold.retry_seconds if hold is not None else None, leavers.look_again_seconds
        all_in = (delete_in, again, overdue_in, late_in, start_in, clean_in, hold_in, leave_in)
        waits = [wait for wait in all_in if wait is not None]
        is_heard = silence is not None and silence.verdict is SilenceVerdict.HEARD and waits == [overdue_in]
        lacks_node = seen.node is None and bool(assignment.topology_keys or assignment.domain_policy)
        seconds_left = self._silences.seconds_to_miss(assignment) if is_heard and not lacks_node else None
        return Result(min(waits, default=None), seconds_left)

    async def _start(
        self, assignment: Assignment, raw: Object, leavers: Leavers
    ) -> tuple[Object | None, Obstacle | None]:
        """Create the Pod, or report why it has to wait."""
        pod, obstacle = None, self._unless_it_waits(assignment, leavers)
        if obstacle is None:
            pod, obstacle = await self._maker.start(assignment)
        if obstacle is not None and obstacle.counts_ended:
            await self._delete_earlier_pods(assignment, even_last=True)
        if obstacle is not None and obstacle.is_reported:
            await self._write_unscheduled(assignment, raw, obstacle, leavers)
        return pod, obstacle

    def _unless_it_waits(self, assignment: Assignment, leavers: Leavers) -> Obstacle | None:
        """Why a Pod that would train at once has to wait; None for a Pod whose agent waits for a world."""
        if not leavers.training or assignment.waits_for_world:
            return None
        status = observe(assignment.worker, Observation(None, assignment, leavers), self._clock.now())
        others = [name for name in status.leaving_pods if name != pod_name(assignment.worker)]
        if not others:
            return None  # a leaving Pod of the same name has to be gone anyway
        message = f"processes of {others[0]} still run, and the next ones would run beside them"
        return Obstacle("WaitingForDeletion", message, LOOK_SECONDS)

    def _earlier(self, request: Request, assignment: Assignment) -> UnrecordedPod | None:
        """The incarnation's Pod as an earlier reconciliation saw it, until the status names it."""
        known, worker = self._unrecorded.get(request), assignment.worker
        if known is None:
            return None
        if assignment.released or known.life != _life(worker) or _is_recorded(worker):
            del self._unrecorded[request]
            return None
        return known

    def _gone_with_its_end(self, request: Request, assignment: Assignment) -> Object | None:
        """The incarnation's Pod as last seen, if it ended and that is not written yet."""
        pod, status = self._ending.get(request), assignment.worker.status
        if pod is None or assignment.released or pod["metadata"]["uid"] != status.pod_uid:
            return None
        return pod

    async def _find_pod(self, worker: ElasticWorker, earlier: UnrecordedPod | None) -> Object | None:
        """The incarnation's Pod, read from the API server before a recorded Pod counts as gone.

        So, too, before an unrecorded one counts as ended: it may be the one from before a suspension.
        """
        uid, pod = worker.metadata.uid, self._pods.get(worker.metadata.namespace, pod_name(worker))
        if pod is None or not belongs_to(pod, uid):
            is_doubtful = earlier is not None or _is_recorded(worker)
        else:
            is_doubtful = _ends_unknown(pod, worker)
        if is_doubtful and not is_over(worker):
            pod = None
            with contextlib.suppress(NotFound):
                pod = await self._client.get(PODS, pod_name(worker), worker.metadata.namespace)
        return pod if pod is not None and belongs_to(pod, uid) else None

    async def _warning(
        self, assignment: Assignment, pod: Object | None
    ) -> tuple[Hindrance | None, float | None]:
        """The hindrance in a late Pod's Events; and seconds until they are read again."""
        if pod is None or assignment.released or assignment.worker.spec.job_name is None:
            return None, None
        return await self._late.hindrance_of(pod, assignment.owner)

    def _node_of(self, pod: Object | None, worker: ElasticWorker) -> Object | None:
        name = (pod or {}).get("spec", {}).get("nodeName") or worker.status.node_name
        return self._nodes.get(None, name) if name else None

    async def _delete_earlier_pods(self, assignment: Assignment, *, even_last: bool = False) -> float | None:
        """Delete the Pods of earlier incarnations, which leave in their own grace period beside the new one.

        The last one's Pod stays if it has ended by itself: the reason may be in its log alone.

        Args:
            even_last: delete that Pod, too, since the new one cannot be created beside it.

        Returns:
            seconds until the next try, if the API server refuses to delete one.
        """
        worker, waits = assignment.worker, list[float]()
        last = worker.spec.incarnation - 1
        pods = self._pods.by_index(BY_OWNER, worker.metadata.uid)
        for pod in in_namespace(pods, worker.metadata.namespace):
            incarnation = number_label(pod, names.LABEL_INCARNATION)
            if incarnation is not None and (
                incarnation < last or (incarnation == last and (even_last or not has_ended(pod)))
            ):
                waits += filter(None, [await self._delete_pod(pod, assignment)])
        return min(waits, default=None)

    async def _delete_pods_of(self, worker: Object) -> None:
        """Delete the Pods of a deleted worker, since a finalizer may keep worker and Pods for ever."""
        namespace = worker["metadata"]["namespace"]
        pods = self._pods.by_index(BY_OWNER, worker["metadata"]["uid"])
        await in_parallel(self._delete(pod, worker) for pod in staying(in_namespace(pods, namespace)))

    async def _delete_pod(self, pod: Object, assignment: Assignment) -> float | None:
        """Delete a Pod; return the seconds until the next try, if the API server refuses."""
        if pod["metadata"].get("deletionTimestamp"):
            return None
        try:
            await self._delete(pod, assignment.owner)
        except ApiError as error:
            if not is_refusal(error):
                raise
            return retry_seconds(assignment.workers)
        return None

    async def _delete(self, pod: Object, about: Object) -> None:
        """Delete a Pod; a refusal is raised, and reported in an Event on `about`."""
        metadata = pod["metadata"]
        what = f"the Pod {metadata['name']} could not be deleted"
        with contextlib.suppress(NotFound, Conflict), telling_refusals(self._recorder, about, what):
            await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def _clean(self, assignment: Assignment, pod: Object | None) -> float | None:
        """Delete the Pod of a released worker once it is due; return the seconds until then."""
        if pod is None or not assignment.released:
            return None
        wait = assignment.seconds_to_cleaning(pod_ended=has_ended(pod), now=self._clock.now())
        return await self._delete_pod(pod, assignment) if wait == 0 else wait

    async def _silence(
        self, assignment: Assignment, lease: Object | None, pod: Object | None
    ) -> tuple[Silence | None, float | None]:
        """Verdict on the agent's silence, if it was ever heard; and seconds until the next look at it."""
        if pod is None or lease is None or has_ended(pod) or assignment.released:
            return None, None
        return await self._silences.judge(assignment, lease, pod)

    def _node_lost(self, pod: Object | None, lease: Object | None, worker: ElasticWorker) -> str | None:
        """Why the Pod's node counts as lost; None while the agent's heartbeats prove that it is not."""
        name = (pod or {}).get("spec", {}).get("nodeName")
        if pod is None or not name or self._is_heard(lease, pod, worker):
            return None
        # A node that is not in the cache is new; or it is gone, and garbage collection takes its Pods.
        return why_not_ready(self._nodes.get(None, name)) or None

    def _is_heard(self, lease: Object | None, pod: Object, worker: ElasticWorker) -> bool:
        """Whether its agent was heard, and its container still runs."""
        age_seconds = self._silences.heartbeats.age_seconds(lease, pod, worker)
        return age_seconds is not None and may_run(training_container(containers_of(pod)))

    async def _record(
        self, request: Request, assignment: Assignment, raw: Object, seen: Observation
    ) -> float | None:
        """Write the observed status; or return the seconds for which a first Pod may still come up."""
        worker = assignment.worker
        status = observe(worker, seen, self._clock.now())
        if seen.pod is not None and status.last_exit != worker.status.last_exit:
            self._ending[request] = seen.pod
        if seen.pod is not None and not assignment.released and not _is_recorded(worker):
            new = UnrecordedPod(_life(worker), seen.pod["metadata"]["uid"], self._clock.monotonic())
            known = self._unrecorded.setdefault(request, new)
            start_seconds = max(START_SECONDS, assignment.workers / STARTS_PER_SECOND)
            left_seconds = known.seen_at + start_seconds - self._clock.monotonic()
            has_news = status.node_name is not None and assignment.is_probe
            if left_seconds > 0 and is_on_its_way(worker, status) and not has_news:
                return left_seconds
        await self._write(raw, status)
        self._ending.pop(request, None)
        unreadable = condition_of(status.conditions, REPORT_READABLE)
        if unreadable is not None and condition_of(worker.status.conditions, REPORT_READABLE) is None:
            message = f"{worker.metadata.name}: {unreadable.message}"
            self._recorder.event(assignment.owner, "Warning", "ReportUnreadable", message)
        return None

    async def _write_unscheduled(
        self, assignment: Assignment, raw: Object, obstacle: Obstacle, leavers: Leavers
    ) -> None:
        """Write the obstacle as a condition, which the job reports too, with an Event."""
        now, message = self._clock.now(), obstacle.message
        status = observe(assignment.worker, Observation(None, assignment, leavers), now)
        conditions = with_condition(
            status.conditions, SCHEDULED, ConditionStatus.FALSE, obstacle.reason, message, now
        )
        await self._write(raw, status.model_copy(update={"message": message, "conditions": conditions}))

    async def _write(self, raw: Object, status: ElasticWorkerStatus) -> None:
        """Patch the fields that are ours. Ends of Pods are written with a precondition, all else without one,
        so that the agent's frequent reports cause no conflicts: a late write of it counts nothing.

        Raises:
            Conflict: the end of a Pod may be recorded already.
        """
        current = {k: v for k, v in raw.get("status", {}).items() if k not in _OF_OTHERS}
        desired = status.model_copy(update=dict.fromkeys(_OF_OTHERS)).to_wire()
        patch = validated_patch(current, status, desired)
        if not patch:
            return
        metadata, body = raw["metadata"], {"status": patch}
        if "lastExit" in patch or ("phase" in patch and status.phase in ENDED):
            # From a stale cache, an end would be counted twice; written late, it would end the next one.
            body["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                ELASTICWORKERS, metadata["name"], body, metadata["namespace"], subresource="status"
            )


def _life(worker: ElasticWorker) -> tuple[str, int]:
    return worker.metadata.uid, worker.spec.incarnation


def _is_recorded(worker: ElasticWorker) -> bool:
    """Whether the status names the incarnation's Pod."""
    status = worker.status
    return status.observed_incarnation == worker.spec.incarnation and status.pod_uid is not None


def _ends_unknown(pod: Object, worker: ElasticWorker) -> bool:
    """Whether the Pod has ended or is being deleted, and is not the one that the status names."""
    metadata = pod["metadata"]
    return metadata["uid"] != worker.status.pod_uid and (has_ended(pod) or "deletionTimestamp" in metadata)


def _wants_pod(assignment: Assignment) -> bool:
    worker = assignment.worker
    return not assignment.released and not is_over(worker) and not _is_recorded(worker)


def node_names(obj: Object) -> Iterable[str]:
    """Index function: the node of an ElasticWorker's Pod."""
    node = obj.get("status", {}).get("nodeName")
    return [node] if node else []


def job_keys(obj: Object) -> Iterable[str]:
    """Index function: the job that an ElasticWorker belongs to, or that a NodeCheck checks."""
    job = obj["spec"].get("jobName")
    return [f"{obj['metadata']['namespace']}/{job}"] if job else []
