"""`dlr_*` metrics: jobs and workers as their status says, computed when they are read.

Nothing is counted here, so a restart of the controller loses nothing, and what is deleted is gone with the
next scrape. Only the leader tells them: two controllers would double every sum. docs/metrics.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

from controller.cache import Cache
from controller.resources import ELASTICJOBS, ELASTICWORKERS
from crds.elasticjob import ElasticJob, Goodput, JobPhase, JobState, Rendezvous, RendezvousPhase
from reconcilers.clock import Clock
from reconcilers.parsing import Parser
from reconcilers.worker import BY_JOB

Labels = tuple[str, ...]

JOB = ("namespace", "job_name")
"""Not `job`: that is what Prometheus calls the scraped target."""
WORKER = (*JOB, "worker")
UNITS = ("seconds", "bytes", "ratio")
COUNTER_SUFFIX = "_total"


@dataclass(frozen=True)
class Definition:
    """One metric; a counter if its name ends in `_total`."""

    name: str
    text: str
    labels: Labels

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        name = self.name.removesuffix(COUNTER_SUFFIX)
        kind = GaugeMetricFamily if name == self.name else CounterMetricFamily
        unit = name.rpartition("_")[2]
        return kind(name, self.text, labels=self.labels, unit=unit if unit in UNITS else "")


DEFINITIONS: list[Definition] = []


def _define(name: str, labels: Labels, text: str) -> Definition:
    DEFINITIONS.append(Definition(name, text, labels))
    return DEFINITIONS[-1]


JOB_PHASE = _define("dlr_job_phase", (*JOB, "phase"), "1 for the phase that the job is in, 0 for others")
JOB_STATE = _define(
    "dlr_job_state", (*JOB, "state"), "1 for what the job's time goes to now, 0 for other states"
)
JOB_STATE_SECONDS = _define(
    "dlr_job_state_seconds_total", (*JOB, "state"), "Time since submission, by what it went to"
)
JOB_GOODPUT = _define("dlr_job_goodput_ratio", JOB, "Effective training time over the time since submission")
JOB_STEP = _define("dlr_job_step", JOB, "Highest training step so far")
JOB_STEPS_REDONE = _define("dlr_job_steps_redone_total", JOB, "Steps that were trained again after restarts")
JOB_RESTARTS = _define("dlr_job_restarts_total", JOB, "Worlds that broke because processes failed in place")
JOB_FAILURES = _define(
    "dlr_job_failures", (*JOB, "class"), "The same by class; a later finding may move one to another class"
)
JOB_ROUND = _define("dlr_job_round", JOB, "Worlds formed so far")
JOB_WORLD_SIZE = _define("dlr_job_world_size", JOB, "Training processes in the world; 0 while there is none")
JOB_WORLD_WORKERS = _define("dlr_job_world_workers", JOB, "Workers in the world; 0 while there is none")
JOB_DESIRED_WORKERS = _define("dlr_job_desired_workers", (*JOB, "type"), "Workers that are wanted")
JOB_WORKERS = _define("dlr_job_workers", (*JOB, "type", "phase"), "Workers by the phase of their Pod")
WORKER_STEP = _define("dlr_worker_step", WORKER, "Training step that the worker told last")
WORKER_STEP_TIME = _define("dlr_worker_step_timestamp_seconds", WORKER, "When it told it, since the epoch")
WORKER_STEP_SECONDS = _define("dlr_worker_step_duration_seconds", WORKER, "Time that a step takes, lately")
WORKER_CPU = _define("dlr_worker_cpu_usage_cores", WORKER, "CPUs that the worker's Pod uses")
WORKER_MEMORY = _define("dlr_worker_memory_usage_bytes", WORKER, "Memory of the worker's Pod, without cache")
WORKER_GPU = _define("dlr_worker_gpu_utilization_ratio", WORKER, "Mean utilization of the worker's GPUs")
WORKER_GPU_MEMORY = _define("dlr_worker_gpu_memory_usage_bytes", WORKER, "Memory in use on the worker's GPUs")
WORKER_RESTARTS = _define(
    "dlr_worker_restarts_total", (*WORKER, "class"), "Pods of the worker that ended and were replaced"
)


@dataclass(frozen=True)
class Sample:
    of: Definition
    labels: Labels
    """The values, in the order of the definition's names."""
    value: float


