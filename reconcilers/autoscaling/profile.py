"""`optimizeMode: cluster`: a new job starts with the sizes of finished jobs of its name. Pure.

The history is `status.usage` of the finished ElasticJobs of the namespace with the same label
`elastic.iml.github.io/profile`, or the same stem of their names. Values that the user wrote stay. The others
come by a scale request before there are any workers: the job waits a while for `status.profile`
(`seconds_to_sizing` in `reconcilers/observed/run_policy.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import OptimizeMode
from crds.job_status import JobUsage, ProfileOutcome, ProfileUse, WorldSize
from crds.phases import JobPhase
from reconcilers.autoscaling.usage import best_size, rates_of
from reconcilers.autoscaling.usage import is_due as usage_is_due
from reconcilers.observed.resources import KINDS, mapping
from reconcilers.observed.slots import training_types
from reconcilers.runtime.acts import Event
from reconcilers.scale.plan_resources import requirements
from reconcilers.scale.request import Origin, ScaleRequest, own_request, written
from reconcilers.scale.uptake import wrote_count

MOST_JOBS = 5
"""Number of last finished jobs that count."""
HEADROOM = 1.2
"""Requested memory, as a multiple of the peak."""
MIN_EFFICIENCY = 0.6
"""`minEfficiency` of a job without `elasticPolicy.opportunistic`."""
MEBIBYTE = 2**20

_NUMBERS = re.compile(r"(-[0-9]+)+$")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
ManagedFields = Sequence[Mapping[str, Any]]
"""`metadata.managedFields`."""


@dataclass(frozen=True)
class Profile:
    """The sizes with which a job starts."""

    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Memory of a Pod, by type."""
    workers: int | None = None
    of: tuple[str, ...] = ()
    """Names of the jobs from which it comes, the newest first."""

    @property
    def is_empty(self) -> bool:
        return not self.memory_bytes and self.workers is None


def is_due(job: ElasticJob, has_workers: bool) -> bool:
    """Whether the job's profile has yet to be decided."""
    asks = job.spec.optimize_mode is OptimizeMode.CLUSTER and not job.spec.suspend
    has_begun = bool(has_workers or job.status.world.round)
    return asks and job.status.profile is None and (not has_begun or _taken(job) is not None)


def _taken(job: ElasticJob) -> ScaleRequest | None:
    """The request of the profile, once it is merged into the job's status."""
    found = written(job)
    is_merged = found is not None and found.id == job.status.scale_request
    return found if found is not None and is_merged and found.origin is Origin.PROFILE else None


def stem_of(job: ElasticJob) -> str:
    """The profile of a job: its label, or its name without trailing numbers.

    Only numbers after a hyphen count: `resnet-1` is a run, but `resnet50` another model than `resnet152`.
    """
    label = job.metadata.labels.get(names.LABEL_PROFILE)
    if label:
        return label
    if job.metadata.generate_name:
        return job.metadata.generate_name.rstrip("-")
    return _NUMBERS.sub("", job.metadata.name) or job.metadata.name


def begin(
    job: ElasticJob, history: Sequence[ElasticJob], refused: str, managed_fields: ManagedFields = ()
) -> ProfileUse | ScaleRequest | None:
    """Return the outcome of the job's profile, or the request for it.

    Args:
        history: finished jobs of the job's namespace.
        refused: why the last request for the profile was refused; empty if it was not.

    Returns:
        None while one of the finished jobs has no final `status.usage` yet.
    """

    def judged(outcome: ProfileOutcome, message: str) -> ProfileUse:
        return ProfileUse(outcome=outcome, message=message)

    if (taken := _taken(job)) is not None:
        used = ", ".join(each.metadata.name for each in last_jobs(job, history))
        return judged(ProfileOutcome.TAKEN, f"{taken.in_words()}: taken from {used}")
    if any(usage_is_due(each) for each in history if stem_of(each) == stem_of(job)):
        return None
    profile = profile_of(job, history, managed_fields)
    if not profile.of:
        none = f"no job of {_whose(job)} has trained and finished yet"
        return judged(ProfileOutcome.NO_HISTORY, f"{none}, so this one starts as specified")
    if profile.is_empty:
        message = f"the job's own spec has all that {', '.join(profile.of)} could provide"
        return judged(ProfileOutcome.OVERRULED, message)
    if refused:
        return judged(ProfileOutcome.REFUSED, refused)
    return _request(job, profile)


