"""Reading the NodeChecks of jobs: the rim of `job_check.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.resources import NODECHECKS, NODES
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.check.job_verdicts import LONG_AGO, Checks
from reconcilers.worker import BY_JOB, owner_uids


class JobChecks:
    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._nodes = cache.store(NODES)
        self._parse = cache.models(NODECHECKS, NodeCheck)

    def read(self, job: ElasticJob, workers: Sequence[ElasticWorker]) -> Checks:
        found = self._of(job)
        if not found and not job.spec.node_check.enabled:
            return Checks()
        there = [raw for raw in self._checks.list() if not raw["metadata"].get("deletionTimestamp")]
        return Checks(
            of_job=tuple(sorted((self._parse.parse(raw) for raw in found), key=_created)),
            everyones=tuple(self._parse.parse(raw) for raw in there),
            nodes_created=self._nodes_created({w.status.node_name for w in workers if w.status.node_name}),
            taken=frozenset(raw["metadata"]["name"] for raw in self._checks.list(job.metadata.namespace)),
            owned=frozenset(raw["metadata"]["uid"] for raw in found if job.metadata.uid in owner_uids(raw)),
        )

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
