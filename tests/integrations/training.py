"""A small training in each framework, with dropout and shuffled samples, under its checkpoints in memory.

Each rank appends its loss of each batch to OUT.<rank>, before the optimizer's step.
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
    torch.set_num_threads(1)
    return parser.parse_args(arguments)


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
    ckpt = AcceleratorCheckpointer(args.path, accelerator, every=1, persist_every=None)
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
    accelerator.end_training()


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
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=size,
        num_nodes=int(os.environ["WORLD_SIZE"]) // size,
        max_epochs=EPOCHS,
        accumulate_grad_batches=args.accumulate,
        callbacks=[
            MemoryCheckpoint(args.path, every=1, persist_every=None),
            ModelCheckpoint(f"{args.path}-lightning", monitor="validation"),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data(), BATCH_SIZE, shuffle=True), DataLoader(data(), BATCH_SIZE))


def with_transformers(arguments: list[str]) -> None:
    from transformers import Trainer, TrainingArguments

    from dlr.integrations.transformers import train

    args = parse(arguments)
    log = Log(args)

    class Logging(Trainer):  # type: ignore[misc,type-arg]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            loss = nn.functional.mse_loss(model(inputs["points"]), inputs["targets"])
            if self.model.training:
                log.note(self.state.global_step + 1, inputs["points"], loss)
            return loss

    samples = [{"points": points, "targets": targets} for points, targets in data()]
    trainer = Logging(
        model=model(),
        args=TrainingArguments(
            output_dir=f"{args.path}-transformers",
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=0.01,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=samples,
        data_collator=lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]},
    )
    train(trainer, args.path, every=1, persist_every=None)
