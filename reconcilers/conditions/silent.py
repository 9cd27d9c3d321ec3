"""Condition `AgentsSilent`: agents that the API server does not hear, on nodes that are not lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from controller.wording import counted, some_of
from crds.model import Condition, ConditionStatus
from reconcilers.conditions.facts import Facts
from reconcilers.observed.conditions import NextState, State
from reconcilers.observed.worker_state import silent_since
from reconcilers.runtime.acts import Event

AGENTS_SILENT, AGENTS_HEARD = "AgentsSilent", "AgentsHeard"
MOST_NAMED = 3


def judge(known: Condition | None, facts: Facts) -> NextState:
    """Judges which agents are silent (`reconcilers/observed/silence.py`)."""
    job, workers = facts.job, facts.workers
    silent = {w.metadata.name: at for w in workers.exceptional if (at := silent_since(w)) is not None}
    if silent:
        timeout = timedelta(seconds=job.spec.elastic_policy.heartbeat_timeout_seconds)
        message = _message(list(silent), len(workers), min(silent.values()) - timeout)
        return State(ConditionStatus.TRUE, "NoHeartbeat", message)
    return None if known is None else State(ConditionStatus.FALSE, AGENTS_HEARD)


def event(old: Condition | None, new: Condition) -> Event | None:
    """An Event when it begins, and when all agents are heard again."""
    if new.status is ConditionStatus.TRUE:
        return Event("Warning", AGENTS_SILENT, new.message)
    if old is None or new.reason != AGENTS_HEARD:
        return None
    return Event("Normal", AGENTS_HEARD, "all agents are heard again")


def _message(silent: Sequence[str], workers: int, since: datetime) -> str:
    return (
        f"no heartbeat from {len(silent)} of {counted(workers, 'worker')} since {since:%Y-%m-%dT%H:%M:%SZ} "
        f"({some_of(silent, MOST_NAMED)}), though nothing shows that their nodes are lost: training goes on "
        "and no Pod is deleted, but their failures are noticed late; see what keeps these Pods from the API "
        "server (a NetworkPolicy, throttling, a webhook, DNS), and delete one whose training has stopped too"
    )