def event_of(use: ProfileUse) -> Event:
    """The Event of a profile that has just been judged."""
    reason = "ProfileTaken" if use.outcome is ProfileOutcome.TAKEN else "NoProfile"
    return Event("Normal", reason, use.message)


def profile_of(job: ElasticJob, history: Sequence[ElasticJob], managed_fields: ManagedFields = ()) -> Profile:
    """The sizes of the last jobs of its stem, without those that the job's own spec has."""
    last = last_jobs(job, history)
    usages = [known.status.usage for known in last if known.status.usage is not None]
    memory = {}
    for type_ in training_types(job):
        peak = max((usage.memory_peak_bytes.get(type_, 0) for usage in usages), default=0)
        if peak and not says_memory(job, type_):
            memory[type_] = ceil(HEADROOM * peak / MEBIBYTE) * MEBIBYTE
    workers = None if says_count(job, managed_fields) else _best(job, usages)
    return Profile(memory, workers, tuple(known.metadata.name for known in last))


def last_jobs(job: ElasticJob, history: Iterable[ElasticJob]) -> list[ElasticJob]:
    """The last finished jobs of its stem, the newest first.

    Jobs that failed before they trained are left out, since their memory is no measure of training.
    """
    stem = stem_of(job)
    same = [
        known
        for known in history
        if known.metadata.uid != job.metadata.uid
        and known.status.completion_time is not None
        and (usage := known.status.usage) is not None
        and (usage.worlds or (known.status.phase is JobPhase.SUCCEEDED and usage.memory_peak_bytes))
        and stem_of(known) == stem
    ]
    same.sort(key=lambda known: str(known.status.completion_time), reverse=True)
    return same[:MOST_JOBS]


def says_memory(job: ElasticJob, type_: str) -> bool:
    """Whether the type's template requests memory."""
    container = job.spec.replica_specs[type_].template["spec"]["containers"][0]
    resources = mapping(container.get("resources"))
    return any("memory" in mapping(resources.get(kind)) for kind in KINDS)


def says_count(job: ElasticJob, managed_fields: ManagedFields = ()) -> bool:
    """Whether the user wrote a count of workers: one other than 1, the default, or 1 where that is visible.

    A server-side apply owns the fields that it sets, without defaults; creates and updates own these, too.
    """
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is None or worker.replicas != 1 or (worker.max_replicas or 1) <= 1:
        return True
    if any(entry.get("operation") == "Apply" and wrote_count(entry) for entry in managed_fields):
        return True
    try:
        applied = json.loads(job.metadata.annotations.get(_APPLIED, "{}"))
        return "replicas" in applied["spec"]["replicaSpecs"][names.WORKER]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _best(job: ElasticJob, usages: Sequence[JobUsage]) -> int | None:
    worlds: dict[int, WorldSize] = {}
    for usage in usages:
        for size in usage.worlds:
            before = worlds.get(size.workers)
            worlds[size.workers] = size if before is None else _sum(before, size)
    policy, worker = job.spec.elastic_policy, job.spec.replica_specs[names.WORKER]
    least = policy.opportunistic.min_efficiency if policy.opportunistic else MIN_EFFICIENCY
    best = best_size(rates_of(JobUsage(worlds=list(worlds.values())), 0, None), least)
    if best is None:
        return None
    most, unit = worker.max_replicas or best, policy.node_unit
    return max(min(best, most) // unit * unit, worker.min_replicas or 1, unit)


def _sum(one: WorldSize, other: WorldSize) -> WorldSize:
    update = {"steps": one.steps + other.steps, "seconds": one.seconds + other.seconds}
    return one.model_copy(update=update)


def _request(job: ElasticJob, profile: Profile) -> ScaleRequest:
    resources = {
        type_: requirements(job, type_, {"memory": f"{amount // MEBIBYTE}Mi"})
        for type_, amount in profile.memory_bytes.items()
    }
    return own_request(job, Origin.PROFILE, profile.workers, resources=resources)


def _whose(job: ElasticJob) -> str:
    label = job.metadata.labels.get(names.LABEL_PROFILE)
    return f"the profile {label}" if label else f"the name {stem_of(job)}"
