from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reconcilers.world.slots import Slots, present_slots, slots_of, wanted, wanted_slots, with_slots
from tests.reconcilers.build import job


def moving(replicas: int, *sources: int) -> Slots:
    return Slots().moving(sources, replicas)


def test_wanted_are_the_first_indices_that_are_not_retired() -> None:
    assert wanted(3, ()) == (0, 1, 2)
    assert wanted(3, {1}) == (0, 2, 3)
    assert wanted(0, {1}) == ()


def test_removing_the_middle_one_keeps_the_others_and_their_order() -> None:
    assert Slots().without([1], count=3).wanted(3) == (0, 2, 3)


def test_target_of_a_move_exists_besides_the_wanted_until_it_takes_over() -> None:
    slots = moving(3, 1)
    assert slots.moves == {1: 3}
    assert (slots.wanted(3), slots.present(3)) == ((0, 1, 2), (0, 1, 2, 3))
    assert slots.moved(1).present(3) == (0, 2, 3)


def test_growth_during_a_move_takes_the_next_index_and_leaves_the_target_alone() -> None:
    slots = moving(3, 1).moving([1], count=4)
    assert (slots.moves, slots.wanted(4)) == ({1: 3}, (0, 1, 2, 4))
    assert slots.moved(1).wanted(4) == (0, 2, 3, 4)


def test_smaller_count_lets_a_worker_that_is_there_take_the_place() -> None:
    slots = moving(4, 1).moving([1], count=2)
    assert (slots.wanted(2), slots.moves) == ((0, 1), {1: 2})
    assert slots.moved(1).wanted(2) == (0, 2)


def test_move_of_a_slot_that_is_no_longer_wanted_is_dropped() -> None:
    assert moving(4, 3).moving([3], count=2) == Slots()


def test_target_given_up_is_retired_if_slots_behind_it_are_in_use() -> None:
    slots = moving(4, 1, 2).moved(2)
    assert slots.wanted(4) == (0, 1, 3, 5)
    assert slots.moving([], 4).wanted(4) == (0, 1, 3, 5)
    assert slots.moving([], 4).retired == {2, 4}


def test_types_have_slots_of_their_own() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    specs = {"worker": {"replicas": 2, "template": template}, "ps": {"replicas": 1, "template": template}}
    both = with_slots(job(replicaSpecs=specs), {"ps": moving(1, 0)})
    assert (wanted_slots(both, "worker"), present_slots(both, "worker")) == ((0, 1), (0, 1))
    assert (wanted_slots(both, "ps"), present_slots(both, "ps")) == ((0,), (0, 1))
    assert wanted_slots(both, "evaluator") == ()
    done = with_slots(both, {"ps": slots_of(both, "ps").moved(0)})
    assert (done.status.retired, done.status.migrations) == ({"ps": [0]}, {})


INDICES = st.lists(st.integers(0, 12), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("count"), st.integers(0, 9)),
    st.tuples(st.just("remove"), INDICES),
    st.tuples(st.just("move"), INDICES),
    st.tuples(st.just("done"), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=12))
@settings(max_examples=500, deadline=None)
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
            target, final = slots.moves[source], slots.finally_wanted(replicas)
            slots = slots.moved(source)
            assert set(slots.wanted(replicas)) == before - {source} | {target}
            assert slots.finally_wanted(replicas) == final
        present, targets = set(slots.wanted(replicas)), set(slots.moves.values())
        assert len(present) == replicas and present.isdisjoint(targets) and present.isdisjoint(slots.retired)
        assert len(targets) == len(slots.moves) and set(slots.moves) <= present
        assert set(slots.finally_wanted(replicas)) == present - set(slots.moves) | targets
