from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.job_status import QueueAdmission
from reconcilers.observed import slots as slots_module
from reconcilers.observed.slots import (
    FEW_RETIRED,
    Slots,
    as_granted,
    extra_slots,
    is_extra,
    place_of,
    present_slots,
    slots_of,
    vacant_slots,
    wanted,
    wanted_slots,
    with_slots,
)
from reconcilers.worker.assignment import JobAssignment
from tests.reconcilers.build import NOW, job, worker


def finally_wanted(slots: Slots, count: int) -> tuple[int, ...]:
    """The wanted slots when all moves are done."""
    return wanted(count, slots.retired.union(slots.moves))


def moving(replicas: int, *sources: int) -> Slots:
    return Slots().moving(sources, replicas)


def test_types_have_slots_of_their_own() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    specs = {"worker": {"replicas": 2, "template": template}, "ps": {"replicas": 1, "template": template}}
    both = with_slots(job(replicaSpecs=specs), {"ps": moving(1, 0)})
    assert (wanted_slots(both, "worker"), present_slots(both, "worker")) == ((0, 1), (0, 1))
    assert (wanted_slots(both, "ps"), present_slots(both, "ps")) == ((0,), (0, 1))
    assert wanted_slots(both, "evaluator") == ()
    done = with_slots(both, {"ps": slots_of(both, "ps").moved(0)})
    assert (done.status.retired, done.status.migrations) == ({"ps": [0]}, {})


def test_a_slot_is_used_again_only_when_nothing_is_left_of_its_worker() -> None:
    slots = moving(3, 0).moved(0)
    assert slots.moving([1], 3).moves == {1: 4}
    assert slots.moving([1], 3, vacant={0}).moves == {1: 0}
    assert slots.moving([1], 3, vacant={0}).retired == frozenset()


def test_a_slot_is_vacant_without_worker_pod_and_place_in_the_world() -> None:
    world = {"round": 2, "phase": "Formed", "members": "1-4", "incarnations": {}}
    status = {"retired": {"worker": "0,2,5,7", "ps": "0"}, "rendezvous": world}
    found = vacant_slots(job(status=status), {("worker", 5), ("worker", 1)})
    assert found == {"worker": {0, 7}, "ps": {0}}


def test_growth_leaves_a_few_gaps_so_that_ranks_stay_and_fills_many() -> None:
    few = Slots(frozenset(range(FEW_RETIRED)))
    assert few.grown(5, 10, few.retired) == few
    many = Slots(frozenset(range(FEW_RETIRED + 3)))
    assert many.grown(2, 10, many.retired).retired == many.retired - {0, 1}
    assert many.grown(9, 10, many.retired).retired == many.retired - {0, 1, 2}
    assert many.grown(9, 10, {1}).retired == many.retired - {1}


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=20, max_size=60))
def test_indices_stay_bounded_over_any_number_of_removals_and_growths(story: list[tuple[int, float]]) -> None:
    slots, replicas, most = Slots(), 8, 8
    for count, share in story:
        there = slots.wanted(replicas)
        gone = there[: int(len(there) * share)]
        slots = slots.without(gone, replicas - len(gone))
        slots = slots.grown(count - (replicas - len(gone)), count, slots.retired)
        slots = slots.moving((), count, slots.retired)
        replicas, most = count, max(most, count)
        assert len(slots.wanted(count)) == count
        assert max(slots.wanted(count)) < 2 * most + FEW_RETIRED + most // 4


INDICES = st.lists(st.integers(0, 12), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("count"), st.integers(0, 9)),
    st.tuples(st.just("remove"), INDICES),
    st.tuples(st.just("move"), INDICES),
    st.tuples(st.just("done"), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=12))
def test_no_slot_but_a_source_ever_gives_way_to_a_target(story: list[tuple[str, object]]) -> None:
    """Invariants: `replicas` wanted; targets are others; sources are wanted; done moves change nothing else."""
    slots, replicas = Slots(), 4
    for what, value in story:
        before, old = set(slots.wanted(replicas)), replicas
        if what == "count":
            replicas = int(str(value))
            slots = slots.moving(slots.moves, replicas)
            assert len(before & set(slots.wanted(replicas))) == min(old, replicas)
        elif what == "remove":
            gone = [i for i in before if isinstance(value, list) and i in value]
            slots = slots.without(gone, replicas)
            assert before - {*gone} <= set(slots.wanted(replicas))
        elif what == "move":
            asked = [i for i in before if isinstance(value, list) and i in value]
            slots = slots.moving(asked, replicas)
            assert set(slots.wanted(replicas)) == before and set(slots.moves) == {*asked}
        elif slots.moves:
            source = sorted(slots.moves)[int(str(value)) % len(slots.moves)]
            target, final = slots.moves[source], finally_wanted(slots, replicas)
            slots = slots.moved(source)
            assert set(slots.wanted(replicas)) == before - {source} | {target}
            assert finally_wanted(slots, replicas) == final
        present, targets = set(slots.wanted(replicas)), set(slots.moves.values())
        assert len(present) == replicas and present.isdisjoint(targets) and present.isdisjoint(slots.retired)
        assert len(targets) == len(slots.moves) and set(slots.moves) <= present
        assert set(finally_wanted(slots, replicas)) == present - set(slots.moves) | targets


