"""What an agent reports of its processes, whatever they send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replicas.facts import Groups, Training, summary
from crds.wire import MAX_INTEGER

numbers = st.integers(0, MAX_INTEGER)
trainings = st.builds(Training, version=numbers, step=numbers, broken=numbers)
messages = st.one_of(
    st.builds(lambda version, step: {"at": {"version": version, "step": step}}, numbers, numbers),
    st.builds(lambda version: {"broken": version}, numbers),
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
def test_one_broken_exchange_is_reported_for_all(processes: list[Training]) -> None:
    report = summary(1, len(processes), processes)
    assert report is not None
    assert report.broken_version == max(each.broken for each in processes)


@given(st.lists(messages))
def test_what_a_process_reports_is_its_last_place_and_its_highest_broken_version(
    sent: list[dict[str, Any]],
) -> None:
    training = Training()
    for message in sent:
        training = training.after(message)
    places = [each["at"] for each in sent if "at" in each] or [{"version": 0, "step": 0}]
    assert {"version": training.version, "step": training.step} == places[-1]
    assert training.broken == max((each["broken"] for each in sent if "broken" in each), default=0)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"at": 3},
        {"at": {"version": 1}},
        {"at": {"version": -1, "step": 0}},
        {"broken": "x"},
        {"broken": None},
        {"broken": MAX_INTEGER + 1},
    ],
)
def test_a_message_that_makes_no_sense_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Training().after(message)


def test_an_elasticworld_without_groups_names_none() -> None:
    assert Groups.parse({}) == Groups.parse({"spec": {"replicas": None}}) == Groups()
