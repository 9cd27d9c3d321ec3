"""What is copied while training goes on, and what must be copied before."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from agent.slots.format import Mark
from agent.slots.slot import Slot
from dlr.checkpoint import Checkpointer
from dlr.checkpoint.memory import Layout, Writer, private_slot
from dlr.checkpoint.state import capture
from dlr.checkpoint.tensors import empty_like
from tests.checkpoint.at_once import Gate
from tests.checkpoint.states import assert_whole, fork, load, set_step, state, tell


class Threads:
    """Holds the thread that copies, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        copy = torch._foreach_copy_

        def held(views: list[Tensor], sources: list[Tensor]) -> None:
            self.reached.set()
            assert self.opened.wait(300)
            copy(views, sources)

        monkeypatch.setattr(torch, "_foreach_copy_", held)

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    threads = Threads(monkeypatch)
    yield threads
    threads.open()


def slots_for(made: dict[str, Any], count: int = 3) -> list[Slot]:
    return [private_slot(capture(made)) for _ in range(count)]


def newest(slots: list[Slot]) -> Slot:
    return max((slot for slot in slots if slot.mark is not None), key=lambda slot: slot.mark or 0)


def test_what_a_forward_pass_and_a_script_may_change_is_copied_at_once(gate: Gate) -> None:
    made = state(1)
    made["average"], made["list"] = torch.ones(3), [1]
    writer = Writer(slots := slots_for(made))
    gate.close()
    writer.save(Mark(1, 1, 0, 1), capture(made))
    for buffer in made["model"].buffers():
        buffer.fill_(7)
    made["average"].fill_(7)
    made["list"].append(2)
    made["step"] = 7
    gate.open()
    writer.close()
    loaded = {**state(-1), "average": torch.zeros(3), "list": []}
    load(loaded, newest(slots))
    assert_whole(loaded, 1)
    assert loaded["average"].tolist() == [1, 1, 1] and loaded["list"] == [1]


def test_only_what_an_optimizer_of_the_state_changes_is_left_for_later() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Embedding(3, 2, max_norm=1.0), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(model)
    found = capture({"model": model, "optimizer": optimizer, "average": average}).settled
    assert {name for name in found if "state" not in name} == {
        "model.0.weight",
        "model.2.weight",
        "model.2.bias",
    }
    assert sum("state" in name for name in found) == 4 * 3


