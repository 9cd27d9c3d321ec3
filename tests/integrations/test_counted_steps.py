"""Counted steps in real Trainers go on with the number in the optimizer's state, after their own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.agent.test_step_counter import counting
from tests.integrations import training

pytestmark = pytest.mark.real
STEPS = 5


def test_lightning_goes_on_with_the_number_of_its_own_checkpoint(tmp_path: Path) -> None:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model()

        def training_step(self, batch: Any, _number: int) -> Tensor:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train(steps: int, checkpoint: str | None) -> tuple[int, int]:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with counting() as record:
            trainer.fit(Module(), DataLoader(training.data(), training.BATCH_SIZE), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "saved.ckpt")
        return record.counted

    assert train(STEPS, None) == (1, STEPS)
    assert train(2 * STEPS, str(tmp_path / "saved.ckpt")) == (STEPS + 1, 2 * STEPS)


def test_hugging_faces_trainer_goes_on_with_the_number_of_its_own_checkpoint(tmp_path: Path) -> None:
    import transformers

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            return nn.functional.mse_loss(model(inputs["points"]), inputs["targets"])

    def train(steps: int, checkpoint: str | None) -> tuple[int, int]:
        trainer = Trainer(
            model=training.model(),
            args=transformers.TrainingArguments(
                output_dir=str(tmp_path),
                max_steps=steps,
                save_steps=STEPS,
                per_device_train_batch_size=training.BATCH_SIZE,
                optim="adamw_torch",
                lr_scheduler_type="constant",
                report_to="none",
                remove_unused_columns=False,
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=[{"points": points, "targets": targets} for points, targets in training.data()],
        )
        with counting() as record:
            trainer.train(resume_from_checkpoint=checkpoint)
        return record.counted

    assert train(STEPS, None) == (1, STEPS)
    assert train(2 * STEPS, str(tmp_path / f"checkpoint-{STEPS}")) == (STEPS + 1, 2 * STEPS)
