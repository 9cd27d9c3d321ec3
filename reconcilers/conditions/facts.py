"""What a job's conditions and warnings are judged by, and what a judgement is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.model import Condition, ConditionData
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.conditions import ConditionState, NextState
from reconcilers.observed.options import WorkerLimit
from reconcilers.observed.workers import Workers
from reconcilers.scale.rolling import Freshness
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
class JobFacts:
    """What the conditions follow from: what is observed of a job, and what this look decides."""

    job: ElasticJob
    """The job with the requested scale in its status."""
    workers: Workers
    phase: JobPhase
    """The phase that is written, but for `Scaling`."""
    world: Rendezvous
    now: datetime
    pods_not_accepted: JobWarning | None = None
    """Why no Pod can be made of the template; None if they can."""
    strangers: Sequence[str] = ()
    """ElasticWorkers that have names of the job's, and that no job owns."""
    held: Sequence[str] = ()
    """Deleted ElasticWorkers whose names the job's next ones have, each with what holds it."""
    workers_refused: str = ""
    """Why the API server refuses the job's ElasticWorkers."""
    unheard_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long Pods have run without a report of their agents, by uid of the worker."""
    outdated_pods: int = 0
    pods: int = 0
    neighbours: Sequence[Neighbour] = ()
    limit: WorkerLimit = field(default_factory=WorkerLimit)
    vetting: Vetting | None = None
    """None for a job that does not go on."""
    standing: Standing = UNJUDGED
    request_refused: str = ""
    """Why the object that has workers tested could not be made."""
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world does without."""
    exhausted_workers: Mapping[str, str] = field(default_factory=dict)
    fresh: Freshness = field(default_factory=Freshness)
    scale_requested: bool = False
    end: ConditionState | None = None
    """What `Succeeded` or `Failed` states of a job that ends now."""
    warnings: Sequence[JobWarning] = ()
    """The warnings after this look, when its conditions are judged."""

    @property
    def goes_on(self) -> bool:
        return not self.phase.finished and self.phase is not JobPhase.SUSPENDED


@dataclass(frozen=True)
class WarningState:
    """What a warning states, without its type and time."""

    message: str
    reason: str | None = None
    data: ConditionData | None = None


Judge = Callable[[Condition | None, JobFacts], NextState]
Warn = Callable[[JobWarning | None, JobFacts], WarningState | JobWarning | None]
"""The judgement of a warning: new, as it was, or None where nothing is wrong."""
