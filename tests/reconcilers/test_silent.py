"""The warning AgentsSilent, and that no clock of an agent is compared with the controller's."""

from __future__ import annotations

from dataclasses import replace

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import JobFailure, JobWarning
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.reported import AGENTS_SILENT, HEARTBEAT_LATE, RANKS_BEHIND
from reconcilers.failure.facts import Break, last_failure
from reconcilers.failure.incidents import first_of
from reconcilers.failure.policy import assess
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.worker_state import AGENT_HEARD, HEARTBEAT_ON_TIME
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


def late(index: int, since: float) -> ElasticWorker:
    said = {"type": HEARTBEAT_ON_TIME, "status": "False", "reason": "Late", "message": "…"}
    conditions = [said | {"lastTransitionTime": later(since)}]
    return worker(index, agent=report(index).to_wire(), conditions=conditions)


def test_a_late_heartbeat_is_a_warning_with_who_and_since_when_and_no_event() -> None:
    found, events = judge(job(), HEARTBEAT_LATE, workers=[trains(0), late(1, -12), late(2, -10)])
    (said,) = found.status.warnings
    assert (said.since, events) == (later(-12), [])
    assert said.data is not None and (said.data.worker, said.data.node) == ("digits-worker-1", "node-0")
    assert (said.data.count, said.data.limit_seconds) == (2, 30.0)
    assert judge(job(), HEARTBEAT_LATE, workers=[late(0, -12), trains(1, 60)])[0].status.warnings == []


def test_ranks_far_behind_are_a_warning_while_they_are() -> None:
    world = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=[0, 1, 2], incarnations=[1, 1, 1])

    def at(index: int, step: int, round_: int = 1) -> ElasticWorker:
        progress = {"step": step, "time": NOW, "secondsPerStep": 1.0}
        rounds = [{"round": round_, "firstStep": 1, "lastStep": step}]
        return worker(index, agent=report(index, progress=progress, rounds=rounds).to_wire())

    def look(of: ElasticJob, *workers: ElasticWorker) -> ElasticJob:
        return judge(of, RANKS_BEHIND, workers=workers, phase=JobPhase.RUNNING, world=world)[0]

    assert look(job(), at(0, 100), at(1, 100), at(2, 60)).status.warnings == [], "a report may be so late"
    behind = look(job(), at(0, 100), at(1, 100), at(2, 50))
    (said,) = behind.status.warnings
    assert said.message == "1 of 3 workers is far behind the others: digits-worker-2"
    assert look(behind, at(0, 190), at(1, 190), at(2, 70)).status.warnings == [said], "no news"
    assert look(behind, at(0, 190), at(1, 190), at(2, 190)).status.warnings == []
    assert look(job(), at(0, 100), at(1, 100), at(2, 5_000, round_=0)).status.warnings == []


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


def test_a_drained_pod_is_not_the_last_failure() -> None:
    end = {"incarnation": 1, "exitClass": "Preempted", "message": "drained", "time": NOW, "planned": True}
    drained = Workers([worker(1, phase=WorkerPhase.FAILED, lastExit=end)])
    assert last_failure(job(), drained) is None
    assert last_failure(job(), drained, with_planned=True) is not None


def test_a_failure_is_recorded_by_the_controllers_clock() -> None:
    ahead = failing(0, seconds=1_200)
    broken = Break(0, "worker 0 failed", ahead.status.agent)
    world = {"round": 1, "phase": "Formed", "members": "0-1", "worldSize": 2}
    of = job(status={"rendezvous": world})
    found = assess(of, Workers([ahead, trains(1)]), {}, [broken], NOW, nodes=())
    assert found.count.last_failure is not None and found.count.last_failure.time == NOW


def test_who_failed_soonest_after_the_common_start_is_first_whatever_the_nodes_clocks_say() -> None:
    early = failing(1, seconds=5).status.agent
    late = failing(0, seconds=6).status.agent
    assert early is not None and late is not None and early.failure is not None and late.failure is not None
    for skew in (-1_200, 0, 1_200):
        shifted = replace(early.failure, time=later(skew))
        first = worker(1, agent=replace(early, failure=shifted).to_wire())
        found = first_of([worker(0, agent=late.to_wire()), first], 1, (), (0, 1), lost=False)
        assert found is not None and found.failure.worker == "digits-worker-1"
