"""Ranks that hold different tensors under one name lose none: each finds its own, or is told that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dlr.checkpoint import Checkpointer
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.sharing import differing, digest, own_of_each
from tests.checkpoint.worlds import lines, run, start


class Shard(nn.Module):
    """A rank's columns of a layer, and a norm whose buffers are anybody's."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.part = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.part(x))
        return out


def by_hand(arguments: list[str]) -> None:
    """Tensor parallelism without DTensors: a rank saves a step, or says what it has loaded."""
    out, path, persist = arguments
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Shard(rank)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    state = {"model": model, "optimizer": optimizer, "noise": generator.get_state()}
    checkpointer = Checkpointer(path, state, every=1, persist_every=int(persist) or None)
    if (step := checkpointer.load() or 0) == 0:
        model(torch.randn(4, 6) + rank).square().sum().backward()
        optimizer.step()
        checkpointer.step(1)
    kept = optimizer.state[model.part.weight]["exp_avg"]
    found = [model.part.weight, kept, model.norm.running_mean, state["noise"].double()[:40]]
    with Path(f"{out}.{rank}").open("a") as file:
        print(json.dumps({"step": step, "found": [tensor.tolist() for tensor in found]}), file=file)
    checkpointer.close()
    dist.destroy_process_group()


def refusals(folder: Path, world: int, **options: object) -> list[str]:
    """What is said by a world that cannot go on."""
    processes = start(folder, world, "0", main=by_hand, round=3, **options)  # type: ignore[arg-type]
    for process in processes:
        process.join(300)
        assert process.exitcode == 1
    said = [(folder / f"err.3.{rank}").read_text().splitlines() for rank in range(world)]
    return [next(line for line in of_rank if "MismatchError: " in line) for of_rank in said]


@pytest.mark.real
def test_storage_keeps_what_each_rank_has_under_the_same_names_and_says_so(tmp_path: Path) -> None:
    run(tmp_path, 2, "1", main=by_hand)
    assert "tensors once a rank, such as model." in (tmp_path / "err.1.0").read_text()
    run(tmp_path, 2, "0", main=by_hand, round=2)
    saved, loaded = zip(lines(tmp_path, 0), lines(tmp_path, 1), strict=True)
    for number in (0, 1, 3):
        assert saved[0]["found"][number] != saved[1]["found"][number]
        assert [of["found"][number] for of in loaded] == [of["found"][number] for of in saved]
    for of in loaded:
        assert of["found"][2] == saved[0]["found"][2], "of buffers, those of rank 0"
    (sentence,) = refusals(tmp_path, 1)
    assert "is for 2 ranks alone: of model.norm.bias each rank had one of its own, under one" in sentence


def pieces_of(tensors: dict[str, Tensor]) -> list[Piece]:
    found = []
    for name, tensor in tensors.items():
        shape, sum_ = tuple(tensor.shape), hash(str(tensor.tolist()))
        found.append(Piece(name, str(tensor.dtype), shape, shape, (0,) * len(shape), 1, sum_))
    return found


def own(*ranks: dict[str, Tensor]) -> set[str]:
    pieces = dict(enumerate(map(pieces_of, ranks)))
    names = differing(pieces)
    digests = {
        rank: {name: digest(tensor) for name, tensor in tensors.items() if name in names}
        for rank, tensors in enumerate(ranks)
    }
    return own_of_each(pieces, json.loads(json.dumps(digests), object_hook=_with_numbers))


def _with_numbers(found: dict[str, object]) -> dict[object, object]:
    return {int(key) if key.isdigit() else key: value for key, value in found.items()}


@given(st.integers(0, 2**31), st.integers(2, 4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_ranks_that_differ_by_rounding_share_what_they_have(
    seed: int, ranks: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(40, 30, generator=generator)
    drifted = [
        {"weight": (weights * (1 + 1e-5 * torch.randn(40, 30, generator=generator))).to(dtype)}
        for _ in range(ranks)
    ]
    assert own(*drifted) == set()
    different = [{**of, "kept": torch.randn(7, 5, generator=generator)} for of in drifted]
    assert own(*different) == {"weight", "kept"} & differing(dict(enumerate(map(pieces_of, different))))


def test_whole_numbers_have_no_rounding_and_other_shapes_are_other_tensors() -> None:
    weight = torch.ones(300)
    near = {"weight": weight * (1 + 1e-6), "seen": torch.tensor(1001)}
    assert own({"weight": weight, "seen": torch.tensor(1000)}, near) == {"seen"}
    assert own({"a": torch.ones(4)}, {"a": torch.ones(2, 2)}) == {"a"}
    assert own({"a": torch.zeros(4)}, {"a": torch.full((4,), float("nan"))}) == {"a"}
    if (packed := getattr(torch, "float4_e2m1fn_x2", None)) is not None:
        assert digest(torch.ones(4, dtype=torch.uint8).view(packed)) is None
    average = torch.tensor([float("nan"), float("inf"), *[1.0] * 62])
    assert own({"a": average, "b": weight}, {"a": average * (1 + 1e-6), "b": weight * (1 + 1e-6)}) == set()
    assert own({"a": torch.full((4,), float("nan"))}, {"a": torch.zeros(4)}) == {"a"}
    assert own({"a": torch.zeros(2, dtype=torch.complex64)}, {"a": torch.full((2,), 1j)}) == {"a"}
    assert own({"a": weight, "b": torch.empty(0)}, {"a": weight, "b": torch.empty(0)}) == set()
