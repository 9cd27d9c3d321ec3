"""The Worker reconciler over a cache that is behind: what it writes says what it was decided from."""

from __future__ import annotations

from typing import Any

from controller.cache import Cache
from controller.contact import Contact
from controller.errors import Forbidden, NotFound
from controller.reconciler import Request
from controller.resources import ELASTICJOBS, ELASTICWORKERS, PODS, SERVICEACCOUNTS, Resource
from reconcilers.clock import Clock
from reconcilers.pod.options import PodOptions
from reconcilers.setup import add_indexes
from reconcilers.worker import WorkerReconciler
from tests.reconcilers import build

WORKER = "digits-worker-0"


class Server:
    """An API server that has no Pod, and keeps what it is told."""

    def __init__(self) -> None:
        self.patches: list[dict[str, Any]] = []

    async def get(self, _resource: object, name: str, _namespace: str) -> dict[str, Any]:
        raise NotFound(404, "NotFound", f"{name} not found")

    async def patch(self, _resource: object, _name: str, body: dict[str, Any], *_: str, **__: str) -> None:
        self.patches.append(body)


async def reconciled(pod: dict[str, Any] | None = None) -> dict[str, Any]:
    """The one patch of a look at a worker whose Pod was known to run."""
    server: Any = Server()
    cache = Cache(server)
    add_indexes(cache)
    cache.store(ELASTICJOBS).apply({"kind": "ElasticJob", **build.job(replicas=1).to_wire()})
    cache.store(ELASTICWORKERS).apply({"kind": "ElasticWorker", **build.worker(0).to_wire()})
    if pod is not None:
        cache.store(PODS).apply(pod)
    recorder: Any = None
    reconciler = WorkerReconciler(server, cache, recorder, Contact(), Clock(), PodOptions(agent=None))
    await reconciler.reconcile(Request("default", WORKER))
    (patch,) = server.patches
    return patch


async def test_an_end_is_written_for_the_version_that_it_was_decided_from() -> None:
    patch = await reconciled()
    assert patch["status"]["restarts"] == {"Killed": 1}
    assert patch["metadata"] == {"resourceVersion": "1"}


async def test_what_ends_nothing_is_written_beside_the_agents_reports() -> None:
    owner = {"kind": "ElasticWorker", "name": WORKER, "uid": "w0", "controller": True}
    patch = await reconciled(
        {
            "metadata": {
                "name": f"{WORKER}-1",
                "namespace": "default",
                "uid": "uid-0-1",
                "resourceVersion": "1",
                "labels": {},
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": "node-7", "containers": [{"name": "main", "image": "x"}]},
            "status": {"phase": "Running"},
        }
    )
    assert patch["status"]["nodeName"] == "node-7"
    assert "metadata" not in patch


class Guarded:
    """An API server that refuses Pods whose ServiceAccount is not there."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.accounts: set[str] = set()

    async def create(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        name = obj["metadata"]["name"]
        if resource == SERVICEACCOUNTS:
            self.accounts.add(name)
        elif resource == PODS and obj["spec"]["serviceAccountName"] not in self.accounts:
            raise Forbidden(403, "Forbidden", f'pods "{name}" is forbidden: serviceaccount not found')
        self.made.append((resource.kind, name))
        return obj | {"metadata": {**obj["metadata"], "uid": f"uid of {name}"}}

    async def get(self, _resource: object, name: str, _namespace: str) -> dict[str, Any]:
        raise NotFound(404, "NotFound", f"{name} not found")

    async def patch(self, *_: Any, **__: Any) -> None: ...


async def test_an_account_that_was_deleted_is_made_again_when_it_is_missed() -> None:
    server: Any = Guarded()
    cache = Cache(server)
    add_indexes(cache)
    cache.store(ELASTICJOBS).apply({"kind": "ElasticJob", **build.job(replicas=2).to_wire()})
    for index in (0, 1):
        wire = build.worker(index, None).to_wire()
        cache.store(ELASTICWORKERS).apply({"kind": "ElasticWorker", **wire})
    recorder: Any = None
    reconciler = WorkerReconciler(server, cache, recorder, Contact(), Clock(), PodOptions(agent=None))
    await reconciler.reconcile(Request("default", "digits-worker-0"))
    server.accounts.clear()
    await reconciler.reconcile(Request("default", "digits-worker-1"))
    assert [name for kind, name in server.made if kind == "Pod"] == ["digits-worker-0-1", "digits-worker-1-1"]
