"""What is decided without I/O: the interval, who writes what, how a state lies in a slot."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.ao.quantization import PerChannelMinMaxObserver
from torch.testing._internal.two_tensor import TwoTensor

from agent.slots.format import Mark
from dlr.checkpoint import interval
from dlr.checkpoint.interval import LARGEST_SHARE, Pace, best_interval, is_due, next_interval
from dlr.checkpoint.memory import Layout
from dlr.checkpoint.modules import MismatchError
from dlr.checkpoint.own_slot import OwnSlot
from dlr.checkpoint.plan import Piece, divide
from dlr.checkpoint.saver import persist
from dlr.checkpoint.state import capture, restore
from tests.checkpoint.states import assert_whole, load, load_stored, request, saved, set_step, state

many = settings(max_examples=100, deadline=None)
seconds = st.floats(1e-6, 1e4)
failures = st.floats(1e-6, 100)


@many
@given(stall=seconds, step=seconds, failures=failures)
def test_the_interval_is_a_power_of_two_that_costs_no_more_than_its_share(
    stall: float, step: float, failures: float
) -> None:
    found = best_interval(stall, step, failures)
    assert found & (found - 1) == 0
    assert stall / (found * step) <= LARGEST_SHARE * 1.0001 or found == interval.LARGEST
    longest = min(math.sqrt(2 * stall * 3600 / failures), interval.LONGEST_SECONDS)
    assert found * step <= 2 * max(longest, stall / LARGEST_SHARE, step) * 1.0001


@many
@given(stall=seconds, step=seconds, failures=failures)
def test_more_failures_never_mean_fewer_checkpoints(stall: float, step: float, failures: float) -> None:
    assert best_interval(stall, step, failures * 2) <= best_interval(stall, step, failures)
    assert best_interval(stall * 2, step, failures) >= best_interval(stall, step, failures)


@many
@given(stall=seconds, step=seconds, failures=failures, copy=seconds)
def test_a_copy_to_another_pod_is_whole_before_its_slot_is_written_into_again(
    stall: float, step: float, failures: float, copy: float
) -> None:
    without, found = best_interval(stall, step, failures), best_interval(stall, step, failures, copy)
    assert copy <= found * step * 1.0001 or found == interval.LARGEST
    assert found == without or found * step <= 2 * max(copy, step) * 1.0001


@many
@given(exponents=st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_a_rank_that_missed_one_decision_keeps_every_other_step_in_common(
    exponents: list[int],
) -> None:
    present = interval.FIRST
    for exponent in exponents:
        before, present = present, next_interval(present, 2**exponent)
        assert max(before, present) <= 2 * min(before, present)
        assert max(before, present) % min(before, present) == 0


class Board(dict[str, bytes]):
    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        if key not in self:
            raise RuntimeError("nobody has said so, and who asks would wait for ten seconds")
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), ranks=st.integers(2, 4), start=st.integers(0, 50))
def test_all_ranks_save_the_same_steps_whatever_each_measures(
    data: st.DataObject, ranks: int, start: int
) -> None:
    board = Board()
    paces = [Pace(rank, lambda: board, None) for rank in range(ranks)]
    for step in range(start + 1, start + 300):
        for pace in paces[1:]:
            pace.trained(data.draw(st.floats(1e-3, 1)) if step % 40 == 0 else 0.1, False)
        paces[0].trained(0.1, False)
        if step % 5 == 0:
            paces[0].stalled(1e-3)
        assert len({pace.is_due(step, step - 1) for pace in paces}) == 1
    assert paces[0].interval > interval.FIRST


def test_where_copies_to_another_pod_are_slow_fewer_steps_are_saved() -> None:
    copy_seconds = iter([0.0] * 3 + [5.0] * 20)
    pace = Pace(0, Board, 3600.0, lambda: next(copy_seconds))
    intervals = set()
    for step in range(1, 1 << 12):
        pace.trained(0.1, False)
        pace.stalled(1e-6)
        pace.is_due(step, step - 1)
        intervals.add(pace.interval)
    assert min(intervals) * 0.1 < 1.0
    assert 5.0 <= pace.interval * 0.1 <= 10.0


def test_a_rank_that_was_not_told_once_is_told_the_next_decision() -> None:
    """Else its interval would stay, and in the end no step of it be one of the others'."""
    board = Board()
    paces = [Pace(rank, lambda: board, None) for rank in range(2)]
    for step in range(1, 200):
        for pace in paces:
            pace.trained(0.1, False)
            pace.stalled(0.01)
            pace.is_due(step, step - 1)
            if step == interval._FIRST_DECISION + 1:
                board.clear()  # and nobody reads what was decided
    assert paces[0].interval > 2 * interval.FIRST
    assert paces[1].interval == paces[0].interval


