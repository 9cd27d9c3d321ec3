"""Handwritten digits in replica groups: when a process of one group dies, the other groups train on.

Within a group this is any DDP script. Across groups it is `dlr.replicas.join`: gradients are averaged in
`optimizer.step()`, and `steps` counts the steps that all groups have applied. A group that comes back takes
model, optimizer and data position over from the others, so nothing here saves or loads a checkpoint. Only if
all groups go at once, also by a suspension, does training begin at step 0 again; against that, give `join` a
`Checkpointer`, as in docs/groups.md.

Runs unchanged under `dlr run`, under stock `torchrun`, and as one plain process: then there is one group.
"""

import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: it would keep that to the end
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import dlr
import dlr.replicas
from dlr.data import ElasticBatchSampler

DATA = Path(__file__).parents[1] / "digits/digits.csv.gz"
STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # leaves time to kill something
SEED = 7
GLOBAL_BATCH = 96  # samples a step, over all groups that are there
MICRO_BATCH = 16  # samples that a worker computes at once


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels, for training and for testing: the same split on every worker."""
    digits = np.loadtxt(DATA, delimiter=",")
    images = torch.tensor(digits[:, :-1], dtype=torch.float32) / 16
    labels = torch.tensor(digits[:, -1], dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")  # of this group's workers
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(SEED)
    train_data, test_data = load_data()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = ElasticBatchSampler(
        train_data, world, rank, seed=SEED, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH
    )
    loader = DataLoader(train_data, batch_sampler=sampler)
    within = DistributedDataParallel(model) if dist.is_initialized() else model
    replicas = dlr.replicas.join(within, optimizer, state={"data": sampler})

    batches = sampler.global_batches(loader)  # through all epochs
    for step in replicas.steps(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for micro in next(batches):
            images, labels = micro.data
            with micro.accumulate(within):
                loss = nn.functional.cross_entropy(within(images), labels) * micro.weight
                loss.backward()
            total += loss.detach()
        time.sleep(STEP_SECONDS)
        optimizer.step()  # applied by all groups, or by none
        dlr.report(step, loss=total)
        if rank == 0 and step % 50 == 0:
            _, groups = replicas.contributors
            print(f"step {step}: loss {total.item():.3f}, gradients of {groups} group(s)", flush=True)

    if rank == 0:
        images, labels = test_data.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        print(f"test accuracy {accuracy:.2%} after {STEPS} steps", flush=True)
    if dist.is_initialized():
        del within
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
