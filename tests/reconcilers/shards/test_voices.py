"""Which workers live, as far as leases go."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.slices import LARGE
from crds.agent_report import MAX_SHARDS_TEXT
from crds.elasticworker import ElasticWorker
from crds.intervals import count, to_text
from crds.leases import Lease, holder_number
from crds.shard_set import MAX_SHARD_RANGES, Definition
from reconcilers.observed.workers import Workers
from reconcilers.shards.job_shards import next_sets
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import MAX_HEARD, Hearing, ShardSet, crew_of, look_size
from tests.counting import calls
from tests.reconcilers.build import job

NOW = datetime(2026, 11, 23, tzinfo=UTC)
BEGAN, ENDED = "2026-11-23T00:00:00Z", "2026-11-23T00:01:00Z"
SET = {"name": "files", "epoch": 0, "size": 100, "digest": "d", "retries": 3, "maxFailed": 0}


def worker(phase: str, history: list[dict[str, Any]]) -> ElasticWorker:
    """It holds lease 1, elements 0 to 49, and has done the first 40."""
    said = {**SET, "lease": 1, "rest": "40-49", "failed": "", "reason": "", "wants": False, "leaves": False}
    return ElasticWorker.model_validate(
        {
            "metadata": {"name": "job-worker-0", "namespace": "default", "uid": "u"},
            "spec": {"jobName": "job", "type": "worker", "index": 0, "incarnation": 1},
            "status": {
                "observedIncarnation": 1,
                "podUid": None if phase == "Pending" and history[-1].get("endedAt") else "p",
                "phase": phase,
                "history": history,
                "agent": {
                    "incarnation": 1,
                    "podUid": "p",
                    "address": "127.0.0.1",
                    "storePort": 4242,
                    "localWorldSize": 1,
                    "state": "Stopped",
                    "since": BEGAN,
                    "shards": [said],
                },
            },
        }
    )


def after(seen: ElasticWorker, leaving: frozenset[str] = frozenset()) -> ShardSet:
    held = Lease(0, 1, 1, ((0, 50),))
    known = ShardSet(
        Definition("files", 0, 100, "d", 3, 0), waiting=((50, 100),), leases=(held,), last_lease=1
    )
    return lease((known,), crew_of([seen], leaving, 0), NOW)[0]


def test_of_a_pod_that_a_suspension_took_away_the_last_words_count() -> None:
    """Its successor has the same incarnation, and knows nothing of what was done."""
    life = {"incarnation": 1, "createdAt": BEGAN, "endedAt": ENDED, "reason": "Released"}
    suspended = after(worker("Pending", [life]))
    assert (suspended.leases, suspended.done, count(suspended.waiting)) == ((), 40, 60)


def test_a_pod_that_is_there_or_on_its_way_keeps_its_lease() -> None:
    before = {"incarnation": 1, "createdAt": BEGAN, "endedAt": ENDED, "reason": "Released"}
    now = {"incarnation": 1, "createdAt": ENDED, "reason": ""}
    for phase, history in (("Running", [now]), ("Running", [before, now]), ("Pending", [before, now])):
        assert after(worker(phase, history)).leases == (Lease(0, 1, 1, ((0, 50),)),)


def test_of_a_worker_that_is_let_go_the_last_words_count() -> None:
    """Its ElasticWorker is deleted next, and what its agent said with it."""
    let_go = after(worker("Running", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}]), frozenset("u"))
    assert (let_go.leases, let_go.done, count(let_go.waiting)) == ((), 40, 60)


def test_what_the_pod_of_a_deleted_job_says_to_the_next_one_of_its_name_does_not_count() -> None:
    """Its worker has the same name and incarnation, and no Pod before this one is gone."""
    new = worker("Pending", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}])
    for pod in (None, "another"):
        status = new.status.model_copy(update={"pod_uid": pod})
        assert list(Hearing().voices_of(new.model_copy(update={"status": status}))) == []
    assert len(list(Hearing().voices_of(new))) == 1


def test_workers_of_each_type_have_leases_of_their_own() -> None:
    """A chief may run the workers' script, and was leased nothing: its agent followed worker 0's lease."""
    them = []
    for type_ in ("worker", "chief", "evaluator"):
        found = worker("Running", [])
        assert found.status.agent is not None and found.status.agent.shards
        said = tuple(replace(each, lease=0, rest="", wants=True) for each in found.status.agent.shards)
        status = found.status.model_copy(update={"agent": replace(found.status.agent, shards=said)})
        them.append(
            found.model_copy(update={"spec": found.spec.model_copy(update={"type": type_}), "status": status})
        )
    sets = next_sets(job(replicas=1), Workers(them), (), NOW)
    assert sets is not None
    numbers = [holder_number(type_, 0) for type_ in ("worker", "chief", "evaluator")]
    assert [each.worker for each in sets[0].leases] == numbers and numbers[0] == 0


def with_texts(number: int, text: str) -> ElasticWorker:
    """A worker that reports sets of these elements."""
    seen = worker("Running", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}])
    assert seen.status.agent is not None and seen.status.agent.shards
    (said,) = seen.status.agent.shards
    shards = tuple(replace(said, name=f"s{at}", rest=text, failed=text, undone=text) for at in range(number))
    agent = replace(seen.status.agent, shards=shards)
    return seen.model_copy(update={"status": seen.status.model_copy(update={"agent": agent})})


def test_a_look_reads_a_bounded_number_of_ranges_of_a_report_whatever_its_sets_unpack_to() -> None:
    packed = to_text(tuple((at, at + 1) for at in range(1, 2 * MAX_SHARD_RANGES, 2)))
    assert 16 * 3 * len(packed) < MAX_SHARDS_TEXT
    voices = list(Hearing().voices_of(with_texts(16, packed)))
    assert len(voices) == 1
    assert len(voices[0].rest) == MAX_SHARD_RANGES


@pytest.mark.parametrize(
    "text", [to_text(tuple((at, at + 1) for at in range(1, 4_000, 2))), "1," * 340 + "1"]
)
def test_what_takes_long_to_read_is_looked_at_beside_the_event_loop(text: str) -> None:
    ordinary = [with_texts(1, "0-99")] * 100
    assert look_size(ordinary) == 100
    assert look_size([with_texts(4, text)] * 20) >= LARGE
    assert look_size(ordinary * 3) == 300


def test_sets_that_are_packed_in_the_status_are_read_beside_the_event_loop() -> None:
    scattered = tuple((at, at + 1) for at in range(0, 32_000, 2))
    known = ShardSet(Definition("files", 0, 10**6, "d", 3, 0), scattered)
    assert look_size([], [known.to_status()]) >= LARGE
    assert look_size([], [replace(known, waiting=scattered[:99]).to_status()]) < 10


def test_what_unpacks_to_megabytes_is_not_unpacked_after_all_ranges_that_a_report_may_have() -> None:
    first = with_texts(1, to_text(tuple((at, at + 1) for at in range(1, 2 * MAX_SHARD_RANGES, 2))))
    bomb = with_texts(15, "z" + base64.b64encode(zlib.compress(bytes(180_000), 9)).decode())
    assert first.status.agent and bomb.status.agent
    shards = (*(first.status.agent.shards or ()), *(bomb.status.agent.shards or ()))
    seen = first.model_copy(
        update={
            "status": first.status.model_copy(update={"agent": replace(first.status.agent, shards=shards)})
        }
    )
    walked = calls(lambda: list(Hearing().voices_of(seen)))
    assert walked < 100_000


def test_a_look_reads_a_bounded_number_of_ranges_however_many_workers_report_them() -> None:
    hearing, heard = Hearing(), 0
    for number in range(2 * MAX_HEARD // MAX_SHARD_RANGES):
        text = to_text(tuple((at, at + 1) for at in range(number, number + 2 * MAX_SHARD_RANGES, 2)))
        heard += sum(len(voice.rest) for voice in hearing.voices_of(with_texts(1, text)))
        nonsense = "z" + base64.b64encode(zlib.compress(bytes([number]) * 60_000, 9)).decode()
        assert list(hearing.voices_of(with_texts(1, nonsense))) == []
    assert heard <= MAX_HEARD
    assert list(hearing.voices_of(with_texts(1, "0-99"))) == []


def test_what_all_workers_report_alike_is_read_once() -> None:
    hearing = Hearing()
    text = to_text(tuple((at, at + 1) for at in range(0, 2 * MAX_SHARD_RANGES, 2)))
    heard = [voice for _ in range(300) for voice in hearing.voices_of(with_texts(1, text))]
    assert len(heard) == 300
    assert heard[0].undone is heard[-1].undone
