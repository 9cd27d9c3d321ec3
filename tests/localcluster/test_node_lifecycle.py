"""Silent nodes are marked and their Pods evicted; a node that we could not hear is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.api.calls import MERGE_PATCH
from controller.contact import Contact
from controller.errors import NotFound, Unavailable
from localcluster.client.informer import Change
from localcluster.node_lifecycle import NodeLifecycle, eviction_delay_seconds, wanted_taints
from localcluster.patches import merge_patch

JSON = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def node(ready: str, *taints: JSON) -> JSON:
    return {"spec": {"taints": list(taints)}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


FOREIGN = {"key": "mine", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("ready", "key"),
    [("Unknown", "node.kubernetes.io/unreachable"), ("False", "node.kubernetes.io/not-ready")],
)
def test_taints_follow_the_ready_condition_and_spare_others(ready: str, key: str) -> None:
    taints = wanted_taints(node(ready, FOREIGN), NOW)
    assert taints[0] == FOREIGN
    assert [(taint["key"], taint["effect"]) for taint in taints[1:]] == [
        (key, "NoSchedule"),
        (key, "NoExecute"),
    ]
    assert wanted_taints(node(ready, *taints), "later") == taints
    assert wanted_taints(node("True", *taints), NOW) == [FOREIGN]


def tolerating(*tolerations: JSON) -> JSON:
    return {"spec": {"tolerations": list(tolerations)}}


def test_the_shortest_toleration_decides_when_a_pod_must_go() -> None:
    taint = {"key": "k", "effect": "NoExecute"}
    exists = {"key": "k", "operator": "Exists"}
    assert eviction_delay_seconds(tolerating(), [taint]) == 0
    assert eviction_delay_seconds(tolerating(), [FOREIGN]) is None
    assert eviction_delay_seconds(tolerating(exists), [taint]) is None
    assert eviction_delay_seconds(tolerating({**exists, "tolerationSeconds": 300}), [taint]) == 300
    both = tolerating({**exists, "tolerationSeconds": 300}, {**exists, "tolerationSeconds": 20})
    assert eviction_delay_seconds(both, [taint]) == 20


class Copies:
    """An informer's copy of a collection, which the test writes."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self._objects: dict[tuple[str, str], JSON] = {}
        self._handlers: list[Callable[[Change, JSON], None]] = []

    def add_handler(self, handler: Callable[[Change, JSON], None]) -> None:
        self._handlers.append(handler)

    def get(self, namespace: str, name: str) -> JSON | None:
        return self._objects.get((namespace, name))

    def list(self) -> list[JSON]:
        return [*self._objects.values()]

    def put(self, obj: JSON) -> None:
        self._objects[obj["metadata"].get("namespace", ""), obj["metadata"]["name"]] = obj
        self._tell(Change.APPLIED, obj)

    def remove(self, obj: JSON) -> None:
        del self._objects[obj["metadata"].get("namespace", ""), obj["metadata"]["name"]]
        self._tell(Change.DELETED, obj)

    def _tell(self, change: Change, obj: JSON) -> None:
        for handler in self._handlers:
            handler(change, obj)


class Server:
    """As much of an API client and a server as the node lifecycle asks of."""

    def __init__(self) -> None:
        self.nodes, self.pods, self.leases = Copies(), Copies(), Copies()
        self.contact = Contact()
        self.answers = True
        self.evicted: list[str] = []
        self.removed: dict[str, JSON] = {}

    def _at(self, path: str) -> tuple[Copies, JSON]:
        parts = path.removesuffix("/status").split("/")
        copies, namespace = (self.nodes, "") if "nodes" in parts else (self.pods, "default")
        obj = copies.get(namespace, parts[-1])
        if obj is None:
            raise NotFound(404, "NotFound", path)
        return copies, obj

    async def get(self, path: str) -> JSON:
        if not self.answers:
            raise Unavailable("nobody answers")
        self.contact.answered()
        return {} if path == "/version" else self._at(path)[1]

    async def patch(self, path: str, patch: JSON, *, kind: str = MERGE_PATCH) -> JSON:
        copies, obj = self._at(path)
        changed = merge_patch(obj, {key: each for key, each in patch.items() if key != "status"})
        for condition in (patch.get("status") or {}).get("conditions") or ():
            others = [c for c in changed["status"]["conditions"] if c["type"] != condition["type"]]
            changed = {**changed, "status": {**changed["status"], "conditions": [*others, condition]}}
        copies.put(changed)
        return changed

    async def delete(self, path: str, *, uid: str, grace_period_seconds: int | None = None) -> JSON:
        copies, obj = self._at(path)
        if grace_period_seconds == 0:
            self.removed[obj["metadata"]["name"]] = obj
            copies.remove(obj)
        else:
            self.evicted.append(obj["metadata"]["name"])
            copies.put({**obj, "metadata": {**obj["metadata"], "deletionTimestamp": NOW}})
        return {}

    def node(self, name: str) -> None:
        metadata = {"name": name, "resourceVersion": "1"}
        self.nodes.put({"metadata": metadata, **node("True")})

    def pod(self, name: str, node_name: str, **spec: Any) -> None:
        metadata = {"namespace": "default", "name": name, "uid": name}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.pods.put({"metadata": metadata, "spec": {"nodeName": node_name, **spec}, "status": status})

    def beat(self, name: str, number: int) -> None:
        self.leases.put({"metadata": {"name": name}, "spec": {"renewTime": str(number)}})

    def ready(self, copies: Copies, namespace: str, name: str) -> str:
        conditions = (copies.get(namespace, name) or {})["status"]["conditions"]
        return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


