"""The parts of a recovery that an agent sees, and the trace that its processes join."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from agent.facts.arrival import Arrival
from agent.facts.world import WorldView
from agent.supervision.process_env import trace_variables
from crds.agent_report import RoundArrival
from crds.names import LABEL_JOB_UID
from crds.trace import ENV_ENDPOINT, ENV_TRACEPARENT, traceparent

UID = "7c1b5a0e-53b1-4f0e-9d55-0d6f3d2a9c11"
COLLECTOR = {ENV_ENDPOINT: "http://collector:4318"}


def second(number: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def test_round_has_the_times_of_its_own_start() -> None:
    arrival = Arrival()
    assert arrival.to_status() is None
    arrival.note_world(second(1))
    arrival.note_start(1, second(2))
    assert arrival.to_status() == RoundArrival(1, second(1), second(1), second(2))
    arrival.note_end(second(10))
    arrival.note_end(second(11))  # its processes are ended by another order
    arrival.note_world(second(12))
    arrival.note_world(second(13))  # that world was superseded before all had met
    arrival.note_start(3, second(14))
    assert arrival.to_status() == RoundArrival(3, second(10), second(13), second(14))


@dataclass(frozen=True)
class Group:
    imported: datetime
    initialized: datetime


def test_round_has_the_times_of_its_own_process_group() -> None:
    groups: list[Group | None] = [None]
    arrival = Arrival(lambda: groups[-1])
    arrival.note_world(second(1))
    arrival.note_start(1, second(2))
    started = RoundArrival(1, second(1), second(1), second(2))
    assert arrival.to_status() == started, "not all processes have one yet"
    groups.append(Group(second(3), second(4)))
    grouped = RoundArrival(1, second(1), second(1), second(2), second(3), second(4))
    assert arrival.to_status() == grouped
    arrival.note_end(second(10))
    arrival.note_world(second(11))
    groups.append(Group(second(13), second(14)))  # of the processes that are being started
    assert arrival.to_status() == grouped
    groups.append(None)
    arrival.note_start(2, second(12))
    assert arrival.to_status() == RoundArrival(2, second(10), second(11), second(12))


def test_group_that_is_there_before_its_round_has_started_is_none_of_the_round_before() -> None:
    groups: list[Group | None] = [None]
    arrival = Arrival(lambda: groups[-1])
    arrival.note_start(1, second(2))
    arrival.note_world(second(11))
    groups.append(Group(second(12), second(12)))
    assert arrival.to_status() == RoundArrival(1, second(2), second(2), second(2))


def test_processes_join_the_trace_where_the_pod_names_a_collector() -> None:
    view = WorldView.parse({"metadata": {"labels": {LABEL_JOB_UID: UID}}})
    assert trace_variables(COLLECTOR, view.job_uid, 3) == {ENV_TRACEPARENT: traceparent(UID, 3)}
    assert trace_variables({}, view.job_uid, 3) == {}
    assert trace_variables(COLLECTOR, "", 3) == {}
    assert trace_variables(COLLECTOR | {ENV_TRACEPARENT: "own"}, view.job_uid, 3) == {}
