"""Checkpoints of a job with replica groups: one path for all, and one group that writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from crds import names
from dlr.checkpoint import Checkpointer, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.surroundings import look_around
from dlr.replicas.state import further

pytestmark = pytest.mark.real


@dataclass
class Groups:
    has_state: bool = True
    writes_checkpoints: bool = True


def as_group(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    monkeypatch.setenv(names.ENV_NAMESPACE, "default")
    monkeypatch.setenv(names.ENV_GROUPED_JOB, "llm")
    monkeypatch.setenv(names.ENV_JOB_NAME, f"llm-group-{index}")
    monkeypatch.setenv(names.ENV_GROUP_INDEX, str(index))


def saved(path: Path, groups: Groups, step: int) -> Checkpointer:
    """A Checkpointer that has loaded, and was called after this step."""
    ckpt = Checkpointer(path, {"model": torch.nn.Linear(2, 2)}, persist_every=1)
    ckpt.join(groups, loads=True)
    ckpt.step(step)
    return ckpt


def test_groups_share_a_path_and_one_writes_what_another_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_group(monkeypatch, 1)
    first = saved(tmp_path, Groups(), 7)
    weight = first.state["model"].weight.detach().clone()
    first.close()
    as_group(monkeypatch, 0)
    other = Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 2)})
    assert other.join(Groups(), loads=True) == 7
    assert torch.equal(other.state["model"].weight, weight)
    assert other.load_beyond(7) is None
    other.close()


@pytest.mark.parametrize("groups", [Groups(writes_checkpoints=False), Groups(has_state=False)])
def test_a_group_that_does_not_write_or_has_not_the_state_saves_nothing(
    groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_group(monkeypatch, 0)
    saved(tmp_path, groups, 7).close()
    assert list(storage.steps_in(files_at(tmp_path))) == []


def test_what_a_later_look_finds_is_what_another_group_has_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_group(monkeypatch, 0)
    early = Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 2)}, persist_every=None)
    assert early.join(Groups(), loads=True) is None
    as_group(monkeypatch, 1)
    saved(tmp_path, Groups(), 3).close()
    assert early.load_beyond(0) == 3
    early.close()


def test_a_group_that_knows_no_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_group(monkeypatch, 0)
    ckpt = Checkpointer(tmp_path, {})
    for use in (ckpt.load, lambda: ckpt.step(1)):
        with pytest.raises(RuntimeError, match=r"dlr\.replicas\.join"):
            use()
    ckpt.close()


def test_what_two_groups_write_after_a_failure_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = set()
    for index in (0, 1):
        as_group(monkeypatch, index)
        here = look_around()
        assert here.job == "default/llm"
        attempts |= {here.attempt, here.after_failure}
    assert len(attempts) == 4


def test_the_rest_of_a_checkpoint_follows_once() -> None:
    model, ema = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    wrapped = torch.nn.Sequential(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    checkpoint = {"net": model, "opt": optimizer, "ema": ema, "scheduler": scheduler, "epoch": 3}
    shared = {"model": wrapped, "optimizer": optimizer, "scheduler": scheduler}
    assert further(checkpoint, shared) == {"checkpoint_ema": ema}
