"""Node lifecycle: silent nodes and their Pods are marked, and the Pods evicted in the end.

A node reports through its Lease. Its silence counts only while the API server has answered all along and this
process has not been held up: otherwise the node's renewals may have been missed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import monotonic
from controller.errors import ApiError, Conflict, NotFound
from controller.resources import NODES, PODS
from localcluster.client.api import STRATEGIC_PATCH, ApiClient
from localcluster.client.clock import timestamp, utc_now
from localcluster.client.informer import Change, Informer
from localcluster.client.recorder import Recorder
from localcluster.kubelet.node_objects import is_reported_ready
from localcluster.resource import JSON
from localcluster.scheduler.constraints import TaintEffect, tolerates

NODE_SILENCE_SECONDS = 40.0
CHECK_SECONDS = 1.0
HELD_UP_SECONDS = 5.0
"""A check that comes this late says that we were stopped, not the nodes."""
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
OWN_TAINTS = (UNREACHABLE, NOT_READY)

log = logging.getLogger(__name__)


@dataclass
class _Pulse:
    """When a node's Lease was last seen to change, by our own clock."""

    renewed: str
    seen_at: float


def is_silent(pulse_seen_at: float, listening_since: float, now: float, silence_seconds: float) -> bool:
    """Whether a node has said nothing although we have listened: pure."""
    return now - max(pulse_seen_at, listening_since) > silence_seconds


def wanted_taints(node: JSON, now: str) -> list[JSON]:
    """The node's taints, ours as its Ready condition demands, everybody else's as they are: pure."""
    taints: list[JSON] = (node.get("spec") or {}).get("taints") or []
    kept = [taint for taint in taints if taint["key"] not in OWN_TAINTS]
    conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
    key = {"True": None, "Unknown": UNREACHABLE}.get(conditions.get("Ready", "False"), NOT_READY)
    if key is None:
        return kept
    for effect in (TaintEffect.NO_SCHEDULE.value, TaintEffect.NO_EXECUTE.value):
        present = [taint for taint in taints if taint["key"] == key and taint["effect"] == effect]
        kept += present or [{"key": key, "effect": effect, "timeAdded": now}]
    return kept


def eviction_delay_seconds(pod: JSON, taints: list[JSON]) -> float | None:
    """How long a Pod may stay on a node with these NoExecute taints; None for as long as it likes: pure."""
    delay: float | None = None
    for taint in taints:
        if taint["effect"] != TaintEffect.NO_EXECUTE.value:
            continue
        matching = [t for t in pod["spec"].get("tolerations") or () if tolerates(t, taint)]
        if not matching:
            return 0.0
        limits = [t["tolerationSeconds"] for t in matching if t.get("tolerationSeconds") is not None]
        if limits:
            delay = min(max(min(limits), 0), delay if delay is not None else min(limits))
    return delay


