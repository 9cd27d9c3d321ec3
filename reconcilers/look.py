"""One reconcile ("look") of a job: its observed and its desired state. Pure.

`ObservedJob` is read once and never changes. `DesiredJob` begins with the requested scale, and each decision
of `job/plan.py` adds to it; conditions, status and account follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controller.events import EventType
from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobWarning
from crds.model import Condition, ConditionData
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.memory import has_run_out
from reconcilers.failure.refusal import PodRefusal
from reconcilers.observed.conditions import ConditionState, NextState, data_of
from reconcilers.observed.options import WorkerLimit
from reconcilers.observed.slots import Slot
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.scale.request import ScaleRequest
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.uptake import Vacant
from reconcilers.world.participants import Ages
from reconcilers.world.vetting import UNJUDGED, Standing, Vetting


@dataclass(frozen=True)
class ObservedJob:
    """Facts for one reconcile of a job."""

    job: ElasticJob
    raw: Object
    """The job as it is stored."""
    workers: Workers = field(default_factory=lambda: Workers(()))
    taken: frozenset[Slot] = frozenset()
    """Slots of the job whose names other ElasticWorkers have; they get a worker when those are gone."""
    strangers: tuple[str, ...] = ()
    """Names of these ElasticWorkers that do not go by themselves, since no job owns them."""
    held: tuple[str, ...] = ()
    """Clauses about these ElasticWorkers that finalizers keep from being deleted."""
    vacant: Vacant = field(default_factory=dict)
    """Retired slots without any object."""
    vetting: Vetting = field(default_factory=Vetting)
    kinds: Sequence[ConditionKind] = ()
    """Conditions that features state of the job."""
    pods: Mapping[str, str | None] = field(default_factory=dict)
    """Digest of the resources of each worker's present Pod, by uid of the worker; only of cached Pods."""
    outdated_pods: int = 0
    """Number of these Pods that were made of an earlier template of the job."""
    nodes: Collection[Object] = ()
    ages: Ages = field(default_factory=Ages)
    account_age_seconds: float = 0.0
    """Time since the job's account was last written."""
    status_age_seconds: float = float("inf")
    """Time since the status was last written."""
    round_age_seconds: float = float("inf")
    """Time since the published round was first seen."""
    hang_asked: bool = True
    """Whether the ElasticWorld asks the members of a world that hangs for their stacks."""
    request_refused: str = ""
    """Reason why the API server refused this reconcile's check of workers."""
    limit: WorkerLimit = field(default_factory=WorkerLimit)
    """Limit of its namespace's ElasticWorkers."""
    contact_seconds: float = float("inf")
    """Time of unbroken contact with the API server."""
    workers_refused: str = ""
    """Reason of the API server's last refusal of ElasticWorkers."""
    workers_refused_seconds: float | None = None
    """Time until ElasticWorkers are created again after a refusal."""

    @property
    def unheard_seconds(self) -> Mapping[str, float]:
        """Time for which Pods have run without a report of their agents, by uid of the worker. Time without
        contact with the API server does not count."""
        return {uid: min(seconds, self.contact_seconds) for uid, seconds in self.ages.unheard.items()}

    @property
    def managed_fields(self) -> Sequence[Object]:
        """The job's managedFields, if the API server keeps them."""
        return self.raw["metadata"].get("managedFields") or ()

    @property
    def nodes_to_compare(self) -> int:
        """Number of nodes to compare with when memory is raised."""
        return len(self.nodes) if any(map(has_run_out, self.workers)) else 0


