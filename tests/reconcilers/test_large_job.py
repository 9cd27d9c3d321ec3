"""What the status of a job of many workers leaves out, and that nothing is told twice for it."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from hypothesis import given
from hypothesis import strategies as st

from crds.job_status import MANY_WORKERS, ElasticJobStatus, JobFailure
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
from reconcilers.conditions.training import SUSPENDED, WORLD_FORMED
from reconcilers.observed.conditions import (
    condition_of,
    is_same,
    observed_at,
    with_condition,
)
from reconcilers.observed.large_job import LEAST_SENTENCE, MAX_STATUS_BYTES, wire_of
from reconcilers.observed.status_patch import validated

NOW = datetime(2026, 11, 23, 8, tzinfo=UTC)
MANY = MANY_WORKERS + 1
LONG = "0/10400 nodes are available: " + "x" * MAX_CONDITION_MESSAGE
MESSAGES = st.lists(st.text(max_size=MAX_CONDITION_MESSAGE), max_size=20)


def status_of(messages: dict[str, str]) -> ElasticJobStatus:
    conditions: list[Condition] = []
    for type_, message in messages.items():
        conditions = with_condition(conditions, type_, ConditionStatus.FALSE, "Reason", message, NOW)
    return observed_at(ElasticJobStatus(conditions=conditions), 7)


def stored(status: ElasticJobStatus, workers: int = MANY) -> ElasticJobStatus:
    """As it is read again."""
    return ElasticJobStatus.model_validate(
        orjson.loads(orjson.dumps(validated(status, wire_of(status, workers))))
    )


@given(MESSAGES)
def test_the_status_of_a_large_job_has_a_limit(messages: list[str]) -> None:
    status = status_of({f"Type{n}": message for n, message in enumerate(messages)})
    wire = wire_of(status, MANY)
    overhead = len(orjson.dumps(wire | {"conditions": [c | {"message": ""} for c in wire["conditions"]]}))
    assert len(orjson.dumps(wire)) <= max(MAX_STATUS_BYTES, overhead + LEAST_SENTENCE * len(messages))
    for before, after in zip(status.conditions, stored(status).conditions, strict=True):
        assert is_same(after, before)
        assert after.observed_generation == 7


@given(MESSAGES, st.data())
def test_what_is_written_settles_at_the_second_look(messages: list[str], data: st.DataObject) -> None:
    """Some messages are made anew with each look, others are carried over as they are stored."""
    full = {f"Type{n}": message for n, message in enumerate(messages)}
    full |= {WORLD_FORMED: LONG, SUSPENDED: ""}
    anew = data.draw(st.sets(st.sampled_from(sorted(full))))

    def look(known: ElasticJobStatus) -> ElasticJobStatus:
        told = {c.type: full[c.type] if c.type in anew else c.message for c in known.conditions}
        return stored(status_of(told))

    second = look(look(status_of(full)))
    assert look(second) == second


def test_a_small_job_tells_all() -> None:
    status = status_of({f"Type{n}": LONG[:MAX_CONDITION_MESSAGE] for n in range(20)})
    assert wire_of(status, MANY_WORKERS) == status.to_wire()


def test_few_long_messages_of_a_large_job_are_whole() -> None:
    status = status_of({"WorkersScheduled": LONG[:MAX_CONDITION_MESSAGE], WORLD_FORMED: "a rack is lost"})
    assert [c.message for c in stored(status).conditions] == [c.message for c in status.conditions]


def test_what_is_over_or_said_elsewhere_goes_first() -> None:
    said = {f"Type{n}": LONG[:MAX_CONDITION_MESSAGE] for n in range(20)}
    found = stored(status_of(said | {WORLD_FORMED: "a rack is lost", SUSPENDED: ""}))
    assert condition_of(found.conditions, SUSPENDED) is None
    world = condition_of(found.conditions, WORLD_FORMED)
    assert world is not None and world.message == "see status.rendezvous.reason"


def test_the_last_failure_of_a_large_job_is_cut_only_where_there_is_more_to_say() -> None:
    failure = JobFailure(worker="w", exit_class="OOM", message="y" * 400, time=NOW)
    said = status_of({f"Type{n}": LONG[:MAX_CONDITION_MESSAGE] for n in range(20)})
    alone, among = (
        stored(status.model_copy(update={"last_failure": failure})).last_failure
        for status in (ElasticJobStatus(), said)
    )
    assert alone is not None and alone.message == failure.message
    assert among is not None and 100 < len(among.message) < 400 and among.message.endswith("…")
