"""What is decided without I/O: the interval, who writes what, how a state lies in a slot."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from agent.slots.format import Mark
from dlr.checkpoint import interval
from dlr.checkpoint.interval import LARGEST_SHARE, SaveSchedule, best_interval, is_due, next_interval
from dlr.checkpoint.memory import Layout
from dlr.checkpoint.plan import Piece, divide
from dlr.checkpoint.saver import persist
from dlr.checkpoint.state import capture
from tests.checkpoint.states import assert_whole, load, load_stored, request, saved, set_step, state

many = settings(max_examples=50, deadline=None)
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
@given(stall=seconds, step=seconds, failures=failures, copy=seconds)
def test_a_copy_to_another_pod_is_whole_before_its_slot_is_written_into_again(
    stall: float, step: float, failures: float, copy: float
) -> None:
    without, found = best_interval(stall, step, failures), best_interval(stall, step, failures, copy)
    assert copy <= found * step * 1.0001 or found == interval.LARGEST
    assert found == without or found * step <= 2 * max(copy, step) * 1.0001


@many
@given(exponents=st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_a_rank_that_missed_one_decision_keeps_every_other_step_in_common(exponents: list[int]) -> None:
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
    paces = [SaveSchedule(rank, lambda: board, None) for rank in range(ranks)]
    for step in range(start + 1, start + 300):
        for pace in paces[1:]:
            pace.trained(data.draw(st.floats(1e-3, 1)) if step % 40 == 0 else 0.1, False)
        paces[0].trained(0.1, False)
        if step % 5 == 0:
            paces[0].stalled(1e-3)
        assert len({pace.is_due(step, step - 1) for pace in paces}) == 1
    assert paces[0].interval > interval.FIRST


@pytest.mark.parametrize("text", [b"", b"9" * 10_000, b"-16", b"12"])
def test_what_is_no_interval_leaves_the_one_there_is_and_the_next_decision_counts(text: bytes) -> None:
    board = Board()
    paces = [SaveSchedule(rank, lambda: board, None) for rank in range(2)]
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


@many
@given(tree=trees, other=trees)
def test_any_nest_of_values_and_tensors_comes_back_as_it_was(tree: Any, other: Any) -> None:
    slot = saved({"value": with_tensors(tree)}, Mark(1, 1, 0, 1))
    into = {"value": with_tensors(other)}
    load(into, slot)
    assert_equal(into["value"], with_tensors(tree))
    slot.close()


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


class WithExtraState(nn.Linear):
    """Keeps more than tensors of its own, as TransformerEngine's modules do."""

    kept: Any = None

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


EXTRA_STATES = [None, torch.arange(5, dtype=torch.uint8), {"scale": torch.ones(2)}]


@pytest.mark.parametrize("before", EXTRA_STATES)
@pytest.mark.parametrize("after", EXTRA_STATES)
def test_what_a_module_keeps_besides_may_have_any_form(before: Any, after: Any) -> None:
    made, fresh = (nn.Sequential(WithExtraState(2, 2)) for _ in range(2))
    made[0].kept, fresh[0].kept = after, before
    load({"model": fresh}, saved({"model": made}, Mark(1, 1, 0, 1)))
    assert repr(fresh[0].kept) == repr(after)
    assert torch.equal(fresh[0].weight, made[0].weight)


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


def test_a_type_that_torch_cannot_copy_is_refused_with_the_name_of_the_tensor() -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.int4)
    with pytest.raises(TypeError, match=r"^model\.mask cannot be saved: .*int4 .* keep it out of the state$"):
        capture(with_buffer(packed))


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


def test_the_layout_is_kept_until_the_state_has_another_form() -> None:
    made = state(1)
    layout = Layout(capture(made))
    set_step(made, 99_999)
    assert layout.fits(capture(made))
    made["note"] = "x" * 10_000
    assert not layout.fits(capture(made))
    assert not Layout(capture(state(1))).fits(capture(state(1, 5_001)))