@settings(max_examples=30, deadline=None)
@given(data=st.data(), evaluations=st.integers(1, 6))
def test_ranks_in_step_save_the_same_steps_however_late_rank_0_comes_to_a_decision(
    data: st.DataObject, evaluations: int
) -> None:
    """Rank 0 evaluates for a while, step after step, and the others are at the next step before it."""
    board = Board()
    paces = [Pace(rank, lambda: board, None) for rank in range(2)]
    lag, saved = 0, [set[int](), set[int]()]
    for step in range(1, 400):
        if data.draw(st.integers(0, 20)) == 0 and evaluations:
            evaluations -= 1
            lag = 1 - lag
        order = [1, 0] if lag else [0, 1]  # a collective keeps them within a step of one another
        for rank in order:
            paces[rank].trained(0.1, False)
            paces[rank].stalled(0.01)
            if paces[rank].is_due(step, step - 1):
                saved[rank].add(step)
    assert saved[0] == saved[1]
    assert paces[1].interval > 2 * interval.FIRST


garbage = st.binary(max_size=12) | st.integers(-9, 2**70).map(lambda number: str(number).encode())


@many
@given(written=st.lists(garbage | st.sampled_from([b"4", b"8", b"16", b"32"]), min_size=1, max_size=8))
def test_what_a_stranger_writes_is_a_decision_at_most_and_no_absurd_interval(written: list[bytes]) -> None:
    board = Board()
    pace = Pace(1, lambda: board, None)
    decisions, read = iter(written), 0
    for count in range(1 << 12):
        if interval.decides(count):
            board[f"interval/{count}"] = next(decisions, b"\xff")
            read += 1
        before = pace.interval
        pace.is_due(count + 1, count)
        assert pace.interval & (pace.interval - 1) == 0
        assert interval.FIRST / 2**read <= pace.interval <= interval.FIRST * 2**read
        assert pace.interval == before or str(pace.interval).encode() in written


@pytest.mark.parametrize(
    "text", [b"", b"9" * 10_000, b"1_6", b" 16", b"16.0", b"-16", b"12", b"32", b"2097152", b"0"]
)
def test_what_is_no_interval_leaves_the_one_there_is_and_the_next_decision_counts(text: bytes) -> None:
    board = Board()
    paces = [Pace(rank, lambda: board, None) for rank in range(2)]
    for step in range(1, 200):
        for pace in paces:
            pace.trained(0.1, False)
            pace.stalled(0.01)
            if pace is paces[1] and step == interval._FIRST_DECISION + 1:
                board[f"interval/{interval._FIRST_DECISION}"] = text
            pace.is_due(step, step - 1)
        if step == interval.applies_from(interval._FIRST_DECISION) + 1:
            assert paces[1].interval == interval.FIRST
    assert paces[1].interval == paces[0].interval > 2 * interval.FIRST


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rank_that_did_not_reach_the_store_tries_again_at_the_next_decision(is_lost: bool) -> None:
    """Thousands of ranks connect at once, and a connection may break: else that rank is never told."""
    board, lost = Board(), Board()
    found = iter([lost if is_lost else None, board])
    paces = [Pace(0, lambda: board, None), Pace(1, lambda: next(found), None)]
    for step in range(1, 200):
        for pace in paces:
            pace.trained(0.1, False)
            pace.stalled(0.01)
            pace.is_due(step, step - 1)
    assert paces[0].interval > 2 * interval.FIRST
    assert paces[1].interval == paces[0].interval


