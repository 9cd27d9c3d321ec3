"""Leases of shard sets, whatever happens between any two writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.intervals import count, minus, of_numbers, to_text, union, whole
from crds.leases import Lease
from crds.shard_set import SetDefinition
from crds.shard_set_status import ShardSetStatus
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import (
    MAX_SCATTERED,
    MAX_WAITING,
    SetState,
    ShardPullers,
    Tried,
    Voice,
    of_status,
    voice_of,
)
from reconcilers.shards.telling import ending
from tests.counting import calls

NOW = datetime(2026, 11, 23, tzinfo=UTC)


@dataclass
class Worker:
    """An agent with one process, and the job as it sees it."""

    index: int
    incarnation: int
    definition: SetDefinition
    holding: Holding = field(init=False)
    in_hand: tuple[int, int] | None = None
    restoration: int = 0
    """The set's last one, as far as the agent knows."""
    waits_for: int = 0
    """Before the set has had this one, its process is given nothing."""

    def __post_init__(self) -> None:
        self.holding = Holding(self.definition)

    def see(self, job: tuple[SetState, ...]) -> None:
        for each in job:
            if each.restoration != self.restoration:
                self.restoration, self.holding = each.restoration, Holding(self.definition)
                self.in_hand = None
        mine = [
            held
            for each in job
            if each.definition.epoch == self.definition.epoch
            for held in each.leases
            if (held.worker, held.incarnation) == (self.index, self.incarnation)
        ]
        self.holding.follow(mine[0] if mine else None)


def check_sets(
    sets: Sequence[SetState], done: Sequence[int], may_lack: Callable[[SetState], bool] = lambda each: False
) -> None:
    """No element is in two places at a time, and none is lost."""
    for each in sets:
        leased = [held.elements for held in each.leases]
        parts = [each.waiting, *leased, *(tried.elements for tried in each.tried), each.failed]
        together = union(*parts)
        assert sum(map(count, parts)) == count(together), "in two places"
        lost = minus(minus(whole(each.definition.size), together), of_numbers(done))
        assert not lost or may_lack(each), f"lost: {lost}"


def work(worker: Any, choose: random.Random, poison: frozenset[int], done: list[int]) -> range:
    """Take elements in hand, or come to the end of those in hand; return those that failed."""
    if worker.in_hand is None:
        worker.in_hand = worker.holding.take(choose.choice([1, 1, 3]))
        return range(0)
    part, worker.in_hand = worker.in_hand, None
    if poisoned := [element for element in range(*part) if element in poison]:
        worker.holding.fail(part, f"element {poisoned[0]} is bad")
        return range(*part)
    done += range(*part)
    worker.holding.finish(part)
    return range(0)


def crash_in_place(worker: Any) -> None:
    """Its process dies, and starts again in the same Pod."""
    if worker.in_hand is not None:
        worker.holding.put_back(worker.in_hand)
        worker.in_hand = None


class Disturbance(Enum):
    """What may happen at any moment, by how often it does."""

    WORK = 30.0
    REPORT = 20.0
    SEE = 15.0
    LOOK = 20.5
    KILLED_BEFORE_ITS_WRITE = 2.0
    LEADS_NO_MORE = 2.1
    LATE_WRITE = 2.2
    DEATH = 2.3
    CRASH_IN_PLACE = 2.4
    NOBODY_PULLS = 2.5
    FEWER = 0.5
    MORE = 0.6


