"""One look at one job: what was read, and what is to be written at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.events import EventType
from controller.reconciler import Result
from crds.elasticjob import ElasticJob, Rendezvous
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.scale.rolling import Freshness, Roll


@dataclass
class Turn:
    job: ElasticJob
    """As it was read; with what is asked of its scale, once that is taken up."""
    raw: dict[str, Any]
    workers: list[ElasticWorker]
    now: datetime
    active_check: NodeCheck | None = None
    suspected_at: datetime | None = None
    broken_at: datetime | None = None
    """When the world failed, if it is given up in this turn because it did."""
    fresh: Freshness = field(default_factory=Freshness)
    """Whose Pods have not the resources that the job, as it was read, wants."""
    roll: Roll = field(default_factory=Roll)
    """Who of them has a turn now."""
    standing_by: frozenset[int] = frozenset()
    """Workers that are ready beside the world."""
    given_up: Mapping[str, str] = field(default_factory=dict)
    """By uid, whose Pod is not started again, and why."""
    asked_anew: bool = False
    """Whether a count, or something of a ScalePlan, has become desired state just now."""
    events: list[tuple[EventType, str, str]] = field(default_factory=list)
    look_again: list[float] = field(default_factory=list)

    @property
    def published(self) -> Rendezvous:
        return self.job.status.rendezvous or Rendezvous()

    def event(self, type_: EventType, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def again_in(self, seconds: float | None) -> None:
        if seconds is not None:
            self.look_again.append(max(seconds, 0.0))

    def result(self) -> Result:
        return Result(min(self.look_again) + 0.01 if self.look_again else None)
