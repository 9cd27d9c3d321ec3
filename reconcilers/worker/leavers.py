"""Leaving Pods of a slot whose training processes may still run, and for which the slot's next Pod waits.

A deleted Pod has its grace period to save. Its successor may be created at once, but joins no world before
these processes have ended: otherwise two would train as one rank, and the second would miss the first one's
checkpoint. There is no wait for a Pod whose container has ended, whose grace is over or zero, or whose node
is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.resources import NODES, PODS, Object
from crds.agent_report import AgentState
from crds.elasticworker import MAX_LEAVING, ElasticWorker, ElasticWorkerStatus, ExitClass, WorkerPhase
from reconcilers.observed.builder import grace_seconds, pod_name
from reconcilers.observed.containers import containers_of, may_run, training_container
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import belongs_to
from reconcilers.observed.silence import why_not_ready
from reconcilers.observed.worker_state import ENDED
from reconcilers.runtime.tools import Tools

BY_SLOT = "slot"
"""Index of Pods, by `slot_keys`."""
OVERDUE_SECONDS = 5.0
"""Time after a Pod's grace in which a working kubelet reports that the Pod has ended."""
LOOK_SECONDS = 5.0
"""Time between two looks at a leaving Pod: the loss of its node triggers none."""


def slot_keys(pod: Object) -> Iterable[str]:
    """Index function: namespace and name of the ElasticWorker that controls a Pod. The slot may have another
    worker of that name by now."""
    metadata = pod["metadata"]
    return [
        f"{metadata.get('namespace')}/{owner['name']}"
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller") and owner.get("kind") == "ElasticWorker"
    ]


def may_train(pod: Object | None) -> bool:
    """Whether the Pod's training container may run, and has time to save.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
    """
    if pod is None or pod.get("status", {}).get("phase") != "Running":
        return False
    is_killed = pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return not is_killed and may_run(training_container(containers_of(pod)))


@dataclass(frozen=True)
class Leavers:
    """The Pods of a slot at one look."""

    training: frozenset[str] = frozenset()
    """Names of the Pods whose training processes may run, the present one included."""
    of_earlier: frozenset[str] = frozenset()
    """Names of those that an earlier worker of the same name controls."""
    look_again_seconds: float | None = None


NOBODY_LEAVES = Leavers()


class SlotPods:
    """Finds the Pods of slots in the cache. A grace counts from when we first saw that the Pod leaves, and is
    not over before our contact with the API server has lasted as long: a kubelet may have had none either."""

    def __init__(self, tools: Tools) -> None:
        self._pods, self._nodes = tools.cache.store(PODS), tools.cache.store(NODES)
        self._contact = tools.contact
        self._monotonic = tools.clock.monotonic
        self._leaving = Observations(self._pods, tools.clock.monotonic)

    def of(self, worker: ElasticWorker) -> Leavers:
        """Return the Pods of a worker's slot."""
        key = f"{worker.metadata.namespace}/{worker.metadata.name}"
        training, of_earlier, waits = set[str](), set[str](), list[float]()
        for pod in self._pods.by_index(BY_SLOT, key):
            if not may_train(pod) or why_not_ready(self._nodes.get(None, pod["spec"].get("nodeName", ""))):
                continue
            if _leaves(pod, worker):
                left_seconds = self._seconds_left(pod)
                if left_seconds <= 0:
                    continue
                waits.append(left_seconds)
            training.add(pod["metadata"]["name"])
            if not belongs_to(pod, worker.metadata.uid):
                of_earlier.add(pod["metadata"]["name"])
        look_again_seconds = min((*waits, LOOK_SECONDS)) if waits else None
        return Leavers(frozenset(training), frozenset(of_earlier), look_again_seconds)

    def _seconds_left(self, pod: Object) -> float:
        """Return the longest time for which the Pod's processes may still run."""
        metadata = pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds")
        limit_seconds = (grace_seconds(pod["spec"]) if grace is None else grace) + OVERDUE_SECONDS
        in_contact_seconds = self._monotonic() - self._contact.since
        return limit_seconds - min(self._leaving.age_seconds(metadata["uid"], True), in_contact_seconds)


def _leaves(pod: Object, worker: ElasticWorker) -> bool:
    """Whether the Pod is any other than the incarnation's live one."""
    metadata = pod["metadata"]
    is_present = metadata["name"] == pod_name(worker) and belongs_to(pod, worker.metadata.uid)
    return not is_present or "deletionTimestamp" in metadata or worker.status.phase in ENDED


def still_leaving(worker: ElasticWorker, status: ElasticWorkerStatus, leavers: Leavers) -> list[str]:
    """Return `leavingPods` of the new status. A Pod that has left once is not added again, except for Pods of
    an earlier worker, which have the same names.

    Args:
        status: the rest of the new status.
    """
    before, report, training = worker.status, worker.status.agent, leavers.training
    if before.observed_incarnation is None:
        leaving = training - {pod_name(worker)}
    else:
        leaving = training & set(before.leaving_pods)
        if before.pod_uid is None:
            leaving -= {pod_name(worker)}  # it was an earlier worker's
        is_next = status.observed_incarnation != before.observed_incarnation
        if is_next and before.phase not in ENDED and before.pod_name in training:
            leaving |= {before.pod_name}
    ends_now = status.phase is WorkerPhase.FAILED and (
        before.phase not in ENDED or status.observed_incarnation != before.observed_incarnation
    )
    end = status.last_exit
    if ends_now and end is not None and end.exit_class is not ExitClass.NODE_LOST:
        leaving |= training & {pod_name(worker)}
    if report is not None and report.pod_uid == before.pod_uid:
        over = report.state is AgentState.STOPPED
        over |= report.state is AgentState.FAILED and worker.spec.replaced_for is not None
        leaving -= {before.pod_name} if over else set()
    return sorted(leaving | leavers.of_earlier)[-MAX_LEAVING:]
