"""Condition `AgentsSilent`: agents that the API server does not hear, on nodes that are not lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from controller.wording import counted, some_of
from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.observed.worker_state import silent_since
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

AGENTS_SILENT, AGENTS_HEARD = "AgentsSilent", "AgentsHeard"
MOST_NAMED = 3


def with_silent(
    conditions: Sequence[Condition], job: ElasticJob, workers: Workers, now: datetime
) -> list[Condition]:
    """The conditions with this one, once agents were silent: `reconcilers/observed/silence.py` says which."""
    silent = {w.metadata.name: at for w in workers.exceptional if (at := silent_since(w)) is not None}
    if silent:
        timeout = timedelta(seconds=job.spec.elastic_policy.heartbeat_timeout_seconds)
        message = _message(list(silent), len(workers), min(silent.values()) - timeout)
        return with_condition(conditions, AGENTS_SILENT, ConditionStatus.TRUE, "NoHeartbeat", message, now)
    if condition_of(conditions, AGENTS_SILENT) is not None:
        return with_condition(conditions, AGENTS_SILENT, ConditionStatus.FALSE, AGENTS_HEARD, "", now)
    return list(conditions)


def events_of_silent(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """One when it begins, and one when all agents are heard again."""
    old, new = condition_of(before, AGENTS_SILENT), condition_of(after, AGENTS_SILENT)
    if new is None or (old is not None and old.status is new.status):
        return
    if new.status is ConditionStatus.TRUE:
        yield Event("Warning", AGENTS_SILENT, new.message)
    elif old is not None:
        yield Event("Normal", AGENTS_HEARD, "all agents are heard again")


def _message(silent: Sequence[str], workers: int, since: datetime) -> str:
    return (
        f"no heartbeat from {len(silent)} of {counted(workers, 'worker')} since {since:%Y-%m-%dT%H:%M:%SZ} "
        f"({some_of(silent, MOST_NAMED)}), though nothing shows that their nodes are lost: training goes on "
        "and no Pod is deleted, but their failures are noticed late; see what keeps these Pods from the API "
        "server (a NetworkPolicy, throttling, a webhook, DNS), and delete one whose training has stopped too"
    )
