"""A small training in each framework, with dropout and shuffled samples, under its checkpoints in memory.

Each rank appends its loss of each batch to OUT.<rank>, before the optimizer's step. With --defaults, the framework has
the arguments that it has without any; on a CPU, two of them are one world only if they are told to use it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH_SIZE, EPOCHS, FEATURES = 96, 8, 3, 4


class Log:
    """Notes a rank's batches, and kills it in the one that it is told."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = Path(f"{arguments.out}.{os.environ['RANK']}")
        self._die_in = arguments.die_in

    def note(self, step: int, samples: Tensor, loss: Tensor) -> None:
        """This rank is in that step, and has not made it."""
        with self._path.open("a") as file:
            print(json.dumps([step, samples.sum().item(), loss.item()]), file=file)
        if step == self._die_in:
            os.kill(os.getpid(), signal.SIGKILL)


class Regression(nn.Module):
    """A model as the Trainer has it: its forward names the columns of the data, and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.net(points)
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def data() -> TensorDataset:
    points = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
    return TensorDataset(points, points.sum(1, keepdim=True).sin())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("path")
    parser.add_argument("--die-in", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--defaults", action="store_true")
    torch.set_num_threads(1)
    return parser.parse_args(arguments)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the checkpointer: steps of milliseconds would be saved at intervals else."""
    return {"every": 1} if args.defaults else {"every": 1, "persist_every": None}


def with_accelerate(arguments: list[str]) -> None:
    from accelerate import Accelerator

    from dlr.integrations.accelerate import AcceleratorCheckpointer

    args = parse(arguments)
    log = Log(args)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
    loader = DataLoader(data(), BATCH_SIZE, shuffle=True)
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer(args.path, accelerator, **options_of(args))
    ckpt.load()
    for epoch in range(ckpt.epoch, EPOCHS):
        for points, targets in ckpt.batches(loader, epoch):
            with accelerator.accumulate(net):
                loss = nn.functional.mse_loss(net(points), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    log.note(ckpt.state["steps"] + 1, points, loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    ckpt.close()
    # Without end_training: DDP's reducer, which would be the last to have the group then, ends its threads while it
    # holds the GIL, and one of them may wait for that (torch 2.13, ~Reducer and ~ProcessGroupGloo).


def with_lightning(arguments: list[str]) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from dlr.integrations.lightning import MemoryCheckpoint

    args = parse(arguments)
    log = Log(args)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, number: int) -> Tensor:
            points, targets = batch
            loss = nn.functional.mse_loss(self.net(points), targets)
            if (number + 1) % args.accumulate == 0:
                log.note(self.trainer.global_step + 1, points, loss)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("validation", self.net(batch[0]).square().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]

    size = int(os.environ["LOCAL_WORLD_SIZE"])
    callbacks: list[Any] = [MemoryCheckpoint(args.path, **options_of(args))]
    more: dict[str, Any] = {}
    if not args.defaults:
        callbacks.append(ModelCheckpoint(f"{args.path}-lightning", monitor="validation"))
        more = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        strategy="ddp",
        devices=size,
        num_nodes=int(os.environ["WORLD_SIZE"]) // size,
        max_epochs=EPOCHS,
        accumulate_grad_batches=args.accumulate,
        callbacks=callbacks,
        default_root_dir=f"{args.path}-lightning",
        **more,
    )
    trainer.fit(Module(), DataLoader(data(), BATCH_SIZE, shuffle=True), DataLoader(data(), BATCH_SIZE))


def with_transformers(arguments: list[str]) -> None:
    from transformers import Trainer, TrainingArguments

    from dlr.integrations.transformers import train

    args = parse(arguments)
    log = Log(args)

    class Logging(Trainer):  # type: ignore[misc,type-arg]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            loss: Tensor = model(**inputs)["loss"]
            log.note(self.state.global_step + 1, inputs["points"], loss)
            return loss

    more: dict[str, Any] = {} if args.defaults else {"save_strategy": "no", "report_to": "none"}
    trainer = Logging(
        model=Regression(),
        args=TrainingArguments(f"{args.path}-transformers", use_cpu=True, **more),
        train_dataset=[{"points": points, "labels": targets} for points, targets in data()],
    )
    train(trainer, args.path, **options_of(args))
