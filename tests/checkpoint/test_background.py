"""What is copied while training goes on, and what must be copied before."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from agent.slots.format import Commit, Mark
from agent.slots.slot import Slot
from dlr.checkpoint import Checkpointer
from dlr.checkpoint.memory import Layout, Writer, private_slot
from dlr.checkpoint.state import capture
from tests.checkpoint.states import assert_whole, fork, load, set_step, state

pytestmark = pytest.mark.real


class Gate:
    """Holds the thread that copies, until it is opened."""

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
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def slots_for(made: dict[str, Any], count: int = 3) -> list[Slot]:
    return [private_slot(capture(made)) for _ in range(count)]


def newest(slots: list[Slot]) -> Slot:
    return max((slot for slot in slots if slot.mark is not None), key=lambda slot: slot.mark or 0)


def test_a_step_that_ends_within_an_evaluation_is_saved_as_any_other() -> None:
    made = state(1)
    writer = Writer(slots := slots_for(made))
    with torch.inference_mode():
        writer.save(Mark(1, 1, 0, 1), capture(made))
    for step in range(2, 5):
        writer.wait()
        set_step(made, step)
        writer.save(Mark(1, step, 0, 1), capture(made))
    writer.close()
    assert sorted(slot.mark.step for slot in slots if slot.mark is not None) == [2, 3, 4]
    load(loaded := state(-1), newest(slots))
    assert_whole(loaded, 4)


def test_what_a_forward_pass_and_a_script_may_change_is_copied_at_once(gate: Gate) -> None:
    made = state(1)
    made["average"], made["list"] = torch.ones(3), [1]
    writer = Writer(slots := slots_for(made))
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


class Loader:
    """As torchdata's, which begins its epoch when it is asked where it is."""

    def __init__(self) -> None:
        self.times_asked = 0

    def state_dict(self) -> dict[str, int]:
        self.times_asked += 1
        return {"samples": 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        pass


def with_memory(
    made: dict[str, Any], every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Checkpointer:
    """A checkpointer whose agent has slots for that state."""
    slots = [slot.path for slot in slots_for(made)]
    (tmp_path / "file").write_text(json.dumps({"round": 1, "slots": slots}))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
    return Checkpointer(tmp_path / "path", made, every=every, persist_every=None)


def layout_of(checkpointer: Checkpointer) -> Layout | None:
    """What it has laid out by now, once its threads have done what they were given."""
    assert checkpointer._memory is not None
    checkpointer._memory._summing.submit(int).result()
    return checkpointer._memory._layout


def load_anew(checkpointer: Checkpointer, made: dict[str, Any]) -> None:
    """As a training begins: the optimizer has no tensors at `load`, and some after its first step."""
    kept = dict(made["optimizer"].state)
    made["optimizer"].state.clear()
    assert checkpointer.load() is None
    made["optimizer"].state.update(kept)


def test_load_prepares_the_first_save_and_asks_no_data_loader_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {**state(0), "loader": (loader := Loader())}
    checkpointer = with_memory(made, 1, tmp_path, monkeypatch)
    loader.times_asked = 0
    assert checkpointer.load() is None
    assert loader.times_asked == 0
    prepared = layout_of(checkpointer)
    checkpointer.step(1)
    assert loader.times_asked == 1
    assert prepared is not None and layout_of(checkpointer) is prepared
    checkpointer.close()


def test_the_first_step_prepares_a_later_save_since_by_then_the_optimizer_has_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = state(0)
    checkpointer = with_memory(made, 3, tmp_path, monkeypatch)
    load_anew(checkpointer, made)
    at_load = layout_of(checkpointer)
    checkpointer.step(1)
    prepared = layout_of(checkpointer)
    assert prepared is not None and prepared is not at_load
    checkpointer.step(2)
    checkpointer.step(3)
    assert layout_of(checkpointer) is prepared
    assert checkpointer._memory is not None and len(checkpointer._memory._views) == 3
    checkpointer.close()


def test_a_save_keeps_its_layout_whatever_was_expected_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = state(0)
    checkpointer = with_memory(made, 1, tmp_path, monkeypatch)
    assert checkpointer._memory is not None
    mapped = threading.Event()
    checkpointer._memory._summing.submit(mapped.wait, 300)  # as if the slots were large
    load_anew(checkpointer, made)
    checkpointer.step(1)
    saved = checkpointer._memory._layout
    mapped.set()
    assert layout_of(checkpointer) is saved
    checkpointer.step(2)
    assert layout_of(checkpointer) is saved
    checkpointer.close()


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


def given(slots: list[Slot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell this process, and those that it starts, of the slots, as an agent does."""
    told = {"round": 1, "slots": [slot.path for slot in slots], "resume": None}
    (tmp_path / "file").write_text(json.dumps(told))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))


def test_a_rank_that_may_change_its_parameters_has_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed right after `wait` goes on from the step that was being saved."""
    made, commit = state(1), Slot.commit
    writer = Writer(slots := slots_for(made))

    def late(*args: Any) -> None:
        time.sleep(0.05)
        commit(*args)

    monkeypatch.setattr(Slot, "commit", late)
    for step in (1, 2, 3):
        set_step(made, step)
        writer.save(Mark(1, step, 0, 1), capture(made))
        writer.wait()
        assert newest(slots).mark == Mark(1, step, 0, 1)
    writer.close()


@pytest.mark.parametrize("act", ["the optimizer's step", "the next save"])
def test_it_waits_for_the_copy(act: str, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = state(1)
    given(slots := slots_for(made), tmp_path, monkeypatch)
    checkpointer = Checkpointer(tmp_path / "path", made, every=1, persist_every=None)
    checkpointer.step(1)
    assert gate.reached.wait(300)
    threading.Timer(0.1, gate.open).start()
    if act == "the next save":
        checkpointer.step(2)
    else:
        made["optimizer"].step()
    assert gate.opened.is_set()
    checkpointer.close()
    loaded = state(-1)
    load(loaded, min((slot for slot in slots if slot.mark), key=lambda slot: slot.mark or 0))
    assert_whole(loaded, 1)


def test_a_parameter_that_changes_too_soon_tears_nothing_and_is_copied_at_once_from_then_on(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    made = state(1)
    writer = Writer(slots := slots_for(made))
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


def test_a_parameter_that_changes_after_the_look_and_before_wait_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """torch counts a change when it is complete, so that the thread's look may come too early."""
    made = state(1)
    writer = Writer(slots := slots_for(made))
    writer.save(Mark(1, 1, 0, 1), capture(made))
    slot = newest_when_summed(slots)
    with torch.no_grad():
        made["model"][0].weight.add_(1)
    writer.wait()
    assert slot.mark is None
    assert caplog.text.count("step 1 is not saved to memory: model.0.weight has changed") == 1
    set_step(made, 2)
    writer.save(Mark(1, 2, 0, 1), capture(made))
    with torch.no_grad():
        made["model"][0].weight.add_(1)
    writer.wait()
    writer.close()
    loaded = state(-1)
    load(loaded, newest(slots))
    assert_whole(loaded, 2)


def newest_when_summed(slots: list[Slot]) -> Slot:
    while not any(slot.commit_word is Commit.SUMMED for slot in slots):
        time.sleep(0.001)
    return newest(slots)


def test_a_part_of_a_dtensor_that_changes_too_soon_is_found(gate: Gate, tmp_path: Path) -> None:
    """What is done to a DTensor counts for it, and not for the tensor that it has here."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(4, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        made = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
        writer = Writer(slots := slots_for(made))
        writer.save(Mark(1, 1, 0, 1), capture(made))
        with torch.no_grad():
            model.weight.clamp_(0, 1)
        gate.open()
        writer.wait()
        writer.close()
        assert all(slot.mark is None for slot in slots)
    finally:
        dist.destroy_process_group()


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


def test_after_an_evaluation_an_optimizer_is_saved_by_the_names_of_its_parameters(tmp_path: Path) -> None:
    """A forward pass alone leaves FSDP2's outermost parameters whole, which are not those of the optimizer."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        made = {"optimizer": optimizer, "model": model}
        before = set(capture(made).tensors)
        with torch.no_grad():
            model(torch.ones(1, 4))
        assert set(capture(made).tensors) == before
        assert "optimizer.state.0.weight.exp_avg" in before
    finally:
        dist.destroy_process_group()


def test_an_optimizer_in_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = state(1)
    given(slots_for(made), tmp_path, monkeypatch)
    checkpointer = Checkpointer(tmp_path / "path", made, every=1, persist_every=None)
    checkpointer.step(1)
    assert gate.reached.wait(300)

    def child() -> None:
        signal.alarm(300)
        made["optimizer"].step()

    assert os.waitpid(fork(child), 0)[1] == 0
    gate.open()
    checkpointer.close()


def test_a_fork_is_told_that_the_checkpointer_and_the_memory_are_its_parents(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for a thread that it does not have, or wrote into the slots beside its parent."""
    made = state(1)
    given(slots := slots_for(made), tmp_path, monkeypatch)
    checkpointer = Checkpointer(tmp_path / "path", made, every=1, persist_every=None)
    checkpointer.step(1)
    assert gate.reached.wait(300)

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
    with pytest.raises(TypeError, match="cannot be copied or given to another process: take it out of what"):
        pickle.dumps({"dataset": checkpointer})
    gate.open()
    made["optimizer"].step()
    checkpointer.step(2)
    checkpointer.close()
    assert newest(slots).mark == Mark(1, 2, 0, 1)


@pytest.mark.parametrize("ending", ["exception", "signal"])
def test_a_process_that_ends_while_it_copies_leaves_a_whole_step(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exception it has the last one; killed, the one before."""
    made = state(1)
    slots = slots_for(made)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, threading, torch\n"
        "from dlr.checkpoint import Checkpointer\n"
        "from tests.checkpoint.states import set_step, state\n"
        "made = state(1)\n"
        "ckpt = Checkpointer(sys.argv[1], made, every=1, persist_every=None)\n"
        "ckpt.step(1)\n"
        "ckpt.wait()\n"
        "set_step(made, 2)\n"
        "copy, copying, ending = torch._foreach_copy_, threading.Event(), threading.Event()\n"
        "def slowly(*arguments):\n"
        "    copying.set()\n"
        "    ending.wait(0.5 if sys.argv[2] == 'exception' else 600)\n"
        "    copy(*arguments)\n"
        "torch._foreach_copy_ = slowly\n"
        "ckpt.step(2)\n"
        "copying.wait()\n"
        "if sys.argv[2] == 'exception': raise ValueError\n"
        "if sys.argv[2] == 'signal': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    given(slots, tmp_path, monkeypatch)

    def child() -> None:
        os.execv(sys.executable, [sys.executable, str(script), str(tmp_path / "path"), ending])

    code = os.waitstatus_to_exitcode(os.waitpid(fork(child), 0)[1])
    assert code == {"exception": 1, "signal": -signal.SIGKILL}[ending]
    slot = newest(slots)
    slot.sum_up()
    loaded = state(-1)
    load(loaded, slot)
    assert_whole(loaded, 1 if ending == "signal" else 2)
