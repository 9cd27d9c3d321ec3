"""Checkpoints of a job with replica groups: one path for all, and one group that writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agent.slots.process_files import ENV_CHECKPOINT_FILE, ProcessFile
from crds import names
from dlr.checkpoint import Checkpointer, leaving, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.surroundings import look_around
from dlr.replicas import join


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


@pytest.mark.parametrize("number", [lambda step: step, lambda step: step + 1], ids=["as it is", "step + 1"])
def test_a_checkpoint_of_the_groups_has_the_number_of_steps_that_are_in_it(
    tmp_path: Path, number: Callable[[int], int]
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ckpt = Checkpointer(tmp_path, {"model": model}, persist_every=3)
    replicas = join(model, optimizer, checkpoint=ckpt)
    for step in replicas.steps(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert not ckpt.step(number(step))
    assert replicas.applied == 3
    replicas.close()
    ckpt.close()
    assert list(storage.steps_in(files_at(tmp_path))) == [3]


@pytest.mark.parametrize("writes", [True, False])
def test_a_leaving_group_whose_step_another_stores_gives_its_agent_nothing_to_save(
    writes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_group(monkeypatch, 1)
    given, notice = tmp_path / "given", tmp_path / "notice"
    given.write_text(ProcessFile(round=1, notice_file=str(notice)).encode())
    monkeypatch.setenv(ENV_CHECKPOINT_FILE, str(given))
    ckpt = Checkpointer(tmp_path / "run", {"model": torch.nn.Linear(2, 2)}, persist_every=None)
    ckpt.join(Groups(writes_checkpoints=writes), loads=True)
    monkeypatch.setattr(leaving, "boundary", lambda step: "storage")
    monkeypatch.setattr(leaving, "prepare_to_end", lambda: None)
    assert ckpt.step(7)
    told = json.loads(notice.read_text()) if notice.exists() else {}
    assert ("storage" in told and told["storage"] is None) == (not writes)
    assert list(storage.steps_in(files_at(tmp_path / "run"))) == ([7] if writes else [])
