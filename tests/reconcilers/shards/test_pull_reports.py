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
from crds.leases import Lease
from crds.shard_set import MAX_SHARD_RANGES, SetDefinition
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import (
    MAX_REPORTED,
    Puller,
    PullReport,
    ReportReader,
    SetState,
    ShardPullers,
    crew_of,
    look_size,
)
from tests.counting import calls

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


def after(seen: ElasticWorker, leaving: frozenset[str] = frozenset()) -> SetState:
    held = Lease(0, 1, 1, ((0, 50),))
    known = SetState(
        SetDefinition("files", 0, 100, "d", 3, 0), waiting=((50, 100),), leases=(held,), last_lease=1
    )
    puller = Puller(0, seen, goes=seen.metadata.uid in leaving)
    return lease((known,), crew_of([puller], (known,), 0), NOW)[0]


def heard(seen: ElasticWorker, hearing: ReportReader | None = None) -> list[PullReport]:
    return list((hearing or ReportReader()).reports_of(Puller(0, seen)))


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
        assert heard(new.model_copy(update={"status": status})) == []
    assert len(heard(new)) == 1


def test_what_a_worker_held_goes_back_when_its_agent_names_the_set_no_more() -> None:
    """The agent's container was restarted, say: the next agent knows nothing of the lease."""
    holder = worker("Running", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}])
    assert after(holder).leases
    agent = holder.status.agent
    assert agent is not None and agent.shards
    of_another = replace(agent, shards=tuple(replace(each, name="others") for each in agent.shards))
    seen = holder.model_copy(update={"status": holder.status.model_copy(update={"agent": of_another})})
    assert (after(seen).leases, after(seen).done) == ((), 0)


def test_a_report_counts_for_the_shard_set_whose_uid_it_has() -> None:
    """A set that was deleted and made anew gives the numbers of leases once more."""
    holder = worker("Running", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}])
    (voice,) = heard(holder)
    held = Lease(0, 1, 1, ((0, 100),))
    for uid, rest in (("", ((40, 50),)), ("another", ((0, 100),))):
        known = SetState(voice.definition, (), (held,), last_lease=1, uid=uid)
        (found,) = lease((known,), ShardPullers({0: 1}, [replace(voice, wants=True)], 1), NOW)
        assert found.leases[0].elements == rest


def with_texts(number: int, text: str) -> ElasticWorker:
    """A worker that reports sets of these elements."""
    seen = worker("Running", [{"incarnation": 1, "createdAt": BEGAN, "reason": ""}])
    assert seen.status.agent is not None and seen.status.agent.shards
    (said,) = seen.status.agent.shards
    shards = tuple(replace(said, name=f"s{at}", rest=text, failed=text, undone=text) for at in range(number))
    agent = replace(seen.status.agent, shards=shards)
    return seen.model_copy(update={"status": seen.status.model_copy(update={"agent": agent})})


def stored(number: int, text: str) -> dict[str, Any]:
    return {"status": {"agent": {"shards": [{"rest": text, "failed": text, "undone": text}] * number}}}


def test_a_look_reads_a_bounded_number_of_ranges_of_a_report_whatever_its_sets_unpack_to() -> None:
    packed = to_text(tuple((at, at + 1) for at in range(1, 2 * MAX_SHARD_RANGES, 2)))
    assert 16 * 3 * len(packed) < MAX_SHARDS_TEXT
    voices = heard(with_texts(16, packed))
    assert len(voices) == 1
    assert len(voices[0].rest) == MAX_SHARD_RANGES


@pytest.mark.parametrize(
    "text", [to_text(tuple((at, at + 1) for at in range(1, 4_000, 2))), "1," * 340 + "1"]
)
def test_what_takes_long_to_read_is_looked_at_beside_the_event_loop(text: str) -> None:
    ordinary = [stored(1, "0-99")] * 100
    assert look_size(ordinary, ()) == 100
    assert look_size([stored(4, text)] * 20, ()) >= LARGE
    assert look_size(ordinary * 3, ()) == 300


def test_sets_that_are_packed_in_the_status_are_read_beside_the_event_loop() -> None:
    scattered = tuple((at, at + 1) for at in range(0, 32_000, 2))
    known = SetState(SetDefinition("files", 0, 10**6, "d", 3, 0), scattered)
    few = replace(known, waiting=scattered[:99])
    assert look_size([], [{"status": known.to_status().to_wire()}]) >= LARGE
    assert look_size([], [{"status": few.to_status().to_wire()}]) < 10


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
    walked = calls(lambda: heard(seen))
    assert walked < 100_000


def test_a_look_reads_a_bounded_number_of_ranges_however_many_workers_report_them() -> None:
    hearing, ranges = ReportReader(), 0
    for number in range(2 * MAX_REPORTED // MAX_SHARD_RANGES):
        text = to_text(tuple((at, at + 1) for at in range(number, number + 2 * MAX_SHARD_RANGES, 2)))
        ranges += sum(len(voice.rest) for voice in heard(with_texts(1, text), hearing))
        nonsense = "z" + base64.b64encode(zlib.compress(bytes([number]) * 60_000, 9)).decode()
        assert heard(with_texts(1, nonsense), hearing) == []
    assert ranges <= MAX_REPORTED
    assert heard(with_texts(1, "0-99"), hearing) == []


def test_what_all_workers_report_alike_is_read_once() -> None:
    hearing = ReportReader()
    text = to_text(tuple((at, at + 1) for at in range(0, 2 * MAX_SHARD_RANGES, 2)))
    voices = [voice for _ in range(300) for voice in heard(with_texts(1, text), hearing)]
    assert len(voices) == 300
    assert voices[0].undone is voices[-1].undone
