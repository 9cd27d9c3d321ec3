"""Which workers a job's policies have to look at."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.status import replica_statuses
from reconcilers.job.workers import needs_standby_update, plan_relaunches
from reconcilers.nodecheck.suspicion import suspected_by_failures
from reconcilers.observed.worker_state import stuck_by
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, job, report, worker

WORLD = Rendezvous(phase=RendezvousPhase.FORMED, round=3, formed_at=NOW)


FAILURE = {"sequence": 1, "rank": 0, "round": 3, "exitCode": 1, "message": "Xid 79", "time": NOW}
EXIT = {"exitClass": ExitClass.HARDWARE_ERROR, "incarnation": 1, "time": NOW, "message": "Xid 79"}
WAITS = {"type": "Scheduled", "status": "False", "reason": "NoRoom", "lastTransitionTime": NOW}
PECULIARITIES: tuple[dict[str, Any], ...] = (
    {"phase": None},
    {"phase": WorkerPhase.FAILED},
    {"phase": WorkerPhase.SUCCEEDED},
    {"phase": WorkerPhase.PENDING, "conditions": [WAITS]},
    {"agent": {}},
    {"agent": {"failure": FAILURE}},
    {"agent": {"protocol": 1}},
    {"agent": {"state": AgentState.SUCCEEDED}},
    {"lastExit": EXIT},
    {"failureBudget": {"alike": 1}},
    {"standby": True},
)


@st.composite
def workers(draw: st.DrawFn) -> list[ElasticWorker]:
    """Each with one or two things about it, or with none."""
    found = []
    for index in range(draw(st.integers(0, 4))):
        agent, status = report(index, AgentState.RUNNING).to_wire(), dict[str, Any]()
        for peculiarity in draw(st.lists(st.sampled_from(PECULIARITIES), max_size=2)):
            agent |= peculiarity.get("agent", {})
            status |= {key: value for key, value in peculiarity.items() if key != "agent"}
        phase = status.pop("phase", WorkerPhase.RUNNING)
        found.append(worker(index, phase, agent=agent, **status))
    return found


@given(workers())
def test_policies_about_failures_and_waits_need_the_exceptional_workers_alone(
    found: list[ElasticWorker],
) -> None:
    some = Workers(found).exceptional
    assert suspected_by_failures(None, found, WORLD, NOW) == suspected_by_failures(None, some, WORLD, NOW)
    assert plan_relaunches(found, WORLD, NOW) == plan_relaunches(some, WORLD, NOW)
    assert needs_standby_update(found, ()) == needs_standby_update(some, ())
    for policy in (stuck_by, lambda w: w.status.last_exit, lambda w: w.status.failure_budget):
        assert [w for w in found if policy(w)] == [w for w in some if policy(w)]


@given(workers(), st.integers(0, 4))
def test_all_of_a_type_are_counted_by_phase_also_two_of_one_slot(
    found: list[ElasticWorker], copied: int
) -> None:
    """As `kubectl get -o yaml`, another name and `kubectl apply` make them."""
    crowd = [*found, *found[:copied]]
    counts = replica_statuses(job(), Workers(crowd))["worker"]
    phases = [each.status.phase for each in crowd]
    assert counts.active == phases.count(WorkerPhase.RUNNING)
    assert counts.pending == phases.count(WorkerPhase.PENDING) + phases.count(None)
    assert (counts.succeeded, counts.failed) == tuple(
        phases.count(phase) for phase in (WorkerPhase.SUCCEEDED, WorkerPhase.FAILED)
    )
