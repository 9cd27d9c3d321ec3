"""A job and its ScalePlans without a server: the real reconcilers over objects in memory, and agents that obey.

What the reconcilers see lags behind what is there, each kind by itself; and they may be killed at every write.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from agent.facts.world import AgentVerb, AgentWorld, Member, next_action
from controller.cache import Cache
from controller.contact import Contact
from controller.errors import AlreadyExists, Conflict, NotFound, error_of_status
from controller.reconciler import Request
from controller.resources import NODES, PODS, ROLEBINDINGS, ROLES, SERVICEACCOUNTS, Resource
from crds.agent_report import PROTOCOL, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.autoscaling.reconciler import AutoscalingReconciler
from reconcilers.job.reconciler import ElasticJobReconciler
from reconcilers.observed.builder import pod_name
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, SCALEPLANS
from reconcilers.scaleplan.reconciler import BY_OWNER_JOB, ScalePlanReconciler, owner_job
from reconcilers.setup import add_indexes
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, in_lists
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.process import Killed

JSON = dict[str, Any]
NAMESPACE = "default"
JOB = "j"
RESOURCES = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}
UNSCHEDULABLE = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
WATCHED = (ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, SCALEPLANS, PODS, SERVICEACCOUNTS, ROLES, ROLEBINDINGS)


@dataclass
class Stage:
    """Everybody but the reconcilers."""

    truth: Cache = field(default_factory=shaped_cache)
    """The API server's objects."""
    cache: Cache = field(default_factory=shaped_cache)
    """What the reconcilers see of them."""
    crash: Callable[[], bool] = lambda: False
    """Asked before and after each write: whether the controller is killed there."""
    seconds: float = 0.0
    worlds: list[JSON] = field(default_factory=list)
    """Every world that was published, in order."""
    events: list[tuple[str, str]] = field(default_factory=list)
    unschedulable: set[int] = field(default_factory=set)
    """Slots whose Pods find no node."""
    denied: str = ""
    """What an admission webhook says to whoever changes the job's counts."""
    denied_with: int = 403
    pinned: int | None = None
    """What such a webhook makes of every count that is written."""

    def __post_init__(self) -> None:
        self._versions = itertools.count(1)
        self._news: dict[Resource, deque[tuple[str, JSON]]] = {resource: deque() for resource in WATCHED}
        add_indexes(self.cache)
        self.cache.add_index(SCALEPLANS, BY_OWNER_JOB, owner_job)
        for number in range(3):
            node = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": {"memory": "64Gi"}}}
            self.cache.store(NODES).apply(node)
        self.restart()

    # --- the controller -----------------------------------------------------------------------------------

    def restart(self) -> None:
        clock = Clock(lambda: NOW + timedelta(seconds=self.seconds), lambda: self.seconds)
        client, recorder = Client(self), Recorder(self)
        self.jobs = ElasticJobReconciler(client, self.cache, recorder, Contact(now=clock.monotonic), clock)
        self.plans = ScalePlanReconciler(client, self.cache, recorder, clock)
        self.autoscaling = AutoscalingReconciler(client, self.cache, recorder, clock)

    async def look(self) -> None:
        """At the plans, at the job, and at its size."""
        await self.reconcile_plans()
        await self.reconcile_job()
        await self.reconcile_size()

    async def reconcile_job(self) -> None:
        await self._survive(self.jobs, JOB)

    async def reconcile_size(self) -> None:
        await self._survive(self.autoscaling, JOB)

    async def reconcile_plans(self) -> None:
        await self._survive(self.plans, JOB)

    async def _survive(self, reconciler: Any, name: str) -> None:
        try:
            await reconciler.reconcile(Request(NAMESPACE, name))
        except (Killed, Conflict):
            self.restart()

    def deliver(self, resource: Resource) -> None:
        """The watch tells of one change, the oldest."""
        if self._news[resource]:
            verb, obj = self._news[resource].popleft()
            store = self.cache.store(resource)
            store.apply(obj) if verb == "put" else store.delete(obj)

    def deliver_all(self) -> None:
        for resource in WATCHED:
            while self._news[resource]:
                self.deliver(resource)

    async def settle(self, patience: int = 300) -> None:
        """Until nothing is to be done any more; time passes."""
        quiet = 0
        for _ in range(patience):
            before = next(self._versions)
            self.deliver_all()
            await self.look()
            self.act()
            quiet = quiet + 1 if next(self._versions) == before + 1 else 0
            if quiet == 5:
                return
            self.seconds += 10
        raise AssertionError(f"no end in sight: {self.job()['status']}")

    # --- the objects --------------------------------------------------------------------------------------

    def put(self, resource: Resource, obj: JSON) -> JSON:
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        metadata.setdefault("uid", f"uid-{resource.plural}-{metadata['name']}-{next(self._versions)}")
        metadata.setdefault("namespace", NAMESPACE)
        metadata.setdefault("creationTimestamp", self._time())
        metadata.setdefault("generation", 1)
        metadata["resourceVersion"] = str(next(self._versions))
        obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
        self.truth.store(resource).apply(obj)
        self._news[resource].append(("put", obj))
        if resource is ELASTICJOBS and obj.get("status", {}).get("rendezvous"):
            self.worlds.append(in_lists(obj["status"]["rendezvous"]))
        return obj

    def get(self, resource: Resource, name: str) -> JSON:
        found = self.truth.store(resource).get(NAMESPACE, name)
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    def patch(self, resource: Resource, name: str, patch: JSON, *, status: bool = False) -> JSON:
        current = self.get(resource, name)
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, current["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", name)
        part = "status" if status else "spec"
        changed = merged(current, {part: patch.get(part, {})})
        if not status and (annotations := patch.get("metadata", {}).get("annotations")):
            changed = merged(changed, {"metadata": {"annotations": annotations}})
        if changed == current:
            return current
        if changed["spec"] != current["spec"]:
            generation = current["metadata"]["generation"] + 1
            changed["metadata"] = changed["metadata"] | {"generation": generation}
        return self.put(resource, changed)

    def remove(self, resource: Resource, name: str) -> None:
        obj = self.get(resource, name)
        self.truth.store(resource).delete(obj)
        self._news[resource].append(("delete", obj))
        next(self._versions)
        if resource is ELASTICWORKERS:
            for pod in self._pods_of(obj):
                self.remove(PODS, pod)

    def add_job(self, replicas: int = 3, minimum: int | None = None, **spec: Any) -> None:
        container = {"name": "main", "image": "x", "resources": RESOURCES}
        worker: JSON = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
        worker |= {} if minimum is None else {"minReplicas": minimum}
        self.put(
            ELASTICJOBS, {"metadata": {"name": JOB}, "spec": {"replicaSpecs": {"worker": worker}} | spec}
        )

    def add_plan(self, name: str = "p", labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "labels": dict(labels or {})}
        self.put(SCALEPLANS, {"metadata": metadata, "spec": {"ownerJob": JOB} | spec})

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
        found = self.truth.store(ELASTICWORKERS).list()
        return sorted(found, key=lambda worker: int(worker["spec"]["index"]))

    def memory(self) -> dict[int, str]:
        """What the Pods of the workers have."""
        found = {}
        for worker in self.workers():
            (name,) = self._pods_of(worker)
            limits = self.get(PODS, name)["spec"]["containers"][0]["resources"]["limits"]
            found[worker["spec"]["index"]] = limits["memory"]
        return found

    def formed(self) -> list[JSON]:
        """The worlds that were formed, in order."""
        by_round = {world["round"]: world for world in self.worlds if world["phase"] == "Formed"}
        return [by_round[number] for number in sorted(by_round)]

    # --- Pods and agents ----------------------------------------------------------------------------------

    def act(self) -> None:
        """Whatever Pods and agents do next, all of them."""
        job = self.job()
        for worker in self.workers():
            self.act_one(job, worker)

    def act_one(self, job: JSON, worker: JSON) -> None:
        spec, status = worker["spec"], worker.get("status", {})
        name = worker["metadata"]["name"]
        if status.get("observedIncarnation") != spec["incarnation"]:
            self._start(worker)
        elif spec["index"] not in self.unschedulable and status["phase"] != "Failed":
            self._speak(job, name, status)

    def _start(self, worker: JSON) -> None:
        """A Pod for the incarnation, as the Worker reconciler makes it, of the job that its cache has."""
        raw = self.cache.store(ELASTICJOBS).get(NAMESPACE, JOB)
        if raw is None:
            return
        for earlier in self._pods_of(worker):
            self.remove(PODS, earlier)
        parsed = ElasticWorker.model_validate(worker)
        pod = self.put(PODS, build_job_pod(ElasticJob.model_validate(raw), parsed))
        scheduled = parsed.spec.index not in self.unschedulable
        status = {
            "history": [{"incarnation": parsed.spec.incarnation, "createdAt": self._time()}],
            "observedIncarnation": parsed.spec.incarnation,
            "phase": "Running" if scheduled else "Pending",
            "podName": pod_name(parsed),
            "podUid": pod["metadata"]["uid"],
            "nodeName": "node-0" if scheduled else None,
            "conditions": [] if scheduled else [UNSCHEDULABLE | {"lastTransitionTime": self._time()}],
        }
        self.patch(ELASTICWORKERS, parsed.metadata.name, {"status": status}, status=True)

    def _speak(self, job: JSON, name: str, status: JSON) -> None:
        incarnation, report = status["observedIncarnation"], status.get("agent") or {}
        index = self.get(ELASTICWORKERS, name)["spec"]["index"]
        if status["phase"] != "Running":
            self.patch(ELASTICWORKERS, name, {"status": {"phase": "Running"}}, status=True)
        if report.get("podUid") != status["podUid"]:
            self._say(name, status, "Ready", 0)
            return
        world = AgentWorld.parse(job.get("status", {}).get("rendezvous") or {})
        seen, state = report["observedRound"], AgentState(report["state"])
        action = next_action(world, Member(index, incarnation), seen, state, job["status"].get("phase", ""))
        if action.verb in (AgentVerb.START, AgentVerb.STAND_BY):
            said = "Running" if action.verb is AgentVerb.START else "Ready"
            self._say(name, status, said, action.round or 0)

    def _say(self, name: str, status: JSON, state: str, observed_round: int) -> None:
        report = {
            "incarnation": status["observedIncarnation"],
            "podUid": status["podUid"],
            "address": "10.0.0.1",
            "storePort": 20_000,
            "localWorldSize": 1,
            "protocol": PROTOCOL,
            "observedRound": observed_round,
            "state": state,
            "since": self._time(),
            "failure": None,
        }
        self.patch(ELASTICWORKERS, name, {"status": {"agent": report}}, status=True)

    def _pods_of(self, worker: JSON) -> list[str]:
        uid = worker["metadata"]["uid"]
        pods = self.truth.store(PODS).list()
        return [p["metadata"]["name"] for p in pods if p["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _time(self) -> str:
        return (NOW + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Recorder:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def event(self, obj: JSON, type_: str, reason: str, message: str) -> None:
        self._stage.events.append((reason, message))


class Client:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def get(self, resource: Resource, name: str, namespace: str, **_: Any) -> JSON:
        return self._stage.get(resource, name)

    async def create(self, resource: Resource, obj: JSON, *, strict: bool = False) -> JSON:
        self._die_sometimes()
        name = obj["metadata"]["name"]
        if self._stage.truth.store(resource).get(NAMESPACE, name) is not None:
            raise AlreadyExists(409, "AlreadyExists", name)
        return self._done(self._stage.put(resource, obj))

    async def patch(
        self, resource: Resource, name: str, patch: JSON, namespace: str, *, subresource: str | None = None
    ) -> JSON:
        self._die_sometimes()
        if self._stage.denied and resource is ELASTICJOBS and "spec" in patch:
            denial = f"admission webhook denied the request: {self._stage.denied}"
            raise error_of_status({"message": denial}, self._stage.denied_with)
        if self._stage.pinned is not None and resource is ELASTICJOBS and "spec" in patch:
            patch = merged(patch, {"spec": {"replicaSpecs": {"worker": {"replicas": self._stage.pinned}}}})
        return self._done(self._stage.patch(resource, name, patch, status=subresource == "status"))

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        self._die_sometimes()
        if self._stage.get(resource, name)["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", name)
        self._stage.remove(resource, name)
        self._die_sometimes()

    def _done(self, obj: JSON) -> JSON:
        self._die_sometimes()
        return obj

    def _die_sometimes(self) -> None:
        if self._stage.crash():
            raise Killed
