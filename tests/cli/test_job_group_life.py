"""The life of a job with replica groups: a lane for each group, versions, and what each failure cost."""

from __future__ import annotations

from typing import Any

import pytest

from crds import names
from dlr.dashboard.job_page import job_page
from dlr.job.case import Case
from dlr.job.members import members_of
from dlr.job.timeline.drawing import svg_file
from dlr.job.timeline.life import MOST_GROUPS, JobTimeline, life_of, title
from dlr.job.verdict import verdict
from tests.cli.scripted import JSON, worker
from tests.cli.test_job_groups import group, grouped
from tests.cli.troubled import NOW, at, episode, failed, life
from tests.counting import calls

WORKERS = 2


def whole(**status: Any) -> JSON:
    """A job of which group 1 failed at 60 s, and group 2 at 120 s with group 0: then nobody trained."""
    history = [
        episode("Pending", 0, reason="submitted"),
        episode("Training", 10, 1, "0-2", "with groups 0-2"),
        episode("Training", 60.5, 2, "0,2", "without group 1: x"),
        episode("Training", 63, 3, "0-2", "with group 1"),
        episode("Recovering", 120.5, 4, "", "without groups 0-2: y"),
        episode("Training", 124, 5, "0-2", "with groups 0-2"),
    ]
    seconds = {"Pending": 10, "Training": 110.5, "Recovering": 3.5}
    goodput = {"state": "Training", "since": at(124), "seconds": seconds}
    return grouped(**{"history": history, "failures": {"Killed": 3}, "goodput": goodput} | status)


def with_failure(index: int, *times: float, rank: int = 1) -> JSON:
    """A group that failed at these times and trained 2 s later."""
    history = [episode("Pending", 5), episode("Training", 10, 1, "0-1")]
    for round_, second in enumerate(times, start=1):
        failure = failed(rank, second, "Killed", "signal 9", round_)
        failure["worker"] = f"digits-group-{index}-worker-{rank}"
        history += [
            episode("Recovering", second, round_, "0-1", "x", failure),
            episode("Training", second + 3, round_ + 1, "0-1"),
        ]
    made = group(index, history=history)
    made["metadata"]["creationTimestamp"] = at(5)
    figures = {"firstStep": 1, "lastStep": 200, "stepsTimed": 150, "steppingSeconds": 150.0}
    seconds = {"Recovering": 3.0 * len(times)}
    made["status"]["goodput"] = {"state": "Training", "since": at(10), "seconds": seconds, **figures}
    return made


def groups() -> list[JSON]:
    return [with_failure(0, 120), with_failure(1, 60), with_failure(2, 120)]


def workers(count: int = 3) -> list[JSON]:
    found = []
    for number in range(count):
        for index in range(WORKERS):
            made = worker(index, job_name=f"digits-group-{number}", history=[life(1, "node-0", 5, 8)])
            made["metadata"]["labels"] = {names.LABEL_GROUP_INDEX: str(number)}
            found.append(made)
    return found


@pytest.fixture
def drawn() -> JobTimeline:
    return life_of(whole(), workers(), 0.7, NOW, groups=groups())


def case(**status: Any) -> Case:
    return Case(whole(**status), workers(), (), NOW, groups=groups())


def test_each_group_has_a_lane_that_says_with_whom_it_trained(drawn: JobTimeline) -> None:
    assert [lane.title for lane in drawn.lanes] == ["group-0", "group-1", "group-2"]
    spans = [(each.state, each.begin, each.end, each.text) for each in drawn.lanes[1].spans]
    assert spans == [
        ("Pending", 5, 10, ""),
        ("Training", 10, 60, "version 1, round 1"),
        ("Recovering", 60, 63, "round 1; x"),
        ("Training", 63, 120.5, "version 3, round 2"),
        ("Waiting", 120.5, 124, "round 2"),
        ("Training", 124, 300, "version 5, round 2"),
    ]
    (failure,) = drawn.lanes[1].failures
    assert (failure.at, failure.what, failure.text) == (60, "Killed", "worker-1: signal 9")


def test_the_cost_of_a_failure_ends_with_its_group() -> None:
    over = with_failure(1, 60)
    over["status"] |= {
        "phase": "Failed",
        "completionTime": at(70),
        "history": over["status"]["history"][:-1],
    }
    (failure,) = life_of(whole(), workers(), 0.7, NOW, groups=[over]).lanes[0].failures
    assert failure.outage is not None and failure.outage.seconds == 10


def test_the_verdict_says_whether_the_others_trained_on() -> None:
    assert verdict(case()).text == (
        "Trains on 2 of 3 groups; 3 failures cost 9s of one group's time in all; no group trained for 3.5s of it"
    )
    calm = {"state": "Training", "since": at(10)}
    alone = Case(whole(failures={"Killed": 1}, goodput=calm), workers(), (), NOW, groups=groups()[1:2])
    assert verdict(alone).text == (
        "Trains on 2 of 3 groups; 1 failure cost 3s of one group's time; the other groups trained on"
    )


def test_the_picture_speaks_of_versions_and_groups(drawn: JobTimeline) -> None:
    picture = svg_file(drawn, "")
    assert "version 1, groups 0-2: with groups 0-2" in picture and "round 1, workers" not in picture


def test_a_life_of_many_groups_shows_those_with_failures_and_counts_the_rest() -> None:
    many = [with_failure(index, *([60] if index == 499 else [])) for index in range(500)]
    last = worker(1, job_name="digits-group-499")
    found = life_of(whole(), [last], None, NOW, groups=many)
    assert len(found.lanes) == MOST_GROUPS and found.lanes[-1].index == 499
    assert f"{500 - MOST_GROUPS} more groups" in title(found)


def test_a_group_that_is_back_says_when_it_failed_how_and_after_which_time_it_trained() -> None:
    of = case()
    assert members_of(of).rows[1]["LAST FAILURE"] == "4m ago, back after 3s: Killed, worker-1: signal 9"
    away = Case(whole(), workers(), (), NOW, groups=[*groups()[:2], _away()])
    assert members_of(away).rows[2]["LAST FAILURE"] == "10s ago, not back yet: Killed, worker-1: signal 9"


def _away() -> JSON:
    made = with_failure(2, 290)
    made["status"]["history"].pop()
    return made


def test_the_dashboards_page_has_the_same_life_and_costs() -> None:
    page = job_page(case())
    assert page["groups"]["shown"][0]["LAST FAILURE"].endswith("worker-1: signal 9")
    assert [(each["worker"], each["seconds"]) for each in page["failures"]] == [
        ("group-2", 3), ("group-0", 3), ("group-1", 3),
    ]  # fmt: skip
    assert "group-1" in page["life"]["drawing"]
    assert any(each["value"] == "9s" for each in page["figures"]), "the time that failures cost"
    assert "3 failures cost 9s" in page["headline"]["text"]


def test_a_page_of_groups_grows_with_their_number_and_no_faster() -> None:
    def read(groups: int) -> None:
        crowd = [
            worker(index, job_name=f"digits-group-{number}", history=[life(1, "node-0", 5, 8)])
            for number in range(groups)
            for index in range(20)
        ]
        every = [with_failure(index, *range(20, 140, 25)) for index in range(groups)]
        of = Case(whole(), crowd, (), NOW, groups=every)
        assert of.life is not None and svg_file(of.life, "") and members_of(of).rows
        assert len([each for each in of.life.failures if each.outage]) == 5 * groups
        assert of.account is not None

    assert calls(lambda: read(50)) < 11 * calls(lambda: read(5))
