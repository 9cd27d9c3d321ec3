"""What the ranks of a group agree upon, and where they may meet the other groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dlr import replicas as dlr_replicas
from dlr.replicas.group import OwnGroup


def test_ranks_wait_for_each_other_as_long_as_one_may_wait_for_other_groups(
    monkeypatch: pytest.MonkeyPatch, process_group: None
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)  # one that is alone has no need of a group
    group: Any = OwnGroup()._group
    assert group._get_backend(torch.device("cpu")).options._timeout >= timedelta(days=1)


def test_a_group_of_all_ranks_is_made_without_their_names_so_that_it_is_the_same_in_any_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    for name, answer in (
        ("is_initialized", True),
        ("get_world_size", 3),
        ("get_process_group_ranks", [0, 1, 2]),
    ):
        monkeypatch.setattr(dist, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(dist, "new_group", lambda ranks, *_, **__: asked.append(ranks))
    OwnGroup(object())  # type: ignore[arg-type]
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 2])
    OwnGroup(object())  # type: ignore[arg-type]
    assert asked == [None, [0, 2]]


@pytest.mark.parametrize("sync_every", [None, 1])
def test_a_second_loop_over_steps_is_refused(sync_every: int | None) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = None if sync_every is None else (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    joined = dlr_replicas.join(model, optimizer, sync_every=sync_every, outer=outer)
    for _ in joined.steps(1):
        optimizer.step()
    with pytest.raises(RuntimeError, match="one loop of all steps"):
        next(joined.steps(2))
