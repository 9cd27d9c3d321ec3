"""Reading, making and deleting the NodeChecks of jobs: the rim of `job_check.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, Forbidden, Invalid, NotFound
from controller.resources import NODECHECKS, NODES
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.check.finished import LONG_AGO, FinishedChecks
from reconcilers.check.job_check import check_name, new_check, next_number, outdated
from reconcilers.check.job_verdicts import Checks
from reconcilers.parallel import in_parallel
from reconcilers.parsing import Parser
from reconcilers.worker import BY_JOB, owner_uids


class JobChecks:
    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._checks = cache.store(NODECHECKS)
        self._nodes = cache.store(NODES)
        self._finished = FinishedChecks(cache)
        self._parse = Parser(NodeCheck)

    def read(self, job: ElasticJob, workers: Sequence[ElasticWorker]) -> Checks:
        found = self._of(job)
        if not found and not job.spec.node_check.enabled:
            return Checks()
        theirs = {w.status.node_name for w in workers if w.status.node_name}
        known = {node for worker in workers for node in worker.spec.faulty_nodes}
        return Checks(
            of_job=tuple(sorted(map(self._parse.parse, found), key=_created)),
            finished=self._finished.of(found),
            on_node={node: self._finished.on(node) for node in theirs | known | self._finished.accused()},
            nodes_created=self._nodes_created(theirs),
        )

    async def create(self, job: ElasticJob, workers: Sequence[int]) -> str:
        """Make a check of these workers, unless that is done already.

        Returns why the API server refuses it; empty if it does not.
        """
        namespace = job.metadata.namespace
        taken = {raw["metadata"]["name"] for raw in self._checks.list(namespace)}
        name = check_name(job.metadata.name, next_number(job.metadata.name, taken))
        try:
            with contextlib.suppress(AlreadyExists):  # made before; the cache has yet to show it
                await self._client.create(NODECHECKS, new_check(job, name, workers))
        except (Invalid, Forbidden) as error:
            return str(error)
        return ""

    async def prune(self, job: ElasticJob, checks: Checks) -> None:
        """Delete what has long finished of the job's own."""
        owned = {raw["metadata"]["uid"] for raw in self._of(job) if job.metadata.uid in owner_uids(raw)}
        await in_parallel([self._delete(check) for check in outdated(checks.of_job, owned)])

    async def _delete(self, check: NodeCheck) -> None:
        metadata = check.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(NODECHECKS, metadata.name, metadata.namespace, uid=metadata.uid)

    def _of(self, job: ElasticJob) -> list[dict[str, Any]]:
        """Those that name it; not those that were of another job of its name."""
        metadata = job.metadata
        return [
            raw
            for raw in self._checks.by_index(BY_JOB, f"{metadata.namespace}/{metadata.name}")
            if not raw["metadata"].get("deletionTimestamp")
            and {metadata.uid}.issuperset(owner_uids(raw))
            and _time(raw) >= (metadata.creation_timestamp or LONG_AGO)
        ]

    def _nodes_created(self, nodes: set[str]) -> dict[str, datetime]:
        found = {name: self._nodes.get(None, name) for name in nodes}
        return {name: _time(raw) for name, raw in found.items() if raw is not None}


def _created(check: NodeCheck) -> tuple[datetime, str]:
    return check.metadata.creation_timestamp or LONG_AGO, check.metadata.uid


def _time(raw: dict[str, Any]) -> datetime:
    created = raw["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(created) if created else LONG_AGO
