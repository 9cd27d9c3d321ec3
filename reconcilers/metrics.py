"""`dlr_*` metrics of jobs and workers, computed from their status at each scrape.

Nothing is counted here, so a restart of the controller loses nothing, and deleted objects are gone with the
next scrape. Only the leader exports them: two controllers would double every sum. docs/metrics.md lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.cache import Cache
from controller.resources import Object
from crds.checkpoint_files import Tier
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass
from crds.job_status import Goodput, JobState
from crds.phases import JobPhase, RendezvousPhase
from crds.progress_record import MAX_NUMBER_NAME, MAX_NUMBERS
from crds.rendezvous import Rendezvous
from crds.replica_groups import Membership
from reconcilers.conditions.slow import speaker_of
from reconcilers.goodput.goodput import goodput_now, seconds_by_state
from reconcilers.observed.ownership import BY_JOB
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import is_managed_here

log = logging.getLogger(__name__)

Labels = tuple[str, ...]

JOB = ("namespace", "job_name")
"""Not `job`, which is Prometheus' label of the scraped target."""
WORKER = (*JOB, "worker")
UNITS = ("seconds", "bytes", "ratio")
COUNTER_SUFFIX = "_total"
FAILURES = tuple(class_ for class_ in ExitClass if class_ is not ExitClass.SUCCEEDED)


@dataclass(frozen=True)
class MetricDefinition:
    """One metric; a counter if its name ends in `_total`."""

    name: str
    text: str
    labels: Labels

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        name = self.name.removesuffix(COUNTER_SUFFIX)
        kind = GaugeMetricFamily if name == self.name else CounterMetricFamily
        unit = name.rpartition("_")[2]
        return kind(name, self.text, labels=self.labels, unit=unit if unit in UNITS else "")


DEFINITIONS: list[MetricDefinition] = []


def _define(name: str, labels: Labels, text: str) -> MetricDefinition:
    DEFINITIONS.append(MetricDefinition(name, text, labels))
    return DEFINITIONS[-1]


JOB_PHASE = _define("dlr_job_phase", (*JOB, "phase"), "1 for the phase that the job is in, 0 for others")
JOB_STATE = _define("dlr_job_state", (*JOB, "state"), "1 for the present state, 0 for others")
JOB_STATE_SECONDS = _define(
    "dlr_job_state_seconds", (*JOB, "state"), "Time since submission; a later finding may move some"
)
JOB_GOODPUT = _define("dlr_job_goodput_ratio", JOB, "Effective training time over the time since submission")
JOB_STEP = _define("dlr_job_step", JOB, "Highest training step so far")
JOB_STEPS_REDONE = _define("dlr_job_steps_redone_total", JOB, "Steps that were trained again after restarts")
JOB_NUMBER = _define("dlr_job_number", (*JOB, "number"), "Last numbers of rank 0's steps, from dlr.report")
JOB_WARNING = _define(
    "dlr_job_warning", (*JOB, "type"), "1 for each warning in the status of a job that has not ended"
)
JOB_RESTARTS = _define("dlr_job_restarts", JOB, "Failures in place; a later finding may take one back")
JOB_FAILURES = _define("dlr_job_failures", (*JOB, "class"), "Failures; a later finding may move one")
JOB_ROUND = _define("dlr_job_round", JOB, "Worlds formed so far")
JOB_RESUMED = _define("dlr_job_resumed", (*JOB, "tier"), "1 for the tier of the world's checkpoint, else 0")
JOB_WORLD_SIZE = _define("dlr_job_world_size", JOB, "Training processes in the world; 0 while there is none")
JOB_WORLD_WORKERS = _define("dlr_job_world_workers", JOB, "Workers in the world; 0 while there is none")
JOB_GROUPS = _define("dlr_job_groups", (*JOB, "state"), "Replica groups by state")
JOB_MEMBERSHIP_VERSION = _define(
    "dlr_job_membership_version", JOB, "Changes so far of the replica groups that train together"
)
JOB_DESIRED_WORKERS = _define("dlr_job_desired_workers", (*JOB, "type"), "Workers that are wanted")
JOB_WORKERS = _define("dlr_job_workers", (*JOB, "type", "phase"), "Workers by the phase of their Pod")
WORKER_STEP = _define("dlr_worker_step", WORKER, "Training step that the worker reported last")
WORKER_STEP_TIME = _define("dlr_worker_step_timestamp_seconds", WORKER, "Time of that report")
WORKER_STEP_SECONDS = _define("dlr_worker_step_duration_seconds", WORKER, "Recent time per step")
WORKER_MEMORY_STEP = _define(
    "dlr_worker_memory_checkpoint_step", WORKER, "Step of its newest checkpoint in memory"
)
WORKER_REPLICATED_STEP = _define(
    "dlr_worker_replicated_checkpoint_step", WORKER, "Step of its newest that another Pod holds, too"
)
WORKER_RESTARTS = _define(
    "dlr_worker_restarts_total", (*WORKER, "class"), "Pods of the worker that ended and were replaced"
)


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    of: MetricDefinition
    labels: Labels
    """Label values, in the order of the definition's label names."""
    value: float