class Cluster:
    """An API server that takes a write only from the version it was decided from; workers that live and die."""

    def __init__(
        self, workers: int, definition: SetDefinition, poison: frozenset[int], choose: random.Random
    ) -> None:
        self.definition, self.poison, self.choose = definition, poison, choose
        self.versions: list[tuple[SetState, ...]] = [()]
        self.workers = {i: Worker(i, 1, definition) for i in range(workers)}
        self.reports: dict[int, list[dict[str, Any]]] = {i: [] for i in range(workers)}
        self.done: list[int] = []
        self.failures: dict[int, list[int]] = {}
        self.late: list[tuple[int, tuple[SetState, ...]]] = []
        self.saved: list[int] = []
        self.round = 0
        self.heard: dict[int, int] | None = None
        """The newest report of each worker that was looked at; None where a later look may see an older one,
        as a new leader's may."""

    @property
    def job(self) -> tuple[SetState, ...]:
        return self.versions[-1]

    def look(self, lag: int, write: str) -> None:
        """A controller looks, at reports that may be old, and writes now, never, or late."""
        version = max(0, len(self.versions) - 1 - (lag if write == "late" else 0))
        voices = []
        for index, told in self.reports.items():
            if told:
                at = max(0, len(told) - 1 - self.choose.randint(0, lag))
                if self.heard is not None:
                    at = self.heard[index] = max(at, self.heard.get(index, 0))
                incarnation, status = told[at]
                voices.append(voice_of(index, incarnation, status))
        alive = {worker.index: worker.incarnation for worker in self.workers.values()}
        before = tuple(read_back(each) for each in self.versions[version])
        now = NOW + timedelta(seconds=len(self.versions) / 2)
        decided = lease(before, ShardPullers(alive, voices, len(alive)), now)
        if write == "late":
            self.late.append((version, decided))
        elif write == "now":
            self._write(version, decided)

    def write_late(self) -> None:
        for version, decided in self.late:
            self._write(version, decided)
        self.late = []

    def _write(self, version: int, decided: tuple[SetState, ...]) -> None:
        if version == len(self.versions) - 1 and decided != self.job:
            self.versions.append(decided)
            self.check()

    def check(self) -> None:
        check_sets(self.job, self.done, lambda each: each.restoration < self.round)
        for each in self.job:
            failed = Tried((0,) * (each.definition.retries + 1), each.failed)
            for counted in () if self.heard is None else (*each.tried, *each.again, failed):
                for element in (e for start, end in counted.elements for e in range(start, end)):
                    tries = len(self.failures.get(element, ()))
                    assert len(counted.workers) <= tries, f"{element} has failed {tries} times"

    def report(self, worker: Worker) -> None:
        self.reports[worker.index].append((worker.incarnation, worker.holding.to_status(MAX_SHARDS_TEXT)))

    def work(self, worker: Worker) -> None:
        if worker.waits_for <= worker.restoration:
            for element in work(worker, self.choose, self.poison, self.done):
                self.failures.setdefault(element, []).append(worker.index)

    def go_back(self, lost: Worker) -> None:
        """A worker is lost, and all go back to the last checkpoint."""
        self.workers[lost.index] = Worker(lost.index, lost.incarnation + 1, self.definition)
        self.done, self.round = list(self.saved), self.round + 1
        undone = to_text(minus(whole(self.definition.size), of_numbers(self.done)))
        for worker in self.workers.values():
            crash_in_place(worker)
            worker.waits_for = self.round
            worker.holding.ask_for_restoration(self.round, undone)

    def disturb(self, what: Disturbance, worker: Worker) -> None:  # noqa: C901 (a list of what may happen)
        match what:
            case Disturbance.WORK:
                self.work(worker)
            case Disturbance.REPORT:
                self.report(worker)
            case Disturbance.SEE:
                worker.see(self.job)
            case Disturbance.LOOK:
                self.look(self.choose.choice([0, 0, 3]), "now")
            case Disturbance.KILLED_BEFORE_ITS_WRITE:
                self.look(2, "never")
            case Disturbance.LEADS_NO_MORE:
                self.look(2, "late")
            case Disturbance.LATE_WRITE:
                self.write_late()
            case Disturbance.DEATH:
                self.workers[worker.index] = Worker(worker.index, worker.incarnation + 1, self.definition)
            case Disturbance.CRASH_IN_PLACE:
                crash_in_place(worker)
            case Disturbance.NOBODY_PULLS:
                worker.holding.leaving = not worker.holding.leaving
            case Disturbance.FEWER:
                if len(self.workers) > 1:
                    del self.workers[worker.index]
            case Disturbance.MORE:
                index = max(self.workers) + 1
                self.workers[index] = Worker(index, 1, self.definition)
                self.reports.setdefault(index, [])

    def quiet(self) -> int:
        """Without disturbances from here on, to the end."""
        for rounds in range(20_000):
            for worker in list(self.workers.values()):
                worker.holding.leaving = False
                worker.see(self.job)
                if worker.waits_for > worker.restoration:  # as a process that comes later
                    undone = to_text(minus(whole(self.definition.size), of_numbers(self.saved)))
                    worker.holding.ask_for_restoration(self.round, undone)
                self.work(worker)
                self.report(worker)
            self.look(0, "now")
            if self.job and self.job[0].is_over:
                return rounds
        raise AssertionError(f"it never ends: {self.job}")


