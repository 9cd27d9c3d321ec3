"""Checkpoints of a state on a GPU: copied beside the training's stream, and brought back bit by bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.slots.format import Mark
from dlr.checkpoint import Checkpointer
from dlr.checkpoint.memory import Writer, private_slot
from dlr.checkpoint.state import capture
from tests.checkpoint.states import load, tell
from tests.checkpoint.test_background import newest, slots_for
from tests.checkpoint.worlds import Slots, lines, run, start

LONG_CYCLES = 2_000_000_000
"""Of a GPU that waits: more than half a second on any."""


def on_gpu(value: float, size: int = 5_000) -> dict[str, Any]:
    """A module and an optimizer, all of whose tensors have that value."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(size, 3)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    made = {"model": model, "optimizer": optimizer}
    fill(made, value)
    torch.cuda.synchronize()
    return made


def tensors(made: dict[str, Any]) -> list[torch.Tensor]:
    kept = [value for values in made["optimizer"].state.values() for value in values.values()]
    return [*made["model"].state_dict().values(), *kept]


def fill(made: dict[str, Any], value: float) -> None:
    with torch.no_grad():
        for tensor in tensors(made):
            tensor.fill_(value)


def assert_all(made: dict[str, Any], value: float) -> None:
    assert all(bool((tensor == value).all()) for tensor in tensors(made))


@pytest.fixture
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    writer = Writer(slots_for(on_gpu(0)))
    yield writer
    writer.discard()


def held(writer: Writer, size: int = 5_000) -> float:
    """The value in the newest slot, once all that was saved is there."""
    writer.close()
    loaded = on_gpu(-1, size)
    load(loaded, newest(list(writer._slots)))
    values = {float(tensor.flatten()[0]) for tensor in tensors(loaded)}
    assert len(values) == 1
    assert_all(loaded, (value := values.pop()))
    return value


def test_a_save_takes_what_the_stream_has_computed_and_the_host_waits_for_nothing(writer: Writer) -> None:
    made = on_gpu(1)
    writer.save(Mark(1, 1, 0, 1), capture(made))  # registers a slot, which may wait
    writer.wait()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    fill(made, 2)
    writer.save(Mark(1, 2, 0, 1), capture(made))
    writer.wait()
    fill(made, 3)
    reached = torch.cuda.Event()
    reached.record()
    assert not reached.query(), "the host has waited for the GPU"
    assert held(writer) == 2


def test_a_slot_is_registered_by_its_first_save_and_given_back_at_the_end(writer: Writer) -> None:
    made = on_gpu(1)
    writer.prepare()
    writer._summing.submit(int).result()
    registered = [sum(slot.whole().is_pinned() for slot in writer._slots)]
    for step in range(1, 5):
        writer.save(Mark(1, step, 0, 1), capture(made))
        registered.append(sum(slot.whole().is_pinned() for slot in writer._slots))
        writer.wait()
    assert registered == [0, 1, 2, 3, 3]
    writer.close()
    assert not any(slot.whole().is_pinned() for slot in writer._slots)


def test_all_kinds_of_numbers_come_back() -> None:
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn)
    state: dict[str, Any] = {str(kind): torch.rand(7, 5, device="cuda").mul(9).to(kind) for kind in kinds}
    state["scalar"], state["empty"] = torch.tensor(3.0, device="cuda"), torch.empty(0, device="cuda")
    state["rows"] = torch.arange(12.0, device="cuda").view(3, 4).t()
    state["host"] = torch.arange(5)
    slot = private_slot(capture(state))
    writer = Writer([slot])
    writer.save(Mark(1, 1, 0, 1), capture(state))
    writer.close()
    fresh = {name: torch.zeros_like(value) for name, value in state.items()}
    load(fresh, slot)
    for name, value in state.items():
        assert fresh[name].device == value.device
        assert torch.equal(as_bytes(fresh[name]), as_bytes(value)), name


def as_bytes(value: torch.Tensor) -> torch.Tensor:
    return value.cpu().contiguous().flatten().view(torch.uint8)


class Captures:
    """A step of training as a CUDA graph, with an optimizer that can be captured."""

    def __init__(self) -> None:
        self.parameter = nn.Parameter(torch.zeros(64, device="cuda"))
        self.parameter.grad = torch.ones_like(self.parameter)
        self.optimizer = torch.optim.AdamW([self.parameter], capturable=True)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": nn.ParameterList([self.parameter]), "optimizer": self.optimizer}

    def warm_up(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.optimizer.step()
        torch.cuda.current_stream().wait_stream(side)

    def capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.optimizer.step()
        return graph


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_can_be_captured_into_a_graph(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first save, or while one is under way; then its replays are what training consists of."""
    training = Captures()
    training.warm_up()
    tell(monkeypatch, tmp_path, *slots_for(training.state), round=1)
    checkpointer = Checkpointer(tmp_path / "path", training.state, every=1, persist_every=None)
    assert checkpointer.load() is None
    graph = training.capture() if when == "before" else None
    if graph is None:
        torch.cuda._sleep(LONG_CYCLES)
        checkpointer.step(1)
        graph = training.capture()
    values: dict[int, torch.Tensor] = {}
    for step in range(2, 6):
        checkpointer.wait()
        graph.replay()
        checkpointer.step(step)
        values[step] = training.parameter.detach().clone()
    checkpointer.close()
    assert len({float(value[0]) for value in values.values()}) == 4
    fresh = Captures()
    fresh.warm_up()
    load(fresh.state, newest(list(checkpointer._memory._slots)))  # type: ignore[union-attr]
    assert torch.equal(fresh.parameter, values[5])


@pytest.mark.parametrize(("model", "world"), [("plain", 1), ("bn", 2), ("ddp", 2), ("fsdp", 2)])
def test_training_over_nccl_goes_on_from_memory_as_if_nothing_had_happened(
    model: str, world: int, tmp_path: Path
) -> None:
    shape = ("--model", model, "--device", "cuda", "--width", "64")
    (alone := tmp_path / "alone").mkdir()
    run(alone, world, "--steps", "8", "--final", str(alone / "final"), *shape, slots=Slots(1 << 20))
    (killed := tmp_path / "killed").mkdir()
    slots = Slots(1 << 20)
    processes = start(killed, world, "--steps", "8", "--die-after", "5", *shape, slots=slots)
    for process in processes:
        process.join(300)
    run(killed, world, "--steps", "8", "--final", str(killed / "final"), *shape, slots=slots, round=2)
    starts = [line["start"] for line in lines(killed) if "start" in line]
    assert starts[0] == 0 and starts[1] in (4, 5)
    expected, found = (torch.load(folder / "final", map_location="cpu") for folder in (alone, killed))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    slots.close()


ON_GPU_1 = """
import os, threading
import pynvml, torch
from dlr.checkpoint.memory import Writer, private_slot
from dlr.checkpoint.state import capture
from agent.slots.format import Mark

torch.cuda.set_device(1)
state = {"weight": torch.ones(1 << 20, device="cuda:1")}
writer = Writer([private_slot(capture(state))])
writer.prepare()
writer.save(Mark(1, 1, 0, 1), capture(state))
writer.close()
pynvml.nvmlInit()
first = pynvml.nvmlDeviceGetHandleByIndex(0)
assert os.getpid() not in [it.pid for it in pynvml.nvmlDeviceGetComputeRunningProcesses(first)]
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")
def test_a_save_on_gpu_1_makes_no_context_on_gpu_0() -> None:
    """It needs NVML to see this container's processes by their own numbers, as without a PID namespace."""
    subprocess.run([sys.executable, "-c", ON_GPU_1], check=True, timeout=120)