class JobMetrics(Collector):
    """Collector that reads the cache at each scrape.

    Args:
        leads: whether this process leads, and so exports metrics.
    """

    def __init__(self, cache: Cache, clock: Clock, leads: Callable[[], bool]) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._clock = clock
        self._leads = leads
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    def collect(self) -> Iterator[Metric]:
        families = {definition: definition.family() for definition in DEFINITIONS}
        for sample in self._samples() if self._leads() else ():
            families[sample.of].add_metric(sample.labels, sample.value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        now = self._clock.now()
        for raw in self._jobs.list():
            try:
                samples = self._of_job(raw, now)
            except Exception as error:
                # Its reconciler reports the error; the other jobs' metrics go on.
                log.debug("no metrics of a job: %s", error)
                continue
            yield from samples

    def _of_job(self, raw: Object, now: datetime) -> list[Sample]:
        if not is_managed_here(raw):
            return []
        of_job = self._workers.by_index(BY_JOB, f"{raw['metadata']['namespace']}/{raw['metadata']['name']}")
        job, workers = self._parse_job.parse_or_none(raw), [*self._parse_worker.readable(of_job)]
        if job is None:
            return []
        of_workers = (sample for worker in workers for sample in worker_samples(job, worker))
        return [*job_samples(job, workers, now), *of_workers]


def job_samples(job: ElasticJob, workers: Sequence[ElasticWorker], now: datetime) -> Iterator[Sample]:
    status, key = job.status, _key(job)
    finished = status.finished
    for phase in JobPhase:
        yield Sample(JOB_PHASE, (*key, phase.value), phase is (status.phase or JobPhase.PENDING))
    if job.spec.elastic_policy.replica_groups is not None:
        yield from _group_samples(key, job, finished)
        return  # its groups are jobs, whose counts would count twice
    for class_ in FAILURES:
        yield Sample(JOB_FAILURES, (*key, class_.value), status.failures.get(class_.value, 0))
    yield Sample(JOB_RESTARTS, key, sum(status.restarts.values()))
    yield from _world_samples(key, status.world, finished)
    for type_, counts in status.replica_statuses.items():
        yield Sample(JOB_DESIRED_WORKERS, (*key, type_), counts.desired)
        for phase_name in ("pending", "active", "succeeded", "failed", "standby"):
            yield Sample(JOB_WORKERS, (*key, type_, phase_name), getattr(counts, phase_name))
    for warning in () if finished else status.warnings:
        yield Sample(JOB_WARNING, (*key, warning.type), 1)
    yield from _number_samples(key, Workers(workers), status.world)
    goodput = goodput_now(job, workers, now)
    until = (status.completion_time or goodput.since) if finished else now
    yield from _goodput_samples(key, goodput, until, finished)


def _group_samples(key: Labels, job: ElasticJob, finished: bool) -> Iterator[Sample]:
    status = job.status
    membership = status.membership or Membership()
    together = set() if finished else {place.index for place in membership.groups}
    ended = sum(each.phase is not None and each.phase.finished for each in status.groups)
    states = {"training": len(together), "ended": ended}
    states["waiting"] = max(0, len(status.groups) - len(together) - ended)
    for state, count in states.items():
        yield Sample(JOB_GROUPS, (*key, state), count)
    yield Sample(JOB_MEMBERSHIP_VERSION, key, membership.version)
    if status.goodput is not None:
        yield from _figures(key, status.goodput)
    for warning in () if finished else status.warnings:
        yield Sample(JOB_WARNING, (*key, warning.type), 1)


def _world_samples(key: Labels, world: Rendezvous, finished: bool) -> Iterator[Sample]:
    formed = world.phase is RendezvousPhase.FORMED and not finished
    yield Sample(JOB_ROUND, key, world.round)
    if world.resume is not None:
        for tier in Tier:
            yield Sample(JOB_RESUMED, (*key, tier.value), tier is world.resume.tier)
    yield Sample(JOB_WORLD_SIZE, key, world.world_size if formed else 0)
    yield Sample(JOB_WORLD_WORKERS, key, len(world.members) if formed else 0)


def _number_samples(key: Labels, workers: Workers, world: Rendezvous) -> Iterator[Sample]:
    speaker = speaker_of(workers, world)
    series = speaker.status.agent.series if speaker is not None and speaker.status.agent is not None else None
    if series is not None and series.latest is not None:
        named = {name[:MAX_NUMBER_NAME]: value for name, value in series.latest.numbers.items()}
        for name, value in islice(named.items(), MAX_NUMBERS):
            yield Sample(JOB_NUMBER, (*key, name), value)


def _goodput_samples(key: Labels, goodput: Goodput, until: datetime, finished: bool) -> Iterator[Sample]:
    seconds = seconds_by_state(goodput, until)
    for state in JobState:
        yield Sample(JOB_STATE, (*key, state.value), state is goodput.state and not finished)
        yield Sample(JOB_STATE_SECONDS, (*key, state.value), seconds.get(state, 0.0))
    yield Sample(JOB_STEPS_REDONE, key, goodput.steps_redone)
    yield from _figures(key, goodput)


def _figures(key: Labels, goodput: Goodput) -> Iterator[Sample]:
    """Yield the figures that exist for a job with replica groups, too."""
    figures = {JOB_STEP: goodput.last_step, JOB_GOODPUT: goodput.ratio}
    yield from (Sample(of, key, value) for of, value in figures.items() if value is not None)


def worker_samples(job: ElasticJob, worker: ElasticWorker) -> Iterator[Sample]:
    key = (*_key(job), worker.metadata.name)
    for class_, count in worker.status.restarts.items():
        yield Sample(WORKER_RESTARTS, (*key, class_), count)
    report = current_report(worker)
    if report is None:
        return
    figures: dict[MetricDefinition, float | None] = {}
    if report.progress is not None:
        figures[WORKER_STEP] = report.progress.step
        figures[WORKER_STEP_TIME] = report.progress.time.timestamp()
        figures[WORKER_STEP_SECONDS] = report.progress.seconds_per_step
    if report.memory is not None:
        figures[WORKER_MEMORY_STEP] = report.memory.step
        figures[WORKER_REPLICATED_STEP] = report.memory.replicated_step
    yield from (Sample(of, key, value) for of, value in figures.items() if value is not None)


def _key(job: ElasticJob) -> Labels:
    return job.metadata.namespace or "", job.metadata.name
