"""What `gang: auto` comes to, by what the API server serves."""

from __future__ import annotations

from controller.client import AsyncClient
from controller.errors import Forbidden, NotFound
from crds.elasticjob import ElasticJob
from crds.job_spec import Gang
from reconcilers.gang.podgroup import PodGroup, pod_group_of
from reconcilers.runtime.refused import not_served


class GangChoice:
    """Asks the API server once whether it serves Kubernetes' own PodGroups, with the first job that has use
    for one. So where they are turned on later, the controller has to be restarted."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._is_offered: bool | None = None

    async def group_of(self, job: ElasticJob) -> PodGroup | None:
        """Return the job's PodGroup; None if its Pods are scheduled one by one."""
        group = pod_group_of(job, is_offered=self._is_offered is not False)
        is_chosen = group is not None and job.spec.scheduling_policy.gang is Gang.AUTO
        if group is not None and is_chosen and self._is_offered is None:
            self._is_offered = await self._asks(group)
        return None if is_chosen and not self._is_offered else group

    def known_group_of(self, job: ElasticJob) -> PodGroup | None:
        """Return the same of a job that `group_of` was asked about."""
        return pod_group_of(job, is_offered=self._is_offered is True)

    async def _asks(self, group: PodGroup) -> bool:
        """Whether the API server serves the kind, and we may read it."""
        try:
            await self._client.get(group.resource, group.name, group.namespace)
        except NotFound as error:
            return not not_served(error)
        except Forbidden:
            return False
        return True
