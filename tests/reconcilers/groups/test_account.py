"""The account of a job with replica groups: its history of versions, and what its groups trained."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.job_status import MAX_EPISODES, Goodput, JobState
from reconcilers.goodput.goodput import effective_seconds, with_ratio, with_steps_of
from reconcilers.observed.builder import owner_reference
from tests.reconcilers.build import NOW, later
from tests.reconcilers.test_groups_plan import TIME, after, group, look, whole


def account(seconds_trained: float, last: int) -> dict[str, Any]:
    return {
        "state": "Training",
        "since": TIME,
        "firstStep": 1,
        "lastStep": last,
        "stepsTimed": last,
        "steppingSeconds": seconds_trained,
    }


def broken(index: int, seconds: float, message: str = "exit code 1") -> ElasticJob:
    """A group whose process has failed."""
    time = later(seconds).isoformat().replace("+00:00", "Z")
    failure = {"worker": f"digits-group-{index}-worker-0", "rank": 0, "exitClass": "Unknown"}
    world = {"round": 1, "phase": "Reforming", "brokenRound": 1}
    part = {"round": 1, "ready": False}
    failure |= {"message": message, "time": time}
    return group(index, phase="Restarting", rendezvous=world, replicaGroup=part, lastFailure=failure)


def life_of(*looks: tuple[float, list[ElasticJob]], **spec: Any) -> ElasticJob:
    """The job after these looks at its groups, each at so many seconds."""
    of = whole(**spec)
    for seconds, groups in looks:
        of = after(of, look(of, *groups, seconds=seconds))
    return of


def told(of: ElasticJob) -> list[tuple[float, str, int, str, str]]:
    return [
        ((each.since - NOW).total_seconds(), each.state.value, each.round, each.members, each.reason)
        for each in of.status.history
    ]


ALL = [group(0), group(1), group(2)]


def test_history_has_each_version_with_its_groups_and_who_left_why() -> None:
    of = life_of((10, ALL), (20, [group(0), broken(1, 19), group(2)]), (22, ALL))
    assert told(of) == [
        (0, "Pending", 0, "", "submitted"),
        (10, "Training", 1, "0-2", "with groups 0-2"),
        (20, "Training", 2, "0,2", "without group 1: digits-group-1-worker-0 rank 0: exit code 1"),
        (22, "Training", 3, "0-2", "with group 1"),
    ]


def test_fewer_groups_than_the_minimum_are_a_recovery_and_a_suspension_is_none() -> None:
    of = life_of((10, ALL), (20, [group(0), broken(1, 19), broken(2, 19)]))
    assert told(of)[-1] == (
        20, "Recovering", 2, "", "without groups 0-2: digits-group-1-worker-0 rank 0: exit code 1",
    )  # fmt: skip
    held = of.model_copy(update={"spec": whole(suspend=True).spec})
    halted = [group(index, phase="Suspended", suspend=True) for index in range(3)]
    held = after(held, look(held, *halted, seconds=30))
    assert told(held)[-1][1:] == ("Suspended", 2, "", "suspended")


def test_a_resumed_job_is_pending_until_its_groups_train_and_recovers_from_nothing() -> None:
    of = life_of((10, ALL))
    held = of.model_copy(update={"spec": whole(suspend=True).spec})
    halted = [group(index, phase="Suspended", suspend=True) for index in range(3)]
    held = after(held, look(held, *halted, seconds=30)).model_copy(update={"spec": whole().spec})
    starts = [group(index, phase="Pending", rendezvous={}, replicaGroup=None) for index in range(3)]
    resumed = after(held, look(held, *starts, seconds=40))
    resumed = after(resumed, look(resumed, *starts, seconds=45))
    resumed = after(resumed, look(resumed, *ALL, seconds=50))
    assert [each[:2] + each[4:] for each in told(resumed)[-2:]] == [
        (40, "Pending", "resumed"), (50, "Training", "with groups 0-2"),
    ]  # fmt: skip
    assert resumed.status.goodput is not None
    assert resumed.status.goodput.seconds == {"Pending": 20.0, "Training": 20.0, "Suspended": 10.0}


def test_a_failure_of_long_ago_is_not_why_a_group_leaves() -> None:
    leaves = broken(1, 5).model_copy()
    of = life_of((10, ALL), (20, [group(0), leaves, group(2)]))
    assert told(of)[-1][-1] == "without group 1"


@given(st.lists(st.sets(st.integers(0, 2)), max_size=30))
def test_history_is_bounded_in_order_and_its_neighbours_differ(looks: list[set[int]]) -> None:
    groups = [[broken(i, 0) if i in dead else group(i) for i in range(3)] for dead in looks]
    of = life_of(*((10.0 * (number + 1), each) for number, each in enumerate(groups)))
    history = of.status.history
    assert len(history) <= MAX_EPISODES
    assert [each.since for each in history] == sorted(each.since for each in history)
    states = [(each.state, each.members) for each in history]
    assert all(before != after_ for before, after_ in pairwise(states))


# --- goodput -------------------------------------------------------------------------------------------------


def of_group(of: ElasticJob) -> ElasticJob:
    owner = owner_reference("ElasticJob", "digits", "u")
    metadata = of.metadata.model_copy(update={"owner_references": [owner], "creation_timestamp": NOW})
    return of.model_copy(update={"metadata": metadata})


def test_steps_that_the_others_made_without_a_group_are_none_of_its_time() -> None:
    """It trained steps 1 to 50 and 81 to 100, of one second each, and was away in between."""
    figures = Goodput.model_validate(account(68, 100) | {"stepsTimed": 68})
    found = with_ratio(figures, of_group(group(1)), later(100))
    assert found.ratio == pytest.approx(0.68)


def test_a_wait_of_everybody_is_none_of_the_groups_time() -> None:
    """Group 0 waited 10 s within a step, while the job had too few groups."""
    of = life_of((0, ALL), (50, [group(0), broken(1, 50), broken(2, 50)]), (60, ALL))
    trained = [group(0, goodput=account(100, 90)), group(1, goodput=account(90, 90)), group(2)]
    goodput = after(of, look(of, *trained, seconds=100)).status.goodput
    assert goodput is not None and goodput.ratio == pytest.approx((90 + 90 + 0) / 3 / 100)


def test_the_account_of_a_job_that_ends_has_what_its_groups_told_last() -> None:
    of = life_of((0, ALL), (10, [group(i, goodput=account(9, 9)) for i in range(3)]))
    done = [group(i, phase="Succeeded", goodput=account(90, 90)) for i in range(3)]
    ended = after(of, look(of, *done, seconds=100))
    goodput = ended.status.goodput
    assert goodput is not None
    assert (goodput.last_step, goodput.ratio) == (90, pytest.approx(0.9))
    assert goodput.seconds == {"Training": 100.0}
    assert after(ended, look(ended, *done, seconds=500)).status.goodput == goodput


accounts = st.builds(
    lambda first, timed, redone, seconds: Goodput(
        state=JobState.TRAINING,
        since=NOW,
        first_step=first,
        last_step=first + timed,
        steps_timed=timed,
        steps_redone=redone,
        stepping_seconds=seconds,
    ),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 50),
    st.floats(0, 1_000),
)


@given(st.lists(accounts, max_size=3), st.floats(0, 100))
def test_the_ratio_is_never_above_the_share_of_time_in_which_the_job_trained(
    groups: list[Goodput], trained: float
) -> None:
    seconds = {"Pending": 100 - trained, "Training": trained}
    mine = Goodput(state=JobState.PENDING, since=later(100), seconds=seconds)
    found = with_steps_of(mine, whole(), groups, later(100))
    assert found.ratio is None or -1e-6 <= found.ratio <= trained / 100 + 1e-5
    each = [effective_seconds(group, of_group=True) or 0.0 for group in groups]
    assert found.ratio is None or found.ratio <= sum(each) / 3 / 100 + 1e-5
