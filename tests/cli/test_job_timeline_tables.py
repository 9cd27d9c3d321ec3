"""The timeline as tables."""

from __future__ import annotations

from typing import Any

import pytest

from dlr.job.timeline.life import Life, life_of
from dlr.job.timeline.outages import own_failures
from dlr.job.timeline.page import tables_of
from tests.cli.scripted import worker
from tests.cli.troubled import NOW, at, episode, life, troubled_job, troubled_workers

JSON = dict[str, Any]
OF_TWO = [
    episode("Forming", 10, 1, "0-1"),
    episode("Training", 12, 1, "0-1"),
    episode("Recovering", 60, 1, "0-1", "worker 1 failed"),
    episode("Training", 72, 2, "0-1"),
]


@pytest.fixture
def troubled() -> Life:
    return life_of(troubled_job(), troubled_workers(), 0.81, NOW)


def test_tables_have_states_failures_rounds_and_workers(troubled: Life) -> None:
    states, failures, rounds, workers = tables_of(troubled)
    assert states.rows[-1] == ("2m32s", "00:02:32", "2m28s", "Training", "")
    assert failures.rows == [
        ("1m", "00:01:00", "worker-1", "UserError", "12s", "ValueError: a <bad> batch"),
        ("2m1s", "00:02:01", "worker-2", "NodeLost", "32s", "the node is gone"),
    ]
    assert rounds.rows[0] == ("10s", "00:00:10", "1", "0-2", "all 3 workers are ready")
    assert workers.rows[2] == ("worker-2", "node-3", "2", "1")
    assert all(len(row) == len(table.columns) for table in tables_of(troubled) for row in table.rows)


def test_a_pod_that_was_deleted_with_time_to_save_is_no_failure() -> None:
    ended = {"endedAt": at(129), "exitClass": "Killed", "reason": "Deleted", "planned": True}
    lives = [life(1, "node-b", 0, 2, **ended), life(2, "node-b", 129, 130)]
    drained = life_of(troubled_job(lastFailure={}, history=OF_TWO), [worker(1, history=lives)], None, NOW)
    assert own_failures(drained) == []


def test_a_table_that_lacks_older_failures_says_of_how_many_it_has_the_last() -> None:
    many = troubled_job(failures={"UserError": 7, "NodeLost": 1})
    headings = [table.heading for table in tables_of(life_of(many, troubled_workers(), None, NOW))]
    assert headings[1] == "Failures, the last 2 of 8"


def hung(index: int, *, waits: bool) -> JSON:
    stack = {"rank": index, "inCollective": waits, "frames": "train.py:1 in main"}
    said = {
        "sequence": 1,
        "round": 1,
        "rank": index,
        "localRank": 0,
        "message": f"no step for 10 s: rank {index} is somewhere",
        "logTail": "",
        "time": at(60),
        "cause": "Hang",
        "stacks": [stack],
    }
    agent = {"incarnation": 1, "failure": said}
    return worker(index, agent=agent, history=[life(1, f"node-{index}", 0, 5)])


@pytest.mark.parametrize("blamed", [True, False], ids=["blamed", "a peer's Pod was lost"])
def test_who_finished_early_has_failed_only_where_the_job_blames_it(blamed: bool) -> None:
    text = "rank 0 finished early, at step 8; the others cannot go on"
    found = {"round": 1, "rank": 0, "exitCode": 0, "message": text, "time": at(60)}
    failure = {"worker": "digits-worker-0", "exitClass": "UserError"} | found if blamed else None
    early = worker(0, agent={"incarnation": 1, "failure": found}, history=[life(1, "node-0", 0, 5)])
    drawn = life_of(troubled_job(lastFailure=failure, history=OF_TWO), [early], None, NOW)
    assert [failure.text for lane in drawn.all_lanes for failure in lane.failures] == [text] * blamed


@pytest.mark.parametrize("judged", [True, False], ids=["last failure", "older"])
def test_who_waited_for_the_one_that_hung_does_not_look_like_it(judged: bool) -> None:
    last = {"worker": "digits-worker-1", "rank": 1, "exitClass": "Hang", "message": "in a lock"}
    failure = last | {"round": 1, "time": at(60)} if judged else None
    job = troubled_job(lastFailure=failure, history=OF_TWO)
    drawn = life_of(job, [hung(0, waits=True), hung(1, waits=False)], None, NOW)
    _, failures, *_ = tables_of(drawn)
    assert failures.rows == [
        (
            "1m",
            "00:01:00",
            "worker-1",
            "Hang",
            "12s",
            "in a lock" if judged else "no step for 10 s: rank 1 is somewhere",
        ),
        ("1m", "00:01:00", "worker-0", "waited for a peer", "", ""),
    ]
