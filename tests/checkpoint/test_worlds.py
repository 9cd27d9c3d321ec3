"""Real processes with gloo: what they go on from, whatever the size of the world was, is what they had."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch

from dlr.checkpoint.saver import persist
from tests.checkpoint import training
from tests.checkpoint.states import request as request_of
from tests.checkpoint.worlds import Slots, lines, run, start

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
