"""The time when hardware was last suspected; checks of the job's nodes before it do not count. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crds import names
from crds.agent_report import AgentFailure
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.slow import news_of
from reconcilers.failure.meaning import smells_of_hardware
from reconcilers.observed.exit_class import classify_process
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers


def suspected_at(job: ElasticJob, workers: Workers, now: datetime) -> datetime | None:
    """The time when hardware was last suspected; None if never.

    A node may be the reason why steps take longer, so the next pause has a check. The time is our own, when
    the slowdown is published: an agent's clock may be far ahead.
    """
    if news_of(job, workers) is not None:
        return now
    return suspected_by_failures(job.status.suspected_at, workers.exceptional, job.status.world, now)


def suspected_by_failures(
    known: datetime | None, workers: Sequence[ElasticWorker], published: Rendezvous, now: datetime
) -> datetime | None:
    """The time of the last failure that suggests faulty hardware.

    Level-triggered: a second call returns the same. A failure in place counts while its round is the
    published one, whether it broke the world or was reported later; and once per round, since `known` is then
    later than the round's beginning.
    """
    failed = [w for w in workers if w.spec.type == names.WORKER and _has_failed(w)]
    ends = [w.status.last_exit for w in failed if w.status.last_exit is not None]
    times = [end.time for end in ends if end.suspects_hardware]
    if known is not None:  # times in the future were counted before the clock was set back
        times = [time for time in times if time <= now or known > now]
    accounted = known is not None and published.formed_at is not None and known >= published.formed_at
    if not accounted and any(_failed_in(worker, published) for worker in failed):
        times.append(now)
    found = max([*times, *([known] if known else [])], default=None)
    return None if found is None else min(found, now)


def _has_failed(worker: ElasticWorker) -> bool:
    report = worker.status.agent
    return worker.status.last_exit is not None or (report is not None and report.failure is not None)


def _failed_in(worker: ElasticWorker, published: Rendezvous) -> bool:
    report = current_report(worker)
    if published.phase is RendezvousPhase.FORMING or report is None:
        return False
    failure = report.failure
    return failure is not None and failure.round == published.round and _failure_smells(failure)


def _failure_smells(failure: AgentFailure) -> bool:
    return smells_of_hardware(classify_process(failure), f"{failure.message}\n{failure.log_tail}")
