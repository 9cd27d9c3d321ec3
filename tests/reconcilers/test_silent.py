"""The warning AgentsSilent, and that no clock of an agent is compared with the controller's."""

from __future__ import annotations

from dataclasses import replace

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import JobFailure, JobWarning
from crds.phases import JobPhase
from reconcilers.conditions.reported import AGENTS_SILENT
from reconcilers.failure.facts import Break, last_failure
from reconcilers.failure.incidents import first_of
from reconcilers.failure.policy import assess
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.worker_state import AGENT_HEARD
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, failing, job, later, report, worker
from tests.reconcilers.judging import judge, with_status


def trains(index: int, silent_at: float | None = None) -> ElasticWorker:
    said = {"type": AGENT_HEARD, "status": "False", "reason": "NoHeartbeat", "message": "…"}
    conditions = [] if silent_at is None else [said | {"lastTransitionTime": later(silent_at)}]
    return worker(index, agent=report(index).to_wire(), conditions=conditions)


def look(before: list[JobWarning], *workers: ElasticWorker) -> tuple[list[JobWarning], list[tuple[str, str]]]:
    of = with_status(job(), warnings=before)
    after, events = judge(of, AGENTS_SILENT, workers=workers, phase=JobPhase.RUNNING)
    return after.status.warnings, [(event.type, event.reason) for event in events]


def test_silent_agents_are_counted_once_named_a_few_and_said_to_be_heard_again() -> None:
    assert look([], trains(0), trains(1)) == ([], [])
    silent, told = look([], *(trains(i, 60 + i) for i in range(40)), trains(40))
    assert told == [("Warning", "AgentsSilent")]
    said = warning_of(silent, AGENTS_SILENT)
    assert said is not None and said.message.startswith(
        "no heartbeat from 40 of 41 workers since 2026-01-01T12:00:30Z "
        "(digits-worker-0, digits-worker-1, digits-worker-2 and 37 more), though nothing shows that their nodes"
    )
    fewer, told = look(silent, trains(0, 60), trains(1))
    assert told == []
    heard, told = look(fewer, trains(0), trains(1))
    assert told == [("Normal", "AgentsHeard")]
    assert heard == [] and look(heard, trains(0), trains(1)) == ([], [])


def test_a_lost_pod_replaces_an_old_error_that_was_recorded_before() -> None:
    """`lastFailure.time` is the controller's, so an agent's clock that is ahead hides nothing."""
    old = JobFailure(
        worker="digits-worker-0", exit_class="UserError", round=1, message="old", time=later(-300)
    )
    of: ElasticJob = job(status={"lastFailure": old.to_wire()})
    end = {"incarnation": 1, "exitClass": "NodeLost", "message": "no heartbeat", "time": NOW}
    lost = worker(1, phase=WorkerPhase.FAILED, lastExit=end)
    found = last_failure(of, Workers([lost]))
    assert found is not None and found.message == "no heartbeat"


def test_a_failure_is_recorded_by_the_controllers_clock() -> None:
    ahead = failing(0, seconds=1_200)
    broken = Break(0, "worker 0 failed", ahead.status.agent)
    world = {"round": 1, "phase": "Formed", "members": "0-1", "worldSize": 2}
    found = assess(job(status={"rendezvous": world}), Workers([ahead, trains(1)]), {}, [broken], NOW)
    assert found.last_failure is not None and found.last_failure.time == NOW


def test_who_failed_soonest_after_the_common_start_is_first_whatever_the_nodes_clocks_say() -> None:
    early = failing(1, seconds=5).status.agent
    late = failing(0, seconds=6).status.agent
    assert early is not None and late is not None and early.failure is not None and late.failure is not None
    for skew in (-1_200, 0, 1_200):
        shifted = replace(early.failure, time=later(skew))
        first = worker(1, agent=replace(early, failure=shifted).to_wire())
        found = first_of([worker(0, agent=late.to_wire()), first], 1, (), (0, 1), lost=False)
        assert found is not None and found.failure.worker == "digits-worker-1"
