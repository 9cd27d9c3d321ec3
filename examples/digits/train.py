"""Handwritten digits, trained on any number of workers, through any number of restarts.

What makes a training script elastic is small, and all of it is here:

* `Checkpointer` saves model, optimizer and data to the memory of the Pods, and now and then to storage, and
  `load` brings the newest back: so a killed process or Pod costs a few steps;
* its `step` also tells the cluster how far training is, so that slow can be told from stuck; and before a
  planned change (a rescale, a suspension, a drained node) all workers leave in it after the same step, which
  is saved: so that costs none;
* `ElasticBatchSampler` deals each global batch to the workers that are there, so that every step learns
  from the same samples with any number of them, and an epoch from every sample once.

Runs unchanged under `dlr run`, under stock `torchrun`, and as one plain process. ../plain is the same with
checkpoints of the script's own.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: see the end of `main`
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from dlr.checkpoint import Checkpointer
from dlr.data import ElasticBatchSampler, GlobalBatch

DATA = Path(__file__).parents[1] / "digits/digits.csv.gz"
EPOCHS = int(os.environ.get("EPOCHS", "10"))
CHECKPOINT_DIR = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"))
STEP_DELAY_SECONDS = float(os.environ.get("STEP_DELAY_SECONDS", "0"))  # time to watch a recovery
SEED = 7
GLOBAL_BATCH = 64  # samples a step, over all workers
MICRO_BATCH = 32  # samples that a worker computes at once: what fits into a GPU's memory


def load_data(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """Images and labels, for training and for testing: the same split on every worker."""
    digits = np.loadtxt(DATA, delimiter=",")
    images = torch.tensor(digits[:, :-1], dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits[:, -1], dtype=torch.int64, device=device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED)).to(device)
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def learn(batch: GlobalBatch[list[Tensor]], model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """One step of all workers; the mean loss over the global batch, whoever computed which part of it."""
    optimizer.zero_grad()
    total = torch.zeros((), device=next(model.parameters()).device)
    for micro in batch:
        images, labels = micro.data
        with micro.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels) * micro.weight
            loss.backward()
        total += loss.detach()
    optimizer.step()  # a checkpoint that is still copied from a GPU is waited for
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return total


@record
def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    torch.manual_seed(SEED)
    train_data, test_data = load_data(device)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = ElasticBatchSampler(
        train_data, world, rank, seed=SEED, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH
    )
    loader = DataLoader(train_data, batch_sampler=sampler)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    ckpt = Checkpointer(CHECKPOINT_DIR, state, every=1, persist_every=50)  # without `every`, dlr chooses it
    step = ckpt.load() or 0
    replica = DistributedDataParallel(model) if dist.is_initialized() else model
    last_step = EPOCHS * sampler.steps_per_epoch
    print(f"rank {rank} of {world}: steps {step} to {last_step}", flush=True)

    while sampler.epoch < EPOCHS:
        for batch in sampler.global_batches(loader):
            loss = learn(batch, replica, optimizer)
            step += 1
            time.sleep(STEP_DELAY_SECONDS)
            if rank == 0 and step % 10 == 0:
                print(f"step {step}/{last_step} loss {loss.item():.3f}", flush=True)
            if ckpt.step(step):
                return  # the job goes on elsewhere, behind this step
    ckpt.close()

    if rank == 0:
        images, labels = test_data.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        result = {"accuracy": accuracy, "steps": last_step, "world_size": world}
        CHECKPOINT_DIR.mkdir(parents=True, exist_ok=True)
        (CHECKPOINT_DIR / "result.json").write_text(json.dumps(result))
        print(f"test accuracy {accuracy:.2%} after {last_step} steps on {world} workers", flush=True)
    if dist.is_initialized():
        # A group that is still there when Python shuts down may keep the process from ending, or abort it, as
        # its threads let go of tensors. DDP has the group; and torch.distributed.nn keeps it for ever, in
        # defaults of its functions, if DDP or an optimizer is the first to import it, when there is a group.
        del replica
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
