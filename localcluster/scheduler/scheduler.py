"""Binds Pods to nodes as soon as either changes; what does not fit is looked at again with each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from controller.errors import ApiError, NotFound, Refused, Unavailable
from controller.resources import PODS
from localcluster.client.api import STRATEGIC_PATCH, ApiClient
from localcluster.client.clock import timestamp, utc_now
from localcluster.client.informer import Change, Informer, key_of
from localcluster.client.recorder import Recorder
from localcluster.resource import JSON
from localcluster.scheduler.decision import FINISHED_PHASES, node_states
from localcluster.scheduler.gangs import decide

SCHEDULER_NAME = "default-scheduler"
OWN_NAMES = frozenset({SCHEDULER_NAME, "scheduler-plugins-scheduler"})
"""Names of the scheduler; scheduler-plugins has the second where it runs beside the default scheduler."""
RETRY_SECONDS = 1.0  # after a write that failed; changes of Pods and nodes are not waited for, they wake us

log = logging.getLogger(__name__)


def awaits_node(pod: JSON) -> bool:
    """Whether it is ours to place now."""
    return (
        not pod["spec"].get("nodeName")
        and not pod["spec"].get("schedulingGates")
        and (pod["spec"].get("schedulerName") or SCHEDULER_NAME) in OWN_NAMES
        and "deletionTimestamp" not in pod["metadata"]
        and pod.get("status", {}).get("phase") not in FINISHED_PHASES
    )


class Scheduler:
    """Level-triggered: each round looks at all waiting Pods and all nodes."""

    def __init__(
        self, client: ApiClient, pods: Informer, nodes: Informer, pod_groups: Informer, recorder: Recorder
    ) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._pod_groups = pod_groups
        self._recorder = recorder
        self._changed = asyncio.Event()
        self._assumed: dict[str, str] = {}
        """Pod uid to node: bound by us, not yet seen in the watch."""
        self._told: dict[str, str] = {}
        """Pod uid to why it does not fit, as last written."""
        self._writes: set[asyncio.Task[None]] = set()
        pods.add_handler(self._pod_changed)
        nodes.add_handler(lambda _change, _node: self._changed.set())
        pod_groups.add_handler(lambda _change, _group: self._changed.set())

    async def run(self) -> None:
        informers = (self._pods, self._nodes, self._pod_groups)
        await asyncio.gather(*(informer.synced.wait() for informer in informers))
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.schedule_all()

    def schedule_all(self) -> None:
        """Decide for every waiting Pod; the writes go on beside."""
        pods = self._pods.list()
        waiting = [pod for pod in pods if awaits_node(pod) and pod["metadata"]["uid"] not in self._assumed]
        if not waiting:
            return
        states = node_states(self._nodes.list(), map(self._with_assumed_node, pods))
        groups = {key_of(group): group for group in self._pod_groups.list()}
        for decided in decide(waiting, groups, states):
            pod, node = decided.pod, decided.placement.node
            if node is None:
                self._write(self._report(pod, decided.placement.message))
                continue
            self._assumed[pod["metadata"]["uid"]] = node
            self._write(self._bind(pod, node))

    def _with_assumed_node(self, pod: JSON) -> JSON:
        node = self._assumed.get(pod["metadata"]["uid"])
        if node is None or pod["spec"].get("nodeName"):
            return pod
        return {**pod, "spec": {**pod["spec"], "nodeName": node}}

    def _pod_changed(self, change: Change, pod: JSON) -> None:
        uid = pod["metadata"]["uid"]
        if change is Change.DELETED or pod["spec"].get("nodeName"):
            self._assumed.pop(uid, None)
            self._told.pop(uid, None)
        if awaits_node(pod) or change is Change.DELETED or not _is_running(pod):
            self._changed.set()

    def _write(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _bind(self, pod: JSON, node: str) -> None:
        metadata = pod["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._client.create(PODS.path(namespace, name, "binding"), binding)
        except ApiError as failure:
            log.warning("bind failed pod=%s/%s node=%s error=%s", namespace, name, node, failure)
            await asyncio.sleep(RETRY_SECONDS)
            self._assumed.pop(uid, None)
            self._changed.set()
            return
        self._recorder.normal(pod, "Scheduled", f"Successfully assigned {namespace}/{name} to {node}")

    async def _report(self, pod: JSON, message: str) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if self._told.get(uid) == message:
            return
        self._told[uid] = message
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": timestamp(utc_now()),
        }
        try:
            await self._client.patch(
                PODS.path(metadata["namespace"], metadata["name"], "status"),
                {"metadata": {"uid": uid}, "status": {"conditions": [condition]}},
                kind=STRATEGIC_PATCH,
            )
        except Refused as failure:
            if not isinstance(failure, NotFound):
                log.warning("condition not written pod=%s error=%s", metadata["name"], failure)
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
            self._told.pop(uid, None)
            self._changed.set()
            return
        self._recorder.warning(pod, "FailedScheduling", message)


def _is_running(pod: JSON) -> bool:
    """A change of a Pod that runs frees nothing, so nobody needs to be looked at again."""
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in FINISHED_PHASES
