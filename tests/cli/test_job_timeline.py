"""The timeline's data: what each worker did when, its failures, the rounds, and the share of training."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlr.job.timeline import life as lives
from dlr.job.timeline.episodes import Span
from dlr.job.timeline.life import JobTimeline, NoHistory, PodStart, life_of
from tests.cli.scripted import JSON, job, worker
from tests.cli.troubled import END_SECONDS, NOW, at, episode, failed, life, troubled_job, troubled_workers


def states(spans: tuple[Span, ...]) -> list[tuple[str, float, float]]:
    return [(span.state, span.begin, span.end) for span in spans]


@pytest.fixture
def troubled() -> JobTimeline:
    return life_of(troubled_job(), troubled_workers(), 0.81, NOW)


def test_worker_does_what_its_job_does_while_it_is_up(troubled: JobTimeline) -> None:
    lost = troubled.lanes[2]
    assert states(lost.spans) == [
        ("Pending", 0, 8),
        ("Waiting", 8, 10),
        ("Forming", 10, 12),
        ("Training", 12, 60),
        ("Recovering", 60, 72),
        ("Training", 72, 120),
        ("Recovering", 120, 121),  # its Pod is gone for a second
        ("Pending", 122, 148),
        ("Recovering", 148, 152),
        ("Training", 152, 300),
    ]
    assert lost.spans[0].text == "Pod 1 on node-2 is not up yet"
    assert lost.spans[-1].text == "Pod 2 on node-3, round 3"
    assert lost.starts == (PodStart(122, "Pod 2 of digits-worker-2"),)
    assert (lost.title, lost.node) == ("worker-2", "node-3")


def test_worker_that_was_scaled_away_has_the_bar_of_the_worlds_that_it_was_in() -> None:
    history = [
        episode("Forming", 0, 1, "0-2", "all 3 workers are ready"),
        episode("Training", 10, 1, "0-2"),
        episode("Recovering", 60, 1, "0-2", "", failed(2, 60, "UserError", "no", 1)),
        episode("Training", 80, 2, "0-2"),
        episode("Forming", 200, 3, "0-1"),
        episode("Training", 210, 3, "0-1"),
    ]
    drawn = life_of(troubled_job(history=history, lastFailure=None), troubled_workers()[:2], None, NOW)
    gone = drawn.lanes[2]
    assert (gone.title, gone.worker, drawn.lanes_left_out) == ("worker-2", "digits-worker-2", 0)
    assert states(gone.spans) == [
        ("Forming", 0, 10),
        ("Training", 10, 60),
        ("Recovering", 60, 80),
        ("Training", 80, 200),
    ]
    assert [failure.at for failure in gone.failures] == [60], "what is known of its failures is there too"


def failures(*history: JSON, last: JSON | None = None) -> list[tuple[str, float, str, float | None]]:
    """Worker, time, class and cost of the failures that a life has."""
    drawn = life_of(troubled_job(lastFailure=last, history=list(history)), troubled_workers(), None, NOW)
    assert {each for lane in drawn.lanes for each in lane.failures} == set(drawn.failures)
    return [(each.who, each.at, each.what, each.outage and each.outage.seconds) for each in drawn.failures]


def test_a_failure_costs_the_time_until_training_went_on() -> None:
    oom, lost = failed(2, 60, "OOM", "MemoryError: too (much)", 1), failed(1, 70, "NodeLost", "it is gone")
    earlier = failed(0, 2, "UserError", "of a round that history has forgotten", 1)
    assert failures(
        episode("Training", 12, 1, "0-2"),
        episode("Recovering", 60, 1, "0-2", "training processes of worker 1 failed", oom),
        episode("Recovering", 75, 2, "0-2", "a world was formed meanwhile", oom),
        episode("Recovering", 76, 2, "0-2", "and another broke", lost),
        episode("Training", 86, 2, "0-2"),
        episode("Recovering", 290, 2, "0-2", "", failed(1, 290, "Killed", "signal 9", 2)),
        last=earlier,
    ) == [
        ("worker-0", 2, "UserError", None),
        ("worker-2", 60, "OOM", 26),
        ("worker-1", 70, "NodeLost", None),  # training had not gone on since
        ("worker-1", 290, "Killed", 10),
    ]


def test_a_lost_node_costs_the_outage_that_its_peers_error_began() -> None:
    gloo = failed(0, 60, "Unknown", "RuntimeError: Connection closed by peer", 1)
    lost = failed(1, 63, "NodeLost", "it does not answer")
    outage = [
        episode("Training", 12, 1, "0-1"),
        episode("Recovering", 60, 1, "0-1", "", gloo),
        episode("Recovering", 63, 1, "0-1", "", lost),
        episode("Training", 70, 2, "0-1"),
    ]
    assert failures(*outage, last=lost) == failures(*outage, last=gloo) == [("worker-1", 63, "NodeLost", 10)]
    alone = [episode("Recovering", 60, 1, "0-1", "", gloo), episode("Training", 70, 2, "0-1")]
    assert failures(*alone, last=gloo) == [("worker-0", 60, "Unknown", 10)]


def test_what_lived_through_a_failure_is_beside_it() -> None:
    killed = failed(1, 60, "Killed", "signal 9 (SIGKILL)", 1)
    lived = {"livedOn": 3, "processes": 4}
    history = [
        episode("Training", 12, 1, "0-1"),
        episode("Reforming", 60, 1, "0-1", "", killed),
        episode("Reforming", 60.1, 2, "0-1") | lived,
        episode("Training", 60.2, 2, "0-1"),
        episode("Recovering", 70, 2, "0-1", "", failed(0, 70, "OOM", "much", 2)),
        episode("Training", 80, 3, "0-1"),
    ]
    job = life_of(troubled_job(history=history, lastFailure=None), troubled_workers(), None, NOW)
    assert [(each.what, each.survivors) for each in job.failures] == [
        ("Killed", "3 of 4 processes lived on"),
        ("OOM", ""),
    ]


def test_job_without_history_is_said() -> None:
    with pytest.raises(NoHistory):
        life_of(job(), [], None, NOW)


def test_of_very_many_workers_those_are_drawn_to_which_something_happened() -> None:
    crowd = [worker(index, history=[life(1, "n", 0, 5)]) for index in range(1_000)]
    crowd[900] = worker(900, incarnation=2, history=[life(1, "n", 0, 5, endedAt=at(9)), life(2, "n", 9, 12)])
    found = life_of(troubled_job(), crowd, None, NOW)
    assert len(found.lanes) == lives.MOST_LANES
    assert found.lanes_left_out == 1_000 - lives.MOST_LANES
    assert [lane.index for lane in found.lanes] == [*range(lives.MOST_LANES - 1), 900]


def test_failures_of_workers_that_are_not_drawn_count_too() -> None:
    workers = [worker(index) for index in range(1_000)]
    history = [
        *troubled_job()["status"]["history"],
        episode("Recovering", 200, 3, "0-2,1500…", failure=failed(1500, 200, "OOM", "scaled away since", 3)),
        episode("Training", 220, 4, "0-2"),
    ]
    found = life_of(troubled_job(history=history, failures={"OOM": 8}), workers, None, NOW)
    assert len(found.lanes) == lives.MOST_LANES and found.lanes_left_out == 1_001 - lives.MOST_LANES
    assert [failure.who for failure in found.failures] == ["worker-1", "worker-2", "worker-1500"]
    assert found.failure_count == 8


STATES = ("Pending", "Checking", "Forming", "Training", "Recovering", "Suspended", "Down")
MOMENTS = st.floats(0, 2 * END_SECONDS, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> list[JSON]:
    begins = sorted(draw(st.lists(MOMENTS, min_size=1, max_size=10)))
    return [
        episode(draw(st.sampled_from(STATES)), begin, round_, draw(st.sampled_from(["", "0", "0-1", "1"])))
        for round_, begin in enumerate(begins)
    ]


@st.composite
def slot_histories(draw: st.DrawFn) -> list[JSON]:
    moments = sorted(draw(st.lists(MOMENTS, min_size=3, max_size=12)))
    found = []
    for number, (created, up, ended) in enumerate(zip(*[iter(moments)] * 3, strict=False), start=1):
        running = up if draw(st.booleans()) else None
        more = {"endedAt": at(ended), "exitClass": "Killed"} if draw(st.booleans()) else {}
        found.append(life(number, "node", created, running, **more))
    return found


@settings(max_examples=40)
@given(history=histories(), slot=slot_histories())
def test_nothing_overlaps_and_nothing_is_outside_the_job_s_life(
    history: list[JSON], slot: list[JSON]
) -> None:
    found = life_of(troubled_job(history=history), [worker(0, history=slot)], None, NOW)
    for spans in (found.states, *(lane.spans for lane in found.lanes)):
        for span in spans:
            assert 0 <= span.begin <= span.end <= found.seconds
        for before, after in pairwise(spans):
            assert before.end <= after.begin
    assert all(0 <= failure.at <= found.seconds for failure in found.failures)
    assert all(0 <= share <= 1 for _, share in found.training_share)
    assert [time for time, _ in found.training_share] == sorted(time for time, _ in found.training_share)


def changed() -> JSON:
    """A job that is scaled, suspended, checked and fails, each between two times of training."""
    shrinks = "the world shrinks from 3 to 2 workers"
    return troubled_job(
        history=[
            episode("Pending", 0),
            episode("Forming", 10, 1, "0-2", "all 3 workers are ready"),
            episode("Training", 20, 1, "0-2", "from step 1 on"),
            episode("Forming", 100, 2, "0-1", shrinks),
            episode("Training", 102, 2, "0-1", "from step 81 on"),
            episode("Recovering", 150, 2, "0-1", failure=failed(1, 150, "OOM", "no memory", 2)),
            episode("Suspended", 155, 2, "", "spec.suspend is true"),
            episode("Pending", 180, 2, "", "resumed"),
            episode("Forming", 190, 3, "0-1", "all 2 workers are ready"),
            episode("Training", 195, 3, "0-1"),
            episode("Checking", 220, 3, "0-1", "check digits-1"),
            episode("Forming", 240, 4, "0-1"),
            episode("Training", 245, 4, "0-1"),
        ],
        lastFailure=None,
    )


def test_planned_changes_are_told_from_failures_with_the_pause_that_each_took() -> None:
    found = life_of(changed(), troubled_workers(), None, NOW)
    assert [(each.what, each.at) for each in found.failures] == [("OOM", 150)]
    assert [(each.at, each.state, each.pause.seconds, each.text) for each in found.changes] == [
        (100, "Forming", 2, "the world shrinks from 3 to 2 workers"),
        (155, "Suspended", 40, "spec.suspend is true"),
        (220, "Checking", 25, "check digits-1"),
    ]


def test_a_start_is_no_change_unless_history_has_lost_what_was_before() -> None:
    def changes(*history: JSON) -> list[float]:
        return [each.at for each in life_of(troubled_job(history=[*history]), [], None, NOW).changes]

    assert changes(episode("Pending", 0), episode("Forming", 10, 1, "0")) == []
    assert changes(episode("Forming", 100, 7, "0"), episode("Training", 110, 7, "0")) == [100]
    assert changes(episode("Training", 10, 1, "0"), episode("Training", 50, 2, "0-1")) == [50]
    assert changes(episode("Training", 10, 1, "0"), episode("Down", 50, 1)) == []
