"""One worker without a server: the real Worker reconciler over objects in memory, with a cache that is as late as the
test wants. Kubelet and the job's reconciler are played.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from controller.errors import ApiError, Conflict, Forbidden
from controller.reconciler import Request, Result
from controller.resources import LEASES, PODS, SERVICEACCOUNTS, Resource
from crds.elasticjob import ElasticJob
from reconcilers.observed.workers import new_worker
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers import api as memory
from tests.reconcilers.api import NAMESPACE, Write, merged
from tests.reconcilers.build import NOW, job
from tests.reconcilers.process import Process

JSON = dict[str, Any]
JOB = "digits"
WORKER = f"{JOB}-worker-0"
TEMPLATE: JSON = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


class Api(memory.Api):
    """The API server: what there is, and what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str]] = []
        """Verb and kind, of all controllers."""
        self.refusals: dict[Resource, ApiError] = {}
        """What to answer to a create."""

    def names(self, resource: Resource) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.list(resource)]

    def patch(self, resource: Resource, name: str, body: JSON, subresource: str | None = None) -> JSON:
        return self.put(resource, merged(self.get(resource, name), body))

    def _create(self, resource: Resource, body: JSON) -> JSON:
        if resource in self.refusals:
            raise self.refusals[resource]
        if resource is PODS and self.find(SERVICEACCOUNTS, body["spec"]["serviceAccountName"]) is None:
            name = body["metadata"]["name"]
            raise Forbidden(403, "Forbidden", f'pods "{name}" is forbidden: serviceaccount not found')
        return super()._create(resource, body)

    # --- users and kubelet --------------------------------------------------------------------------------

    def apply_job(self) -> JSON:
        """The job, and the worker that its reconciler makes."""
        wire = job(JOB, replicas=1, template=TEMPLATE).to_wire()
        del wire["metadata"]["uid"]
        applied = self.put(ELASTICJOBS, wire)
        self.put(ELASTICWORKERS, new_worker(ElasticJob.model_validate(applied), "worker", 0))
        return applied

    def worker(self) -> JSON:
        return self.get(ELASTICWORKERS, WORKER)

    @property
    def status(self) -> JSON:
        return dict(self.worker().get("status", {}))

    def pod(self) -> JSON | None:
        """Of the worker's incarnation."""
        return self.find(PODS, self.worker_pod_name())

    def lives(self) -> bool:
        pod = self.pod()
        return pod is not None and pod["status"]["phase"] in ("Pending", "Running")

    def worker_pod_name(self) -> str:
        return f"{WORKER}-{self.worker()['spec']['incarnation']}"

    def pod_phase(self, phase: str, **status: Any) -> None:
        pod = self.pod()
        assert pod is not None
        self.put(PODS, merged(pod, {"status": {"phase": phase} | status, "spec": {"nodeName": "node-0"}}))

    def report(self, state: str = "Ready") -> None:
        """The agent of the present Pod speaks."""
        pod = self.pod()
        assert pod is not None
        report = {
            "incarnation": self.worker()["spec"]["incarnation"],
            "podUid": pod["metadata"]["uid"],
            "address": "10.0.0.1",
            "storePort": 20_000,
            "localWorldSize": 1,
            "state": state,
            "since": f"2026-01-01T12:00:{int(self.seconds) % 60:02}Z",
        }
        self.patch(ELASTICWORKERS, WORKER, {"status": {"agent": report}})

    def beat(self) -> None:
        renewed = (NOW + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        incarnation = self.worker()["spec"]["incarnation"]
        spec = {"holderIdentity": f"{WORKER}-{incarnation}", "renewTime": renewed}
        self.patch(LEASES, WORKER, {"spec": spec})


class Deposed(Exception):
    """The controller ends with a write on its way."""


class Controller(Process):
    """One process, which looks when the test wants."""

    api: Api

    def __init__(self, api: Api) -> None:
        self.in_flight: list[Callable[[], Any]] | None = None
        """Set: what is written ends the controller, and lands when the test wants."""
        super().__init__(api, before_write=self._note)
        self._read, self.client.get = self.client.get, self._get  # type: ignore[method-assign]

    def deliver(self) -> None:
        """The watch has caught up."""
        self.cache.catch_up()

    def contact_broke(self) -> None:
        """The API server answers again, after an outage."""
        self.contact.since = self.api.seconds

    async def look(self, *, late: bool = False) -> Result:
        """At the worker; with what the cache has, or with all there is."""
        if not late:
            self.deliver()
        return await self.reconcile("elasticworker", Request(NAMESPACE, WORKER))

    async def look_until_quiet(self) -> None:
        """Time passes between looks; what conflicts is tried again."""
        quiet = 0
        for _ in range(30):
            before = len(self.api.requests)
            try:
                await self.look()
            except Conflict:
                continue
            self.api.seconds += 5
            quiet = quiet + 1 if len(self.api.requests) == before else 0
            if quiet == 3:
                return
        raise AssertionError("no end in sight")

    async def _get(self, resource: Resource, name: str, namespace: str | None = None, **_: Any) -> JSON:
        self.api.requests.append(("get", resource.kind))
        return await self._read(resource, name, namespace)

    def _note(self, write: Write) -> None:
        if self.in_flight is not None:
            self.in_flight.append(lambda: self.api.apply(write))
            raise Deposed
        self.api.requests.append((write.verb, write.resource.kind))