GROWS = {"opportunistic": {"priorityClassName": "idle"}}


@given(
    count=st.integers(0, 30),
    retired=st.sets(st.integers(0, 30), max_size=12),
    sources=st.sets(st.integers(0, 30), max_size=6),
    base=st.integers(0, 30),
)
def test_a_slot_has_the_place_that_it_has_among_all_that_are_wanted(
    count: int, retired: set[int], sources: set[int], base: int
) -> None:
    known = {"replicas": count, "by": "spec", "at": NOW, "base": base}
    of = job(replicas=count, elasticPolicy=GROWS, status={"scaling": known})
    of = with_slots(of, {"worker": Slots(frozenset(retired)).moving(sources, count)})
    all_wanted = wanted_slots(of, "worker")
    for index in range(70):
        assert place_of(of, "worker", index) == (all_wanted.index(index) if index in all_wanted else None)
    slots = slots_of(of, "worker")
    extra = extra_slots(of).union(set(slots.moves.values()).intersection(finally_wanted(slots, count)[base:]))
    assert {index for index in range(70) if is_extra(of, worker(index))} == extra


@given(
    base=st.integers(1, 6),
    more=st.integers(0, 6),
    story=st.lists(st.tuples(st.sampled_from(["loss", "move", "growth"]), st.integers(0, 11)), max_size=60),
)
def test_never_more_pods_have_full_priority_than_workers_were_asked_for(
    base: int, more: int, story: list[tuple[str, int]]
) -> None:
    """Whatever goes, moves or comes while a job has grown, and however many slots are used again."""
    known = {"replicas": base + more, "by": "spec", "at": NOW, "base": base}
    of = job(replicas=base + more, elasticPolicy=GROWS, status={"scaling": known})
    full: set[int] = set()

    def have_pods() -> None:
        present = set(present_slots(of, "worker"))
        full.intersection_update(present)
        full.update(index for index in present - had if not is_extra(of, worker(index)))
        had.clear()
        had.update(present)

    had: set[int] = set()
    have_pods()
    for what, number in story:
        slots, count = slots_of(of, "worker"), of.spec.replica_specs["worker"].replicas
        there = slots.wanted(count)
        vacant = vacant_slots(of, {("worker", index) for index in had})["worker"] if slots.retired else ()
        if what == "move":
            moved = slots.moving([there[number % count]], count, vacant)
            of = with_slots(of, {"worker": moved})
            have_pods()
            for source in moved.moves:
                moved = moved.moved(source)
            of = with_slots(of, {"worker": moved})
        else:
            gone = [there[base + number % (count - base)]] if what == "loss" and count > base else []
            count += -len(gone) if what == "loss" else 1
            after = slots.without(gone, count).grown(1 if what == "growth" else 0, count, vacant)
            spec = of.spec.replica_specs["worker"].model_copy(update={"replicas": count})
            specs = of.spec.model_copy(update={"replica_specs": {"worker": spec}})
            of = with_slots(of.model_copy(update={"spec": specs}), {"worker": after})
        have_pods()
        assert len(full) <= base


def test_what_a_worker_gets_is_made_without_the_slots_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 10,000 workers asks: with the slots of all for each it would be 100 million."""
    made = 0

    def counted(count: int, retired: object) -> tuple[int, ...]:
        nonlocal made
        made += count
        return wanted(count, retired)  # type: ignore[arg-type]

    monkeypatch.setattr(slots_module, "wanted", counted)
    known = {"replicas": 10_000, "by": "spec", "at": NOW, "base": 10}
    of = job(replicas=10_000, elasticPolicy=GROWS, status={"scaling": known})
    assert len(wanted_slots(of, "worker")) == made == 10_000
    for index in (0, 9, 10, 9_999):
        assignment = JobAssignment(worker(index), {}, of)
        assert assignment.is_probe == (index >= 10)
        pod = assignment.build_pod()
        assert ("priorityClassName" in pod["spec"]) == (index >= 10)
    assert made == 10_000


@pytest.mark.parametrize(
    ("granted", "unit", "expected"),
    [
        (0, 1, (4, 2)),
        (3, 1, (3, 0)),
        (5, 1, (4, 1)),
        (6, 1, (4, 2)),
        (9, 1, (4, 2)),
        (3, 2, (2, 1)),
        (5, 4, (4, 1)),
    ],
)
def test_what_a_queue_grants_trains_first_in_whole_units(
    granted: int, unit: int, expected: tuple[int, int]
) -> None:
    """Of a job of which nothing is granted, all is gone: it is stopped."""
    owner = job(replicas=4, worker={"standby": 2}, elasticPolicy={"nodeUnit": unit})
    owner = owner.having(admission=QueueAdmission(queue="q", workers=granted))
    worker = as_granted(owner).spec.replica_specs["worker"]
    assert (worker.replicas, worker.standby) == expected
    assert owner.stops == (granted == 0)
