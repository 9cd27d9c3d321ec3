"""Hugging Face's Accelerate: a Checkpointer for the prepared objects, and the position in the data.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer("/data/run1", accelerator)
    ckpt.load()                                     # the newest checkpoint
    for epoch in range(ckpt.epoch, epochs):
        for batch in ckpt.batches(loader, epoch):   # saves after each, if it is due
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    ckpt.close()

Written for accelerate 1.15.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches

from dlr.checkpoint import Checkpointer, leaving


class AcceleratorCheckpointer(Checkpointer):
    """Saves the objects of `prepare` and `register_for_checkpointing`. Create it after `prepare`.

    Args:
        path: as in `Checkpointer`.
        options: further arguments of `Checkpointer`, such as `every` and `persist_every`.
    """

    def __init__(self, path: str | os.PathLike[str], accelerator: Accelerator, **options: Any) -> None:
        self._accelerator = accelerator
        things = [*accelerator._models, *accelerator._optimizers, *accelerator._schedulers]
        things += [*accelerator._custom_objects, *([accelerator.scaler] if accelerator.scaler else [])]
        state: dict[str, Any] = {f"{type(it).__name__}-{number}": it for number, it in enumerate(things)}
        state |= {"steps": 0, "epoch": 0, "batch": 0, "batches": 0, "order": ()}
        super().__init__(path, state, **options)

    @property
    def epoch(self) -> int:
        """Epoch to continue with."""
        return int(self.state["epoch"])

    def batches(self, loader: Any, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch that training has not seen, and save after each optimizer's step.

        Args:
            loader: a loader from `prepare`. Its dataset has a length, and no state of its own.
        """
        state, done, rng = self.state, 0, None
        loader.set_epoch(epoch)
        if epoch == state["epoch"] and state["batch"]:
            done = state["batch"] * len(loader) // state["batches"]  # the number of ranks may have changed
            rng = torch.get_rng_state()
            _set_order(loader, state["order"])
        state.update(epoch=epoch, batches=len(loader), order=_order(loader))
        rest = iter(skip_first_batches(loader, done))
        first = list(islice(rest, 1))
        if rng is not None:
            torch.set_rng_state(rng)
        for state["batch"], batch in enumerate(chain(first, rest), start=done + 1):
            yield batch
            if self._accelerator.sync_gradients:
                state["steps"] += 1
                if self.step(state["steps"]):
                    leaving.leave()
        state["batch"] = 0


def _order(loader: Any) -> tuple[torch.Tensor, ...]:
    """Return the states of the generators that draw the epoch's order of samples."""
    generator = getattr(loader, "synchronized_generator", None)
    return (torch.get_rng_state(), *([generator.get_state()] if generator is not None else []))


def _set_order(loader: Any, order: tuple[torch.Tensor, ...]) -> None:
    torch.set_rng_state(order[0])
    generator = getattr(loader, "synchronized_generator", None)
    if generator is not None and len(order) > 1:
        generator.set_state(order[1])
