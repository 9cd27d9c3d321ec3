"""A whole NodeCheck over objects in memory: the real reconciler, whose caches are never late, and agents that answer as
told.

The controller is made anew whenever the test wants, so that nothing it remembers can matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.errors import Forbidden
from controller.reconciler import Request
from controller.resources import NAMESPACES, NODES, Resource
from crds import names
from crds.nodecheck import NodeCheck
from reconcilers.nodecheck.reconciler import NodeCheckReconciler
from reconcilers.nodecheck.scope import worker_name
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from tests.reconcilers.api import NAMESPACE, Api, Entry, Write, merged
from tests.reconcilers.build import GOOD, NOW, outcome, report
from tests.reconcilers.process import Killed, Lag, Process

JSON = dict[str, Any]


@dataclass
class Agents:
    """How the nodes answer. A node that answers None is silent."""

    local: Callable[[str], list[JSON] | None] = lambda node: GOOD
    passes: Callable[[int, Sequence[str]], bool] = lambda round_, members: True
    silent_in_pairs: frozenset[str] = frozenset()
    figures: Callable[[Sequence[str]], Mapping[str, float]] = lambda members: {}

    def pair(self, node: str, round_: int, members: Sequence[str]) -> JSON | None:
        if node in self.silent_in_pairs:
            return None
        if len(members) == 1:  # it measures its own figures again
            again = {name: value for probe in self.local(node) or () for name, value in _figures(probe)}
            return outcome("again", round=round_, figures=again)
        if self.passes(round_, members) and self.silent_in_pairs.isdisjoint(members):
            return outcome("pair", round=round_, figures=dict(self.figures(members)))
        return outcome("pair", "Failed", round=round_, reason="connection lost")


def _figures(probe: JSON) -> Iterable[tuple[str, float]]:
    figures: Mapping[str, float] = probe.get("figures") or {}
    return figures.items()


@dataclass
class Stage(Api):
    """Plays everybody but the reconciler."""

    agents: Agents = field(default_factory=Agents)
    writes: list[JSON] = field(default_factory=list)
    """The status patches of NodeChecks."""
    crash: Callable[[], bool] = lambda: False
    """Asked before and after each write: whether the controller is killed there."""
    dead: set[str] = field(default_factory=set)
    """Nodes on which no Pod ever starts."""
    refuses: Callable[[JSON], bool] = lambda obj: False
    """Asked before each object is made: whether a quota refuses it."""
    refused: list[str] = field(default_factory=list)
    """The names of what it refused."""
    here: str = NAMESPACE
    """The namespace of all objects that are named."""
    accelerators: JSON = field(default_factory=lambda: {"kind": "cpu", "count": 2, "model": "a CPU"})
    """What each agent computes on."""

    def __post_init__(self) -> None:
        self.restart()

    @contextmanager
    def within(self, namespace: str) -> Iterator[None]:
        before, self.here = self.here, namespace
        try:
            yield
        finally:
            self.here = before

    # --- the objects --------------------------------------------------------------------------------------

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> JSON | None:
        return super().find(resource, name, namespace or self.here)

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> JSON:
        return super().get(resource, name, namespace or self.here)

    def put(self, resource: Resource, obj: JSON, namespace: str | None = None) -> JSON:
        return super().put(resource, obj, namespace or self.here)

    def _log(self, resource: Resource, entry: Entry) -> None:
        super()._log(resource, entry)
        self.process.cache.catch_up(resource)

    def update(self, resource: Resource, name: str, patch: JSON) -> None:
        self.put(resource, merged(self.get(resource, name), patch))

    def add_namespace(self, name: str, **labels: str) -> None:
        self.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def add_nodes(self, *nodes: str, created: datetime = NOW, **more: Any) -> None:
        for name in nodes:
            metadata = {"name": name, "creationTimestamp": stamp(created)} | more.get("metadata", {})
            self.put(NODES, {"metadata": metadata, "status": more.get("status", {})})

    def update_node(self, name: str, allocatable: Mapping[str, str]) -> None:
        self.update(NODES, name, {"status": {"allocatable": dict(allocatable)}})

    @property
    def published(self) -> list[list[list[str]]]:
        """The groups of each round that was published."""
        return [
            [group["members"] for group in patch["groups"]] for patch in self.writes if patch.get("groups")
        ]

    def add_check(
        self, name: str = "c", status: JSON | None = None, created: datetime = NOW, **spec: Any
    ) -> None:
        metadata = {"name": name, "creationTimestamp": stamp(created)}
        self.put(NODECHECKS, {"metadata": metadata, "spec": spec, "status": status or {}})

    def add_job(self, name: str = "j", replicas: int = 2, **status: Any) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        spec = {"replicaSpecs": {"worker": {"replicas": replicas, "template": template}}}
        self.put(ELASTICJOBS, {"metadata": {"name": name}, "spec": spec, "status": status})

    def add_worker(self, index: int, node: str, job: str = "j", **agent: Any) -> None:
        """An idle worker of a job."""
        uid = self.get(ELASTICJOBS, job)["metadata"]["uid"]
        owner = {"apiVersion": ELASTICJOBS.api_version, "kind": "ElasticJob", "name": job, "uid": uid}
        metadata = {"name": f"{job}-worker-{index}", "labels": {names.LABEL_JOB: job}}
        metadata |= {"ownerReferences": [owner | {"controller": True}]}
        spec = {"jobName": job, "type": "worker", "index": index, "incarnation": 1}
        self.put(ELASTICWORKERS, {"metadata": metadata, "spec": spec})
        self.start(f"{job}-worker-{index}", node, **agent)

    def start(self, worker: str, node: str, **agent: Any) -> None:
        """Its Pod runs, and its agent reports."""
        spec = self.get(ELASTICWORKERS, worker)["spec"]
        incarnation, index = spec["incarnation"], spec["index"]
        uid = f"{self.here}-{worker}-{incarnation}"[-64:]  # as long as one may be
        pod = {"phase": "Running", "podUid": uid, "podName": uid, "nodeName": node}
        said = report(index, incarnation=incarnation, pod_uid=uid, accelerators=self.accelerators).to_wire()
        said |= {"address": f"10.0.0.{index + 1}", "storePort": 20_000}
        status = {"observedIncarnation": incarnation, "agent": said | agent} | pod
        self.update(ELASTICWORKERS, worker, {"status": status})

    def end(self, worker: str, exit_class: str, message: str = "") -> None:
        """Its Pod has ended."""
        incarnation = self.get(ELASTICWORKERS, worker)["spec"]["incarnation"]
        end = {"incarnation": incarnation, "exitClass": exit_class, "message": message, "time": stamp(NOW)}
        self.update(ELASTICWORKERS, worker, {"status": {"phase": "Failed", "lastExit": end}})

    def status(self, name: str = "c") -> JSON:
        return self.get(NODECHECKS, name).get("status", {})

    def condition(self, type_: str, name: str = "c") -> JSON:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == type_), {})

    def verdicts(self, name: str = "c") -> dict[str, str]:
        return {result["node"]: result["verdict"] for result in self.status(name).get("nodeResults", ())}

    # --- the controller -----------------------------------------------------------------------------------

    def restart(self) -> None:
        self.process = Process(self, Lag(), self._before, lambda write: self._die_sometimes())

    @property
    def reconciler(self) -> NodeCheckReconciler:
        """That of NodeChecks, behind the one that leaves out those of others' jobs."""
        return self.process._controllers["nodecheck"]._loop._reconciler._inner

    @property
    def stores(self) -> Cache:
        """What the controller sees."""
        return self.process.cache

    def _before(self, write: Write) -> None:
        self._die_sometimes()
        if write.verb == "create" and self.refuses(write.body):
            self.refused.append(write.name)
            raise Forbidden(403, "Forbidden", f"{write.name} is forbidden: exceeded quota")
        if write.subresource == "status":
            self.writes.append(write.body["status"])

    def _die_sometimes(self) -> None:
        if self.crash():
            self.process.die()

    async def reconcile(self, name: str = "c") -> float | None:
        try:
            result = await self.process.reconcile("nodecheck", Request(self.here, name))
        except Killed:
            self.restart()
            return 0.0
        return result.requeue_after_seconds

    async def play(self, name: str = "c", patience: int = 200) -> NodeCheck:
        """From where it stands to its end; time passes only while nothing else does."""
        for _ in range(patience):
            before = self.version
            again = await self.reconcile(name)
            raw = self.get(NODECHECKS, name)
            if raw["status"].get("phase") in ("Succeeded", "Failed"):
                return NodeCheck.model_validate(raw)
            self.act(name)
            if self.version == before:  # nobody wrote anything
                assert again is not None, f"stands still: {raw['status']}"
                self.seconds += again
        raise AssertionError(f"no end in sight: {self.status(name)}")

    # --- the agents ---------------------------------------------------------------------------------------

    def act(self, name: str = "c") -> None:
        """Whatever Pods and agents do next."""
        raw = self.get(NODECHECKS, name)
        for worker in self.list(ELASTICWORKERS):
            node = worker["spec"].get("nodeName")
            if node and "status" not in worker and node not in self.dead:
                with self.within(worker["metadata"]["namespace"]):
                    self.start(worker["metadata"]["name"], node)
        if raw.get("status", {}).get("phase") == "Running":
            status = raw["status"]
            groups = {node: group["members"] for group in status["groups"] for node in group["members"]}
            for node, index in zip(status["nodes"], status["workers"], strict=True):
                self._answer(raw, node, index, groups.get(node))

    def _answer(self, check: JSON, node: str, index: int, group: list[str] | None) -> None:
        status, spec = check["status"], check["spec"]
        job = spec.get("jobName")
        worker = f"{job}-worker-{index}" if job else worker_name(check["metadata"]["name"], index)
        found = self.find(ELASTICWORKERS, worker)
        if found is None or found.get("status", {}).get("phase") != "Running":
            return
        uid = check["metadata"]["uid"]
        report = found["status"]["agent"].get("check", {})
        report = report if report.get("uid") == uid else {"uid": uid, "local": [], "pairs": []}
        local, pairs = report["local"], report["pairs"]
        if not status["round"]:
            if node not in status.get("reused", ()) and not local:
                local = self.agents.local(node) or []
        elif not any(pair["round"] == status["round"] for pair in pairs):
            said = self.agents.pair(node, status["round"], group) if group else None
            pairs = [*pairs, said] if said else pairs
        if (local, pairs) != (report["local"], report["pairs"]):
            check_report = {"uid": uid, "local": local, "pairs": pairs}
            self.update(ELASTICWORKERS, worker, {"status": {"agent": {"check": check_report}}})


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
