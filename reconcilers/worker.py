"""The Worker reconciler: one Pod for each ElasticWorker's incarnation, and a status that says how it is.

Desired state is `spec.incarnation`; what becomes of it is told in `status`, and the owner's reconciler (of a
job or a check) decides what follows. The Pod's name carries the incarnation, so it cannot be made twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.contact import Contact
from controller.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import ELASTICJOBS, ELASTICWORKERS, LEASES, NODES, PODS
from controller.wording import shortened
from crds import names
from crds.elasticworker import ElasticWorker, ElasticWorkerStatus
from crds.model import ConditionStatus, validated
from reconcilers.clock import Clock
from reconcilers.conditions import with_condition
from reconcilers.pod.access import WorkerAccess
from reconcilers.pod.assignment import Assignment, Assignments
from reconcilers.pod.builder import pod_name, service_account
from reconcilers.pod.gang_gate import GangGate, Obstacle
from reconcilers.pod.heartbeat import Heartbeats, lease_of
from reconcilers.pod.injection import inject_agent
from reconcilers.pod.options import PodOptions
from reconcilers.pod.worker_status import ENDED, MAX_MESSAGE, SCHEDULED, Observation, observe
from reconcilers.status_patch import merge_patch

BY_OWNER = "owner"
BY_NODE = "node"
BY_JOB = "job"
REFUSED_RETRY_SECONDS = 30.0
HEARTBEAT_SLACK_SECONDS = 0.1


class WorkerReconciler(Reconciler):
    def __init__(
        self,
        client: Client,
        cache: Cache,
        recorder: EventRecorder,
        contact: Contact,
        clock: Clock,
        options: PodOptions,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._workers = cache.store(ELASTICWORKERS)
        self._pods = cache.store(PODS)
        self._leases = cache.store(LEASES)
        self._nodes = cache.store(NODES)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._assignments = Assignments(cache, options.check_image)
        self._agent = options.agent
        self._heartbeats = Heartbeats(client, self._leases, contact, clock)
        cache.add_handler(LEASES, self._heartbeats.note)
        self._access = WorkerAccess(client, clock.monotonic)
        self._gate = GangGate(client, cache.store(ELASTICJOBS), clock.monotonic)

    async def reconcile(self, request: Request) -> Result:
        namespace = request.namespace or ""
        raw = self._workers.get(namespace, request.name)
        lease = self._leases.get(namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        worker = self._parse_worker.parse(raw)
        assignment = self._assignments.of(worker)
        if assignment is None:
            return Result()

        await self._delete_earlier_pods(worker)
        pod = await self._find_pod(worker)
        if pod is None and not assignment.released and _wants_pod(worker):
            try:
                obstacle = await self._obstacle(assignment)
                if obstacle is not None:
                    if obstacle.worth_telling:
                        await self._write_unscheduled(worker, raw, obstacle.reason, obstacle.message)
                    return Result(obstacle.retry_seconds)
                pod = await self._create_pod(assignment)
            except (Invalid, Forbidden) as error:
                await self._report_refusal(assignment, raw, str(error))
                return Result(REFUSED_RETRY_SECONDS)
        silence, look_again = await self._silence(assignment, lease, pod)
        seen = Observation(
            pod=pod,
            heartbeat_lost_seconds=silence,
            node_lost=self._node_lost(pod, lease, worker),
            node=self._node_of(pod, worker),
            rules=assignment.failure_rules,
            released=assignment.released,
        )
        await self._write(raw, observe(worker, seen, self._clock.now()))
        if assignment.released and pod is not None:
            look_again = await self._clean(assignment, pod)
        return Result(look_again)

    async def _find_pod(self, worker: ElasticWorker) -> dict[str, Any] | None:
        """The incarnation's Pod; asked of the API server itself before a known one is called gone."""
        pod = self._pods.get(worker.metadata.namespace, pod_name(worker))
        status = worker.status
        known = status.observed_incarnation == worker.spec.incarnation and status.pod_uid is not None
        ended = status.phase in ENDED
        if pod is None and known and not ended:
            with contextlib.suppress(NotFound):
                pod = await self._client.get(PODS, pod_name(worker), worker.metadata.namespace)
        return pod if pod is not None and _owned(pod, worker) else None

    def _node_of(self, pod: dict[str, Any] | None, worker: ElasticWorker) -> dict[str, Any] | None:
        name = (pod or {}).get("spec", {}).get("nodeName") or worker.status.node_name
        return self._nodes.get(None, name) if name else None

    async def _obstacle(self, assignment: Assignment) -> Obstacle | None:
        """Why the Pod has to wait for its gang."""
        group = assignment.pod_group
        return None if group is None else await self._gate.obstacle(group)

    async def _create_pod(self, assignment: Assignment) -> dict[str, Any]:
        worker, pod = assignment.worker, assignment.build_pod()
        if self._agent is not None and assignment.wants_agent:
            inject_agent(pod, self._agent)
        namespace = worker.metadata.namespace
        account = service_account(pod["spec"])
        remembered = await self._access.ensure(namespace, account)
        if self._leases.get(namespace, worker.metadata.name) is None:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(LEASES, lease_of(worker, assignment.heartbeat_timeout_seconds))
        try:
            return await self._client.create(PODS, pod)
        except Forbidden:
            if not remembered:
                raise
            self._access.forget(namespace, account)
            return await self._create_pod(assignment)
        except AlreadyExists:
            pod = await self._client.get(PODS, pod_name(worker), namespace)
            if _owned(pod, worker):
                return pod
            raise Forbidden(
                403,
                "Forbidden",
                f"the Pod name {pod_name(worker)} is taken by a Pod that is not this worker's",
            ) from None

    async def _delete_earlier_pods(self, worker: ElasticWorker) -> None:
        """Earlier incarnations leave in their own grace period, beside the new one.

        The last one's Pod stays if it has ended by itself: its log may be the only witness.
        """
        last = str(worker.spec.incarnation - 1)
        for pod in self._pods.by_index(BY_OWNER, worker.metadata.uid):
            kept = _ended(pod) and pod["metadata"]["labels"].get(names.LABEL_INCARNATION) == last
            if pod["metadata"]["name"] != pod_name(worker) and not kept:
                await self._delete_pod(pod)

    async def _delete_pod(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def _clean(self, assignment: Assignment, pod: dict[str, Any]) -> float | None:
        """Delete the Pod of a released worker, when it is time; seconds until then."""
        wait = assignment.seconds_to_cleaning(pod_ended=_ended(pod), now=self._clock.now())
        if wait == 0:
            await self._delete_pod(pod)
            return None
        return wait

    async def _silence(
        self, assignment: Assignment, lease: dict[str, Any] | None, pod: dict[str, Any] | None
    ) -> tuple[float | None, float | None]:
        """(seconds of silence if too long, seconds until it might be)."""
        if pod is None or lease is None or _ended(pod):
            return None, None
        worker, timeout = assignment.worker, assignment.heartbeat_timeout_seconds
        age = self._heartbeats.age_seconds(lease, pod, worker)
        if age is not None and age >= timeout:
            age = await self._heartbeats.confirmed_age_seconds(lease, pod, worker)
            if age >= timeout:
                return age, None
        if age is None:
            return None, None
        return None, timeout - age + HEARTBEAT_SLACK_SECONDS

    def _node_lost(
        self, pod: dict[str, Any] | None, lease: dict[str, Any] | None, worker: ElasticWorker
    ) -> str | None:
        """Why the Pod's node counts as lost. An agent that is heard speaks for its node itself."""
        name = (pod or {}).get("spec", {}).get("nodeName")
        if pod is None or not name or self._heartbeats.age_seconds(lease, pod, worker) is not None:
            return None
        node = self._nodes.get(None, name)
        if node is None:
            return None  # just created, or gone: then its Pods are collected too
        ready = next((c for c in node.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), None)
        if ready is None or ready.get("status") == "True":
            return None
        return f"node {name} is not ready: {ready.get('message', ready.get('reason', ''))}"

    async def _report_refusal(self, assignment: Assignment, raw: dict[str, Any], error: str) -> None:
        """The API server refuses the Pod: the template is wrong, or a quota or policy forbids it."""
        worker = assignment.worker
        message = shortened(f"Pod {pod_name(worker)} was refused: {error}", MAX_MESSAGE)
        self._recorder.event(assignment.owner, "Warning", "PodRefused", message)
        await self._write_unscheduled(worker, raw, "PodRefused", message)

    async def _write_unscheduled(
        self, worker: ElasticWorker, raw: dict[str, Any], reason: str, message: str
    ) -> None:
        """The condition shows on the job too, and is told there in an Event."""
        now = self._clock.now()
        status = observe(worker, Observation(pod=None), now)
        conditions = with_condition(status.conditions, SCHEDULED, ConditionStatus.FALSE, reason, message, now)
        await self._write(raw, status.model_copy(update={"message": message, "conditions": conditions}))

    async def _write(self, raw: dict[str, Any], status: ElasticWorkerStatus) -> None:
        """Patch what is ours, not the agent's part. Conflict: what ended a Pod may be known already."""
        current = {k: v for k, v in raw.get("status", {}).items() if k != "agent"}
        desired = {k: v for k, v in validated(status).items() if k != "agent"}
        patch = merge_patch(current, desired)
        if not patch:
            return
        metadata, body = raw["metadata"], {"status": patch}
        if "lastExit" in patch:  # counted once, and not again by a cache that has not heard of it yet
            body["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                ELASTICWORKERS, metadata["name"], body, metadata["namespace"], subresource="status"
            )


def _wants_pod(worker: ElasticWorker) -> bool:
    status = worker.status
    if status.observed_incarnation != worker.spec.incarnation:
        return True
    ended = status.phase in ENDED
    return status.pod_uid is None and not ended


def _owned(pod: dict[str, Any], worker: ElasticWorker) -> bool:
    return worker.metadata.uid in owner_uids(pod)


def _ended(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def owner_uids(obj: dict[str, Any]) -> Iterable[str]:
    """Index function: the uid of the controlling owner."""
    return [o["uid"] for o in obj["metadata"].get("ownerReferences", ()) if o.get("controller")]


def node_names(obj: dict[str, Any]) -> Iterable[str]:
    """Index function: the node an ElasticWorker's Pod is on."""
    node = obj.get("status", {}).get("nodeName")
    return [node] if node else []


def job_keys(obj: dict[str, Any]) -> Iterable[str]:
    """Index function: the job that an ElasticWorker belongs to, or that a NodeCheck checks."""
    job = obj["spec"].get("jobName")
    return [f"{obj['metadata']['namespace']}/{job}"] if job else []
