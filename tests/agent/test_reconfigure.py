"""What becomes of the script's groups; torch's table of them is the test's own."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from agent.torch_compat.reconfigure import ReformableGroups, UnsupportedGroupError

LIMIT = timedelta(seconds=77)
"""The script's own time limit for collectives."""


class Group:
    def __init__(self, backend: str) -> None:
        self._device_types = [torch.device("cpu")]
        self.backends = [backend]

    def _get_backend(self, _: object) -> Any:
        return SimpleNamespace(name=lambda: self.backends[-1], options=SimpleNamespace(_timeout=LIMIT))

    def _register_backend(self, *_: object) -> None:
        self.backends.append("custom")

    def _set_default_backend(self, _: object) -> None: ...

    def rank(self) -> int:
        return 0

    size = rank


@pytest.mark.parametrize("later", ["gloo", "ucc"])
def test_where_one_group_cannot_be_formed_again_all_stay_as_they_were(
    monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    groups = [Group("gloo"), Group(later)]
    world = SimpleNamespace(
        pg_map={group: (group.backends[0], None) for group in groups},
        pg_names={group: str(number) for number, group in enumerate(groups)},
        pg_group_ranks={group: {0: 0} for group in groups},
    )
    monkeypatch.setattr(distributed_c10d, "_world", world)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    limits = []
    monkeypatch.setattr(ReformableGroups, "_make", lambda *given: limits.append(given[-1]))
    found = ReformableGroups()
    if later == "ucc":
        with pytest.raises(UnsupportedGroupError, match="the process group '1' has the backend ucc"):
            found.adopt()
        assert [group.backends for group in groups] == [["gloo"], ["ucc"]]
    else:
        found.adopt()
        assert [group.backends for group in groups] == [["gloo", "custom"]] * 2
        assert limits == [LIMIT] * 2
