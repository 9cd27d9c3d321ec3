"""Scaling of a job over objects in memory: the real reconcilers of jobs, of ScalePlans and of sizes, which look when the
test wants, and caches that it feeds change by change. Pods and their workers' statuses are played, without a kubelet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.errors import Conflict, error_of_status
from controller.reconciler import Request
from controller.resources import PODS, Resource
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.builder import pod_name
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers import cluster_model
from tests.reconcilers.api import NAMESPACE, Api, Write, merged
from tests.reconcilers.build import in_lists
from tests.reconcilers.process import Killed, Lag, Process

JSON = dict[str, Any]
JOB = "j"
RESOURCES = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}
UNSCHEDULABLE = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}


@dataclass
class Stage(Api):
    """Everybody but the reconcilers."""

    crash: Callable[[], bool] = lambda: False
    """Asked before and after each write: whether the controller is killed there."""
    worlds: list[JSON] = field(default_factory=list)
    """Every world that was published, in order."""
    unschedulable: set[int] = field(default_factory=set)
    """Slots whose Pods find no node."""
    denied: str = ""
    """What an admission webhook says to whoever changes the job's counts."""
    denied_with: int = 403
    pinned: int | None = None
    """What such a webhook makes of every count that is written."""

    def __post_init__(self) -> None:
        cluster_model.add_nodes(self, 3)
        self.restart()

    # --- the controller -----------------------------------------------------------------------------------

    def restart(self) -> None:
        self.process = Process(self, Lag(), self._before, lambda write: self._die_sometimes())

    def _before(self, write: Write) -> None:
        self._die_sometimes()
        if self.denied and write.resource is ELASTICJOBS and "spec" in write.body:
            denial = f"admission webhook denied the request: {self.denied}"
            raise error_of_status({"message": denial}, self.denied_with)
        if self.pinned is not None and write.resource is ELASTICJOBS and "spec" in write.body:
            pinned = {"spec": {"replicaSpecs": {"worker": {"replicas": self.pinned}}}}
            write.body.update(merged(write.body, pinned))

    def _die_sometimes(self) -> None:
        if self.crash():
            self.process.die()

    async def look(self) -> None:
        """At the plans, at the job, and at its size."""
        await self.reconcile_plans()
        await self.reconcile_job()
        await self.reconcile_size()

    async def reconcile_job(self) -> None:
        await self._survive("elasticjob")

    async def reconcile_size(self) -> None:
        await self._survive("autoscaling")

    async def reconcile_plans(self) -> None:
        await self._survive("scaleplan")

    async def _survive(self, controller: str) -> None:
        try:
            await self.process.reconcile(controller, Request(NAMESPACE, JOB))
        except (Killed, Conflict):
            self.restart()

    def deliver(self, resource: Resource) -> None:
        """The watch tells of one change, the oldest."""
        self.process.cache.deliver_one(resource)

    def deliver_all(self) -> None:
        self.process.cache.catch_up()

    async def settle(self, patience: int = 300) -> None:
        """Until nothing is to be done any more; time passes."""
        quiet = 0
        for _ in range(patience):
            before = self.version
            self.deliver_all()
            await self.look()
            self.act()
            quiet = quiet + 1 if self.version == before else 0
            if quiet == 5:
                return
            self.seconds += 10
        raise AssertionError(f"no end in sight: {self.job()['status']}")

    # --- the objects --------------------------------------------------------------------------------------

    def _put(self, resource: Resource, obj: JSON) -> JSON:
        if resource is ELASTICJOBS and obj.get("status", {}).get("rendezvous"):
            self.worlds.append(in_lists(obj["status"]["rendezvous"]))
        return super()._put(resource, obj)

    def add_job(self, replicas: int = 3, minimum: int | None = None, **spec: Any) -> None:
        container = {"name": "main", "image": "x", "resources": RESOURCES}
        worker: JSON = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
        worker |= {} if minimum is None else {"minReplicas": minimum}
        self.create(
            ELASTICJOBS, {"metadata": {"name": JOB}, "spec": {"replicaSpecs": {"worker": worker}} | spec}
        )

    def add_plan(self, name: str = "p", labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "labels": dict(labels or {})}
        self.create(SCALEPLANS, {"metadata": metadata, "spec": {"ownerJob": JOB} | spec})

    def edit_job(self, **worker: Any) -> None:
        self.patch(ELASTICJOBS, JOB, {"spec": {"replicaSpecs": {"worker": worker}}})

    def job(self) -> JSON:
        return self.get(ELASTICJOBS, JOB)

    def plan(self, name: str = "p") -> JSON:
        return self.get(SCALEPLANS, name)

    def phase(self, name: str = "p") -> str:
        return str(self.plan(name).get("status", {}).get("phase"))

    def told(self, name: str = "p") -> tuple[str, str]:
        """(reason, message) of the plan's verdict."""
        status = self.plan(name)["status"]
        condition = next(c for c in status["conditions"] if c["type"] == "Applied")
        return condition["reason"], condition["message"]

    def workers(self) -> list[JSON]:
        return sorted(self.list(ELASTICWORKERS), key=lambda worker: int(worker["spec"]["index"]))

    def pod_of(self, worker: JSON) -> JSON:
        uid = worker["metadata"]["uid"]
        (pod,) = (p for p in self.list(PODS) if p["metadata"]["ownerReferences"][0]["uid"] == uid)
        return pod

    def memory(self) -> dict[int, str]:
        """What the Pods of the workers have."""
        containers = {w["spec"]["index"]: self.pod_of(w)["spec"]["containers"] for w in self.workers()}
        return {index: main["resources"]["limits"]["memory"] for index, (main,) in containers.items()}

    def formed(self) -> list[JSON]:
        """The worlds that were formed, in order."""
        by_round = {world["round"]: world for world in self.worlds if world["phase"] == "Formed"}
        return [by_round[number] for number in sorted(by_round)]

    # --- Pods and agents ----------------------------------------------------------------------------------

    def act(self) -> None:
        """Whatever Pods and agents do next, all of them."""
        self.collect_garbage()
        for worker in self.workers():
            self.act_one(worker)

    def act_one(self, worker: JSON) -> None:
        spec, status = worker["spec"], worker.get("status", {})
        if status.get("observedIncarnation") != spec["incarnation"]:
            self._start(worker)
        elif spec["index"] not in self.unschedulable and status["phase"] != "Failed":
            self._report(worker, {"phase": "Running"})
            cluster_model.agent(self, self.pod_of(worker), cluster_model.Script())

    def _start(self, worker: JSON) -> None:
        """A Pod for the incarnation, as the Worker reconciler makes it, of the job that its cache has."""
        raw = self.process.cache.store(ELASTICJOBS).get(NAMESPACE, JOB)
        if raw is None:
            return
        parsed = ElasticWorker.model_validate(worker)
        for pod in self.list(PODS):
            if pod["metadata"]["ownerReferences"][0]["uid"] == parsed.metadata.uid:
                self.remove(PODS, pod)
        pod = self.create(PODS, build_job_pod(ElasticJob.model_validate(raw), parsed))
        scheduled = parsed.spec.index not in self.unschedulable
        status = {
            "history": [{"incarnation": parsed.spec.incarnation, "createdAt": self.now()}],
            "observedIncarnation": parsed.spec.incarnation,
            "phase": "Running" if scheduled else "Pending",
            "podName": pod_name(parsed),
            "podUid": pod["metadata"]["uid"],
            "nodeName": "node-0" if scheduled else None,
            "conditions": [] if scheduled else [UNSCHEDULABLE | {"lastTransitionTime": self.now()}],
        }
        self._report(worker, status)

    def _report(self, worker: JSON, status: JSON) -> None:
        self.patch(ELASTICWORKERS, worker["metadata"]["name"], {"status": status}, "status")
