"""A whole NodeCheck without a server: the objects in stores, the real reconciler, and agents that answer as told.

The reconciler is made anew whenever the test wants, so that nothing it remembers can matter.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from controller.cache import Cache
from controller.errors import AlreadyExists, Conflict, Forbidden, NotFound
from controller.reconciler import Request
from controller.resources import NAMESPACES, NODES, Resource
from crds.nodecheck import NodeCheck
from reconcilers.cordon import wiring as cordons
from reconcilers.nodecheck import wiring as checks
from reconcilers.nodecheck.reconciler import NodeCheckReconciler
from reconcilers.nodecheck.scope import worker_name
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_indexes
from tests.reconcilers.api import merged
from tests.reconcilers.build import GOOD, NOW, outcome, report
from tests.reconcilers.caches import shaped_cache

JSON = dict[str, Any]
NAMESPACE = "default"


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
class Stage:
    """Plays everybody but the reconciler."""

    agents: Agents = field(default_factory=Agents)
    stores: Cache = field(default_factory=shaped_cache)
    """The objects of the API server, too: it is never late."""
    seconds: float = 0.0
    writes: list[JSON] = field(default_factory=list)
    """The status patches of NodeChecks."""
    events: list[tuple[str, str, str]] = field(default_factory=list)
    """(object, reason, message)."""
    crash: Callable[[], bool] = lambda: False
    """Asked before each write: whether the controller is killed there."""
    dead: set[str] = field(default_factory=set)
    """Nodes on which no Pod ever starts."""
    refuses: Callable[[JSON], bool] = lambda obj: False
    """Asked before each object is made: whether a quota refuses it."""
    refused: list[str] = field(default_factory=list)
    """The names of what it refused."""
    during_write: Callable[[], Awaitable[object]] | None = None
    """What happens while the next status write is under way."""
    here: str = NAMESPACE
    """The namespace of all objects that are named."""
    accelerators: JSON = field(default_factory=lambda: {"kind": "cpu", "count": 2, "model": "a CPU"})
    """What each agent computes on."""

    def __post_init__(self) -> None:
        add_indexes(self.stores)
        checks.add_indexes(self.stores)
        cordons.add_indexes(self.stores)
        self._versions = itertools.count(1)
        self.reconciler = self.new_reconciler()

    @contextmanager
    def within(self, namespace: str) -> Iterator[None]:
        before, self.here = self.here, namespace
        try:
            yield
        finally:
            self.here = before

    # --- the objects --------------------------------------------------------------------------------------

    def add_namespace(self, name: str, **labels: str) -> None:
        self.put(NAMESPACES, {"metadata": {"name": name, "uid": f"namespace-{name}", "labels": labels}})

    def put(self, resource: Resource, obj: JSON) -> JSON:
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        if resource.namespaced:
            metadata.setdefault("namespace", self.here)
        metadata.setdefault("uid", self.uid(metadata["name"], metadata.get("namespace", NAMESPACE)))
        metadata.setdefault("creationTimestamp", NOW.strftime("%Y-%m-%dT%H:%M:%SZ"))
        metadata["resourceVersion"] = str(next(self._versions))
        obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
        self.stores.store(resource).apply(obj)
        return obj

    @staticmethod
    def uid(name: str, namespace: str) -> str:
        return (f"uid-{name}" if namespace == NAMESPACE else f"uid-{namespace}-{name}")[:64]

    def get(self, resource: Resource, name: str) -> JSON:
        found = self.stores.store(resource).get(self.here if resource.namespaced else None, name)
        assert found is not None, f"there is no {resource.kind} {name}"
        return found

    def update(self, resource: Resource, name: str, patch: JSON) -> None:
        self.put(resource, merged(self.get(resource, name), patch))

    def delete(self, resource: Resource, name: str) -> None:
        self.stores.store(resource).delete(self.get(resource, name))

    def add_nodes(self, *names: str, created: datetime = NOW, **more: Any) -> None:
        for name in names:
            at = created.strftime("%Y-%m-%dT%H:%M:%SZ")
            self.put(
                NODES,
                {
                    "metadata": {"name": name, "creationTimestamp": at} | more.get("metadata", {}),
                    "status": more.get("status", {}),
                },
            )

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
        at = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.put(
            NODECHECKS,
            {"metadata": {"name": name, "creationTimestamp": at}, "spec": spec, "status": status or {}},
        )

    def add_job(self, name: str = "j", replicas: int = 2, **status: Any) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        spec = {"replicaSpecs": {"worker": {"replicas": replicas, "template": template}}}
        self.put(ELASTICJOBS, {"metadata": {"name": name}, "spec": spec, "status": status})

    def add_worker(self, index: int, node: str, job: str = "j", **agent: Any) -> None:
        """An idle worker of a job."""
        owner = {"kind": "ElasticJob", "name": job, "uid": self.uid(job, self.here), "controller": True}
        name = f"{job}-worker-{index}"
        self.put(
            ELASTICWORKERS,
            {
                "metadata": {
                    "name": name,
                    "ownerReferences": [owner],
                    "labels": {"elastic.iml.github.io/job-name": job},
                },
                "spec": {"jobName": job, "type": "worker", "index": index, "incarnation": 1},
            },
        )
        self.start(name, node, **agent)

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
        raw = self.get(ELASTICWORKERS, worker)
        end = {
            "incarnation": raw["spec"]["incarnation"],
            "exitClass": exit_class,
            "message": message,
            "time": "2026-01-01T00:00:00Z",
        }
        self.update(ELASTICWORKERS, worker, {"status": {"phase": "Failed", "lastExit": end}})

    def status(self, name: str = "c") -> JSON:
        return self.get(NODECHECKS, name).get("status", {})

    def condition(self, type_: str, name: str = "c") -> JSON:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == type_), {})

    def verdicts(self, name: str = "c") -> dict[str, str]:
        return {result["node"]: result["verdict"] for result in self.status(name).get("nodeResults", ())}

    # --- the controller -----------------------------------------------------------------------------------

    def new_reconciler(self) -> NodeCheckReconciler:
        clock = Clock(lambda: NOW + timedelta(seconds=self.seconds), lambda: self.seconds)
        contact = SimpleNamespace(since=float("-inf"))
        return NodeCheckReconciler(_Client(self), self.stores, _Recorder(self), contact, clock)

    async def reconcile(self, name: str = "c") -> float | None:
        try:
            result = await self.reconciler.reconcile(Request(self.here, name))
        except _Killed:
            self.reconciler = self.new_reconciler()
            return 0.0
        return result.requeue_after_seconds

    async def play(self, name: str = "c", patience: int = 200) -> NodeCheck:
        """From where it stands to its end; time passes only while nothing else does."""
        for _ in range(patience):
            before = next(self._versions)
            again = await self.reconcile(name)
            raw = self.get(NODECHECKS, name)
            if raw["status"].get("phase") in ("Succeeded", "Failed"):
                return NodeCheck.model_validate(raw)
            self.act(name)
            if next(self._versions) == before + 1:  # nobody wrote anything
                assert again is not None, f"stands still: {raw['status']}"
                self.seconds += again
        raise AssertionError(f"no end in sight: {self.status(name)}")

    # --- the agents ---------------------------------------------------------------------------------------

    def act(self, name: str = "c") -> None:
        """Whatever Pods and agents do next."""
        raw = self.get(NODECHECKS, name)
        for worker in self.stores.store(ELASTICWORKERS).list():
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
        found = self.stores.store(ELASTICWORKERS).get(self.here, worker)
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


class _Killed(Exception):
    """The controller, with SIGKILL."""


class _Recorder:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def event(self, obj: JSON, type_: str, reason: str, message: str) -> None:
        self._stage.events.append((obj["metadata"]["name"], reason, message))


class _Client:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def create(self, resource: Resource, obj: JSON, *, strict: bool = False) -> JSON:
        self._die_sometimes()
        if self._stage.refuses(obj):
            self._stage.refused.append(obj["metadata"]["name"])
            raise Forbidden(403, "Forbidden", f"{self._stage.refused[-1]} is forbidden: exceeded quota")
        if self._stage.stores.store(resource).get(obj["metadata"]["namespace"], obj["metadata"]["name"]):
            raise AlreadyExists(409, "AlreadyExists", "")
        return self._stage.put(resource, obj)

    async def patch(
        self, resource: Resource, name: str, patch: JSON, namespace: str, *, subresource: str
    ) -> JSON:
        self._die_sometimes()
        meanwhile, self._stage.during_write = self._stage.during_write, None
        if meanwhile is not None:
            await meanwhile()
        with self._stage.within(namespace):
            current = self._stage.get(resource, name)
        if patch["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "")
        self._stage.writes.append(patch["status"])
        done = self._stage.put(resource, merged(current, {"status": patch["status"]}))
        self._die_sometimes()
        return done

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        with self._stage.within(namespace):
            assert self._stage.get(resource, name)["metadata"]["uid"] == uid
            self._stage.delete(resource, name)

    async def list(self, resource: Resource, namespace: str, *, label_selector: str, **_: Any) -> JSON:
        found = self._stage.stores.store(resource).list(namespace)
        return {"items": [obj for obj in found if _has_labels(obj, label_selector)]}

    async def get(self, resource: Resource, name: str, namespace: str | None = None, **_: Any) -> JSON:
        found = self._stage.stores.store(resource).get(namespace, name)
        if found is None:
            raise NotFound(404, "NotFound", "")
        return found

    async def list_page(self, resource: Resource, *, label_selector: str, page_size: int, **_: Any) -> JSON:
        found = self._stage.stores.store(resource).list()
        return {"items": [obj for obj in found if _has_labels(obj, label_selector)][:page_size]}

    def _die_sometimes(self) -> None:
        if self._stage.crash():
            raise _Killed


def _has_labels(obj: JSON, selector: str) -> bool:
    wanted = dict(term.split("=") for term in selector.split(",") if term)
    return bool(wanted.items() <= obj["metadata"].get("labels", {}).items())