class Silent:
    """A recorder whose Events nobody reads."""

    def normal(self, *_: object) -> None: ...

    warning = normal


@asynccontextmanager
async def watched() -> AsyncIterator[Server]:
    server = Server()
    server.contact.answered()
    lifecycle = NodeLifecycle(
        server,  # type: ignore[arg-type]
        Silent(),  # type: ignore[arg-type]
        server.nodes,  # type: ignore[arg-type]
        server.pods,  # type: ignore[arg-type]
        server.leases,  # type: ignore[arg-type]
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    task = asyncio.create_task(lifecycle.run())
    try:
        yield server
    finally:
        task.cancel()


async def beating(server: Server, name: str, seconds: int) -> None:
    """A node that renews its Lease every ten seconds."""
    for second in range(0, seconds, 10):
        server.beat(name, second)
        await asyncio.sleep(10)


@pytest.mark.played
async def test_a_silent_node_is_marked_and_emptied_and_a_speaking_one_is_not() -> None:
    short = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 20}
    long = {**short, "tolerationSeconds": 300}
    async with watched() as server:
        for name in ("dead", "alive"):
            server.node(name)
        server.pod("patient", "dead", tolerations=[long])
        server.pod("hasty", "dead", tolerations=[short])
        server.pod("safe", "alive")
        server.pod("orphan", "no-such-node")
        server.beat("dead", 0)
        await beating(server, "alive", 40)
        assert server.ready(server.nodes, "", "dead") == "True"
        assert server.pods.get("default", "orphan") is None
        assert server.removed["orphan"]["status"]["conditions"][-1]["reason"] == "DeletionByPodGC"
        await beating(server, "alive", 10)
        assert server.ready(server.nodes, "", "dead") == "Unknown"
        assert server.ready(server.pods, "default", "patient") == "False"
        assert server.evicted == []
        await beating(server, "alive", 30)
        assert server.evicted == ["hasty"]
        conditions = (server.pods.get("default", "hasty") or {})["status"]["conditions"]
        assert conditions[-1]["reason"] == "DeletionByTaintManager"
        assert (
            server.ready(server.nodes, "", "alive") == server.ready(server.pods, "default", "safe") == "True"
        )
        await beating(server, "alive", 300)
        assert server.evicted == ["hasty", "patient"]


@pytest.mark.played
async def test_a_node_that_speaks_again_keeps_its_pods() -> None:
    async with watched() as server:
        server.node("node")
        exists = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 20}
        server.pod("pod", "node", tolerations=[exists])
        await asyncio.sleep(50)
        assert server.ready(server.nodes, "", "node") == "Unknown"
        back = {"type": "Ready", "status": "True"}
        await server.patch("/api/v1/nodes/node/status", {"status": {"conditions": [back]}})
        await beating(server, "node", 100)
        assert server.evicted == []
        assert (server.nodes.get("", "node") or {})["spec"].get("taints") is None


@pytest.mark.played
async def test_nodes_that_could_not_be_heard_are_not_silent() -> None:
    async with watched() as server:
        server.node("node")
        server.answers = False
        await asyncio.sleep(100)
        server.answers = True
        await asyncio.sleep(30)
        assert server.ready(server.nodes, "", "node") == "True"
        await asyncio.sleep(20)
        assert server.ready(server.nodes, "", "node") == "Unknown"
