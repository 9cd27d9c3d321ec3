"""Which workers live, as far as leases go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from crds.elasticworker import ElasticWorker
from crds.intervals import count
from crds.leases import Lease
from crds.shard_set import Definition
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import ShardSet, crew_of

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
