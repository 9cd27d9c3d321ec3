"""What other features have a worker's Pod wait for, and how they mark it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker

STARTS_PER_SECOND = 250
"""Pods that a cluster's scheduler manages at least; those of more workers may take as much longer."""


@dataclass(frozen=True)
class Obstacle:
    """Why a Pod is not made now."""

    reason: str
    message: str
    retry_seconds: float
    worth_telling: bool = True


class Gate(Protocol):
    """A feature that Pods of some jobs wait for."""

    async def obstacle(self, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why the worker's Pod cannot come yet; None if it may."""

    def enlist(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> None:
        """Mark a Pod that is about to be made."""
