"""States whose content follows from a step, and what tells whether they are whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.slots.format import Mark
from agent.slots.slot import Slot
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.in_storage import in_storage
from dlr.checkpoint.memory import Writer, private_slot
from dlr.checkpoint.own_slot import OwnSlot
from dlr.checkpoint.saver import persist
from dlr.checkpoint.sharing import SaveRequest
from dlr.checkpoint.state import capture, restore
from dlr.checkpoint.surroundings import Surroundings


def state(step: int, size: int = 5_000) -> dict[str, Any]:
    """A module and an optimizer that look as if `step` steps had been made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_buffer("large", torch.zeros(size))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    made = {"model": model, "optimizer": optimizer, "step": step}
    set_step(made, step)
    return made


def set_step(made: dict[str, Any], step: int) -> None:
    with torch.no_grad():
        for tensor in tensors(made):
            tensor.fill_(step % 100_003)
    made["step"] = step


def tensors(made: dict[str, Any]) -> list[torch.Tensor]:
    optimizer = made["optimizer"]
    kept = [value for values in optimizer.state.values() for value in values.values()]
    return [*made["model"].state_dict().values(), *kept]


def assert_whole(made: dict[str, Any], step: int) -> None:
    assert made["step"] == step
    for tensor in tensors(made):
        assert (tensor == step % 100_003).all()


def load(made: dict[str, Any], slot: Slot) -> None:
    slot.verify()
    own = OwnSlot(slot)
    restore(made, own.values, own.rng, own.parts, own.fill)


def saved(made: dict[str, Any], mark: Mark) -> Slot:
    """A slot with that state and its sums."""
    slot = private_slot(capture(made))
    write(slot, made, mark)
    return slot


def write(slot: Slot, made: dict[str, Any], mark: Mark) -> None:
    """Save that state into a slot, with its sums."""
    writer = Writer([slot])
    writer.save(mark, capture(made))
    writer.close()


def request(
    slot: Slot | str, mark: Mark, path: Path | str, keep: int | None = 2, job: str = ""
) -> SaveRequest:
    return SaveRequest(
        slot if isinstance(slot, str) else slot.path,
        mark.step,
        mark.round,
        mark.rank,
        mark.world_size,
        str(path),
        f"try{mark.round}",
        job,
        keep,
        beside=f"{AFTER_FAILURE}{mark.round}",
    )


def save(path: Path | str, step: int, job: str = "", keep: int | None = 2, round: int = 1) -> None:
    """Persist the state of a step."""
    slot = saved(state(step), mark := Mark(round, step, 0, 1))
    persist(request(slot, mark, path, keep, job), lambda: None)
    slot.close()


def tell(monkeypatch: pytest.MonkeyPatch, folder: Path, *slots: Slot | str, **told: Any) -> None:
    """Tell this process, and those that it starts, what an agent tells its own."""
    paths = [slot if isinstance(slot, str) else slot.path for slot in slots]
    (folder / "file").write_text(json.dumps({"round": 2, "slots": paths, "resume": None} | told))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(folder / "file"))


def steps_in(path: Path | str) -> list[int]:
    """The steps of the checkpoints in a path, the newest first."""
    return list(storage.steps_in(files_at(path)))


def load_stored(made: dict[str, Any], path: Path | str, step: int) -> None:
    """Load a checkpoint in storage."""
    files = files_at(path)
    source = in_storage(files, storage.read_manifest(files, step), Surroundings(0, 1, "", "a"), made)
    restore(made, source.values, source.rng, source.parts, source.fill)


def fork(child: Any) -> int:
    """Run it in a process of its own, which ends when it returns."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    return pid
