"""A cluster and Kueue in memory, with all reconcilers: everybody acts until nobody has anything to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controller.errors import Conflict
from controller.resources import PODS
from crds import names
from reconcilers.kueue.workload import (
    CLUSTERQUEUES,
    FLAVORS,
    LOCALQUEUES,
    PRIORITIES,
    QUEUE_LABEL,
    WORKLOADS,
)
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.kueue.standin import Kueue
from tests.reconcilers.api import NAMESPACE, Api, Entry, Write
from tests.reconcilers.cluster_model import Script, act, add_nodes, renew_leases
from tests.reconcilers.process import Killed, Process

JSON = dict[str, Any]
GPU = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
STEPS = 6_000


@dataclass
class QueueApi(Api):
    """An API server with Kueue behind it."""

    kueue: Kueue = field(init=False)

    def __post_init__(self) -> None:
        self.kueue = Kueue(lambda: self.seconds)
        add_nodes(self, 12)
        self.objects.setdefault(ELASTICJOBS, {})
        spec = {"nodeLabels": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
        self._put_of_kueue(FLAVORS, "default", spec, None)
        self._put_of_kueue(LOCALQUEUES, "team", {"clusterQueue": "shared"}, NAMESPACE)
        self.set_quota(4)

    def set_quota(self, quota: int, **more: Any) -> None:
        resources = [{"name": "nvidia.com/gpu", "nominalQuota": quota}]
        flavors = [{"name": "default", "resources": resources}]
        groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
        preemption = {"withinClusterQueue": "LowerPriority"}
        spec = {"resourceGroups": groups, "preemption": preemption, "namespaceSelector": {}} | more
        self._put_of_kueue(CLUSTERQUEUES, "shared", spec, None)

    def _put_of_kueue(self, resource: Any, name: str, spec: JSON, namespace: str | None) -> None:
        metadata: JSON = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"} | (
            {"namespace": namespace} if namespace else {}
        )
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
        self.kueue.put(obj)
        self.objects.setdefault(resource, {})[namespace, name] = obj

    def apply(self, write: Write) -> JSON:
        if write.resource != WORKLOADS:
            return super().apply(write)
        namespace = write.namespace or NAMESPACE
        match write.verb:
            case "create":
                answer = self.kueue.create(write.body)
            case "patch":
                answer = self.kueue.patch(namespace, write.name, write.body)
            case "replace":
                answer = self.kueue.put_status(write.body)
            case _:
                found = self.kueue.workloads.get((namespace, write.name))
                if found is None:
                    raise self._not_found(WORKLOADS, write.name)
                if write.refuses(found["metadata"]):
                    raise Conflict(409, "Conflict", "another object, or another version of it")
                self.kueue.delete(namespace, write.name)
                answer = {}
        self.version += 1
        self.mirror()
        return answer

    def _delete_gracefully(self, resource: Any, obj: JSON) -> None:
        if resource != WORKLOADS:
            super()._delete_gracefully(resource, obj)
        elif not obj["metadata"].get("deletionTimestamp"):
            self.kueue.delete(obj["metadata"]["namespace"], obj["metadata"]["name"])
            self.mirror()

    def mirror(self) -> None:
        """Show what Kueue has in the watch."""
        there = self.objects.setdefault(WORKLOADS, {})
        stored = self.kueue.workloads
        for key in [key for key in there if key not in stored]:
            self._log(WORKLOADS, Entry(there.pop(key), deleted=True))
        for key, obj in stored.items():
            if there.get(key) is not obj:
                there[key] = obj
                self._log(WORKLOADS, Entry(obj))

    def kueue_moves(self) -> bool:
        moves = self.kueue.moves()
        if moves:
            moves[0].do()
            self.mirror()
        return bool(moves)


@dataclass
class Cluster:
    """A cluster in which everybody acts until nobody has anything to do."""

    api: QueueApi = field(default_factory=QueueApi)
    kill_after: int = 0
    """Number of writes after which the controller dies, again and again; 0: never."""
    script: Script = field(default_factory=Script)
    process: Process | None = None
    queues: bool = True
    """Whether the controller runs with `--kueue`."""
    writes: int = 0
    most: int = 0
    """The most worker Pods that there were beyond what was granted."""

    async def settle(self, seconds: float = 60.0) -> Cluster:
        """Let everybody act for a while."""
        api, end = self.api, self.api.seconds + seconds
        for _ in range(STEPS):
            try:
                if await self._controller().step():
                    self._check()
                    continue
            except Killed:
                self.process = None
                continue
            if act(api, self.script) or api.kueue_moves() or self._controller().cache.catch_up():
                self._check()
                continue
            due = self._controller().next_due
            clock = api.kueue.next_clock()
            next_ = min(
                (each for each in (due, clock) if each is not None and each > api.seconds), default=end
            )
            if next_ >= end:
                api.seconds = end
                assert self.process is not None and not self.process.errors, self.process.errors
                return self
            api.seconds = next_
            renew_leases(api)
        raise AssertionError("no end in sight")

    def _controller(self) -> Process:
        if self.process is None:
            self.process = Process(self.api, queues=self.queues, after_write=self._after)
        return self.process

    def _after(self, _: Write) -> None:
        self.writes += 1
        if self.kill_after and self.writes % self.kill_after == 0:
            assert self.process is not None
            self.process.die()

    def _check(self) -> None:
        pods = [pod for pod in self.api.list(PODS) if pod["status"]["phase"] in ("Pending", "Running")]
        self.most = max(self.most, len(pods) - self.api.kueue.used("shared", "default", "nvidia.com/gpu"))

    def submit(
        self,
        most: int = 8,
        least: int = 2,
        managed_by: str | None = None,
        policy: JSON | None = None,
        unit: int = 1,
        **metadata: Any,
    ) -> Cluster:
        worker = {"replicas": most, "minReplicas": least, "template": {"spec": {"containers": [GPU]}}}
        metadata = {"name": "j", "namespace": NAMESPACE, "labels": {QUEUE_LABEL: "team"}} | metadata
        policy = {"lastCallSeconds": 5, "shrinkAfterSeconds": 20, "nodeUnit": unit} | (policy or {})
        spec = {"replicaSpecs": {names.WORKER: worker}, "elasticPolicy": policy}
        spec |= {"managedBy": managed_by} if managed_by else {}
        self.api.create(ELASTICJOBS, {"metadata": metadata, "spec": spec})
        return self

    @property
    def status(self) -> JSON:
        return self.api.get(ELASTICJOBS, "j")["status"]

    @property
    def pods(self) -> list[JSON]:
        return [pod for pod in self.api.list(PODS) if pod["status"]["phase"] in ("Pending", "Running")]

    def meets(self, count: int) -> None:
        """Another Workload comes, of a higher priority."""
        self.comes("other", count, priority=10)

    def comes(self, name: str, count: int, pods: str = "main", least: int | None = None, **spec: Any) -> None:
        """Somebody makes a Workload of Pods with a GPU each."""
        template = {"spec": {"containers": [GPU]}}
        pod_set = {"name": pods, "count": count, "template": template} | (
            {"minCount": least} if least else {}
        )
        spec = {"queueName": "team", "podSets": [pod_set], "active": True} | spec
        metadata = {"name": name, "namespace": NAMESPACE}
        self.api.kueue.create(
            {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": metadata, "spec": spec}
        )
        self.api.mirror()

    def goes(self, name: str = "other") -> None:
        """Somebody deletes a Workload."""
        self.api.kueue.delete(NAMESPACE, name)
        self.api.mirror()

    def has_class(self, name: str, value: int) -> Cluster:
        """A WorkloadPriorityClass is there."""
        self.api._put_of_kueue(PRIORITIES, name, {}, None)
        self.api.objects[PRIORITIES][None, name]["value"] = value
        return self
