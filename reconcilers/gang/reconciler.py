"""The reconciler of a gang's PodGroup, which exists while the job runs, and follows its minimum."""

from __future__ import annotations

from controller.errors import ApiError, NotFound
from controller.reconciler import Request, Result
from controller.resources import Object
from crds.grouping import is_grouped
from reconcilers.gang.choice import ASK_AGAIN_SECONDS, GangChoice
from reconcilers.gang.podgroup import UNAVAILABLE_RETRY_SECONDS, PodGroup, is_up, pod_group_of
from reconcilers.observed.ownership import belongs_to, spares_its_own
from reconcilers.runtime.refused import not_served
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.worker.companions import RECHECK_SECONDS, Companions

GOING_SECONDS = 2.0
"""Time between two looks at a deleted PodGroup that its Pods keep, since new Pods may wait for the next."""


class GangReconciler(WithTools):
    def __init__(self, tools: Tools, choice: GangChoice) -> None:
        super().__init__(tools)
        self._companions = Companions(tools)
        self._choice = choice

    async def reconcile(self, request: Request) -> Result:
        """Keep the PodGroup. That the cluster does not serve such groups is reported by waiting Pods."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw) or is_grouped(raw):
            return Result()
        job = self._parse_job.parse(raw)
        group, runs = await self._choice.choose(job), not (job.stops or job.status.finished)
        if group is None:
            would_have = runs and pod_group_of(job, is_offered=True) is not None
            return Result(ASK_AGAIN_SECONDS if would_have else None)
        found: Object | None = None
        failures: list[ApiError] = []
        with self._companions.reporting(raw, group.resource.kind, failures):
            try:
                found = await self._companions.get(group.resource, group.name, group.namespace)
                if _is_going(found) and not _is_own(found, group):
                    return Result(GOING_SECONDS if runs else None)
                wanted = _wanted(group, found) if runs else None
                await self._companions.keep(group.resource, raw, found, wanted)
            except NotFound as error:
                if not not_served(error):
                    raise
                return Result(UNAVAILABLE_RETRY_SECONDS)
        if failures:
            raise failures[0]
        if not runs:
            return Result()
        return Result(GOING_SECONDS if _is_going(found) and not is_up(job) else RECHECK_SECONDS)


def _wanted(group: PodGroup, found: Object | None) -> Object:
    """The desired PodGroup, with the fields of an existing one that cannot be changed."""
    return group.as_found(found).wanted if found is not None and _is_own(found, group) else group.wanted


def _is_own(found: Object | None, group: PodGroup) -> bool:
    return found is not None and belongs_to(found, group.owner_uid)


def _is_going(found: Object | None) -> bool:
    """Whether the PodGroup is deleted, and kept by Kubernetes for the Pods that name it."""
    return found is not None and "deletionTimestamp" in found["metadata"]
