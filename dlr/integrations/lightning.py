"""Lightning, by one callback.

    trainer = Trainer(callbacks=[MemoryCheckpoint("/data/run1")], ...)
    trainer.fit(model, loader)              # continues from the newest checkpoint

Written for lightning 2.6; it uses three private attributes of its loops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from dlr.checkpoint import Checkpointer, leaving


class MemoryCheckpoint(Callback):
    """Saves after steps of the optimizer, and loads the newest checkpoint at the beginning of `fit`.

    It saves the model, optimizers, schedulers, the precision plugin, the datamodule, the loops, and the state
    of callbacks. The hook `on_save_checkpoint` is not called.

    Args:
        path: as in `Checkpointer`.
        options: further arguments of `Checkpointer`, such as `every` and `persist_every`.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = path
        self._options = options

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        things = [*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)]
        things += [trainer.precision_plugin, *([trainer.datamodule] if trainer.datamodule else [])]
        self._state: dict[str, Any] = {f"{type(it).__name__}-{i}": it for i, it in enumerate(things)}
        self._state |= {"model": trainer.model, "progress": _Progress(trainer), "batches": 0}
        self._state["order"] = torch.get_rng_state()  # draws the epoch's order of samples
        self._checkpointer = Checkpointer(self._path, self._state, **self._options)
        self._step = self._checkpointer.load() or 0
        self._resumes, self._rng = self._step > 0, torch.get_rng_state()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue within the epoch, which Lightning itself does only for loaders with a state."""
        loop = trainer.fit_loop
        loader = loop._combined_loader
        if not self._resumes or any(hasattr(it, "load_state_dict") for it in loader.flattened):
            self._resumes = False
            return
        progress, done = loop.epoch_loop.batch_progress, 0
        if progress.is_last_batch:
            self._state["order"] = self._rng
        else:
            done = progress.current.ready
            if self._state["batches"] != loop.max_batches:  # another number of ranks
                done = done * int(loop.max_batches) // int(self._state["batches"])
                progress.current.ready = progress.current.started = progress.current.processed = done
                progress.current.completed = done - 1  # the value during `on_train_batch_end`
        loader.reset()
        for it in loader.flattened:
            if isinstance(it, DataLoader) and not isinstance(it.dataset, IterableDataset):
                if hasattr(it.sampler, "set_epoch"):
                    it.sampler.set_epoch(loop.epoch_progress.current.processed)
                name = "sampler" if it.batch_sampler is None else "batch_sampler"
                vars(it)[name] = _Rest(getattr(it, name), done)  # DataLoader forbids assignment
        torch.set_rng_state(self._state["order"])
        iter(loop._data_fetcher)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch > 0 and not self._resumes:  # the first epoch's order may be drawn already
            self._state["order"] = torch.get_rng_state()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if self._resumes and self._state["order"] is not self._rng:
            torch.set_rng_state(self._rng)
        self._resumes = False

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step > self._step:  # otherwise it accumulates gradients
            self._step, self._state["batches"] = trainer.global_step, trainer.num_training_batches
            if self._checkpointer.step(self._step):
                leaving.leave()  # skips the code after `fit`, which expects the end of the training

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._wait()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._wait()

    def _wait(self) -> None:
        """Wait for the save: WeightAveraging now swaps the weights through `.data`, which torch misses."""
        if hasattr(self, "_checkpointer"):  # missing in a Trainer that only validates
            self._checkpointer.wait()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._checkpointer.close()


class _Progress:
    """Positions of the loops, and the state of callbacks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        callbacks = {it.state_key: it.state_dict() for it in self._trainer.callbacks}
        return {"loops": self._trainer.fit_loop.state_dict(), "callbacks": callbacks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.fit_loop.load_state_dict(state["loops"])
        for callback in self._trainer.callbacks:
            if saved := state["callbacks"].get(callback.state_key):
                callback.load_state_dict(saved)


class _Rest:
    """Batches of a sampler, in the first iteration without those that are done."""

    def __init__(self, batches: Any, done: int) -> None:
        self._batches, self._done = batches, done

    def __iter__(self) -> Iterator[Any]:
        done, self._done = self._done, 0
        return islice(iter(self._batches), done, None)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
