"""Whether the processes of a world agree that all of them can live on, over a real store."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from agent.torch_compat import reconfigure
from tests.forks import forks

pytestmark = pytest.mark.real


def agrees(rank: int, port: int, *, comes: bool) -> bool:
    """What a process finds that is one of two, if it comes at all."""
    reconfigure.AGREE_SECONDS = timedelta(seconds=1 if not comes else 60)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return (comes or rank == 0) and reconfigure.ReformableGroups().are_supported(1, store)


@pytest.mark.parametrize("comes", [True, False])
def test_all_live_on_or_none_does(comes: bool) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(2, forks) as pool:
        found = [pool.submit(agrees, rank, store.port, comes=comes) for rank in (0, 1)]
        assert [each.result() for each in found] == [comes, comes]
