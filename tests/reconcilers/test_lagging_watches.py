"""Watches that lag at every moment of a job's life: nothing comes of it but time (see `test_interleavings`)."""

from __future__ import annotations

import asyncio

import pytest

from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.interleaving import (
    BY_HAND,
    PHASES,
    STRIDE,
    Interleaving,
    each_phase,
    in_time,
    play,
    play_all,
    run_of,
    starts,
)
from tests.reconcilers.life import Run, edit

pytestmark = in_time

FOUND = {
    "counted twice: a stale phase, written without a resourceVersion, takes an end back": Interleaving(
        "Pod failure", start=1, behind=3
    ),
    "a worker that is looked at before the cache has its job is looked at by nobody again": Interleaving(
        "create", start=3, behind=1, of="ElasticJob"
    ),
    "a worker deletes Pods of later incarnations than the one that it knows": Interleaving(
        "check", start=12, behind=3, of="ElasticWorker"
    ),
    "a job gives up its world once more for a check that has finished": Interleaving(
        "check", start=3, behind=3, of="NodeCheck"
    ),
    "a Pod that is gone is taken for its namesake, which has not ended": Interleaving(
        "resume", behind=3, of="Pod"
    ),
    "a member that runs is called Pending by an old state of its Pod, and relaunched": Interleaving(
        "roll", behind=3, of="Pod"
    ),
}
"""One of each."""


def _cells() -> list[tuple[str, str]]:
    """The phases, with the kinds of objects that matter in them."""
    kinds = ("ElasticJob", "ElasticWorker", "Pod")
    cells = [(phase, of) for phase in PHASES for of in kinds]
    cells += [("create", "Lease"), ("grow", "Lease"), ("roll", "ScalePlan"), ("grow", "ScalePlan")]
    return [*cells, ("check", "NodeCheck")]


@each_phase
def test_watches_that_lag(phase: str) -> None:
    """Own writes are known at once (`Informer.note_write`), and all else some versions late."""
    play_all(
        Interleaving(phase, start, behind=behind)
        for start in starts(phase)[:: 1 if BY_HAND else 2 * STRIDE]
        for behind in ((1, 2, 3, 5) if BY_HAND else (1 + start // 3 % 3,))
    )


@pytest.mark.parametrize(("phase", "of"), _cells())
def test_watch_of_one_kind_that_lags(phase: str, of: str) -> None:
    """It tells the rest when there is nothing more to do."""
    play_all(
        Interleaving(phase, start, behind=behind, of=of)
        for start in starts(phase)[:: 1 if BY_HAND else 4 * STRIDE]
        for behind in ((1, 2, 3, 5) if BY_HAND else (3,))
    )


@pytest.mark.parametrize("way", FOUND.values(), ids=FOUND.keys())
def test_what_has_gone_wrong_once(way: Interleaving) -> None:
    assert play(way) == []


def test_job_whose_suspension_is_seen_late_trains_on_when_it_is_resumed() -> None:
    """Its agents left for the suspension, with exit code 0: that is no success."""
    run = run_of(Interleaving("suspend", start=1, behind=3, of="ElasticJob"))
    asyncio.run(run.settle())
    edit(run.api, {"suspend": False})
    asyncio.run(Run(run.api).settle())
    assert run.api.get(ELASTICJOBS, "j")["status"]["phase"] == "Running"
