"""Real processes with gloo: what they go on from, whatever the size of the world was, is what they had."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch

from dlr.checkpoint.saver import persist
from tests.checkpoint.states import request as request_of
from tests.checkpoint.worlds import Slots, assert_undisturbed, lines, run, start

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


def train_in_worlds(folder: Path, sizes: tuple[int, int, int], *arguments: str) -> None:
    """Train five steps in worlds of these sizes: the second goes on from memory, and the last from storage."""
    slots, final = Slots(), str(folder / "final")
    run(folder, sizes[0], "--steps", "2", *arguments, slots=slots, round=1)
    run(folder, sizes[1], "--steps", "3", *arguments, slots=slots, round=2)
    persist_held(slots, folder / "path")
    run(folder, sizes[2], "--steps", "5", *arguments, "--final", final, round=3)
    assert starts(folder) == [(0, "fresh"), (2, "trained"), (3, "trained")]


@pytest.mark.parametrize("model", ["ddp", "fsdp"])
def test_three_ranks_then_two_then_three_from_memory_and_from_storage(tmp_path: Path, model: str) -> None:
    train_in_worlds(tmp_path, (3, 2, 3), "--model", model)
    assert_undisturbed(tmp_path, 5)


def test_tensor_parallelism_hsdp_and_both_on_four_ranks_then_two_then_four(tmp_path: Path) -> None:
    train_in_worlds(tmp_path, (4, 2, 4), "--model", "meshes", "--width", "6")
    assert_undisturbed(tmp_path, 5, "meshes", "--width", "6")


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
