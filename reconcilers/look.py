"""One look at a job: what is observed of it, and what the look wants of it. Pure.

`ObservedJob` is read once, and nothing changes it. `DesiredJob` begins with the requested scale, and each
decision of `job/plan.py` adds to it; conditions, status and account follow from it.
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

OF_ANOTHER_NAMESPACE = "a worker of another namespace's job"


@dataclass(frozen=True)
class Neighbour:
    """A worker of another job that runs on a node of this one's."""

    worker: str
    """Its name; `OF_ANOTHER_NAMESPACE` where the job's readers may not see it."""
    node: str
    since: datetime
    """When its Pod was first seen running."""


@dataclass(frozen=True)
class ObservedJob:
    job: ElasticJob
    raw: Object
    """The job as it is stored."""
    workers: Workers = field(default_factory=lambda: Workers(()))
    taken: frozenset[Slot] = frozenset()
    """Slots of the job whose names other workers have: they are made when those are gone."""
    strangers: tuple[str, ...] = ()
    """Names of those of them that do not go by themselves, since no job owns them."""
    held: tuple[str, ...] = ()
    """Deleted ElasticWorkers that do not go and have such names, each with what holds it."""
    vacant: Vacant = field(default_factory=dict)
    """Retired slots of which nothing is left."""
    vetting: Vetting = field(default_factory=Vetting)
    kinds: Sequence[ConditionKind] = ()
    """Conditions that features state of the job."""
    pods: Mapping[str, str | None] = field(default_factory=dict)
    """Digest of the resources that the Pod of a worker's present incarnation was built with, by uid of the
    worker; without those whose Pod the cache does not show."""
    outdated_pods: int = 0
    """How many of these were made of an earlier template of the job."""
    nodes: Collection[Object] = ()
    ages: Ages = field(default_factory=Ages)
    account_age_seconds: float = 0.0
    """How long ago the job's account was written."""
    status_age_seconds: float = float("inf")
    """Time since the status was last written."""
    round_age_seconds: float = float("inf")
    """How long ago the published round was first seen."""
    hang_asked: bool = True
    """The ElasticWorld asks the members of a world that hangs for their stacks."""
    neighbours: Sequence[Neighbour] = ()
    """Other workers on the job's nodes, if it has just become slow."""
    request_refused: str = ""
    """Why the API server does not take the request to test workers that this look makes."""
    limit: WorkerLimit = field(default_factory=WorkerLimit)
    """How many ElasticWorkers its namespace may have."""
    contact_seconds: float = float("inf")
    """Time of unbroken contact with the API server."""
    workers_refused: str = ""
    """Why the API server refused ElasticWorkers when it was last asked for some."""
    workers_refused_seconds: float | None = None
    """Time without further ElasticWorkers, since the API server has just refused some."""

    @property
    def unheard_seconds(self) -> Mapping[str, float]:
        """How long Pods have run without a report of their agents, by uid of the worker. What could not have
        come to our ears does not count."""
        return {uid: min(seconds, self.contact_seconds) for uid, seconds in self.ages.unheard.items()}

    @property
    def managed_fields(self) -> Sequence[Object]:
        """The job's, if the server keeps them."""
        return self.raw["metadata"].get("managedFields") or ()

    @property
    def nodes_to_compare(self) -> int:
        """Number of nodes that amounts of memory to be raised are compared with."""
        return len(self.nodes) if any(map(has_run_out, self.workers)) else 0


@dataclass(frozen=True)
class DesiredJob:
    """What a look wants of a job."""

    seen: ObservedJob
    job: ElasticJob
    """The job with the requested scale in its status."""
    workers: Workers
    """The job's workers, but for the surplus."""
    now: datetime
    request: ScaleRequest | None = None
    """The scale request that is merged in this look."""
    count_changed_from: int | None = None
    missing: Sequence[Slot] = ()
    """Slots that get a worker."""
    surplus: Sequence[ElasticWorker] = ()
    """Workers that are deleted: nobody wants their slots, and no formed world has them."""
    fresh: Freshness = field(default_factory=Freshness)
    """Workers whose Pods lack the resources that the published job wants."""
    refusal: PodRefusal | None = None
    """Why no Pod can be made of the template; None if they can."""
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
    """The phase that is written, but for `Scaling`."""
    rendezvous: Rendezvous | None = None
    """The world that is written; None for a job that has none."""
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world does without."""
    end: ConditionState | None = None
    """What `Succeeded` or `Failed` states of a job that ends now."""
    warnings: Sequence[JobWarning] = ()
    """The warnings after this look; its conditions are judged by them, too."""
    conditions: Sequence[Condition] = ()
    """The conditions after this look."""

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
        """Another scale was requested just now."""
        return self.request is not None or self.count_changed_from is not None

    @property
    def is_refused(self) -> bool:
        """No further Pod of the job can be made."""
        return self.refusal is not None

    @property
    def is_held(self) -> bool:
        """The Pods of a job that has not begun cannot be made: it makes no further worker."""
        return self.refusal is not None and not self.refusal.has_begun


@dataclass(frozen=True)
class WarningState:
    """What a warning states, without its type and time."""

    message: str
    reason: str | None = None
    data: ConditionData | None = None


Judge = Callable[[Condition | None, DesiredJob], NextState]
Warn = Callable[[JobWarning | None, DesiredJob], WarningState | JobWarning | None]
"""The judgement of a warning: new, as it was, or None where nothing is wrong."""


def keep(old: Any, _: DesiredJob) -> Any:
    return old


def _quietly(_: Condition | None, __: Condition) -> None:
    return None


@dataclass(frozen=True)
class ConditionKind:
    """A type of condition."""

    type: str
    judge: Judge = keep
    """The judgement in a job that goes on, or is suspended."""
    at_end: Judge = keep
    """The judgement when the job ends."""
    event: Callable[[Condition | None, Condition], Event | None] = _quietly
    """The Event of a change, from the condition before and after."""


def is_changed(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether it states other facts than before, or began again. A count alone is no news: it changes with
    each Pod of a large job."""
    return old is None or _facts(old) != _facts(new)


def _facts(warning: JobWarning) -> tuple[Any, ...]:
    return warning.reason, warning.since, data_of(warning).model_copy(update={"count": None})


@dataclass(frozen=True)
class WarningKind:
    """A type of warning."""

    type: str
    judge: Warn
    """The judgement in a job that goes on, or is suspended."""
    at_end: Warn = keep
    """The judgement when the job ends."""
    event: EventType | None = None
    """Type of the Event when it begins or changes; None for no Event."""
    by_reason: bool = False
    """The Event has the warning's reason, and not its type."""
    is_news: Callable[[JobWarning | None, JobWarning], bool] = is_changed
    over: tuple[str, str] | None = None
    """Reason and message of the Event when it is over."""


@dataclass(frozen=True)
class ConditionTable:
    """All that is stated about jobs of one kind."""

    conditions: Sequence[ConditionKind] = ()
    warnings: Sequence[WarningKind] = ()
    """The gravest first."""

    def beside(self, conditions: Sequence[ConditionKind]) -> ConditionTable:
        """The table with conditions of features."""
        return replace(self, conditions=(*self.conditions, *conditions))
