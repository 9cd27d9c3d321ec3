"""Reads the facts for one reconcile of a job, an `ObservedJob`, from the caches.

Ages count on our own clock, from the first observation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import NODES, PODS, Object, Resource
from controller.slices import LARGE, computed
from controller.store import Change, ObjectMemory, Store
from controller.wording import held_by
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped
from reconcilers.look import ConditionKind, ObservedJob
from reconcilers.observed.builder import companion_metadata, pod_name
from reconcilers.observed.ending import is_over
from reconcilers.observed.observations import Observations
from reconcilers.observed.options import DEFAULT_WORKERS_PER_NAMESPACE, WorkerLimit
from reconcilers.observed.ownership import BY_JOB, BY_OWNER, is_strangers, spares_its_own
from reconcilers.observed.resources import template_digest
from reconcilers.observed.slots import Slot, present_slots, training_types
from reconcilers.observed.worker_state import current_report, runs_unheard
from reconcilers.observed.workers import Workers, worker_name
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from reconcilers.scale.writer import VacantSlots
from reconcilers.world.participants import Ages, checkpoint_of, is_waiting, seconds_behind_checkpoint
from reconcilers.world.vetting import Vetting

_NEW_WORKER = 10
"""Number of cached workers that take as long to read as one with a new report of the CRD's largest size."""


class _LastReport(NamedTuple):
    """Last report of a worker's agent, with monotonic times of first observation."""

    version: str
    """resourceVersion of the ElasticWorker; until it changes, the report is the same."""
    claim: str | None
    """Name of the claim on the job's workers at that time."""
    waits: Hashable
    """Result of `is_waiting`."""
    waits_since: float
    step: int | None
    """Step of the last checkpoint that it ever reported."""
    saved_since: float
    behind_seconds: float | None
    """Result of `seconds_behind_checkpoint`; None if no checkpoint is reported now."""
    unheard: int | None
    """The incarnation whose agent has not reported though its Pod runs; None otherwise."""
    unheard_since: float


class AgesView:
    """Ages of workers' states, counted from their first observation."""

    def __init__(self, workers: Store, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._reports: ObjectMemory[_LastReport] = workers.memory()

    def of(self, workers: Workers, claim: str | None) -> Ages:
        """Return the ages of a job's workers.

        Args:
            claim: name of the claim on the job's workers; waits start over when it begins and ends.
        """
        now, joined, checkpoint, unheard = self._monotonic(), {}, {}, {}
        for worker in workers:
            uid, version = worker.metadata.uid, worker.metadata.resource_version
            last = self._reports.get(uid)
            if last is None or last.version != version or last.claim != claim:
                last = self._reports.put(uid, _last_report(worker, claim, last, now))
            joined[uid] = now - last.waits_since
            if last.behind_seconds is not None:
                checkpoint[uid] = max(now - last.saved_since, last.behind_seconds)
            if last.unheard is not None:
                unheard[uid] = now - last.unheard_since
        return Ages(joined, checkpoint, unheard)


def _last_report(
    worker: ElasticWorker, claim: str | None, before: _LastReport | None, now: float
) -> _LastReport:
    report = current_report(worker)
    waits, step = is_waiting(report), checkpoint_of(report)
    still = before if before and (before.waits, before.claim) == (waits, claim) else None
    saved = before if before and step in (None, before.step) else None  # no longer reported, still the same
    unheard = worker.spec.incarnation if runs_unheard(worker) else None
    return _LastReport(
        version=worker.metadata.resource_version,
        claim=claim,
        waits=waits,
        waits_since=still.waits_since if still else now,
        step=saved.step if saved else step,
        saved_since=saved.saved_since if saved else now,
        behind_seconds=None if step is None else seconds_behind_checkpoint(report),
        unheard=unheard,
        unheard_since=before.unheard_since if before and before.unheard == unheard else now,
    )


class NodesWhenRead(Collection[Object]):
    """All Nodes, listed when a plan first reads them: few plans do, and a cluster may have ten thousand."""

    def __init__(self, nodes: Store) -> None:
        self._store = nodes

    @cached_property
    def _all(self) -> list[Object]:
        return self._store.list()

    def __iter__(self) -> Iterator[Object]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, node: object) -> bool:
        return node in self._all


async def _nobody(_: ElasticJob, __: Workers) -> Vetting:
    return Vetting()


@dataclass(frozen=True)
class Wake:
    """Changes of other objects that trigger a reconcile of a job."""

    resource: Resource
    jobs_of: Callable[[Object], Iterable[Request]]
    predicate: Callable[[Change], bool]


@dataclass(frozen=True)
class Vetter:
    """A feature that keeps workers out of a job's world. The default keeps none out."""

    look: Callable[[ElasticJob, Workers], Awaitable[Vetting]] = _nobody
    """Reads the verdicts on a job's workers."""
    kinds: Sequence[ConditionKind] = ()
    """Conditions of the job that it states."""
    wakes: Sequence[Wake] = ()


NOBODY = Vetter()


