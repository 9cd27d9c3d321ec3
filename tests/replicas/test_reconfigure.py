"""Whether the processes of a world agree that all of them can live on."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from agent.torch_compat import reconfigure


@pytest.mark.parametrize("has_come", [True, False])
def test_all_live_on_or_none_does_and_who_comes_too_late_learns_that(
    has_come: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_c10d, "_world", SimpleNamespace(pg_map={}))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(reconfigure, "AGREE_SECONDS", timedelta(milliseconds=1))
    store = HashStore()
    if has_come:
        PrefixStore("dlr-survivors/1/", store).add("able", 1)
    for _ in range(2):
        assert reconfigure.ReformableGroups().are_supported(1, store) is has_come
