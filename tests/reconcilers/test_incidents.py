from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit
from reconcilers.failure.facts import Break
from reconcilers.failure.incidents import incident_of, late_incident, ranks_of, with_incident
from tests.reconcilers.build import failing, report, worker

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def breaks_of(*workers: ElasticWorker) -> list[Break]:
    return [Break(w.spec.index, "", w.status.agent) for w in workers]


def culprit(*workers: ElasticWorker, round_: int = 1) -> str | None:
    incident = incident_of(breaks_of(*workers), workers, round_)
    return incident.failure.worker if incident else None


def hanging(index: int, step: int | None, in_collective: bool = False, seconds: float = 0.0) -> ElasticWorker:
    stacks = [{"rank": index, "step": step, "inCollective": in_collective, "frames": ""}]
    return failing(
        index, exit_code=None, cause="Hang", step=step, stacks=stacks, seconds=seconds, message="Hang"
    )


def test_ranks_are_counted_by_the_workers_and_not_by_other_replicas_of_the_same_index() -> None:
    four, one = (report(0, AgentState.RUNNING, 1, local_world_size=size).to_wire() for size in (4, 1))
    first, second, evaluator = worker(0, agent=four), worker(1, agent=four), worker(0, agent=one)
    spec = evaluator.spec.model_copy(update={"type": "evaluator"})
    evaluator = evaluator.model_copy(update={"spec": spec})
    assert ranks_of([first, second, evaluator], [0, 1]) == {0: range(4), 1: range(4, 8)}


# --- late word --------------------------------------------------------------------------------------


def blamed(*workers: ElasticWorker) -> Any:
    incident = incident_of(breaks_of(*workers), workers, 1)
    assert incident is not None
    return incident.failure


def test_a_class_of_a_later_version_is_read_as_unknown_wherever_it_stands() -> None:
    """A controller that is set back finds it in statuses, and would look at none of these jobs again."""
    workers = [failing(0), failing(1, exit_code=None, cause="Device", message="Xid 79", seconds=1)]
    of_later_version = blamed(workers[0]).model_copy(update={"exit_class": "Cosmic", "worker": "w-9"})
    late = late_incident(of_later_version, workers)
    assert late is not None and late.exit_class is ExitClass.HARDWARE_ERROR
    end = {"incarnation": 1, "exitClass": "Cosmic", "time": "2026-01-01T12:00:00Z"}
    assert WorkerExit.model_validate(end).exit_class is ExitClass.UNKNOWN


def test_a_devices_fault_takes_the_blame_from_the_process_that_died_of_it_whoever_tells_first() -> None:
    died = failing(0, message="RuntimeError: CUDA error: unspecified launch failure")
    fault = failing(0, exit_code=None, cause="Device", message="Xid 79 on GPU 0", seconds=1)
    other = failing(1, message="RuntimeError: what came of it", seconds=-1)
    assert culprit(other, fault) == "digits-worker-0"
    moved = late_incident(blamed(died), [fault])
    assert moved is not None and moved.exit_class is ExitClass.HARDWARE_ERROR
    assert with_incident({"UserError": 1}, moved) == {"HardwareError": 1}
    assert late_incident(moved.failure, [fault, other]) is None, "asked again, nothing moves"
    assert late_incident(moved.failure, [other]) is None, "nor when the Pod that told it is gone"


@pytest.mark.parametrize("message", ["ValueError: bad", "RuntimeError: the loader finished early"])
def test_the_blame_stays_where_it_is_when_the_pod_that_told_it_is_gone(message: str) -> None:
    known = blamed(failing(0, message=message))
    assert late_incident(known, [failing(1, seconds=1)]) is None
    earlier = late_incident(known, [failing(1, seconds=-1)])
    assert earlier is not None and earlier.failure.worker == "digits-worker-1"


@st.composite
def rounds(draw: st.DrawFn) -> list[ElasticWorker]:
    told = []
    for index in range(draw(st.integers(1, 4))):
        seconds = draw(st.integers(0, 3)) * 10 + index  # no two at once
        kind = draw(st.sampled_from(["error", "killed", "consequence", "hang", "device"]))
        if kind == "hang":
            told.append(hanging(index, draw(st.integers(0, 2)), draw(st.booleans()), seconds))
        else:
            more = {
                "consequence": {"message": GLOO},
                "killed": {"exit_code": -9},
                "device": {"exit_code": None, "cause": "Device"},
            }.get(kind, {})
            told.append(failing(index, seconds=seconds, **more))
    return draw(st.permutations(told))


@given(rounds())
def test_the_order_of_reports_decides_nothing(told: list[ElasticWorker]) -> None:
    at_once = incident_of(breaks_of(*told), told, 1)
    assert at_once is not None
    restarts: dict[str, int] = {}
    known = None
    for count in range(1, len(told) + 1):
        heard = told[:count]
        new = late_incident(known, heard) if known else incident_of(breaks_of(*heard), heard, 1)
        restarts = with_incident(restarts, new)
        known = new.failure if new else known
    assert known == at_once.failure
    assert restarts == {at_once.exit_class.value: 1}
