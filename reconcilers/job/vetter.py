"""A feature that holds workers back from a job's world, as far as the job's own reconciler depends on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from controller.reconciler import Request
from controller.resources import Object, Resource
from controller.store import Change
from crds.elasticjob import ElasticJob
from reconcilers.conditions.table import ConditionKind
from reconcilers.observed.workers import Workers
from reconcilers.world.vetting import Vetting


async def _nobody(_: ElasticJob, __: Workers) -> Vetting:
    return Vetting()


@dataclass(frozen=True)
class Wake:
    """Changes of other objects that lead to a look at a job."""

    resource: Resource
    jobs_of: Callable[[Object], Iterable[Request]]
    predicate: Callable[[Change], bool]


@dataclass(frozen=True)
class Vetter:
    """How a feature answers. By default, nobody vets."""

    look: Callable[[ElasticJob, Workers], Awaitable[Vetting]] = _nobody
    """Reads the answers for a job and its workers."""
    kinds: Sequence[ConditionKind] = ()
    """Conditions that it states of the job."""
    wakes: Sequence[Wake] = ()


NOBODY = Vetter()
