"""Spans of a job's life: what is within what, and the parts of a recovery."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crds.job_status import JobState
from crds.trace import JOB_SPAN, span_id, trace_id, traceparent
from dlr.job.trace import chrome_trace
from reconcilers.tracing.reconciler import SETTLED, due_spans
from reconcilers.tracing.spans import MARKS, PARTS, RECOVERIES, TraceSpan, spans_of
from tests.cli.troubled import NOW, SUBMITTED, at, episode, failed, troubled_job, troubled_workers

UID = "7c1b5a0e-53b1-4f0e-9d55-0d6f3d2a9c11"

seconds = st.floats(-50, 400).map(lambda value: round(value, 3))


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    times = sorted(draw(st.lists(st.floats(0, 300).map(lambda v: round(v, 3)), min_size=1, max_size=12)))
    round_, found = 0, []
    for since in times:
        round_ += draw(st.integers(0, 1))
        told = draw(st.none() | st.just(failed(1, draw(seconds), "Killed", "gone")))
        found.append(episode(draw(st.sampled_from([*JobState])), since, round_, "0-2", "", told))
    return found


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    history = draw(histories())
    ended = {"completionTime": at(draw(st.floats(250, 300)))} if draw(st.booleans()) else {}
    workers = troubled_workers()
    for worker in workers:
        marks = {name: at(draw(seconds)) for name in MARKS}
        worker["status"]["agent"]["start"] = {"round": draw(st.integers(0, 12)), **marks}
        worker["status"]["agent"]["progress"] |= {"checkpointStep": 7, "checkpointTime": at(draw(seconds))}
    return troubled_job(history=history, **ended), workers


@given(jobs())
def test_spans_of_a_track_are_apart_or_within_each_other_and_no_two_have_one_key(
    made: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    spans = spans_of(*made)
    keys = {span.key for span in spans}
    assert len(keys) == len(spans)
    assert {span.parent for span in spans} <= keys | {""}
    assert spans[0].key == JOB_SPAN
    for span in spans:
        assert span.begin >= spans[0].begin
        assert span.end is None or span.end >= span.begin
    for track in {span.track for span in spans}:
        drawn = [(span.begin, span.end or NOW + timedelta(days=1)) for span in spans if span.track == track]
        for number, (begin, end) in enumerate(drawn):
            for begin2, end2 in drawn[number + 1 :]:
                apart = end <= begin2 or end2 <= begin
                assert apart or (begin <= begin2 and end2 <= end) or (begin2 <= begin and end <= end2)


@given(jobs())
def test_parts_of_a_recovery_that_is_over_are_all_of_it(
    made: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    spans = spans_of(*made)
    for whole in (span for span in spans if span.track == RECOVERIES and span.parent == JOB_SPAN):
        parts = [span for span in spans if span.parent == whole.key]
        assert [*filter([part.name for part in parts].__contains__, PARTS)] == [part.name for part in parts]
        assert all(one.end == other.begin for one, other in pairwise(parts))
        if whole.end is not None:
            assert (parts[0].begin, parts[-1].end) == (whole.begin, whole.end)


def test_last_recovery_has_the_parts_that_the_agents_have_seen() -> None:
    workers = troubled_workers()
    for late, worker in enumerate(workers):
        marks = {"seen": at(150 + late / 10), "joined": at(150.5), "started": at(151)}
        worker["status"]["agent"]["start"] = {"round": 3, **marks}
    workers[0]["status"]["agent"]["start"]["round"] = 2
    spans = spans_of(troubled_job(), workers)
    whole = next(span for span in spans if span.name == "recovery from NodeLost")
    parts = [(span.name, _after(span)) for span in spans if span.parent == whole.key]
    assert parts == [
        ("publish", (120, 150)),
        ("observe", (150, 150.2)),
        ("stop", (150.2, 150.5)),
        ("start", (150.5, 151)),
        ("first step", (151, 152)),
    ]


def test_world_that_follows_in_the_look_that_records_the_failure_has_its_parts() -> None:
    killed = failed(1, 60.1, "Killed", "SIGKILL", 1)
    history = [
        episode("Training", 12, 1, "0-2"),
        episode("Recovering", 60, 2, "0-2", "", killed),
        episode("Training", 61, 2),
    ]
    workers = troubled_workers()
    for worker in workers:
        marks = {name: at(60.2 + number / 10) for number, name in enumerate(MARKS)}
        worker["status"]["agent"]["start"] = {"round": 2, **marks}
    world = {"round": 2, "phase": "Formed", "formedAt": at(60.15)}
    spans = spans_of(troubled_job(history=history, rendezvous=world), workers)
    assert [span.name for span in spans if span.parent.startswith("recovery")] == [*PARTS]


def test_job_without_a_history_has_its_own_span_alone() -> None:
    job = troubled_job(history=[])
    assert [span.key for span in spans_of(job, [])] == [JOB_SPAN]


@given(jobs(), st.lists(st.floats(0, 1_000), max_size=6).map(sorted))
def test_each_span_is_sent_once_when_it_has_been_over_for_a_while(
    made: tuple[dict[str, Any], list[dict[str, Any]]], looks: list[float]
) -> None:
    spans, sent, wait = spans_of(*made), list[TraceSpan](), None
    for look in [*looks, 2_000]:
        now = SUBMITTED + timedelta(seconds=look)
        due, wait = due_spans(spans, frozenset(span.key for span in sent), now)
        assert all(span.end is not None and span.end + SETTLED <= now for span in due)
        assert wait is None or wait > 0
        sent += due
    assert wait is None
    assert sorted(span.key for span in sent) == sorted(s.key for s in spans if s.end is not None)


def test_what_ends_in_the_last_second_of_all_holds_nothing_up() -> None:
    last = datetime.max.replace(tzinfo=SUBMITTED.tzinfo)
    saved = TraceSpan("save 1", "save of step 1", "saves", last, last)
    due, wait = due_spans([saved], frozenset(), SUBMITTED)
    assert not due and wait is not None and wait > 0


@given(jobs())
def test_chrome_trace_has_each_span_on_its_track(made: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    spans = spans_of(*made)
    events = chrome_trace(spans, NOW)["traceEvents"]
    tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    drawn = [each for each in events if each["ph"] != "M"]
    assert [tracks[each["tid"]] for each in drawn] == [span.track for span in spans]
    assert all(each["ph"] == "i" or each["dur"] > 0 for each in drawn)


def test_a_span_that_begins_now_and_goes_on_is_a_moment() -> None:
    (*_, drawn) = chrome_trace([TraceSpan("round 1", "round 1", "rounds", NOW, None)], NOW)["traceEvents"]
    assert drawn["ph"] == "i" and "dur" not in drawn


def test_training_process_gets_the_span_of_its_round() -> None:
    version, trace, span, flags = traceparent(UID, 3).split("-")
    assert (version, flags) == ("00", "01")
    assert (int(trace, 16), int(span, 16)) == (trace_id(UID), span_id(UID, "round 3"))
    assert (len(trace), len(span)) == (32, 16)


def _after(span: TraceSpan) -> tuple[float, float]:
    def since(moment: datetime | None) -> float:
        assert moment is not None
        return (moment - SUBMITTED).total_seconds()

    return since(span.begin), since(span.end)
