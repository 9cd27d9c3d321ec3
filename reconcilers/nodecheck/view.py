"""Reads the job, workers and nodes of a check from the caches, and creates its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from controller import errors
from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import AlreadyExists, Invalid, NotFound
from controller.resources import NODES
from controller.slices import Slices
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck, NodeCheckSpec
from crds.texts import shortened
from reconcilers.findings.finished import FinishedCheck, FinishedChecks, has_fresh_pass, last_pass
from reconcilers.findings.machine import created_at
from reconcilers.nodecheck.nodes import MAX_MESSAGE
from reconcilers.nodecheck.scope import lost_job, new_check_worker, worker_name
from reconcilers.observed.options import WorkerLimit
from reconcilers.observed.ownership import owner_uids, workers_owned_by
from reconcilers.observed.trust import Trust
from reconcilers.runtime.acts import in_parallel
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.refused import is_refusal, retry_seconds

Judgement = TypeVar("Judgement")

Labels: TypeAlias = dict[str, Mapping[str, str]]
"""The labels of nodes, by name."""


class CheckView:
    def __init__(self, cache: Cache, client: AsyncClient) -> None:
        self.finished = cache.shared(FinishedChecks)
        self._trust = Trust(cache)
        self._client = client
        self._checks = cache.store(NODECHECKS)
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._nodes = cache.store(NODES)
        self._parse_check = cache.models(NODECHECKS, NodeCheck)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    def check(self, namespace: str | None, name: str) -> tuple[NodeCheck, dict[str, Any]] | None:
        """The model with the raw object; None if it is gone or being deleted."""
        raw = self._checks.get(namespace, name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        return self._parse_check.parse(raw), raw

    def job_of(self, check: NodeCheck) -> ElasticJob | None:
        """The job of a job check; None if there is none."""
        raw = self._jobs.get(check.metadata.namespace, check.spec.job_name or "")
        return None if raw is None else self._parse_job.parse_or_none(raw)

    async def workers_of(self, check: NodeCheck) -> list[ElasticWorker]:
        """The workers of the check's job, or those created for the check."""
        uid = self._owner_uid(check)
        if uid is None:
            return []
        return await self._parsed(workers_owned_by(self._workers, check.metadata.namespace, uid))

    async def workers_now(self, check: NodeCheck) -> list[ElasticWorker]:
        """`workers_of`, as the API server has them, so that no stalled watch makes a node faulty."""
        metadata, job = check.metadata, check.spec.job_name
        label = f"{names.LABEL_CHECK}={metadata.name}" if job is None else f"{names.LABEL_JOB}={job}"
        there = await self._client.list(
            ELASTICWORKERS, metadata.namespace, label_selector=label, metadata_only=True
        )
        found = {raw["metadata"]["name"]: raw for raw in there["items"]}
        cached = {name: self._workers.get(metadata.namespace, name) for name in found}
        if any(each is None or _version(each) != _version(found[name]) for name, each in cached.items()):
            listed = await self._client.list(ELASTICWORKERS, metadata.namespace, label_selector=label)
            cached = {raw["metadata"]["name"]: raw for raw in listed["items"]}
        owner = self._owner_uid(check) or metadata.uid
        return await self._parsed(raw for raw in cached.values() if raw and owner in owner_uids(raw))

    async def is_behind(self, check: NodeCheck) -> bool:
        """Whether the API server has the job or nodes that the cache lacks, and the check needs."""
        spec = check.spec
        try:
            if spec.job_name is not None:
                raw = await self._client.get(ELASTICJOBS, spec.job_name, check.metadata.namespace)
                return lost_job(check, ElasticJob.model_validate(raw)) is None
            for node in sorted({*(spec.nodes or ())} - self.labels(spec).keys()):
                await self._client.get(NODES, node, metadata_only=True)
            if spec.nodes is not None:
                return True
            wanted = (spec.node_selector or {}).items()
            selector = ",".join(f"{key}={value}" for key, value in wanted)
            found = await self._client.list_page(
                NODES, label_selector=selector, page_size=1, metadata_only=True
            )
        except (NotFound, Invalid):
            return False
        # A value with a comma in it changes the meaning of the selector.
        return any(wanted <= (raw["metadata"].get("labels") or {}).items() for raw in found["items"])

    def labels(self, spec: NodeCheckSpec) -> Labels:
        """The labels of the existing nodes that a check names, or of all nodes if it names none."""
        found = self._nodes.list() if spec.nodes is None else self.nodes(spec.nodes).values()
        return {raw["metadata"]["name"]: raw["metadata"].get("labels") or {} for raw in found}

    def nodes(self, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The raw Nodes of these names that exist, by name."""
        found = ((name, self._nodes.get(None, name)) for name in wanted)
        return {name: raw for name, raw in found if raw is not None}

    async def fresh(self, check: NodeCheck, nodes: Sequence[str], now: datetime) -> frozenset[str]:
        """The nodes that need no test, since they passed another check recently enough."""
        seconds = check.spec.fresh_seconds
        if not seconds:
            return frozenset()
        since = now - timedelta(seconds=seconds)
        job = self.job_of(check)
        if job is not None and job.status.suspected_at is not None:
            since = max(since, job.status.suspected_at)
        found = await self._judged(check, self.nodes(nodes), partial(has_fresh_pass, since=since))
        return frozenset(name for name, is_fresh in found.items() if is_fresh)

    async def last_passes(self, check: NodeCheck, nodes: Mapping[str, dict[str, Any]]) -> dict[str, datetime]:
        """The times when these raw Nodes passed the newest check that counts here, by name."""
        found = await self._judged(check, nodes, last_pass)
        return {name: passed for name, passed in found.items() if passed is not None}

    async def _judged(
        self,
        check: NodeCheck,
        nodes: Mapping[str, dict[str, Any]],
        judge: Callable[[str, Sequence[FinishedCheck], datetime | None], Judgement],
    ) -> dict[str, Judgement]:
        """Return the results of `judge` by name, for the checks of each raw Node that count here."""
        slices, found, reader = Slices(), dict[str, Judgement](), check.metadata.namespace
        for name, raw in nodes.items():  # each may have been in many checks
            found[name] = judge(name, self.finished.on(name, reader), created_at(raw))
            await slices.pause()
        return found

    def is_administrators(self, check: NodeCheck) -> bool:
        return self._trust.is_administrators(check.metadata.namespace)

    def _owner_uid(self, check: NodeCheck) -> str | None:
        """The uid of the owner of the check's workers; None if its job is gone."""
        if check.spec.job_name is None:
            return check.metadata.uid
        job = self.job_of(check)
        return None if job is None else job.metadata.uid

    async def _parsed(self, found: Iterable[dict[str, Any]]) -> list[ElasticWorker]:
        """Parse workers with pauses for the event loop: there may be thousands, none of them parsed yet."""
        workers, slices = list[ElasticWorker](), Slices()
        for raw in found:
            workers += self._parse_worker.readable([raw])
            await slices.pause()
        return workers


def _version(obj: dict[str, Any]) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version


# --- workers of a check of nodes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkersRefused:
    """The refusal of a check's workers by the API server, a quota or a policy."""

    message: str
    retry_at: float
    """Time of the next try, on the monotonic clock. Looks before it, of which each agent triggers one, create
    nothing."""


class CheckWorkers:
    def __init__(self, client: AsyncClient, cache: Cache, monotonic: Callable[[], float], most: int) -> None:
        self._client = client
        self._most = most
        self._monotonic = monotonic
        self._workers = cache.store(ELASTICWORKERS)
        self._refused: ObjectMemory[WorkersRefused] = cache.store(NODECHECKS).memory()

    def not_taken(self, check: NodeCheck, missing: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the places and nodes whose worker's name is free. When a worker of an earlier check goes, it
        wakes this one."""
        metadata = check.metadata
        names_ = ((place, worker_name(metadata.name, place[0])) for place in missing)
        return [place for place, name in names_ if self._workers.get(metadata.namespace, name) is None]

    async def make(self, check: NodeCheck, missing: Sequence[tuple[int, str]]) -> WorkersRefused | None:
        """Create workers for these places and nodes of the check; return the refusal, if there is one."""
        uid, refused = check.metadata.uid, self._refused.get(check.metadata.uid)
        if missing and refused is not None and self._monotonic() < refused.retry_at:
            return refused
        limit = WorkerLimit(self._workers.count("namespace", check.metadata.namespace), self._most)
        try:
            await in_parallel(
                self._make_one(check, index, node) for index, node in missing[: limit.remaining]
            )
        except errors.ApiError as error:
            if not is_refusal(error):
                raise
            message = shortened(f"waits: its workers are refused: {error}", MAX_MESSAGE)
            return self._refused.put(
                uid, WorkersRefused(message, self._monotonic() + retry_seconds(len(missing)))
            )
        if len(missing) > limit.remaining:
            message = shortened(f"waits: {limit.reached(check.metadata.namespace)}", MAX_MESSAGE)
            return self._refused.put(uid, WorkersRefused(message, self._monotonic() + retry_seconds()))
        return None

    async def delete(self, workers: Iterable[ElasticWorker]) -> None:
        """Delete workers of a check, with their Pods."""
        await in_parallel(self._delete_one(worker) for worker in workers)

    async def _delete_one(self, worker: ElasticWorker) -> None:
        metadata = worker.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(ELASTICWORKERS, metadata.name, metadata.namespace, uid=metadata.uid)

    async def _make_one(self, check: NodeCheck, index: int, node: str) -> None:
        with contextlib.suppress(AlreadyExists):  # created before; the cache is late
            await self._client.create(ELASTICWORKERS, new_check_worker(check, index, node))
