"""The warning AgentsUnheard: a Pod runs, and nobody speaks for it."""

from __future__ import annotations

from datetime import timedelta

from crds.agent_report import AgentState
from crds.cluster_status import ClusterStatus
from crds.elasticworker import ElasticWorker, WorkerPhase
from reconcilers.conditions.reported import AGENTS_UNHEARD, UNHEARD_SECONDS, seconds_to_hear
from reconcilers.job.plan import plan_job
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, job, report, worker
from tests.reconcilers.judging import judge, seen_of, with_status


def running(index: int, seconds: float, **status: object) -> ElasticWorker:
    """A worker whose Pod has run for so long."""
    since = NOW - timedelta(seconds=seconds)
    life = {"incarnation": 1, "createdAt": since, "runningAt": since}
    return worker(index, WorkerPhase.RUNNING, history=[life], **status)


def told(*workers: ElasticWorker) -> list[str]:
    after, _ = judge(job(replicas=len(workers)), AGENTS_UNHEARD, workers=workers)
    return [each.message for each in after.status.warnings]


def test_a_pod_that_has_run_for_long_without_a_word_is_named_with_what_may_be_wrong() -> None:
    silent = running(1, UNHEARD_SECONDS)
    heard = running(0, 900.0, agent=report(0, AgentState.READY).to_wire())
    (message,) = told(heard, silent)
    assert message.startswith("1 Pod has run since ") and "(digits-worker-1)" in message
    assert "KUBERNETES_SERVICE_HOST" in message


def test_a_look_is_due_when_the_time_is_over_and_not_again() -> None:
    young, old = running(0, UNHEARD_SECONDS - 5), running(1, UNHEARD_SECONDS)
    assert told(young) == []
    assert seconds_to_hear(Workers([young, old]), NOW) == 5
    assert seconds_to_hear(Workers([old]), NOW) is None
    look_again = plan_job(seen_of(job(replicas=1), [young]), NOW).look_again_seconds
    assert look_again is not None and look_again <= 5


def test_a_role_may_run_without_an_agent() -> None:
    of = with_status(job(replicas=1), cluster=ClusterStatus(version=1, tasks={}, incarnations=[]))
    after, _ = judge(of, AGENTS_UNHEARD, workers=[running(0, UNHEARD_SECONDS)])
    assert after.status.warnings == []


def test_a_pod_that_does_not_run_is_not_waited_for() -> None:
    assert told(worker(0, WorkerPhase.PENDING)) == []