@many
@given(steps=st.lists(st.integers(1, 40), min_size=1), exponent=st.integers(0, 6), factor=st.integers(1, 4))
def test_steps_with_gaps_are_saved_as_often_and_those_of_larger_intervals_are_steps_of_smaller(
    steps: list[int], exponent: int, factor: int
) -> None:
    """A script that counts batches, and makes a step of every fourth, has steps 3, 7, 11 and so on."""
    small, large = 2**exponent, 2**exponent * factor
    told = [0, *itertools.accumulate(steps)]
    saved, rarer = (
        {step for last, step in itertools.pairwise(told) if is_due(step, last, every)}
        for every in (small, large)
    )
    assert rarer <= saved
    multiples, within_a_step = told[-1] // small, -(-max(steps) // small)
    assert len(saved) <= multiples <= len(saved) * within_a_step
    if max(steps) == 1:
        assert saved == set(range(small, told[-1] + 1, small))


def piece(name: str, offset: int, sum_: int, rows: int = 2) -> Piece:
    return Piece(name, "float32", (rows, 1), (8, 1), (offset, 0), 4 * rows, sum_)


@many
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 2, 4]), st.integers(0, 1))), max_size=5
    )
)
def test_each_piece_is_written_once_by_a_rank_that_has_it(held: list[list[tuple[str, int, int]]]) -> None:
    pieces = [
        list({(name, offset): piece(name, offset, sum_) for name, offset, sum_ in of_rank}.values())
        for of_rank in held
    ]
    written = divide(pieces)
    assert all(set(mine) <= set(having) for mine, having in zip(written, pieces, strict=True))
    places = [mine.place for of_rank in written for mine in of_rank]
    assert len(places) == len(set(places))
    assert set(places) == {one.place for of_rank in pieces for one in of_rank}


def test_equal_pieces_are_shared_out_and_different_ones_are_those_of_the_lowest_rank() -> None:
    same = [piece("a", offset, 7) for offset in (0, 2, 4, 6)]
    assert [len(mine) for mine in divide([same, same])] == [2, 2]
    assert divide([[piece("b", 0, 1)], [piece("b", 0, 2)]])[0] == [piece("b", 0, 1)]


trees = st.recursive(
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from([torch.float32, torch.int8, torch.bool]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2) | st.integers(0, 5), inner, max_size=3)
    ),
    max_leaves=12,
)


def with_tensors(tree: Any) -> Any:
    if isinstance(tree, torch.dtype):
        return torch.arange(6).to(tree).view(2, 3)
    if isinstance(tree, dict):
        return {key: with_tensors(value) for key, value in tree.items()}
    return type(tree)(map(with_tensors, tree)) if isinstance(tree, (list, tuple)) else tree


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b


@pytest.mark.real
@many
@given(tree=trees, other=trees)
def test_any_nest_of_values_and_tensors_comes_back_as_it_was(tree: Any, other: Any) -> None:
    slot = saved({"value": with_tensors(tree)}, Mark(1, 1, 0, 1))
    into = {"value": with_tensors(other)}
    load(into, slot)
    assert_equal(into["value"], with_tensors(tree))
    slot.close()


@pytest.mark.real
def test_module_and_optimizer_come_back_in_place_and_random_numbers_too() -> None:
    made = state(5)
    torch.manual_seed(3)
    slot = saved(made, Mark(1, 5, 0, 1))
    expected = torch.rand(3)
    fresh = state(0)
    weight = fresh["model"][0].weight
    load(fresh, slot)
    assert_whole(fresh, 5)
    assert fresh["model"][0].weight is weight
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.real
def test_numbers_that_numpy_draws_in_another_way_keep_nothing_from_being_saved() -> None:
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(3))
    try:
        load(fresh := state(0), saved(state(5), Mark(1, 5, 0, 1)))
    finally:
        numpy.random.set_bit_generator(before)
    assert_whole(fresh, 5)


