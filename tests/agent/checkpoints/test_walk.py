"""docs/checkpoints.md says by which files a checkpoint comes to another Pod, and those are the ones that it takes."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from dlr.checkpoint import Checkpointer
from tests.agent.checkpoints.test_agreement import World

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/checkpoints.md").read_text()
WALK = re.findall(r"^\d+\. `(\S+\.py)`", PAGE, re.MULTILINE)
TO_THE_PEER = {
    "dlr/checkpoint/checkpointer.py": "step",
    "dlr/checkpoint/state.py": "capture",
    "dlr/checkpoint/memory.py": "save",
    "agent/slots/slot.py": "commit",
    "agent/slots/replication.py": "_offer",
    "agent/slots/wire.py": "offer",
    "agent/slots/server.py": "_answer",
    "agent/checkpoints/holder.py": "_take_replica",
    "agent/slots/pool.py": "fetch_into",
}
TO_THE_REPLACEMENT = {
    "agent/rendezvous/agreement.py": "lead",
    "agent/slots/resume.py": "decide",
    "agent/slots/process_files.py": "write",
    "dlr/checkpoint/surroundings.py": "look_around",
    "dlr/checkpoint/loading.py": "load",
    "dlr/checkpoint/own_slot.py": "own_slot",
}
"""The function of each file by which the walk comes in, in order."""


@contextmanager
def traced(entries: dict[str, str]) -> Iterator[list[str]]:
    """Note the files whose entry is called, in any thread that begins meanwhile, by their first call."""
    found: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if event == "call" and entries.get(file) == frame.f_code.co_name and file not in found:
            found.append(file)

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def test_the_walk_to_the_peer_has_ten_files_at_most_and_the_page_has_all_in_order() -> None:
    assert len(TO_THE_PEER) <= 10
    assert [*TO_THE_PEER, *TO_THE_REPLACEMENT] == WALK


def test_a_checkpoint_passes_the_files_of_the_walk_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(world: World, rank: int) -> Checkpointer:
        folder = world.folder / str(rank)
        for name, value in (
            ("RANK", rank),
            ("WORLD_SIZE", 2),
            ("DLR_CHECKPOINT_FILE", folder / "checkpoint.0"),
        ):
            monkeypatch.setenv(name, str(value))
        return Checkpointer(tmp_path / "path", {"weights": torch.arange(512.0) + rank}, 1, None)

    with traced(TO_THE_PEER) as found:
        world = World(tmp_path, 2)
        world.meet(1)
        processes = [process(world, rank) for rank in range(2)]
        for each in processes:
            each.load()
        found.clear()  # what `load` lays out beforehand
        for each in processes:
            each.step(1)
        deadline = time.monotonic() + 120
        while any(memory.to_status().replicated_step != 1 for memory in world.memories if memory is not None):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert found == list(TO_THE_PEER)
    for each in processes:
        each.close()
    with traced(TO_THE_REPLACEMENT) as found:
        world.replace(0)
        world.meet(2)
        replacement = process(world, 0)
        assert replacement.load() == 1
    assert found == list(TO_THE_REPLACEMENT)
    replacement.close()
    world.close()
