"""The reconciler of announced evictions: see, plan, write."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from controller.reconciler import Request, Result
from controller.resources import Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped
from reconcilers.evictions.notices import Notices
from reconcilers.evictions.plan import EvictionNotice, FindWorker, event_of, held_seconds, lapsed, request_of
from reconcilers.observed.ownership import belongs_to
from reconcilers.observed.workers import worker_name
from reconcilers.runtime.acts import tell
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.permission import own_write
from reconcilers.scale.request import is_merged
from reconcilers.scale.writer import ScaleWriter


class EvictionReconciler(WithTools):
    """Moves the workers of one job away from nodes that announce evictions."""

    def __init__(self, tools: Tools, notices: Notices) -> None:
        super().__init__(tools)
        self._notices = notices
        self._scale = ScaleWriter(tools)
        self._lapsed: ObjectMemory[frozenset[str]] = self._jobs.memory()
        """Nodes, by job, of which it is reported that evictions are not held back any more."""

    async def reconcile(self, request: Request) -> Result:
        """Look at the job of this name."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or is_grouped(raw):
            return Result()
        job = self._parse_job.parse(raw)
        notices, find = self._notices.of(job), self._finder(job)
        held = held_seconds(job, notices)
        lapse_in = held if 0 < held < inf else None
        self._report_lapse(job, raw, notices, find)
        wanted = request_of(job, notices, find) if is_merged(job) else None
        if wanted is None:
            return Result(lapse_in)
        event = event_of(job, wanted, notices)
        write, wait_seconds = own_write(job, wanted, self._scale.refused(job), event=event, is_free=True)
        if write is None:
            return Result(wait_seconds)
        is_written = await self._scale.write(job, raw, job.metadata.resource_version, write)
        return Result(lapse_in if is_written else 0.0)

    def _finder(self, job: ElasticJob) -> FindWorker:
        def find(index: int) -> ElasticWorker | None:
            name = worker_name(job.metadata.name, names.WORKER, index)
            raw = self._workers.get(job.metadata.namespace, name)
            if raw is None or not belongs_to(raw, job.metadata.uid):
                return None
            return self._parse_worker.parse_or_none(raw)

        return find

    def _report_lapse(
        self, job: ElasticJob, raw: Object, notices: Sequence[EvictionNotice], find: FindWorker
    ) -> None:
        """Report once for each node that evictions from it are not held back any more."""
        event = lapsed(job, notices, find)
        nodes = frozenset(notice.node for notice in notices) if event is not None else frozenset[str]()
        if event is not None and nodes.difference(self._lapsed.get(job.metadata.uid) or ()):
            tell(self._recorder, raw, [event])
        self._lapsed.put(job.metadata.uid, nodes)