class Two(nn.Module):
    """Two layers, which may have one weight together."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(800, 800, bias=False), nn.Linear(800, 800, bias=False)
        if tied:
            self.second.weight = self.first.weight


class Special(nn.Parameter):
    """As quantized parameters are, of a class of their own."""


def unusual(number: float) -> dict[str, Any]:
    """A state with what a slot cannot hold as it is, or what cannot be seen as bytes."""
    model = nn.Linear(2, 2)
    model.special = Special(torch.full((3,), number))
    model.register_buffer("sparse", torch.full((2, 2), number).to_sparse())
    model.register_buffer("conjugate", torch.full((4,), complex(0, number)).conj())
    model.register_buffer("small", torch.full((5,), number).to(torch.float8_e4m3fn))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.state["calls"] = number  # type: ignore[index]  # it is of no parameter
    return {"optimizer": optimizer, "model": model, "sparse": torch.full((2,), number).to_sparse()}


@pytest.mark.real
def test_sparse_and_conjugate_tensors_classes_of_their_own_and_an_optimizers_own_values_come_back() -> None:
    slot = saved(made := unusual(2.0), Mark(1, 1, 0, 1))
    load(back := unusual(0.0), slot)
    # torch.equal() takes none of these.
    assert repr(back["model"].state_dict()) == repr(made["model"].state_dict())
    assert repr(back["sparse"]) == repr(made["sparse"])
    assert back["optimizer"].state["calls"] == 2.0


def with_tensor_of_tensors(number: float) -> dict[str, Any]:
    """A frozen parameter of a class that consists of tensors, as torchao's quantized ones."""
    model = nn.Linear(2, 2)
    parts = TwoTensor(torch.full((40, 40), number), torch.full((40, 40), 2 * number))
    model.base = nn.Parameter(parts, requires_grad=False)
    return {"model": model, "plain": TwoTensor(torch.full((3,), number), torch.ones(3))}


