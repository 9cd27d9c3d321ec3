from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from agent.facts.failure import LocalFailure
from agent.report.outbox import NEWS_BURST, NEWS_SECONDS, Outbox
from agent.report.report import ReportBody
from crds.agent_report import CHECKPOINT_SECONDS, AgentState, StepProgress

NOW = datetime(2026, 1, 2, tzinfo=UTC)
READY = ReportBody(AgentState.READY, NOW)


def failure(sequence: int) -> LocalFailure:
    return LocalFailure(sequence=sequence, round=4, rank=1, exit_code=-9, message="killed", time=NOW)


def written(outbox: Outbox, now: float) -> None:
    """The API server takes all that is to be written."""
    while (first := outbox.first()) is not None:
        outbox.written(first, now)


@given(st.lists(st.tuples(st.sampled_from(AgentState), st.booleans(), st.booleans())))
def test_every_failure_is_written_and_the_last_word_is_the_latest(
    changes: list[tuple[AgentState, bool, bool]],
) -> None:
    outbox, told, sequence, latest = Outbox(READY, 10.0), [], 0, READY
    for state, failed, taken in changes:
        sequence += failed
        latest = ReportBody(state, NOW, failure=failure(sequence) if sequence else None)
        outbox.put(latest, 0.0)
        if taken and (first := outbox.first()) is not None:
            told.append(first)
            outbox.written(first, 0.0)
    while (first := outbox.first()) is not None:
        told.append(first)
        outbox.written(first, 0.0)
    assert [r.failures for r in told] == sorted(r.failures for r in told)
    assert {r.failures for r in told} >= set(range(1, sequence + 1))
    assert told[-1] == latest


def test_progress_is_written_at_its_interval_unless_it_is_news() -> None:
    outbox = Outbox(READY, 600.0)
    written(outbox, 100.0)
    outbox.progress(None)
    assert outbox.progress_due_at == 700.0 and not outbox.is_progress_due(699.0)
    outbox.progress(0.0)
    outbox.progress(None)  # does not put it off
    assert outbox.is_progress_due(100.0)
    outbox.put(READY, 100.0)
    assert outbox.progress_due_at is None


def test_news_that_never_ends_is_written_at_its_interval() -> None:
    """As where a training process sends its agent message after message."""
    outbox, now, count = Outbox(READY, 600.0), 0.0, 0
    while now < 10.0:
        outbox.progress(0.0)
        if outbox.is_progress_due(now):
            outbox.put(READY, now)
            written(outbox, now)
            count += 1
        now += 0.01
    assert NEWS_BURST <= count <= NEWS_BURST + 10.0 / NEWS_SECONDS + 1


def test_of_many_checkpoints_the_first_is_written_at_once_and_the_newest_when_the_time_has_come() -> None:
    outbox, at = Outbox(READY, 600.0), CHECKPOINT_SECONDS
    written(outbox, 0.0)
    outbox.checkpoint(is_awaited=False)
    assert outbox.is_progress_due(1.0)
    outbox.put(replace(READY, progress=StepProgress(1, NOW, 1)), 1.0)
    outbox.checkpoint(is_awaited=False)
    assert not outbox.is_progress_due(at)
    outbox.checkpoint(is_awaited=True)
    assert outbox.is_progress_due(at), "somebody waits for it"
