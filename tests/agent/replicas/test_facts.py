"""What an agent reports of its processes, whatever they send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replicas.facts import GroupsView, Training, summary
from crds.agent_report import MAX_LATE_GROUPS
from crds.grouping import MAX_GROUPS
from crds.wire import MAX_INTEGER

numbers = st.integers(0, MAX_INTEGER)
late = st.tuples(st.integers(0, 5), st.lists(st.integers(0, 999), max_size=150).map(tuple))
trainings = st.builds(Training, version=numbers, step=numbers, broken=numbers, left_out=numbers, late=late)
messages = st.one_of(
    st.builds(lambda version, step: {"at": {"version": version, "step": step}}, numbers, numbers),
    st.builds(lambda version: {"broken": version}, numbers),
    st.builds(lambda version: {"left_out": version}, numbers),
    st.builds(
        lambda version, groups: {"late": {"version": version, "groups": groups}},
        numbers,
        st.lists(st.integers(0, 999), max_size=150),
    ),
)


@given(st.integers(1, 100), st.integers(1, 8), st.lists(trainings, max_size=8))
def test_a_report_never_says_more_than_all_processes_have(
    round_: int, count: int, processes: list[Training]
) -> None:
    report = summary(round_, count, processes)
    if len(processes) < count:
        assert report is None
        return
    assert report is not None
    assert report.round == round_
    assert all(report.version <= each.version and report.step <= each.step for each in processes)
    assert report.version in {each.version for each in processes}
    assert report.step in {each.step for each in processes}


@given(st.lists(trainings, min_size=1, max_size=8))
def test_late_groups_are_those_of_the_newest_version_in_which_any_are_and_no_more_than_may_be(
    processes: list[Training],
) -> None:
    report = summary(1, len(processes), processes)
    assert report is not None
    named = [(version, groups) for version, groups in (each.late for each in processes) if groups]
    newest = max((version for version, _ in named), default=0)
    wanted = {index for version, groups in named if version == newest for index in groups}
    assert report.late_version == newest
    assert list(report.late_groups) == sorted(wanted)[:MAX_LATE_GROUPS]
    assert report.left_out_version == max(each.left_out for each in processes)
    assert report.broken_version == max(each.broken for each in processes)


@given(st.lists(messages))
def test_what_a_process_reports_is_its_last_place_and_its_highest_broken_version(
    sent: list[dict[str, Any]],
) -> None:
    training = Training()
    for message in sent:
        training = training.after(message, MAX_INTEGER)
    places = [each["at"] for each in sent if "at" in each] or [{"version": 0, "step": 0}]
    assert {"version": training.version, "step": training.step} == places[-1]
    assert training.broken == max((each["broken"] for each in sent if "broken" in each), default=0)
    assert training.left_out == max((each["left_out"] for each in sent if "left_out" in each), default=0)
    late = [each["late"] for each in sent if "late" in each] or [{"version": 0, "groups": []}]
    assert training.late == (late[-1]["version"], tuple(late[-1]["groups"][:MAX_LATE_GROUPS]))


@given(st.lists(messages), numbers)
def test_no_report_names_a_version_that_no_process_can_have_seen(
    sent: list[dict[str, Any]], newest: int
) -> None:
    training = Training()
    for message in sent:
        training = training.after(message, newest)
    assert max(training.version, training.broken, training.left_out, training.late[0]) <= newest


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"at": {"version": 1}},
        {"at": {"version": -1, "step": 0}},
        {"broken": MAX_INTEGER + 1},
        {"left_out": "x"},
        {"late": 3},
        {"late": {"version": 1, "groups": ["x"]}},
        {"late": {"version": 1, "groups": [MAX_GROUPS]}},
    ],
)
def test_a_message_that_makes_no_sense_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Training().after(message, MAX_INTEGER)


def test_an_elasticworld_without_groups_names_none() -> None:
    assert GroupsView.parse({}) == GroupsView.parse({"spec": {"replicas": None}}) == GroupsView()
