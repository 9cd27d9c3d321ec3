"""Agents of an earlier dlr, after an upgrade (docs/upgrading.md). Pure.

They cannot read the worlds that are published now, and train on in the one that they know. When it is given
up, each gets a new Pod, whose agent is the controller's own; no world is formed with the old one. A job with
parameter servers has no world, and its agents go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionStatus
from crds.protocol import PROTOCOL, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.worker_state import ENDED, current_report

AGENTS_CURRENT = "AgentsCurrent"
RENEWED = "its agent is of an earlier dlr and cannot read the next world"
TRAIN_ON = (
    "workers have agents of an earlier dlr: they train on, and get new Pods when their world ends; "
    "suspend and resume the job to have that now"
)
BROUGHT = (
    "workers have agents of an earlier dlr, which their image brings (spec.agent.inject is false): "
    "they train on, and are in no further world; give the job an image of this dlr, and resume it"
)


def is_older(worker: ElasticWorker) -> bool:
    report = current_report(worker)
    if report is None or report.protocol >= PROTOCOL or worker.spec.type != names.WORKER:
        return False
    return worker.status.phase not in ENDED


def with_older_agents(
    conditions: Sequence[Condition], job: ElasticJob, workers: Sequence[ElasticWorker], now: datetime
) -> list[Condition]:
    """The conditions, with this one once there was such a worker."""
    if not in_cluster(job) and any(is_older(worker) for worker in workers):
        message = TRAIN_ON if job.spec.agent.inject else BROUGHT
        return with_condition(conditions, AGENTS_CURRENT, ConditionStatus.FALSE, "OlderAgents", message, now)
    if any(c.type == AGENTS_CURRENT for c in conditions):
        return with_condition(conditions, AGENTS_CURRENT, ConditionStatus.TRUE, "Renewed", "", now)
    return list(conditions)


def renewals(job: ElasticJob, workers: Sequence[ElasticWorker], world: Rendezvous) -> frozenset[str]:
    """Uids of those that get a new Pod now: no world that stands has them.

    Once each: who has such an agent in a Pod that was made since they were first seen gets no other.
    """
    known = condition_of(job.status.conditions, AGENTS_CURRENT)
    if known is None or known.status is ConditionStatus.TRUE or not job.spec.agent.inject or in_cluster(job):
        return frozenset()
    training = {*world.members} if world.phase is RendezvousPhase.FORMED else set()
    return frozenset(
        worker.metadata.uid
        for worker in workers
        if is_older(worker)
        and worker.spec.index not in training
        and not _made_since(worker, known.last_transition_time)
    )


def _made_since(worker: ElasticWorker, seen_at: datetime) -> bool:
    lives = worker.status.history
    return bool(lives) and lives[-1].created_at.replace(microsecond=0) > seen_at
