"""`status.reason` and `status.message` of a job: why it does not train, for who reads one line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.wording import first_line, shortened
from crds.job_status import MAX_MESSAGE
from crds.model import Condition
from crds.protocol import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.refusal import PODS_ACCEPTED
from reconcilers.conditions.training import FAILED, NO_REPLICAS, RUNNING, WORKERS_STARTED
from reconcilers.observed.conditions import WORKERS_SCHEDULED, condition_of, is_false, is_true
from reconcilers.roles.progress import CLUSTER_FORMED

HINDRANCES = (PODS_ACCEPTED, WORKERS_STARTED, WORKERS_SCHEDULED, CLUSTER_FORMED)
"""Conditions that say why a job does not train when they are False. One that cannot start has a node."""
QUIET_PHASES = (JobPhase.RUNNING, JobPhase.SUCCEEDED, JobPhase.SUSPENDED)
"""The phase says it all."""


@dataclass(frozen=True)
class Why:
    reason: str = ""
    message: str = ""


def why_not_training(
    phase: JobPhase | None, conditions: Sequence[Condition], world: Rendezvous | None
) -> Why:
    """Empty of a job that trains, or of which its phase says enough."""
    if phase is None or phase in QUIET_PHASES:
        return Why()
    cause = _cause(phase, conditions)
    if cause is not None:
        return Why(cause.reason, shortened(first_line(cause.message), MAX_MESSAGE))
    if world is None or world.phase is RendezvousPhase.FORMED or phase.finished:
        return Why()
    return Why("", shortened(first_line(world.why), MAX_MESSAGE))


def _cause(phase: JobPhase, conditions: Sequence[Condition]) -> Condition | None:
    if phase is JobPhase.FAILED:
        return condition_of(conditions, FAILED) if is_true(conditions, FAILED) else None
    running = condition_of(conditions, RUNNING)
    if running is not None and running.reason == NO_REPLICAS:
        return running
    hindrance = next((type_ for type_ in HINDRANCES if is_false(conditions, type_)), None)
    return condition_of(conditions, hindrance) if hindrance else None
