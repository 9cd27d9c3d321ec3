"""Lightning with checkpoints in memory: one callback.

A small network learns to sum its inputs. Lightning finds the cluster by the variables that torchrun sets.
"""

import os
import time

import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dlr.integrations.lightning import MemoryCheckpoint

OUT = os.environ.get("OUT", "/data/lightning")
EPOCHS = int(os.environ.get("EPOCHS", "10"))
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0"))  # leaves time to kill something


class Summing(LightningModule):
    """Learns the sum of its inputs. Put your module in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        del index
        time.sleep(PAUSE_SECONDS)
        inputs, targets = batch
        loss = (self.net(inputs) - targets).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    inputs = torch.randn(4096, 16, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    trainer = Trainer(
        accelerator="auto",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=EPOCHS,
        default_root_dir=OUT,
        enable_checkpointing=False,  # dlr saves
        enable_progress_bar=False,
        logger=False,
        callbacks=[MemoryCheckpoint(f"{OUT}/checkpoints", persist_every=200)],
    )
    trainer.fit(Summing(), loader)
    if trainer.is_global_zero:
        print(
            f"loss {float(trainer.callback_metrics['loss']):.4f} after step {trainer.global_step}", flush=True
        )


if __name__ == "__main__":
    main()
