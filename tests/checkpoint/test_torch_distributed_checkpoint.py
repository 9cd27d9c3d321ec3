"""What torch.distributed.checkpoint's users expect: its files, its groups, its limits."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.slots.slot import Mark
from dlr.checkpoint import Checkpointer, MismatchError, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.saver import persist
from tests.checkpoint import torch_alone
from tests.checkpoint.buckets import Bucket
from tests.checkpoint.states import request, saved, state, steps_in
from tests.checkpoint.worlds import assert_undisturbed, lines, run

TORCH_ALONE = Path(torch_alone.__file__)


def alone(*arguments: str) -> None:
    subprocess.run([sys.executable, TORCH_ALONE, *arguments], check=True, cwd="/")


@pytest.mark.real
def test_torch_alone_reads_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "run"
    slot = saved(state(6), mark := Mark(1, 6, 0, 1))
    persist(request(slot, mark, path), lambda: None)
    alone("load", f"{path}/step-6", str(tmp_path / "found"))
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"step": 6, "weight": [[6.0] * 3] * 4, "moments": [[6.0] * 3] * 4}


FORMS = ("stateful", "state_dict", "named", "ddp")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each form, made by torch alone."""
    folder = tmp_path_factory.mktemp("written")
    alone("save", *(f"{form}={folder / form}/step-40" for form in FORMS))
    return folder


@pytest.mark.real
@pytest.mark.parametrize("form", FORMS)
def test_what_torch_alone_has_written_is_gone_on_from(written: Path, form: str) -> None:
    goes_on_from(str(written / form))


@pytest.mark.real
def test_what_torch_alone_has_written_to_object_storage_is_gone_on_from(bucket: Bucket) -> None:
    alone("save", f"stateful={bucket.url}/step-40")
    goes_on_from(bucket.url)


def goes_on_from(path: str) -> None:
    expected, expected_optimizer = torch_alone.trained()
    torch.manual_seed(9)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    made = {"model": model, "optimizer": optimizer, "epoch": 0}
    checkpointer = Checkpointer(path, made, persist_every=1)
    assert checkpointer.load() == 40
    assert made["epoch"] == 7 and optimizer.param_groups[0]["lr"] == 0.25
    for name, tensor in expected.state_dict().items():
        assert torch.allclose(tensor, model.state_dict()[name], rtol=1e-4), name  # made by two processes
    for one, other in zip(expected.parameters(), model.parameters(), strict=True):
        for key, value in expected_optimizer.state[one].items():
            assert torch.allclose(value, optimizer.state[other][key], rtol=1e-4), key
    checkpointer.step(41)
    checkpointer.close()
    assert steps_in(path) == [41, 40]


@pytest.mark.real
def test_what_torch_alone_has_written_is_shared_out_to_ranks(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    run(tmp_path, 2, "--steps", "2", "--model", "fsdp", main=save_by_torch, path=path)
    arguments = ("--steps", "4", "--model", "fsdp", "--final", str(tmp_path / "final"))
    run(tmp_path, 3, *arguments, round=2, path=path)
    assert [line["start"] for line in lines(tmp_path) if "start" in line] == [2]
    assert_undisturbed(tmp_path, 4)


def save_by_torch(arguments: list[str]) -> None:
    """Train two steps, and save them with torch alone."""
    import torch.distributed.checkpoint as dcp

    from tests.checkpoint import training

    dist.init_process_group("gloo")
    model, optimizer = training.build("fsdp", 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in (1, 2):
        mine = training.batch(step, 5)[rank::world]
        optimizer.zero_grad()
        ((model(mine) - mine).square().sum() / len(mine)).backward()
        optimizer.step()
        scheduler.step()
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "note": "torch"}
    dcp.save(state, checkpoint_id=f"{arguments[1]}/step-2")
    dist.destroy_process_group()


@dataclasses.dataclass
class Settings:
    """A class that nobody has registered."""

    rate: float


def test_objects_of_any_class_are_saved_and_loaded_only_where_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made: dict[str, Any] = {"settings": Settings(0.25), "inner": [torch.ones(2)]}
    for weights_only, steps in ((True, []), (False, [1])):
        checkpointer = Checkpointer(tmp_path, made, persist_every=1, weights_only=weights_only)
        checkpointer.step(1)
        checkpointer.close()
        assert steps_in(tmp_path) == steps
    assert "step 1 is not saved: TypeError: settings cannot be saved: " in caplog.text
    assert "weights_only=False if you trust all who can write its checkpoints" in caplog.text
    loaded: dict[str, Any] = {"settings": Settings(0.0), "inner": [torch.zeros(2)]}
    checkpointer = Checkpointer(tmp_path, loaded)
    with pytest.raises(MismatchError, match=r"is refused: \S+\.Settings may not be in a checkpoint"):
        checkpointer.load()
    checkpointer.close()
    checkpointer = Checkpointer(tmp_path, loaded, weights_only=False)
    assert checkpointer.load() == 1
    checkpointer.close()
    assert loaded["settings"] == Settings(0.25) and loaded["inner"][0].tolist() == [1, 1]


@pytest.mark.real
def test_groups_save_and_load_apart_from_each_other(tmp_path: Path) -> None:
    for round_ in (1, 2):
        run(tmp_path, 4, round=round_, main=train_in_groups)
    for rank in range(4):
        first, second = lines(tmp_path, rank)
        assert (first["step"], second["step"]) == (None, 1)
        assert second["weight"] == first["weight"]
    assert lines(tmp_path, 0)[0]["weight"] == lines(tmp_path, 1)[0]["weight"]
    assert lines(tmp_path, 0)[0]["weight"] != lines(tmp_path, 2)[0]["weight"]
    assert [storage.read_manifest(files_at(tmp_path / "path" / name), 1).world_size for name in "ab"] == [
        2,
        2,
    ]


def train_in_groups(arguments: list[str]) -> None:
    """A rank of two groups, each with a model and a path of its own; the second begins later by a collective."""
    out, path = arguments
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rank // 2
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, mine + 1.0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.5)
    checkpointer = Checkpointer(
        f"{path}/{'ab'[mine]}",
        {"model": model, "optimizer": optimizer},
        persist_every=1,
        process_group=groups[mine],
    )
    if mine == 1:
        dist.barrier(groups[1])
    if (step := checkpointer.load()) is None:
        checkpointer.step(1)
    checkpointer.close()
    with Path(f"{out}.{rank}").open("a") as file:
        print(json.dumps({"step": step, "weight": model.weight.tolist()}), file=file)
    dist.destroy_process_group()
