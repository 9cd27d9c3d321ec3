"""Hugging Face's Trainer, or a subclass of it.

    trainer = Trainer(...)
    train(trainer, "/data/run1")            # instead of trainer.train(): continues from the newest checkpoint

Written for transformers 5.23. With another number of ranks, the Trainer continues at the number of steps, and
counts epochs of the new length.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from dlr.checkpoint import Checkpointer, leaving

KEPT = ("epoch", "global_step", "best_metric", "best_global_step", "best_model_checkpoint", "total_flos")
"""Saved fields of the Trainer's state. Its log_history is not saved, since it grows with the run."""


def train(trainer: Trainer, path: str | os.PathLike[str], **options: Any) -> TrainOutput:
    """Train from the newest checkpoint to the end, and save after steps of the optimizer.

    It saves the model, the optimizer, the scheduler, the scaler, and the state that callbacks export.

    Args:
        path: as in `Checkpointer`.
        options: further arguments of `Checkpointer`, such as `every` and `persist_every`.
    """
    checkpointer = Checkpointer(path, {}, **options)
    callback = _MemoryCheckpoint(trainer, checkpointer)
    trainer.add_callback(callback)
    step = checkpointer.find()
    if step is None:
        return trainer.train()
    # The Trainer's own saves look up the control and each callback that exports its state.
    exporting = [
        it for it in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(it, ExportableState)
    ]
    state = TrainerState(
        global_step=step, train_batch_size=trainer._train_batch_size, stateful_callbacks=exporting
    )
    state.compute_steps(trainer.args, trainer.args.max_steps)
    trainer._load_from_checkpoint = lambda *_, **__: None  # the callback loads the model, too
    try:
        with TemporaryDirectory() as folder:
            state.save_to_json(str(Path(folder) / TRAINER_STATE_NAME))
            return trainer.train(resume_from_checkpoint=folder)
    finally:
        del trainer._load_from_checkpoint


class _MemoryCheckpoint(TrainerCallback):
    def __init__(self, trainer: Trainer, checkpointer: Checkpointer) -> None:
        self._trainer = trainer
        self._checkpointer = checkpointer
        self._rng: torch.Tensor | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        kept = {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler}
        self._checkpointer.state.update(kept, progress=_Progress(self._trainer))
        if self._trainer.accelerator.scaler is not None:
            self._checkpointer.state["scaler"] = self._trainer.accelerator.scaler
        if self._checkpointer.load() is not None and state.epoch % 1:
            self._rng = torch.get_rng_state()  # the skipped batches draw random numbers

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._rng is not None:
            torch.set_rng_state(self._rng)
            self._rng = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._checkpointer.step(state.global_step):
            leaving.leave()  # skips the code after `train`, which expects the end of the training

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._checkpointer.close()
        self._trainer.remove_callback(self)


class _Progress:
    """Progress of the Trainer, and the state that its callbacks export."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self._trainer.state, name) for name in KEPT}
        return {"state": state, "callbacks": [callback.state() for callback in self._exporting()]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        vars(self._trainer.state).update(saved["state"])
        for callback, exported in zip(self._exporting(), saved["callbacks"], strict=True):
            vars(callback).update(exported["attributes"])

    def _exporting(self) -> list[ExportableState]:
        return [it for it in self._trainer.callback_handler.callbacks if isinstance(it, ExportableState)]
