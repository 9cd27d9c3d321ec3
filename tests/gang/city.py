"""All controllers beside a cluster that schedules gangs: an API server with PodGroups, scheduler and kubelets."""

from __future__ import annotations

from typing import Any

from controller.resources import PODS
from reconcilers.runtime.kinds import ELASTICJOBS, KUBERNETES_PODGROUPS
from tests.gang.scheduler import decide
from tests.reconcilers.api import NAMESPACE, Api
from tests.reconcilers.played import Played

JSON = dict[str, Any]
PROTECTION = "scheduling.k8s.io/podgroup-protection"


class GatedApi(Api):
    """Serves PodGroups; without the gate it drops the field of Pods."""

    has_gate: bool = True

    def _create(self, resource: Any, body: JSON) -> JSON:
        if resource is PODS and not self.has_gate:
            spec = {key: value for key, value in body["spec"].items() if key != "schedulingGroup"}
            body = body | {"spec": spec}
        if resource == KUBERNETES_PODGROUPS:
            body = body | {"metadata": body["metadata"] | {"finalizers": [PROTECTION]}}
        return super()._create(resource, body)


class City(Played):
    """Plays users, scheduler and kubelets."""

    def __init__(self, gpus: int) -> None:
        super().__init__()
        self.api = GatedApi(unserved=frozenset())
        self.client._api = self.api  # type: ignore[attr-defined]
        self.gpus = gpus
        """GPUs of the one node."""

    async def _move(self, deadline: float) -> bool:
        """The scheduler and the kubelets are as quick as the controllers."""
        return self._protect() or self._schedule() or await super()._move(deadline)

    def _protect(self) -> bool:
        """A deleted PodGroup goes when no Pod names it."""
        named = {_group_of(pod) for pod in self.api.list(PODS)}
        for group in self.api.list(KUBERNETES_PODGROUPS):
            metadata = group["metadata"]
            if metadata.get("deletionTimestamp") and metadata["name"] not in named:
                self.api.remove(KUBERNETES_PODGROUPS, group)
                return True
        return False

    def _schedule(self) -> bool:
        groups = {group["metadata"]["name"]: group for group in self.api.list(KUBERNETES_PODGROUPS)}
        version = self.api.version
        for verdict in decide(self.api.list(PODS), groups, {"node-a": self.gpus}):
            patch = verdict.patch()
            self.api.patch(PODS, verdict.pod, {"status": patch["status"]}, "status")
            if verdict.node is not None:
                self.api.patch(PODS, verdict.pod, {"spec": patch["spec"]})
                self.api.patch(PODS, verdict.pod, {"status": {"phase": "Running"}}, "status")
        return self.api.version != version

    async def begin_job(self, name: str = "gang", replicas: int = 4, **spec: Any) -> None:
        """Submit a job of which each worker wants a GPU."""
        container = {"name": "main", "image": "x", "resources": {"requests": {"example.com/gpu": 1}}}
        worker = {"template": {"spec": {"containers": [container]}}} | spec.pop("worker", {})
        await self.submit(name, replicas, worker=worker, **spec)

    def lose(self, *indices: int, name: str = "gang") -> None:
        """Nodes and Pods of these workers are gone."""
        slots = {f"{name}-worker-{index}" for index in indices}
        for pod in self.api.list(PODS):
            if pod["metadata"]["name"].rpartition("-")[0] in slots:
                self.api.remove(PODS, pod)

    def bound(self) -> list[str]:
        """Names of the Pods with a node."""
        return [pod["metadata"]["name"] for pod in self.api.list(PODS) if pod["spec"].get("nodeName")]

    def group(self, name: str = "gang") -> JSON | None:
        return self.api.find(KUBERNETES_PODGROUPS, name)

    def minimum(self, name: str = "gang") -> int:
        group = self.api.get(KUBERNETES_PODGROUPS, name)
        minimum: int = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
        return minimum

    def warning(self, name: str = "gang") -> JSON:
        """The job's warning about Pods without a node; empty if there is none."""
        status = self.api.get(ELASTICJOBS, name, NAMESPACE)["status"]
        return next((w for w in status.get("warnings", ()) if w["type"] == "WorkersUnscheduled"), {})

    def events(self, reason: str) -> list[str]:
        return [event.message for event in self.api.events if event.reason == reason]


def _group_of(pod: JSON) -> str | None:
    name: str | None = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return name