@pytest.mark.real
def test_a_tensor_that_consists_of_tensors_is_not_pickled_and_comes_back(tmp_path: Path) -> None:
    """A pickle of one takes seconds for each gigabyte, in the training's thread."""
    torch.serialization.add_safe_globals([TwoTensor])  # as torchao does with its own
    made = with_tensor_of_tensors(3.0)
    assert len(capture(made).pickles["dlr.values"]) < 2000 < 40 * 40 * 4
    slot = saved(made, mark := Mark(1, 1, 0, 1))
    persist(request(slot, mark, tmp_path), lambda: None)
    load(of_memory := with_tensor_of_tensors(0.0), slot)
    load_stored(of_storage := with_tensor_of_tensors(0.0), tmp_path, 1)
    for back in (of_memory, of_storage):
        assert isinstance(back["model"].base, nn.Parameter) and type(back["plain"]) is TwoTensor
        assert (back["model"].base.a == 3).all() and (back["model"].base.b == 6).all()
        assert (back["plain"].a == 3).all() and (back["plain"].b == 1).all()
    alone = {"model": {"base": with_tensor_of_tensors(0.0)["model"].base}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(alone, checkpoint_id=tmp_path / "step-1")
    assert (alone["model"]["base"].b == 6).all(), "torch alone finds it too"


@pytest.mark.real
def test_a_part_of_a_dtensor_of_a_class_without_memory_is_filled() -> None:
    """As FSDP2 has it where float8 is gathered: the part that a rank has wraps the tensor that has the memory."""
    slot = saved({"model": (made := nn.Linear(4, 4, bias=False))}, Mark(1, 1, 0, 1))
    part = TwoTensor(torch.zeros(4, 4), torch.zeros(4, 4))
    OwnSlot(slot).fill({"model.weight": part})
    assert torch.equal(part.a, made.weight) and torch.equal(part.b, made.weight)


@pytest.mark.real
def test_a_buffer_that_its_module_takes_over_in_another_shape_may_have_grown() -> None:
    """As torch.ao's observers of a channel each, which a training with quantization has."""
    model = nn.ModuleList([nn.Linear(2, 3), PerChannelMinMaxObserver()])
    model[1](model[0](torch.ones(4, 2)).T)
    slot = saved({"model": model}, Mark(1, 1, 0, 1))
    fresh = nn.ModuleList([nn.Linear(2, 3), PerChannelMinMaxObserver()])
    weight = fresh[0].weight
    load({"model": fresh}, slot)
    assert fresh[0].weight is weight and torch.equal(weight, model[0].weight)
    assert torch.equal(fresh[1].min_val, model[1].min_val) and fresh[1].min_val.shape == (3,)
    slot = saved({"model": nn.BatchNorm1d(3, affine=False)}, Mark(1, 1, 0, 1))
    with pytest.raises(MismatchError, match="size mismatch for running_mean"):
        load({"model": nn.BatchNorm1d(4, affine=False)}, slot)


class WithExtraState(nn.Linear):
    """Keeps more than tensors of its own, as TransformerEngine's modules do."""

    kept: Any = None

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


EXTRA_STATES = [
    None,
    torch.empty(0, dtype=torch.uint8),
    torch.arange(5, dtype=torch.uint8),
    {"scale": torch.ones(2)},
]


@pytest.mark.real
@pytest.mark.parametrize("before", EXTRA_STATES)
@pytest.mark.parametrize("after", EXTRA_STATES)
def test_what_a_module_keeps_besides_may_have_any_form(before: Any, after: Any) -> None:
    made, fresh = (nn.Sequential(WithExtraState(2, 2)) for _ in range(2))
    made[0].kept, fresh[0].kept = after, before
    load({"model": fresh}, saved({"model": made}, Mark(1, 1, 0, 1)))
    assert repr(fresh[0].kept) == repr(after)
    assert torch.equal(fresh[0].weight, made[0].weight)


@pytest.mark.real
def test_a_module_that_keeps_what_no_checkpoint_has_is_refused() -> None:
    fresh = WithExtraState(2, 2)
    fresh.kept = 3
    with pytest.raises(MismatchError, match=r"Missing key.*_extra_state"):
        load({"model": fresh}, saved({"model": nn.Linear(2, 2)}, Mark(1, 1, 0, 1)))


@pytest.mark.real
def test_a_plain_value_may_have_grown_and_the_best_weights_may_be_the_models_own_at_first() -> None:
    model = nn.Linear(2, 2)
    best = {name: torch.full_like(value, 7) for name, value in model.state_dict().items()}
    made = {"best": best, "losses": torch.arange(5.0), "model": model, "same": torch.ones(2)}
    slot = saved(made, Mark(1, 5, 0, 1))
    fresh = nn.Linear(2, 2)
    same = torch.zeros(2)
    back = {"best": fresh.state_dict(), "losses": torch.zeros(0), "model": fresh, "same": same}
    load(back, slot)
    assert torch.equal(fresh.weight, model.weight)
    assert all((value == 7).all() for value in back["best"].values())
    assert back["losses"].tolist() == [0, 1, 2, 3, 4]
    assert back["same"] is same and same.tolist() == [1, 1]


def with_buffer(buffer: Tensor) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", buffer)
    return {"model": model}


@pytest.mark.real
def test_tensors_whose_elements_share_their_memory_come_back_where_they_can() -> None:
    made = {"plain": torch.arange(4.0).expand(3, 4), "strided": torch.arange(5.0).as_strided((3, 2), (1, 1))}
    slot = saved(made, Mark(1, 1, 0, 1))
    load(back := {"plain": torch.zeros(4).expand(3, 4), "strided": torch.zeros(3, 2)}, slot)
    assert all(torch.equal(back[name], tensor) for name, tensor in made.items())
    slot = saved(with_buffer(torch.ones(4).expand(3, 4)), Mark(1, 1, 0, 1))
    with pytest.raises(
        MismatchError, match=r"model\.mask has elements that share their memory, as expand\(\)"
    ):
        load(with_buffer(torch.zeros(4).expand(3, 4)), slot)
    load(back := with_buffer(torch.zeros(3, 4)), slot)
    assert torch.equal(back["model"].mask, torch.ones(3, 4))


def test_a_type_that_torch_cannot_copy_is_refused_with_the_name_of_the_tensor() -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.int4)
    with pytest.raises(TypeError, match=r"^model\.mask cannot be saved: .*int4 .* keep it out of the state$"):
        capture(with_buffer(packed))