def read_back(known: SetState) -> SetState:
    """As the API server gives it back."""
    return of_status(TypeAdapter(ShardSetStatus).validate_python(known.to_status().to_wire()))


@settings(max_examples=15, deadline=None)
@given(
    workers=st.integers(1, 5),
    size=st.integers(1, 60),
    retries=st.integers(0, 3),
    poison=st.frozensets(st.integers(0, 59), max_size=3),
    acts=st.integers(0, 400),
    in_order=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_element_is_done_or_named_whatever_happens(
    workers: int, size: int, retries: int, poison: frozenset[int], acts: int, in_order: bool, seed: int
) -> None:
    definition = SetDefinition("train", 0, size, "", retries, size)
    cluster = Cluster(workers, definition, poison, random.Random(seed))
    cluster.heard = {} if in_order else None
    for _ in range(acts):
        what = cluster.choose.choices(list(Disturbance), [act.value for act in Disturbance])[0]
        cluster.disturb(what, cluster.choose.choice(list(cluster.workers.values())))
    cluster.quiet()
    (over,) = cluster.job
    failed = {e for start, end in over.failed for e in range(start, end)}
    assert set(cluster.done) | failed == set(range(size)), "lost"
    assert over.done == size - len(failed)
    assert not failed & set(cluster.done) or len(failed) <= 3 * len(poison), "named though it was done"


@settings(max_examples=10, deadline=None)
@given(
    workers=st.integers(1, 4), size=st.integers(1, 60), acts=st.integers(0, 300), seed=st.integers(0, 2**32)
)
def test_what_goes_back_with_a_checkpoint_is_in_the_model_once(
    workers: int, size: int, acts: int, seed: int
) -> None:
    """`done` is here what a model has learnt: a loss takes it back to the checkpoint, with the set."""
    definition = SetDefinition("train", 0, size, "", 3, 0)
    cluster = Cluster(workers, definition, frozenset(), random.Random(seed))
    others = {Disturbance.DEATH, Disturbance.NOBODY_PULLS, Disturbance.FEWER, Disturbance.MORE}
    usual = [act for act in Disturbance if act not in others]
    for _ in range(acts):
        worker = cluster.choose.choice(list(cluster.workers.values()))
        match cluster.choose.choices(["save", "loss", "usual"], [5, 3, 100])[0]:
            case "save" if all(w.waits_for <= w.restoration for w in cluster.workers.values()):
                cluster.saved = list(cluster.done)
            case "loss":
                cluster.go_back(worker)
            case _:
                cluster.disturb(cluster.choose.choices(usual, [act.value for act in usual])[0], worker)
    cluster.quiet()
    assert sorted(cluster.done) == list(range(size))


def test_a_failed_element_is_tried_by_others_first_and_then_named() -> None:
    cluster = Cluster(3, SetDefinition("train", 0, 50, "", 2, 1), frozenset({17}), random.Random(1))
    cluster.choose = random.Random(4)
    cluster.quiet()
    (over,) = cluster.job
    assert 17 in {e for start, end in over.failed for e in range(start, end)}
    assert len(set(cluster.failures[17])) == 3, "each of the three has tried it"
    assert over.reason == "element 17 is bad"


def test_what_failed_is_not_leased_again_before_its_worker_has_heard_that_it_counts() -> None:
    """Two looks at one report: an agent that saw the second alone took the new lease for failed as well."""
    definition = SetDefinition("train", 0, 1, "", 3, 0)
    alone, tries = Worker(0, 1, definition), 0
    sets: tuple[SetState, ...] = ()
    for _ in range(20):
        alone.see(sets)
        if (part := alone.holding.take(1)) is not None:
            tries += 1
            alone.holding.fail(part, "bad")
        voice = voice_of(0, 1, alone.holding.to_status(MAX_SHARDS_TEXT))
        for _ in range(2):
            sets = lease(sets, ShardPullers({0: 1}, [voice], 1), NOW)
    assert sets[0].failed == ((0, 1),) and tries == 4


@pytest.mark.parametrize("place", ["waiting", "failed", "tried"])
def test_a_set_that_is_too_scattered_fits_its_status_and_fails_the_job(place: str) -> None:
    """The set is as large as one may be, so that the text is as long as it gets."""
    size, apart = 2**53 - 1, random.Random(1)
    ends = sorted({*apart.sample(range(size), 2 * MAX_WAITING + 10_000)})
    scattered = tuple(zip(ends[::2], ends[1::2], strict=True))
    assert len(scattered) > MAX_WAITING
    known = SetState(SetDefinition("train", 0, size, "", 3, size - 1), ())
    value: Any = (
        (Tried((0, 1), scattered), Tried((1,), ((size - 1, size),))) if place == "tried" else scattered
    )
    known = replace(known, **{place: value})
    found = read_back(known)
    assert found.scattered == known.scattered != ""
    left = union(found.waiting, found.failed, *(each.elements for each in found.tried))
    assert not minus(scattered, left), "what is not named is not done again"
    assert read_back(found) == found
    assert "separate places" in ending([read_back(known)])


def test_leases_that_are_too_scattered_for_the_status_go_back_and_lose_nothing() -> None:
    """A hundred workers have done all but a thousand elements here and there of what they hold."""
    workers, each, apart = 100, 10**9, random.Random(1)
    definition = SetDefinition("train", 0, workers * each, "", 3, 0)
    held = tuple(Lease(w, 0, w + 1, ((w * each, (w + 1) * each),)) for w in range(workers))
    left = [{w * each, *(w * each + n for n in apart.sample(range(each), 1_000))} for w in range(workers)]
    voices = [
        Voice(w, 0, definition, w + 1, of_numbers(sorted(left[w])), (), "", True) for w in range(workers)
    ]
    known = SetState(definition, (), held, again=(Tried((1,), ((0, 1),)),), last_lease=workers)
    (found,) = lease([known], ShardPullers(dict.fromkeys(range(workers), 0), voices, workers), NOW)
    assert (found.leases, found.again) == ((), ())
    assert found.tried == (Tried((1,), ((0, 1),)),)
    assert found.waiting == minus(of_numbers(sorted(set().union(*left))), ((0, 1),))


def scattered_set(histories: int, workers: int) -> tuple[SetState, ShardPullers]:
    """As many ranges wait as may, each worker holds eight and asks for more, and of one it says that it failed.

    Args:
        histories: workers on which a lease of another has failed before.
    """
    definition = SetDefinition("train", 0, 10**6, "", 16, 10**6)
    apart = [(at, at + 1) for at in range(0, 2 * MAX_WAITING + 16 * workers + 2 * histories, 2)]
    failed, leased, waiting = apart[:histories], apart[histories:][: 8 * workers], apart[-MAX_WAITING:]
    leases = tuple(Lease(w, 0, w + 1, tuple(leased[8 * w : 8 * w + 8])) for w in range(workers))
    again = tuple(Tried((w,), (each,)) for w, each in enumerate(failed))
    voices = [
        Voice(each.worker, 0, definition, each.number, each.elements[1:], each.elements[:1], wants=True)
        for each in leases
    ]
    known = SetState(definition, tuple(waiting), leases, again=again, last_lease=workers)
    return known, ShardPullers(dict.fromkeys(range(workers), 0), voices, workers)


def test_a_deal_does_not_walk_through_all_that_waits_or_failed_for_each_worker() -> None:
    known, crew = scattered_set(64, workers=150)
    walked = calls(lambda: lease([known], crew, NOW))
    assert walked < 20 * (MAX_WAITING + 64 * 150)


def test_a_status_names_thousands_of_leased_elements_that_failed_elsewhere() -> None:
    """Each has failed on sixteen workers of replica groups, and no two on the same."""
    far = 2**52
    again = tuple(
        Tried(tuple(range(10**7 + 16 * n, 10**7 + 16 * n + 16)), ((far + 2 * n, far + 2 * n + 1),))
        for n in range(MAX_SCATTERED)
    )
    held = Lease(0, 0, 1, union(*(each.elements for each in again)))
    known = SetState(SetDefinition("train", 0, 2**53 - 1, "", 16, 0), (), (held,), again=again, last_lease=1)
    (found,) = lease([known], ShardPullers({0: 0}, (), 1), NOW)
    assert union(*(each.elements for each in found.again)) == held.elements
    assert {len(each.workers) for each in found.again} == {16}
    assert read_back(found) == found


def test_a_status_with_more_ranges_than_are_written_is_refused() -> None:
    known = SetState(SetDefinition("train", 0, 2**20, "", 3, 0), ((0, 1),))
    many = of_numbers(range(0, 2**19, 2))
    for text in ({"rest": to_text(many)}, {"failed_elements": to_text(many)}):
        with pytest.raises(
            ValueError, match=r"the status of the shard set 'train' cannot be read: .* too long"
        ):
            of_status(replace(known.to_status(), **text))


def test_a_lease_is_work_for_three_seconds_but_no_more_than_an_even_share() -> None:
    def granted(waiting: int) -> int:
        """Elements, where 10 workers have done 100,000 in 100 s: each does 300 in three seconds."""
        known = SetState(
            SetDefinition("train", 0, 100_000 + waiting, "", 3, 0), ((100_000, 100_000 + waiting),)
        )
        voices = [Voice(i, 1, known.definition, 0, (), (), wants=i == 0) for i in range(10)]
        (after,) = lease(
            (replace(known, started_at=NOW),),
            ShardPullers(dict.fromkeys(range(10), 1), voices, 10),
            NOW + timedelta(seconds=100),
        )
        return count(after.leases[0].elements)

    assert [granted(waiting) for waiting in (100_000, 4_000, 1_000, 3)] == [5_000, 300, 100, 1]


def test_a_set_of_a_thousand_workers_has_less_than_fifteen_kilobytes_in_the_status() -> None:
    chance = random.Random(1)
    cuts = sorted(chance.sample(range(1_000_000), 2_000))
    pieces = list(zip(cuts[::2], cuts[1::2], strict=True))
    chance.shuffle(pieces)
    leases = tuple(Lease(i, 1 + i % 3, 20_000 + chance.randrange(3_000), (pieces[i],)) for i in range(1_000))
    known = SetState(
        SetDefinition("train", 0, 1_000_000, "0:1", 3, 0), ((999_999, 1_000_000),), leases, last_lease=23_000
    )
    assert read_back(known) == known
    assert len(json.dumps(known.to_status().to_wire())) < 15_000