@pytest.mark.real
@pytest.mark.parametrize("act", ["the optimizer's step", "the next save"])
def test_it_waits_for_the_copy(
    act: str, threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = state(1)
    tell(monkeypatch, tmp_path, *(slots := slots_for(made)), round=1)
    checkpointer = Checkpointer(tmp_path / "path", made, every=1, persist_every=None)
    checkpointer.step(1)
    assert threads.reached.wait(300)
    threading.Timer(0.1, threads.open).start()
    if act == "the next save":
        checkpointer.step(2)
    else:
        made["optimizer"].step()
    assert threads.opened.is_set()
    checkpointer.close()
    loaded = state(-1)
    load(loaded, min((slot for slot in slots if slot.mark), key=lambda slot: slot.mark or 0))
    assert_whole(loaded, 1)


@pytest.mark.real
def test_a_compiled_step_does_not_compile_the_wait_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would assume each time the versions of the tensors that it saw, and compile again. It imports the
    compiler, which takes three seconds of a core."""
    compiled = list[bool]()
    monkeypatch.setattr(Checkpointer, "wait", lambda _: compiled.append(torch.compiler.is_compiling()))
    made = state(1)
    checkpointer = Checkpointer(tmp_path / "path", made)
    torch.compile(made["optimizer"].step, backend="eager")()
    assert compiled == [False]
    checkpointer.close()


def test_a_parameter_that_changes_too_soon_tears_nothing_and_is_copied_at_once_from_then_on(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    made = state(1)
    writer = Writer(slots := slots_for(made))
    gate.close()
    writer.save(Mark(1, 1, 0, 1), capture(made))
    with torch.no_grad():
        made["model"][0].weight.add_(1)  # without wait()
    gate.open()
    writer.wait()
    set_step(made, 2)
    writer.save(Mark(1, 2, 0, 1), capture(made))
    writer.wait()
    assert "step 1 is not saved to memory: model.0.weight has changed while it was copied" in caplog.text
    with torch.no_grad():
        made["model"][0].weight.add_(1)
    writer.close()
    assert [slot.mark.step for slot in slots if slot.mark is not None] == [2]
    loaded = state(-1)
    load(loaded, newest(slots))
    assert_whole(loaded, 2)


def test_a_part_of_a_dtensor_that_changes_too_soon_is_found(gate: Gate, process_group: None) -> None:
    """What is done to a DTensor counts for it, and not for the tensor that it has here."""
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    made = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    writer = Writer(slots := slots_for(made))
    gate.close()
    writer.save(Mark(1, 1, 0, 1), capture(made))
    with torch.no_grad():
        model.weight.clamp_(0, 1)
    gate.open()
    writer.wait()
    writer.close()
    assert all(slot.mark is None for slot in slots)


def test_a_part_of_a_dtensor_that_is_not_what_its_placements_say_is_refused() -> None:
    """FSDP on three ranks and tensor parallelism on two cut the same dimension."""
    dist.init_process_group("fake", rank=5, world_size=6, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
        made = {}
        for columns in (12, 13):
            made[columns] = nn.Sequential(nn.Linear(3, columns, bias=False))
            parallelize_module(made[columns], mesh["tp"], {"0": ColwiseParallel()})
            fully_shard(made[columns], mesh=mesh["dp"])
        (weight, *_) = Layout(capture({"model": made[12]})).header.entries
        assert weight.global_offset == (10, 0)
        with pytest.raises(ValueError, match=r"model\.0\.weight is \[2, 3\] on this rank, and \[1, 3\] by "):
            Layout(capture({"model": made[13]}))
        for shape in ((), (4,), (4, 4)):
            elsewhere = distribute_tensor(torch.ones(shape), DeviceMesh("cpu", [0, 1, 2]))
            with pytest.raises(ValueError, match="x is a DTensor whose mesh is without this rank"):
                Layout(capture({"x": elsewhere}))
    finally:
        dist.destroy_process_group()


def test_an_empty_dtensor_is_where_its_model_is_and_dense() -> None:
    """An offloaded parameter is on the CPU although its mesh is of GPUs; an expanded one repeats elements."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        of_gpus = DeviceMesh("cuda", [0, 1], _init_backend=False)
        spec: Any = DTensorSpec(of_gpus, (Shard(0),), TensorMeta(torch.Size((8, 4)), (4, 1), torch.float32))
        offloaded: Any = DTensor(torch.ones(4, 4), spec, requires_grad=False)
        assert empty_like(offloaded, torch.bfloat16).device.type == "cpu"
        mesh = init_device_mesh("cpu", (2,))
        expanded = distribute_tensor(torch.ones(8, 1), mesh, [Shard(0)]).expand(8, 4)
        assert empty_like(expanded).stride() == (4, 1)
        assert empty_like(torch.ones(2, requires_grad=True)).requires_grad is False
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("columns", [12, 13, 5])
def test_an_empty_dtensor_is_placed_as_torch_places_it(columns: int) -> None:
    dist.init_process_group("fake", rank=5, world_size=6, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(nn.Linear(3, columns), nn.Linear(columns, columns))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        for parameter in model.parameters():
            by_torch: Any = torch.empty_like(parameter, dtype=torch.bfloat16, requires_grad=False)
            ours: Any = empty_like(parameter, torch.bfloat16)
            assert (ours.dtype, ours.requires_grad, ours.shape) == (torch.bfloat16, False, parameter.shape)
            assert ours._spec == by_torch._spec
            assert ours.to_local().shape == by_torch.to_local().shape
            assert empty_like(parameter)._spec == parameter._spec  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()


@pytest.mark.real
def test_a_fork_is_told_that_the_checkpointer_and_the_memory_are_its_parents(
    threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for a thread that it does not have, or wrote into the slots beside its parent."""
    made = state(1)
    tell(monkeypatch, tmp_path, *(slots := slots_for(made)), round=1)
    checkpointer = Checkpointer(tmp_path / "path", made, every=1, persist_every=None)
    checkpointer.step(1)
    assert threads.reached.wait(300)

    def child() -> None:
        signal.alarm(300)
        for call in (checkpointer.find, checkpointer.load, checkpointer.wait, lambda: checkpointer.step(2)):
            with pytest.raises(
                RuntimeError, match=r"is of process \d+, and this is process \d+, a fork of it"
            ):
                call()
        with pytest.raises(
            RuntimeError, match="in another one that was started from it, and the agent's mem"
        ):
            Checkpointer(tmp_path / "path", made)
        checkpointer.close()

    assert os.waitpid(fork(child), 0)[1] == 0
    with pytest.raises(
        TypeError, match="cannot be copied or sent to another process: keep it out of objects"
    ):
        pickle.dumps({"dataset": checkpointer})
    threads.open()
    made["optimizer"].step()
    checkpointer.step(2)
    checkpointer.close()
    assert newest(slots).mark == Mark(1, 2, 0, 1)
