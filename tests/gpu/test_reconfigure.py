"""Groups that are formed again in their processes over NCCL: two ranks on one GPU, as on two hosts."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from agent.torch_compat import reconfigure
from agent.torch_compat.versions import can_reform_groups
from tests.forks import forks

ROUNDS = (1, 2, 3)


def await_all(store: Store, key: str, count: int) -> None:
    while store.add(key, 0) < count:
        pass


def sums(rank: int, port: int) -> list[float]:
    """The sum of both ranks' numbers in each round. NCCL refuses to have one GPU twice on a host."""
    os.environ.update(NCCL_HOSTID=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(0)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    groups, found = reconfigure.ReformableGroups(), []
    groups.adopt()
    for round_ in ROUNDS:
        groups.form(round_, reconfigure.round_store(os.environ), reconfigure.Place(rank, 2), await_all)
        number = torch.full((1,), float(rank + round_), device="cuda")
        dist.all_reduce(number)
        found.append(number.item())
        groups.break_off()
    return found


def test_groups_over_nccl_are_formed_again() -> None:
    if not can_reform_groups(torch.__version__):
        pytest.skip("torch forms groups again from 2.14 on")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(2, forks) as pool:
        found = [future.result() for future in [pool.submit(sums, rank, store.port) for rank in (0, 1)]]
    assert found == [[2.0 * round_ + 1 for round_ in ROUNDS]] * 2
