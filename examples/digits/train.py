"""Handwritten digits, trained on any number of workers, through any number of restarts.

What makes a training script elastic is small, and all of it is here:

* `load` before training and `save` every few steps, to a directory that outlives the Pod;
* a checkpoint that does not depend on how many workers wrote it, so fewer or more can go on from it;
* data order drawn from (seed, epoch) alone, so that a restart sees the samples it would have seen;
* `dlr.report_step`, so that the cluster can tell slow from stuck (does nothing outside of dlr).

Runs unchanged under `dlr run`, under stock `torchrun`, and as one plain process.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import dlr

SEED = 7
GLOBAL_BATCH = 64


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
    return parser.parse_args()


def load_data(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels: the same split on every worker."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED)).to(device)
    test, train = order[:360], order[360:]
    return images[train], labels[train], images[test], labels[test]


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


def save(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Written aside, forced to disk, then renamed: a crash leaves the old checkpoint or the new."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / "checkpoint.tmp"
    with aside.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / "checkpoint.pt")


def load(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """The step to go on from: 0 where there is no checkpoint yet."""
    path = directory / "checkpoint.pt"
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


class StopRequest:
    """SIGTERM means: this Pod or this round is about to end. Save, then go."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True


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
    images, labels, test_images, test_labels = load_data(device)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first_step = load(args.checkpoint_dir, model, optimizer, device)
    replica = DistributedDataParallel(model) if dist.is_initialized() else model
    steps_per_epoch = len(images) // GLOBAL_BATCH
    last_step = args.epochs * steps_per_epoch
    print(f"rank {rank} of {world}: steps {first_step} to {last_step}", flush=True)

    for step in range(first_step + 1, last_step + 1):
        epoch, batch_index = divmod(step - 1, steps_per_epoch)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED + epoch))
        batch = order[batch_index * GLOBAL_BATCH :][:GLOBAL_BATCH][rank::world]
        loss = nn.functional.cross_entropy(replica(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_delay_seconds)

        dlr.report_step(step)
        if rank == 0 and (stop.received or step == last_step or step % args.save_every_steps == 0):
            save(args.checkpoint_dir, step, model, optimizer)
            print(f"step {step}/{last_step} loss {loss.item():.3f} saved", flush=True)
        if stop.received:
            raise SystemExit(128 + signal.SIGTERM)

    if rank == 0:
        with torch.no_grad():
            accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
        result = {"accuracy": accuracy, "steps": last_step, "world_size": world}
        (args.checkpoint_dir / "result.json").write_text(json.dumps(result))
        print(f"test accuracy {accuracy:.2%} after {last_step} steps on {world} workers", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
