"""Training on files that are read in a row, whose order and steps do not depend on the number of workers.

`$OUT/data` has 100 text files of unequal length, one sample a line (made here if there are none yet).
`ElasticStream` deals their lines to the workers, 32 a step, and its place in the epoch is in the checkpoint:
after a crash, or with another number of workers, the epoch goes on with the next line that nobody has had.

Rank 0 appends a line of JSON for each step to `$OUT/steps.jsonl`: its loss, and the samples that all workers
together have learned from. Runs under `dlr run`, under stock `torchrun`, and as one plain process.
"""

import json
import os
import random
import time
import uuid
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: it would keep that to the end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dlr.checkpoint import Checkpointer
from dlr.data import ElasticStream
from dlr.ranks import from_all

EPOCHS = int(os.environ.get("EPOCHS", "3"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))  # leaves time to kill something
FILES = 100


def make_data(folder: Path) -> list[Path]:
    """The same files whoever makes them, and however often."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    files = [folder / f"{number:03}.txt" for number in range(FILES)]
    for file in files:
        lines = [" ".join(f"{draw.uniform(-1, 1):.3f}" for _ in range(4)) for _ in range(draw.randint(1, 60))]
        if not file.exists():
            draft = file.with_suffix(f".{uuid.uuid4().hex}")  # pids repeat across Pods
            draft.write_text("\n".join(lines) + "\n")
            draft.replace(file)
    return files


def read(file: str, start: int) -> Iterator[tuple[str, Tensor]]:
    """The samples of a file, from number `start` on, each with a name."""
    with Path(file).open() as lines:
        for number, line in enumerate(islice(lines, start, None), start):
            yield f"{Path(file).stem}:{number}", torch.tensor([float(value) for value in line.split()])


def collate(samples: list[tuple[str, Tensor]]) -> tuple[list[str], Tensor]:
    names, values = zip(*samples, strict=True)
    return list(names), torch.stack(values)


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    out = Path(os.environ["OUT"])
    files = make_data(out / "data")
    if dist.is_initialized():
        dist.barrier()  # all files are whole now

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stream = ElasticStream(
        files, read, world, rank, seed=7, global_batch_size=32, index=out / "sizes.json", collate=collate
    )
    state = {"model": model, "optimizer": optimizer, "data": stream}
    ckpt = Checkpointer(out / "checkpoints", state, every=1, persist_every=200)
    step = ckpt.load() or 0
    replica = DistributedDataParallel(model) if dist.is_initialized() else model
    print(
        f"rank {rank} of {world} goes on after step {step}, {stream.consumed} samples into its epoch",
        flush=True,
    )

    loader = DataLoader(stream, batch_size=None)
    while stream.epoch < EPOCHS:
        epoch = stream.epoch
        for batch in stream.global_batches(loader):
            step, total, names = step + 1, 0.0, []
            optimizer.zero_grad()
            for micro in batch:
                samples, values = micro.data
                with micro.accumulate(replica):
                    loss = (replica(values).squeeze(1) - values.sum(1).sin()).square().mean()
                    (loss * micro.weight).backward()
                total += loss.item() * micro.weight
                names += samples if micro.weight else []
            ckpt.wait()
            optimizer.step()
            time.sleep(STEP_SECONDS)
            totals, everybodys = zip(*from_all([total, names]), strict=True)
            if rank == 0:
                told = {
                    "step": step,
                    "epoch": epoch,
                    "world": world,
                    "loss": sum(totals) / world,
                    "samples": sorted(chain.from_iterable(everybodys)),
                }
                with (out / "steps.jsonl").open("a") as log:
                    log.write(json.dumps(told) + "\n")
            if ckpt.step(step):
                return  # the job goes on elsewhere, behind this step

    ckpt.close()
    if dist.is_initialized():
        del replica
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