@pytest.mark.real
def test_a_model_without_memory_is_refused_with_what_to_do() -> None:
    slot = saved({"model": nn.Linear(2, 2)}, Mark(1, 1, 0, 1))
    with pytest.raises(
        MismatchError, match=r"model.weight is on the meta device, so call to_empty\(\) before"
    ):
        load({"model": nn.Linear(2, 2, device="meta")}, slot)


@pytest.mark.real
def test_weights_that_are_tied_now_and_were_not_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlr.checkpoint.own_slot.own_cores", lambda: 2)
    made = {"model": Two(tied=False)}
    slot = saved(made, Mark(1, 1, 0, 1))
    for _ in range(10):
        again = {"model": Two(tied=True)}
        load(again, slot)
        assert torch.equal(again["model"].first.weight, made["model"].second.weight)


@pytest.mark.real
def test_another_model_is_refused_with_a_sentence() -> None:
    slot = saved({"model": nn.Linear(2, 2)}, Mark(1, 5, 0, 1))
    with pytest.raises(MismatchError, match="only the checkpoint has model"):
        load({"model": nn.Linear(2, 2, bias=False)}, slot)
    with pytest.raises(MismatchError, match=r"model.weight is float32\[2, 2\] in the checkpoint"):
        load({"model": nn.Linear(3, 2)}, slot)
    with pytest.raises(MismatchError, match="the checkpoint has model, and the state has net"):
        load({"net": nn.Linear(2, 2)}, slot)


class Twins(nn.Module):
    """Two parameters that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.zeros(2)) for _ in range(2))


def trained_twins(*groups: Sequence[str], steps: int, named: bool = False) -> dict[str, Any]:
    """An optimizer that has them in these groups; their gradients differ."""
    model = Twins()
    twins = dict(model.named_parameters())
    params = [{"params": [(n, twins[n]) if named else twins[n] for n in names]} for names in groups]
    optimizer = torch.optim.Adam(params)
    for _ in range(steps):
        model.one.grad, model.other.grad = torch.full((2,), 1.0), torch.full((2,), 5.0)
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.real
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("named", [False, True])
def test_an_optimizer_may_have_its_parameters_in_another_order(steps: int, named: bool) -> None:
    made = trained_twins(["one", "other"], steps=1, named=named)
    back = trained_twins(["other", "one"], steps=steps, named=named)
    load(back, saved(made, Mark(1, 1, 0, 1)))
    for it in ("one", "other"):
        here, there = (each["optimizer"].state[getattr(each["model"], it)] for each in (back, made))
        assert torch.equal(here["exp_avg"], there["exp_avg"])
    (group,) = back["optimizer"].param_groups
    assert group.get("param_names", ["other", "one"]) == ["other", "one"]


@pytest.mark.real
def test_an_optimizer_whose_groups_have_changed_places_is_refused() -> None:
    slot = saved(trained_twins(["one"], ["other"], steps=1), Mark(1, 1, 0, 1))
    with pytest.raises(MismatchError, match="other parameter groups"):
        load(trained_twins(["other"], ["one"], steps=1), slot)


def test_the_layout_is_kept_until_the_state_has_another_form() -> None:
    made = state(1)
    layout = Layout(capture(made))
    set_step(made, 99_999)
    assert layout.fits(capture(made))
    made["note"] = "x" * 10_000
    assert not layout.fits(capture(made))
    assert not Layout(capture(state(1))).fits(capture(state(1, 5_001)))


class Compiled(nn.Module):
    """As torch.compile wraps a module, without the seconds that it takes to import."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_a_compiled_model_has_the_names_of_what_it_wraps() -> None:
    model = nn.Linear(2, 2)
    wrapped = Compiled(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    names = set(capture({"model": wrapped, "optimizer": optimizer}).tensors)
    assert names == {
        "model.weight",
        "model.bias",
        "optimizer.state.weight.momentum_buffer",
        "optimizer.state.bias.momentum_buffer",
    }


def test_restore_does_not_touch_what_does_not_fit() -> None:
    made = {"model": nn.Linear(2, 2)}
    before = made["model"].weight.clone()
    captured = capture({"model": nn.Linear(3, 2)})
    with pytest.raises(MismatchError):
        restore(made, captured.pickles["dlr.values"], None, [], lambda targets: None)
    assert torch.equal(made["model"].weight, before)
