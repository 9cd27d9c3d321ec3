"""The gradient of a step, and so the loss curve, is the single process's at every world size."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from dlr.data import ElasticBatchSampler
from tests.forks import METHOD

EPOCHS = 2
WORLDS = (1, 3, 4)
MICRO_BATCH = 2
SAMPLES = 23
GLOBAL_BATCH = 10
"""Steps of 10, 10 and 3 samples: fewer, in the last, than the largest world has ranks."""

DATA = TensorDataset(
    torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.randint(3, (SAMPLES,), generator=torch.Generator().manual_seed(2)),
)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradients(model: nn.Module) -> Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )


def alone(epochs: int) -> tuple[list[float], Tensor]:
    """The loss of each step, and the model in the end, of one process and one backward a step."""
    model, optimizer = build()
    sampler = ElasticBatchSampler(DATA, 1, 0, global_batch_size=GLOBAL_BATCH)
    losses = []
    while sampler.epoch < epochs:
        for batch in sampler.global_batches(iter(sampler)):
            inputs, targets = DATA[batch.indices]
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, parameters(model)


@given(world=st.integers(1, 5), batch=st.integers(1, SAMPLES), micro=st.none() | st.integers(1, 4))
def test_weighted_gradients_averaged_over_ranks_are_those_of_the_whole_batch(
    world: int, batch: int, micro: int | None
) -> None:
    model, _ = build()
    ranks = [
        ElasticBatchSampler(DATA, world, rank, global_batch_size=batch, micro_batch_size=micro)
        for rank in range(world)
    ]
    for sampler in ranks:
        for _ in range(sampler.steps_per_epoch - 2):  # each is like the last but one
            sampler.advance()
    for step in zip(*(sampler.global_batches(iter(sampler)) for sampler in ranks), strict=True):
        model.zero_grad()
        for share in step:
            for part in share:
                inputs, targets = DATA[part.data]
                (cross_entropy(model(inputs), targets) * part.weight / world).backward()
        averaged = gradients(model)

        model.zero_grad()
        inputs, targets = DATA[[index for share in step for index in share.indices]]
        cross_entropy(model(inputs), targets).backward()
        torch.testing.assert_close(averaged, gradients(model), rtol=1e-12, atol=1e-14)


def rank_of_several_worlds(rank: int, store: str, directory: Path) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", f"file://{store}", timeout=timeout, rank=rank, world_size=max(WORLDS))
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    for world, group in groups.items():
        if rank < world:
            torch.save(train(rank, world, group), directory / f"ddp-{rank}-of-{world}.pt")
            torch.save(train_sharded(rank, world, group), directory / f"fsdp-{rank}-of-{world}.pt")
    dist.barrier()
    dist.destroy_process_group()


def train(rank: int, world: int, group: dist.ProcessGroup) -> tuple[list[float], Tensor, int]:
    """The loss of each step, the model in the end, and how many times gradients were averaged."""
    model, optimizer = build()
    replica = DistributedDataParallel(model, process_group=group)
    averaged = 0

    def counting(pg: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        nonlocal averaged
        averaged += 1
        return allreduce_hook(pg, bucket)

    replica.register_comm_hook(group, counting)
    losses = train_replica(rank, world, group, replica, optimizer, lambda: None)
    return losses, parameters(model), averaged


def train_sharded(rank: int, world: int, group: dist.ProcessGroup) -> tuple[list[float], Tensor, int]:
    """The same with FSDP2, which has a gradient once it is averaged."""
    model, _ = build()
    for layer in (model[0], model[2]):  # type: ignore[index]
        fully_shard(layer, mesh=DeviceMesh.from_group(group, "cpu"))
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    averaged = 0

    def count() -> None:
        nonlocal averaged
        averaged += any(parameter.grad is not None for parameter in model.parameters())

    losses = train_replica(rank, world, group, model, optimizer, count)
    whole = [parameter.full_tensor().detach().flatten() for parameter in model.parameters()]  # type: ignore[attr-defined]
    return losses, torch.cat(whole), averaged


def train_replica(
    rank: int,
    world: int,
    group: dist.ProcessGroup,
    replica: nn.Module,
    optimizer: torch.optim.Optimizer,
    after_backward: Callable[[], None],
) -> list[float]:
    """Train, and return the loss of each step."""
    sampler = ElasticBatchSampler(
        DATA, world, rank, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH
    )
    loader = DataLoader(DATA, batch_sampler=sampler)
    losses = []
    while sampler.epoch < EPOCHS:
        for batch in sampler.global_batches(loader):
            optimizer.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for micro in batch:
                inputs, targets = micro.data
                with micro.accumulate(replica):
                    loss = cross_entropy(replica(inputs), targets) * micro.weight
                    loss.backward()
                after_backward()
                total += loss.detach()
            optimizer.step()
            dist.all_reduce(total, group=group)
            losses.append(total.item() / world)
    return losses


@pytest.mark.real
def test_ddp_and_fsdp2_train_the_same_model_at_every_world_size(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(
        rank_of_several_worlds, (str(tmp_path / "store"), tmp_path), nprocs=max(WORLDS), start_method=METHOD
    )
    losses, model = alone(EPOCHS)
    for kind, world in product(("ddp", "fsdp"), WORLDS):
        for rank in range(world):
            found_losses, found_model, averaged = torch.load(tmp_path / f"{kind}-{rank}-of-{world}.pt")
            assert found_losses == pytest.approx(losses, rel=1e-12), (kind, rank, world)
            torch.testing.assert_close(found_model, model, rtol=1e-12, atol=1e-14)
            assert averaged == len(losses), "gradients are averaged once a step"