class NodeLifecycle:
    """Watches Leases, Nodes and Pods; level-triggered, with one timer for the passing of time."""

    def __init__(
        self,
        client: ApiClient,
        recorder: Recorder,
        nodes: Informer,
        pods: Informer,
        leases: Informer,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._nodes = nodes
        self._pods = pods
        self._leases = leases
        self._now = now
        self._pulses: dict[str, _Pulse] = {}
        self._evictions: dict[str, asyncio.TimerHandle] = {}
        self._held_up_at = monotonic()
        self._work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        await asyncio.gather(self._nodes.synced.wait(), self._pods.synced.wait(), self._leases.synced.wait())
        for lease in self._leases.list():
            self._hear_lease(Change.APPLIED, lease)
        self._leases.add_handler(self._hear_lease)
        self._nodes.add_handler(self._hear_node)
        self._pods.add_handler(self._hear_pod)
        while True:
            with suppress(ApiError):  # where nothing else is asked, this keeps the contact
                await self._client.get("/version")
            self._check_all()
            before = monotonic()
            await asyncio.sleep(CHECK_SECONDS)  # silence is not an event: only time shows it
            if monotonic() - before > CHECK_SECONDS + HELD_UP_SECONDS:
                self._held_up_at = monotonic()

    # --- what is heard ---

    def _hear_lease(self, change: Change, lease: JSON) -> None:
        name = lease["metadata"]["name"]
        if change is Change.DELETED:
            self._pulses.pop(name, None)
            return
        renewed = (lease.get("spec") or {}).get("renewTime") or ""
        pulse = self._pulses.get(name)
        if pulse is None or pulse.renewed != renewed:
            self._pulses[name] = _Pulse(renewed, monotonic())

    def _hear_node(self, change: Change, node: JSON) -> None:
        name = node["metadata"]["name"]
        if change is Change.DELETED:
            self._pulses.pop(name, None)
            for pod in self._pods_on(name):
                self._once(f"orphan {pod['metadata']['uid']}", self._delete_orphan(pod))
            return
        self._keep_taints(node)
        for pod in self._pods_on(name):
            self._plan_eviction(pod, node)

    def _hear_pod(self, change: Change, pod: JSON) -> None:
        uid = pod["metadata"]["uid"]
        node_name = pod["spec"].get("nodeName")
        if change is Change.DELETED:
            self._cancel_eviction(uid)
            return
        if not node_name:
            return
        node = self._nodes.get("", node_name)
        if node is not None:
            self._plan_eviction(pod, node)

    def _pods_on(self, node_name: str) -> list[JSON]:
        return [pod for pod in self._pods.list() if pod["spec"].get("nodeName") == node_name]

    # --- silence ---

    def _check_all(self) -> None:
        now = monotonic()
        listening_since = max(self._client.contact.since, self._held_up_at)
        for node in self._nodes.list():
            name = node["metadata"]["name"]
            self._keep_taints(node)
            pulse = self._pulses.setdefault(name, _Pulse("", now))
            silent = is_silent(pulse.seen_at, listening_since, now, NODE_SILENCE_SECONDS)
            if silent and not _is_unknown(node):
                self._once(f"unknown {name}", self._mark_unknown(node))
        for pod in self._pods.list():
            node_name = pod["spec"].get("nodeName")
            if node_name and self._nodes.get("", node_name) is None:
                self._once(f"orphan {pod['metadata']['uid']}", self._delete_orphan(pod))

    async def _mark_unknown(self, node: JSON) -> None:
        name = node["metadata"]["name"]
        now = timestamp(self._now())
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": now,
        }
        path = NODES.path(name=name, subresource="status")
        await self._client.patch(path, {"status": {"conditions": [condition]}}, kind=STRATEGIC_PATCH)
        log.info("node silent node=%s", name)
        self._recorder.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        await asyncio.gather(*(self._mark_not_ready(pod) for pod in self._pods_on(name)))

    async def _mark_not_ready(self, pod: JSON) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(self._now())}
        await self._patch_pod_conditions(pod, [not_ready])
        self._recorder.warning(pod, "NodeNotReady", "Node is not ready")

    def _keep_taints(self, node: JSON) -> None:
        wanted = wanted_taints(node, timestamp(self._now()))
        if wanted != ((node.get("spec") or {}).get("taints") or []):
            self._once(f"taint {node['metadata']['name']}", self._set_taints(node, wanted))

    async def _set_taints(self, node: JSON, taints: list[JSON]) -> None:
        metadata = node["metadata"]
        version = {"resourceVersion": metadata["resourceVersion"]}
        body = {"metadata": version, "spec": {"taints": taints or None}}
        with suppress(Conflict):  # the newer version is on its way, and asks again
            await self._client.patch(NODES.path(name=metadata["name"]), body)
        if is_reported_ready(node):
            self._recorder.normal(node, "NodeReady", f"Node {metadata['name']} status is now: NodeReady")

    # --- eviction ---

    def _plan_eviction(self, pod: JSON, node: JSON) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        taints = (node.get("spec") or {}).get("taints") or []
        finished = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        delay = None
        if not finished and "deletionTimestamp" not in metadata:
            delay = eviction_delay_seconds(pod, taints)
        if delay is None:
            self._cancel_eviction(uid)
        elif uid not in self._evictions:
            loop = asyncio.get_running_loop()
            self._evictions[uid] = loop.call_later(
                delay, lambda: self._once(f"evict {uid}", self._evict(pod))
            )

    def _cancel_eviction(self, uid: str) -> None:
        if (timer := self._evictions.pop(uid, None)) is not None:
            timer.cancel()

    async def _evict(self, pod: JSON) -> None:
        metadata = pod["metadata"]
        self._evictions.pop(metadata["uid"], None)
        await self._mark(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        name = f"{metadata['namespace']}/{metadata['name']}"
        self._recorder.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {name}")
        await self._client.delete(PODS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])

    async def _delete_orphan(self, pod: JSON) -> None:
        """Its node is no more: nobody else will ever say that it has ended."""
        metadata = pod["metadata"]
        try:
            await self._client.get(NODES.path(name=pod["spec"]["nodeName"]))
            return  # it is there, our copy is behind
        except NotFound:
            pass
        await self._mark(pod, "DeletionByPodGC", "PodGC: node no longer exists")
        path = PODS.path(metadata["namespace"], metadata["name"])
        await self._client.delete(path, uid=metadata["uid"], grace_period_seconds=0)

    async def _mark(self, pod: JSON, reason: str, message: str) -> None:
        """Say in the Pod's status why it is about to be deleted."""
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        moment = {"lastTransitionTime": timestamp(self._now())}
        await self._patch_pod_conditions(pod, [target | moment])

    async def _patch_pod_conditions(self, pod: JSON, conditions: list[JSON]) -> None:
        metadata = pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        body = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": conditions}}
        await self._client.patch(path, body, kind=STRATEGIC_PATCH)

    # --- writes ---

    def _once(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """One write of a kind at a time; one that fails is asked for again by the next check."""
        if key in self._work:
            work.close()
            return
        task = self._work[key] = asyncio.create_task(_logged(key, work))
        task.add_done_callback(lambda _done: self._work.pop(key, None))


async def _logged(key: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except NotFound:
        pass
    except ApiError as failure:
        log.warning("%s: %s", key, failure)


def _is_unknown(node: JSON) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)