class JobMetrics(Collector):
    """Reads the cache whenever the metrics are read.

    Args:
        leads: whether this process is the one to tell.
    """

    def __init__(self, cache: Cache, clock: Clock, leads: Callable[[], bool]) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._clock = clock
        self._leads = leads
        self._parser = Parser(ElasticJob)

    def collect(self) -> Iterator[Metric]:
        families = {definition: definition.family() for definition in DEFINITIONS}
        for sample in self._samples() if self._leads() else ():
            families[sample.of].add_metric(sample.labels, sample.value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        now = self._clock.now()
        for raw in self._jobs.list():
            try:
                job = self._parser.parse(raw)
            except ValidationError:
                continue  # its reconciler says so; the other jobs' metrics are not to suffer
            workers = self._workers.by_index(BY_JOB, f"{job.metadata.namespace}/{job.metadata.name}")
            told = [(worker, current_report(worker)) for worker in workers]
            yield from job_samples(job, [report for _, report in told], now)
            for worker, report in told:
                yield from worker_samples(worker, report)


def current_report(worker: dict[str, Any]) -> dict[str, Any]:
    """`status.agent`, if it was written by the agent of this incarnation's Pod; else {}.

    As in `worker_status`, but of the object as it is in the cache: there are thousands.
    """
    status = worker.get("status") or {}
    report: dict[str, Any] = status.get("agent") or {}
    incarnation = worker["spec"]["incarnation"]
    current = report.get("incarnation") == status.get("observedIncarnation") == incarnation and report.get(
        "podUid"
    ) == status.get("podUid")
    return report if current else {}


def job_samples(job: ElasticJob, reports: list[dict[str, Any]], now: datetime) -> Iterator[Sample]:
    status = job.status
    key = (job.metadata.namespace or "", job.metadata.name)
    for phase in JobPhase:
        yield Sample(JOB_PHASE, (*key, phase.value), phase is (status.phase or JobPhase.CREATED))
    for class_, count in status.restarts.items():
        yield Sample(JOB_FAILURES, (*key, class_), count)
    yield Sample(JOB_RESTARTS, key, sum(status.restarts.values()))
    yield from _world_samples(key, status.rendezvous or Rendezvous())
    for type_, counts in status.replica_statuses.items():
        yield Sample(JOB_DESIRED_WORKERS, (*key, type_), counts.desired)
        for phase_name in ("pending", "active", "succeeded", "failed"):
            yield Sample(JOB_WORKERS, (*key, type_, phase_name), getattr(counts, phase_name))
    steps = [progress["step"] for report in reports if (progress := report.get("progress"))]
    if status.goodput is not None:
        yield from _goodput_samples(key, status.goodput, status.completion_time, now)
        steps += [] if status.goodput.last_step is None else [status.goodput.last_step]
    if steps:
        yield Sample(JOB_STEP, key, max(steps))


def _world_samples(key: Labels, world: Rendezvous) -> Iterator[Sample]:
    formed = world.phase is RendezvousPhase.FORMED
    yield Sample(JOB_ROUND, key, world.round)
    yield Sample(JOB_WORLD_SIZE, key, world.world_size if formed else 0)
    yield Sample(JOB_WORLD_WORKERS, key, len(world.members) if formed else 0)


def _goodput_samples(
    key: Labels, goodput: Goodput, completed_at: datetime | None, now: datetime
) -> Iterator[Sample]:
    until = completed_at or now
    for state in JobState:
        current = state is goodput.state
        seconds = goodput.seconds.get(state.value, 0.0)
        if current:
            seconds += max(0.0, (until - goodput.since).total_seconds())
        yield Sample(JOB_STATE, (*key, state.value), current and completed_at is None)
        yield Sample(JOB_STATE_SECONDS, (*key, state.value), seconds)
    yield Sample(JOB_STEPS_REDONE, key, goodput.steps_redone)
    if goodput.ratio is not None:
        yield Sample(JOB_GOODPUT, key, goodput.ratio)


def worker_samples(worker: dict[str, Any], report: dict[str, Any]) -> Iterator[Sample]:
    """Of a worker and what its agent says, both as they are in the cache."""
    metadata = worker["metadata"]
    key = (metadata.get("namespace") or "", worker["spec"]["jobName"], metadata["name"])
    for class_, count in (worker.get("status", {}).get("restarts") or {}).items():
        yield Sample(WORKER_RESTARTS, (*key, class_), count)
    progress, usage = report.get("progress") or {}, report.get("usage") or {}
    if progress:
        time = datetime.fromisoformat(progress["time"]).timestamp()
        yield Sample(WORKER_STEP, key, progress["step"])
        yield Sample(WORKER_STEP_TIME, key, time)
    told = {
        WORKER_STEP_SECONDS: progress.get("secondsPerStep"),
        WORKER_CPU: usage.get("cpuCores"),
        WORKER_MEMORY: usage.get("memoryBytes"),
        WORKER_GPU: usage.get("gpuUtilization"),
        WORKER_GPU_MEMORY: usage.get("gpuMemoryBytes"),
    }
    for definition, value in told.items():
        if value is not None:
            yield Sample(definition, key, value)
