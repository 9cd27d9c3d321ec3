"""Leaves jobs that another controller manages (`spec.managedBy`) alone, with all their objects.

As in a batch/v1 Job: https://kep.k8s.io/4368. The field is immutable, so none of our objects are left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.builder import ControllerBuilder
from controller.cache import Cache
from controller.reconciler import Reconciler, Request, Result
from controller.resources import Object, Resource
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.reconciled import ReconciledCondition
from reconcilers.runtime.tools import Tools


def build_for_jobs(controller: ControllerBuilder, reconciler: Reconciler, tools: Tools, workers: int) -> None:
    """Build the controller of a reconciler of ElasticJobs, which reports its failures in their conditions."""
    reporter = ReconciledCondition(tools, controller.name, ELASTICJOBS)
    ours = OfOurJobs(reconciler, tools.cache, ELASTICJOBS, own_key)
    controller.reports_to(reporter).with_workers(workers).build(ours)


class OfOurJobs(Reconciler):
    """Calls another reconciler, except for objects of jobs that another controller manages.

    Args:
        resource: resource of the reconciled objects.
        jobs_of: the jobs that an object belongs to, as keys `namespace/name`; none for an independent object.
    """

    def __init__(
        self, inner: Reconciler, cache: Cache, resource: Resource, jobs_of: Callable[[Object], Iterable[str]]
    ) -> None:
        self._inner = inner
        self._jobs = cache.store(ELASTICJOBS)
        self._objects = cache.store(resource)
        self._jobs_of = jobs_of

    async def reconcile(self, request: Request) -> Result:
        raw = self._objects.get(request.namespace, request.name)
        if raw is not None and any(self._is_managed_elsewhere(key) for key in self._jobs_of(raw)):
            return Result()
        return await self._inner.reconcile(request)

    def _is_managed_elsewhere(self, key: str) -> bool:
        namespace, _, name = key.partition("/")
        job = self._jobs.get(namespace, name)
        return job is not None and not is_managed_here(job)


def is_managed_here(job: Object) -> bool:
    """Whether this controller manages an ElasticJob."""
    manager: str = job["spec"].get("managedBy", names.CONTROLLER)
    return manager == names.CONTROLLER


def own_key(job: Object) -> Iterable[str]:
    """Return the key of an ElasticJob."""
    return [f"{job['metadata']['namespace']}/{job['metadata']['name']}"]
