"""Real processes with gloo: what they go on from, whatever the size of the world was, is what they had."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dlr.checkpoint import Checkpointer, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.saver import persist
from tests.checkpoint import training
from tests.checkpoint.states import request as request_of
from tests.checkpoint.states import steps_in
from tests.checkpoint.worlds import LIMIT, Slots, lines, run, start

pytestmark = pytest.mark.real


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder) if "loss" in line]


def starts(folder: Path) -> list[tuple[int, str]]:
    return [(line["start"], line["note"]) for line in lines(folder) if "start" in line]


def persist_held(slots: Slots, path: Path) -> None:
    """What the savers of all ranks do, in threads."""
    newest = slots.newest()
    assert newest is not None
    threads = []
    for mark, slot_path in newest.values():
        request = request_of(slot_path, mark, path)
        threads.append(threading.Thread(target=persist, args=(request, lambda: None)))
        threads[-1].start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("model", ["ddp", "fsdp"])
def test_three_ranks_then_two_then_three_from_memory_and_from_storage(tmp_path: Path, model: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    parts.mkdir()
    training.main(
        [str(whole), str(tmp_path / "nowhere"), "--steps", "5", "--model", "plain", "--final", f"{whole}"]
    )
    slots = Slots()
    run(parts, 3, "--steps", "2", "--model", model, slots=slots, round=1)
    run(parts, 2, "--steps", "3", "--model", model, slots=slots, round=2)
    persist_held(slots, parts / "path")
    run(parts, 3, "--steps", "5", "--model", model, "--final", str(parts / "final"), round=3)

    assert starts(parts) == [(0, "fresh"), (2, "trained"), (3, "trained")]
    expected, found = torch.load(whole), torch.load(parts / "final")
    assert len(found) == len(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name.removeprefix("module.")], rtol=1e-5, atol=1e-6)


def test_tensor_parallelism_hsdp_and_both_on_four_ranks_then_two_then_four(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    parts.mkdir()
    arguments = ("--model", "meshes", "--width", "6")
    training.main([str(whole), str(tmp_path / "nowhere"), "--steps", "4", "--final", f"{whole}", *arguments])
    slots = Slots()
    run(parts, 4, "--steps", "2", *arguments, slots=slots, round=1)
    run(parts, 2, "--steps", "3", *arguments, slots=slots, round=2)
    persist_held(slots, parts / "path")
    run(parts, 4, "--steps", "4", *arguments, "--final", str(parts / "final"), round=3)

    assert starts(parts) == [(0, "fresh"), (2, "trained"), (3, "trained")]
    expected, found = torch.load(whole), torch.load(parts / "final")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_ranks_that_are_killed_go_on_bitwise_as_if_they_had_not_been(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    run(whole, 2, "--steps", "6", "--model", "bn", "--final", str(whole / "final"))
    slots = Slots()
    processes = start(parts, 2, "--steps", "6", "--model", "bn", "--die-after", "4", slots=slots)
    for process in processes:
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    run(parts, 2, "--steps", "6", "--model", "bn", "--final", str(parts / "final"), slots=slots, round=2)

    (_, (resumed, note)) = starts(parts)
    assert (resumed, note) in ((3, "trained"), (4, "trained")), "step 4 was being copied, or was there"
    expected_losses = losses(whole)
    assert losses(parts) == [*expected_losses[:4], *expected_losses[resumed:]]
    expected, found = torch.load(whole / "final"), torch.load(parts / "final")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def train_with_a_copy_that_never_ends(arguments: list[str]) -> None:
    """Rank 1's third save is never complete. Each rank writes down what it comes to.

    Args:
        arguments: OUT, PATH, and what comes after the call of `wait`: "backward" or "optimizer".
    """
    out, path, waits_before = arguments
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer = training.build("ddp", 5)
    copy, calls = torch._foreach_copy_, itertools.count(1)

    def held(*tensors: list[Tensor]) -> None:
        if next(calls) == 3 and rank == 1:
            threading.Event().wait()
        copy(*tensors)

    torch._foreach_copy_ = held  # type: ignore[assignment]
    checkpointer = Checkpointer(path, {"model": model, "optimizer": optimizer}, every=1, persist_every=None)
    with Path(f"{out}.{rank}").open("a") as lines:
        for step in range(1, 5):
            loss = model(training.batch(step, 5)).square().sum()
            print(json.dumps({"forward": step}), file=lines, flush=True)
            if waits_before == "backward":
                checkpointer.wait()
            loss.backward()
            checkpointer.wait()
            optimizer.step()
            print(json.dumps({"ended": step}), file=lines, flush=True)
            checkpointer.step(step)
    threading.Event().wait()


@pytest.mark.parametrize(("waits_before", "redone"), [("optimizer", 2), ("backward", 1)])
def test_a_rank_killed_while_it_copies_costs_two_steps_at_most_and_one_if_it_waits_before_it_answers_others(
    waits_before: str, redone: int, tmp_path: Path
) -> None:
    slots, deadline = Slots(), time.monotonic() + 300
    processes = start(tmp_path, 2, waits_before, slots=slots, main=train_with_a_copy_that_never_ends)
    last = {"ended": 4} if waits_before == "optimizer" else {"forward": 4}  # no rank can come further
    while not all((tmp_path / f"out.{rank}").exists() for rank in (0, 1)) or last not in lines(tmp_path, 0):
        assert time.monotonic() < deadline and all(process.is_alive() for process in processes)
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.join()
    newest = slots.newest()
    assert newest is not None
    ended = max(line.get("ended", 0) for rank in (0, 1) for line in lines(tmp_path, rank))
    assert ended - newest[0][0].step == redone


def test_without_dlr_storage_is_all_there_is_and_the_saver_of_each_rank_writes_it(tmp_path: Path) -> None:
    arguments = ("--model", "bn", "--persist", "2")
    run(tmp_path, 2, "--steps", "2", *arguments)
    run(tmp_path, 2, "--steps", "3", "--model", "bn", round=2)

    assert starts(tmp_path) == [(0, "fresh"), (2, "trained")]
    manifest = storage.read_manifest(files_at(tmp_path / "path"), 2)
    assert manifest.world_size == 2
    assert {file.name for file in manifest.files} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert [entry.name for entry in (tmp_path / "path").iterdir()] == ["step-2"]


def test_training_goes_on_where_storage_is_full_and_says_so(tmp_path: Path) -> None:
    arguments = ("--steps", "4", "--model", "plain", "--persist", "2")
    processes = start(tmp_path, 1, *arguments, slots=Slots(), environ={LIMIT: "4096"})
    processes[0].join(300)
    assert processes[0].exitcode == 0
    errors = (tmp_path / "err.1.0").read_text()
    assert f"step 2 is not saved to {tmp_path}/path: [Errno 27] File too large; the next save tries" in errors
    assert steps_in(tmp_path / "path") == []


def test_each_rank_finds_in_storage_what_it_alone_has(tmp_path: Path) -> None:
    """As the stages of a pipeline, whose parameters have other names on each rank."""
    for round_ in (1, 2):
        run(tmp_path, 2, round=round_, main=stage)
    for rank in range(2):
        first, second = lines(tmp_path, rank)
        assert (first["step"], second["step"]) == (0, 1)
        assert first["weight"] == second["weight"]


def stage(arguments: list[str]) -> None:
    """A rank that has a stage of its own: it saves a step, or says what it has loaded."""
    out, path = arguments
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.ModuleDict({f"stage{rank}": nn.Linear(3, 3)})
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = Checkpointer(path, {"model": model, "optimizer": optimizer}, persist_every=1)
    if (step := checkpointer.load() or 0) == 0:
        model[f"stage{rank}"](torch.ones(1, 3)).sum().backward()
        optimizer.step()
        checkpointer.step(1)
    checkpointer.close()
    with Path(f"{out}.{rank}").open("a") as file:
        print(json.dumps({"step": step, "weight": model[f"stage{rank}"].weight.tolist()}), file=file)
    dist.destroy_process_group()
