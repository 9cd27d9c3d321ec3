"""No code of the controller reads a sentence back: other words in what it has written change nothing but words.

The text of a training process itself (`status.agent.failure`) is evidence, and stays: of it, class and signature
are made when it is first seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.look import ObservedJob
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Act
from tests.played.jobs import play
from tests.played.schedule import play_seeds
from tests.reconcilers.api import merged
from tests.reconcilers.build import job, later
from tests.reconcilers.judging import with_status
from tests.reconcilers.life import undisturbed
from tests.reconcilers.test_warnings import TROUBLES, crew, look

Wire = dict[str, Any]

WORDS = (
    "",
    "the",
    "round 7: worker 1 failed",
    "never answered",
    "0",
    "at step 3 of round 2",
    "waits…",
    "ps 1 ",
)
SENTENCES = {
    "message": lambda path: "failure" not in path or "history" in path,
    "reason": lambda path: path[-1:] in (["rendezvous"], ["history"], ["growth"]),
    "waitsFor": lambda path: True,
    "logTail": lambda path: path[-1:] == ["lastExit"],
}
"""Fields with a sentence, and the objects of which they are fields; `path` has the keys that lead there."""


def reworded(wire: Any, word: Callable[[], str], path: tuple[str, ...] = ()) -> Any:
    """The object with each of its sentences replaced."""
    if isinstance(wire, list):
        return [reworded(each, word, path) for each in wire]
    if not isinstance(wire, dict):
        return wire
    return {
        key: word()
        if isinstance(value, str) and key in SENTENCES and SENTENCES[key](list(path))
        else reworded(value, word, (*path, key))
        for key, value in wire.items()
    }


def in_other_words(seen: ObservedJob, word: Callable[[], str]) -> ObservedJob:
    status = reworded(seen.raw["status"], word)
    job = ElasticJob.model_validate({**seen.job.to_wire(), "status": status})
    workers = [
        ElasticWorker.model_validate({**each.to_wire(), "status": reworded(each.status.to_wire(), word)})
        for each in seen.workers
    ]
    return replace(seen, job=job, raw={**seen.raw, "status": status}, workers=Workers(workers))


def without_words(seen: ObservedJob, plan: JobPlan) -> list[Any]:
    """What the plan comes to, but for its sentences."""

    def of_act(act: Act | None) -> Any:
        if act is None:
            return None
        told = [(event.type, event.reason) for event in act.events]
        return act.verb, act.resource, act.name, reworded(act.body, str), told

    status = merged(seen.raw["status"], plan.status_patch)
    return [
        reworded(status, str),
        [(event.type, event.reason) for event in plan.events],
        of_act(plan.request),
        [of_act(act) for act in plan.first],
        [of_act(act) for act in plan.acts],
        plan.look_again_seconds,
        plan.is_interim,
    ]


# --- histories --------------------------------------------------------------------------------------------


class Reader:
    """Plans each look, and the same look at a job in other words."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self.looks = 0
        self.differences: list[tuple[Any, Any]] = []

    def word(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, 4))).strip()

    def plan(
        self, seen: ObservedJob, now: datetime, plan_of: Callable[[ObservedJob, datetime], JobPlan] = plan_job
    ) -> JobPlan:
        self.looks += 1
        # Whatever is written takes the account with it: so that something is, both have another `status.message`.
        same = seen
        if seen.raw.get("status"):
            status = {**seen.raw["status"], "message": "a word"}
            same = replace(
                seen, raw={**seen.raw, "status": status}, job=with_status(seen.job, message="a word")
            )
            other = in_other_words(seen, self.word)
            plans = [without_words(each, plan_of(each, now)) for each in (same, other)]
            if plans[0] != plans[1]:
                self.differences.append((plans[0], plans[1]))
        return plan_of(seen, now)

    async def computed(
        self, _: int, plan_of: Callable[[ObservedJob, datetime], JobPlan], *seen: Any
    ) -> JobPlan:
        return self.plan(*seen, plan_of)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Of all looks at jobs."""
    made = Reader()
    monkeypatch.setattr("reconcilers.job.reconciler.computed", made.computed)
    return made


def test_in_other_words_a_jobs_life_goes_the_same_way(reader: Reader) -> None:
    asyncio.run(undisturbed())
    assert reader.looks > 100 and reader.differences == []


def test_in_other_words_any_life_goes_the_same_way(reader: Reader) -> None:
    play_seeds(play, 8)
    assert reader.looks > 100 and reader.differences == []


SOME_TROUBLES = st.sets(st.sampled_from(sorted(TROUBLES))).map(sorted)


@given(SOME_TROUBLES, SOME_TROUBLES, st.integers(0, 10**9))
def test_in_other_words_warnings_begin_and_end_the_same_way(
    before: list[str], after: list[str], seed: int
) -> None:
    known, _ = look(job(replicas=len(TROUBLES)), before, 0)
    raw = {"metadata": {"name": "digits"}, "status": known.status.to_wire()}
    reader = Reader(seed)
    reader.plan(ObservedJob(known, raw, Workers(crew(after, 1))), later(9))
    assert reader.differences == []
