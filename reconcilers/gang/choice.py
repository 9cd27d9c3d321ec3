"""Resolves `gang: auto` by whether the API server serves PodGroups."""

from __future__ import annotations

from collections.abc import Callable

from controller.client import AsyncClient
from controller.errors import Forbidden, NotFound
from controller.store import ObjectMemory, Store
from crds.elasticjob import ElasticJob
from crds.job_spec import Gang
from reconcilers.gang.podgroup import PodGroup, pod_group_of
from reconcilers.runtime.refused import not_served

ASK_AGAIN_SECONDS = 300.0
"""Time between two tries if the API server does not serve PodGroups, or does not let us read them."""


class GangChoice:
    """Finds out whether the API server serves Kubernetes' own PodGroups, once a job can use one.

    A yes is kept for ever, a no for a while. A job's gate uses the choice of its reconciler's last look,
    since otherwise its Pods would wait for a PodGroup that nothing creates yet.
    """

    def __init__(self, client: AsyncClient, jobs: Store, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._answer: tuple[float, bool] | None = None
        """Time of the last try, and its result."""
        self._chosen: ObjectMemory[bool] = jobs.memory()
        """Whether `auto` means a group, by job."""

    async def choose(self, job: ElasticJob) -> PodGroup | None:
        """Choose the PodGroup of a job, for its reconciler; None if its Pods are scheduled one by one."""
        group = pod_group_of(job, is_offered=True)
        if group is None or job.spec.scheduling_policy.gang is not Gang.AUTO:
            return group
        is_offered = await self._is_offered(group)
        self._chosen.put(job.metadata.uid, is_offered)
        return group if is_offered else None

    async def group_of(self, job: ElasticJob) -> PodGroup | None:
        """Return the job's last choice of a PodGroup, or make the first."""
        if self._chosen.get(job.metadata.uid) is None:
            return await self.choose(job)
        return self.chosen_group_of(job)

    def chosen_group_of(self, job: ElasticJob) -> PodGroup | None:
        """Return the job's last choice of a PodGroup; None without one."""
        return pod_group_of(job, is_offered=self._chosen.get(job.metadata.uid) is True)

    async def _is_offered(self, group: PodGroup) -> bool:
        now, known = self._monotonic(), self._answer
        if known is None or not (known[1] or now - known[0] < ASK_AGAIN_SECONDS):
            self._answer = known = (now, await self._asks(group))
        return known[1]

    async def _asks(self, group: PodGroup) -> bool:
        """Whether the API server serves the kind, and we may read it."""
        try:
            await self._client.get(group.resource, group.name, group.namespace)
        except NotFound as error:
            return not not_served(error)
        except Forbidden:
            return False
        return True