@dataclass(frozen=True)
class DesiredJob:
    """Desired state of a job in one reconcile."""

    seen: ObservedJob
    job: ElasticJob
    """The job with the requested scale in its status."""
    workers: Workers
    """The job's workers without the surplus."""
    now: datetime
    request: ScaleRequest | None = None
    """The scale request that is merged in this reconcile."""
    count_changed_from: int | None = None
    missing: Sequence[Slot] = ()
    """Slots that get a worker."""
    surplus: Sequence[ElasticWorker] = ()
    """Workers to delete: their slots are not wanted, and no formed world has them."""
    fresh: Freshness = field(default_factory=Freshness)
    """Workers whose Pods lack the resources of the published job."""
    refusal: PodRefusal | None = None
    """Refusal of the template's Pods; None if they can be made."""
    table: ConditionTable = field(default_factory=lambda: ConditionTable())
    """The conditions and warnings that the job may have."""
    leaving: frozenset[str] = frozenset()
    """Uids of workers whose Pods a suspension still has to end."""
    spare: Mapping[str, Overdrawn] = field(default_factory=dict)
    """Workers that may fail for good, by uid."""
    exhausted_workers: Mapping[str, str] = field(default_factory=dict)
    """Workers that get no further Pod, by uid, with the reason."""
    standing: Standing = UNJUDGED
    phase: JobPhase = JobPhase.PENDING
    """The phase to write, before `Scaling` is considered."""
    rendezvous: Rendezvous | None = None
    """The world to write; None for a job that has none."""
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world leaves out."""
    end: ConditionState | None = None
    """State of the condition `Succeeded` or `Failed` of a job that ends now."""
    warnings: Sequence[JobWarning] = ()
    """The warnings after this reconcile, on which its conditions depend, too."""
    conditions: Sequence[Condition] = ()
    """The conditions after this reconcile."""

    @property
    def published(self) -> Rendezvous:
        return self.seen.job.status.world

    @property
    def world(self) -> Rendezvous:
        return self.rendezvous or Rendezvous()

    @property
    def goes_on(self) -> bool:
        return not self.phase.finished and self.phase is not JobPhase.SUSPENDED

    @property
    def scale_requested(self) -> bool:
        """Whether another scale was requested just now."""
        return self.request is not None or self.count_changed_from is not None

    @property
    def is_refused(self) -> bool:
        """Whether no further Pod of the job can be made."""
        return self.refusal is not None

    @property
    def is_held(self) -> bool:
        """Whether it makes no further workers, since its Pods cannot be made and it has not begun."""
        return self.refusal is not None and not self.refusal.has_begun


@dataclass(frozen=True)
class WarningState:
    """Content of a warning, without its type and time."""

    message: str
    reason: str | None = None
    data: ConditionData | None = None


Judge = Callable[[Condition | None, DesiredJob], NextState]
Warn = Callable[[JobWarning | None, DesiredJob], WarningState | JobWarning | None]
"""The judgement of a warning: a new state, the present warning to keep it, or None if nothing is wrong."""


def keep(old: Any, _: DesiredJob) -> Any:
    return old


def _quietly(_: Condition | None, __: Condition) -> None:
    return None


@dataclass(frozen=True)
class ConditionKind:
    """A type of condition."""

    type: str
    judge: Judge = keep
    """Judgement while the job goes on, or is suspended."""
    at_end: Judge = keep
    """Judgement when the job ends."""
    event: Callable[[Condition | None, Condition], Event | None] = _quietly
    """Event of a change, from the condition before and after."""


def is_changed(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether a warning states new facts, or began again. A changed count does not matter, since it changes
    with each Pod of a large job."""
    return old is None or _facts(old) != _facts(new)


def _facts(warning: JobWarning) -> tuple[Any, ...]:
    return warning.reason, warning.since, data_of(warning).model_copy(update={"count": None})


@dataclass(frozen=True)
class WarningKind:
    """A type of warning."""

    type: str
    judge: Warn
    """Judgement while the job goes on, or is suspended."""
    at_end: Warn = keep
    """Judgement when the job ends."""
    event: EventType | None = None
    """Type of the Event when it begins or changes; None for no Event."""
    by_reason: bool = False
    """Whether the Event has the warning's reason instead of its type."""
    is_news: Callable[[JobWarning | None, JobWarning], bool] = is_changed
    over: tuple[str, str] | None = None
    """Reason and message of the Event when it is over."""


@dataclass(frozen=True)
class ConditionTable:
    """All conditions and warnings of jobs of one kind."""

    conditions: Sequence[ConditionKind] = ()
    warnings: Sequence[WarningKind] = ()
    """The gravest first."""

    def beside(self, conditions: Sequence[ConditionKind]) -> ConditionTable:
        """Return the table with conditions of features."""
        return replace(self, conditions=(*self.conditions, *conditions))