class JobReader:
    """Reads jobs and their workers, large ones in a thread."""

    def __init__(
        self,
        cache: Cache,
        clock: Clock,
        most_workers: int = DEFAULT_WORKERS_PER_NAMESPACE,
        vetter: Vetter = NOBODY,
    ) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._worlds = cache.store(ELASTICWORLDS)
        self._pods = cache.store(PODS)
        self._nodes = cache.store(NODES)
        self._vacant = VacantSlots(cache)
        self._vetter = vetter
        self._most_workers = most_workers
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._ages = AgesView(self._workers, clock.monotonic)
        self._accounted = Observations(self._jobs, clock.monotonic)
        self._rounds = Observations(self._jobs, clock.monotonic)

    def is_grouped(self, request: Request) -> bool:
        """Whether the job is divided into replica groups."""
        raw = self._jobs.get(request.namespace, request.name)
        return raw is not None and is_grouped(raw)

    async def of(self, request: Request) -> ObservedJob | None:
        """Return the job; None if it is gone, or is being deleted after its end or without its dependents.

        Another job that is being deleted waits for a finalizer, while garbage collection removes nothing yet:
        it counts as suspended.
        """
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw):
            return None
        job = self._parse_job.parse(raw)
        if job.metadata.deletion_timestamp is not None and job.status.finished:
            return None
        found = self._workers.by_index(BY_OWNER, job.metadata.uid)
        new = 0 if len(found) >= LARGE else self._parse_worker.count_new(found)
        named = self._workers.count(BY_JOB, f"{request.namespace}/{request.name}")
        there = max(len(found), named)  # an earlier job's may not be gone yet
        seen = await computed(there + _NEW_WORKER * new, self._read, job, raw, found)
        if job.status.finished:
            return seen
        vetting = await self._vetter.look(job, seen.workers)
        claim = vetting.claim.name if vetting.claim else None
        ages = await computed(len(seen.workers), self._ages.of, seen.workers, claim)
        return replace(seen, vetting=vetting, kinds=self._vetter.kinds, ages=ages)

    def _read(self, job: ElasticJob, raw: Object, found: list[Object]) -> ObservedJob:
        workers = Workers(self._workers_of(found, job.metadata.namespace))
        if job.status.finished:
            return ObservedJob(job, raw, workers)
        pods, outdated = self._pods_of(job, workers)
        taken, strangers, held = self._taken(job, workers)
        return ObservedJob(
            job=job,
            raw=raw,
            workers=workers,
            taken=taken,
            strangers=strangers,
            held=held,
            vacant=self._vacant.of(job),
            pods=pods,
            outdated_pods=outdated,
            nodes=NodesWhenRead(self._nodes),
            account_age_seconds=self._account_age_seconds(job),
            round_age_seconds=self._rounds.age_seconds(job.metadata.uid, job.status.world.round),
            hang_asked=self._hang_asked(job),
            limit=WorkerLimit(self._workers.count("namespace", job.metadata.namespace), self._most_workers),
        )

    def _workers_of(self, found: list[Object], namespace: str) -> Iterator[ElasticWorker]:
        """Yield the workers that are not being deleted. One of another namespace with the job as owner is not
        the job's; garbage collection will remove it."""
        found.reverse()
        while found:  # the cache may have newer ones by now: these are freed one by one, not all at the end
            raw = found.pop()
            metadata = raw["metadata"]
            if metadata["namespace"] != namespace or metadata.get("deletionTimestamp"):
                continue
            if (worker := self._parse_worker.parse_or_none(raw)) is not None:
                yield worker

    def _hang_asked(self, job: ElasticJob) -> bool:
        world = self._worlds.get(job.metadata.namespace, job.metadata.name) or {"spec": {}}
        return bool((world["spec"].get("asked") or {}).get("hang"))

    def _taken(
        self, job: ElasticJob, workers: Workers
    ) -> tuple[frozenset[Slot], tuple[str, ...], tuple[str, ...]]:
        """Return `taken`, `strangers` and `held`: an earlier job of the name may have left its workers."""
        metadata, there = job.metadata, workers.by_slot
        wanted = ((type_, index) for type_ in training_types(job) for index in present_slots(job, type_))
        ours = {"metadata": companion_metadata(job)}
        taken, strangers, held = list[Slot](), list[str](), list[str]()
        for type_, index in wanted:
            if (type_, index) in there:
                continue
            name = worker_name(metadata.name, type_, index)
            if (found := self._workers.get(metadata.namespace, name)) is not None:
                taken.append((type_, index))
                strangers += [name] * is_strangers(found, ours)
                why = held_by(found["metadata"].get("finalizers"))
                if why and found["metadata"].get("deletionTimestamp"):
                    held.append(f"{name} is {why}")
        return frozenset(taken), tuple(strangers), tuple(held)

    def _pods_of(self, job: ElasticJob, workers: Workers) -> tuple[dict[str, str | None], int]:
        """Return `ObservedJob.pods` and `outdated_pods`. No Pod of a job that nobody edited is outdated."""
        is_edited, digests, outdated = job.metadata.generation > 1, {}, 0
        wanted = {type_: template_digest(job, type_) for type_ in training_types(job) if is_edited}
        for worker in workers:
            pod = self._pods.get(worker.metadata.namespace, pod_name(worker))
            if pod is not None:
                digests[worker.metadata.uid] = built_with(pod)
                outdated += is_edited and _made_of_another(pod, wanted.get(worker.spec.type))
        return digests, outdated

    def _account_age_seconds(self, job: ElasticJob) -> float:
        account = job.status.goodput
        version = (account.since, account.steps_timed, account.ratio) if account is not None else None
        return self._accounted.age_seconds(job.metadata.uid, version)


def _made_of_another(pod: Object, template: str | None) -> bool:
    """Whether it lives, and was made of another template; `template` is None if its type is gone."""
    made_of = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_TEMPLATE)
    if made_of is None or template in (None, made_of):
        return False
    return "deletionTimestamp" not in pod["metadata"] and not is_over(pod)


def built_with(pod: Object) -> str | None:
    """Return the digest of the resources that a Pod was built with; None without the annotation."""
    digest: str | None = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_RESOURCES)
    return digest
