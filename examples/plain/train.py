"""Handwritten digits as in ../digits, but with checkpoints of the script's own, for who has a way to save.

All that makes such a script elastic is here:

* `load` before training and `save` every few steps, to a directory that outlives the Pod;
* a checkpoint that does not depend on how many workers wrote it, so fewer or more can go on from it;
* `anybody`: one is saved after the very step in which any worker is asked to stop, so that none is lost;
* `ElasticBatchSampler` deals each global batch to the workers that are there, so that every step
  learns from the same samples with any number of them, and an epoch from every sample once;
* `dlr.report`, so that the cluster can tell slow from stuck, and `dlr.checkpoint_saved`, so that it can
  grow where little is lost (both do nothing outside of dlr).

Runs unchanged under `dlr run`, under stock `torchrun`, and as one plain process.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: see the end of `main`
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import dlr
from dlr.data import ElasticBatchSampler, GlobalBatch

DATA = Path(__file__).parents[1] / "digits/digits.csv.gz"
SEED = 7
GLOBAL_BATCH = 64  # samples a step, over all workers
MICRO_BATCH = 32  # samples that a worker computes at once: what fits into a GPU's memory


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=int(os.environ.get("EPOCHS", "10")))
    parser.add_argument(
        "--checkpoint-dir", type=Path, default=Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"))
    )
    parser.add_argument("--save-every-steps", type=int, default=10)
    parser.add_argument(
        "--step-delay-seconds",
        type=float,
        default=float(os.environ.get("STEP_DELAY_SECONDS", "0")),
        help="sleep in every step, as a larger model would compute: leaves time to watch a recovery",
    )
    parser.add_argument(
        "--sample-log-dir",
        type=Path,
        default=os.environ.get("SAMPLE_LOG_DIR"),
        help="write down here which samples each step learns from",
    )
    return parser.parse_args()


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


def save(directory: Path, step: int, **parts: Any) -> None:
    """Written aside, forced to disk, then renamed: a crash leaves the old checkpoint or the new."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / "checkpoint.tmp"
    with aside.open("wb") as file:
        torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / "checkpoint.pt")


def load(directory: Path, device: torch.device, **parts: Any) -> int:
    """The step to go on from: 0 where there is no checkpoint yet."""
    path = directory / "checkpoint.pt"
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"])


def log_samples(directory: Path, rank: int, world: int, step: int, samples: list[int]) -> None:
    """A line for each step and rank. Steps that a restart repeats are there again: the last ones count."""
    directory.mkdir(parents=True, exist_ok=True)
    line = {"step": step, "time": time.time(), "world": world, "samples": samples}
    with (directory / f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


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
    optimizer.step()
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return total


class StopRequest:
    """SIGTERM means: this Pod or this round is about to end. Save, then go."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True


def anybody(asked: bool, device: torch.device) -> bool:
    """Whether any worker is asked to stop: all get the same answer after the same step."""
    votes = torch.tensor(int(asked), device=device)
    if dist.is_initialized():
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes)


@record
def main() -> None:
    args = arguments()
    stop = StopRequest()
    gpu = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")

    torch.manual_seed(SEED)
    train_data, test_data = load_data(device)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = ElasticBatchSampler(
        train_data, world, rank, seed=SEED, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH
    )
    loader = DataLoader(train_data, batch_sampler=sampler)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    step = load(args.checkpoint_dir, device, **state)
    replica = DistributedDataParallel(model) if dist.is_initialized() else model
    last_step = args.epochs * sampler.steps_per_epoch
    print(f"rank {rank} of {world}: steps {step} to {last_step}", flush=True)

    while sampler.epoch < args.epochs:
        for batch in sampler.global_batches(loader):
            step += 1
            if args.sample_log_dir:
                log_samples(args.sample_log_dir, rank, world, step, batch.indices)
            loss = learn(batch, replica, optimizer)
            time.sleep(args.step_delay_seconds)

            dlr.report(step)
            asked = stop.received
            stopping = anybody(asked, device)
            if rank == 0 and (stopping or step == last_step or step % args.save_every_steps == 0):
                save(args.checkpoint_dir, step, **state)
                dlr.checkpoint_saved(step)
                print(f"step {step}/{last_step} loss {loss.item():.3f} saved", flush=True)
            if asked:
                raise SystemExit(128 + signal.SIGTERM)

    if rank == 0:
        images, labels = test_data.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        result = {"accuracy": accuracy, "steps": last_step, "world_size": world}
        (args.checkpoint_dir / "result.json").write_text(json.dumps(result))
        print(f"test accuracy {accuracy:.2%} after {last_step} steps on {world} workers", flush=True)
    if dist.is_initialized():
        # A group that is still there when Python shuts down may keep the process from ending, or abort it, as
        # its threads let go of tensors. DDP has the group; and torch.distributed.nn keeps it for ever, in
        # defaults of its functions, if DDP or an optimizer is the first to import it, when there is a group.
        del replica
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
