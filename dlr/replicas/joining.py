"""How a process joins the groups: what it has in common with the others, and by what it is averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from dlr.data.epochs import Epochs
from dlr.data.shards import ElasticShards
from dlr.replicas.channel import Alone, Channel
from dlr.replicas.group import OwnGroup
from dlr.replicas.outer import OuterReplicas
from dlr.replicas.replicas import Replicas
from dlr.replicas.survivor import LivingProcess, survivor_of_process
from dlr.replicas.training_step import Mortal

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from dlr.checkpoint import Checkpointer


def join_over(
    way: Channel,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    state: MutableMapping[str, Any] | None = None,
    checkpoint: Checkpointer | None = None,
    start: int = 0,
    process_group: ProcessGroup | None = None,
    sync_every: int | None = None,
    outer: Callable[[list[Tensor]], Optimizer] | None = None,
    resizable: bool = False,
) -> Replicas:
    """Join the groups as `dlr.replicas.join` does, by that way to the agent."""
    _refuse_other_types(model, optimizer, checkpoint, start, sync_every, outer)
    _refuse_contradictions(checkpoint, start, sync_every, outer)
    optimizers = [optimizer] if not isinstance(optimizer, Sequence) else list(optimizer)
    names = ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{at}" for at in range(len(optimizers))]
    everything: dict[str, Any] = {
        "model": model,
        **dict(zip(names, optimizers, strict=True)),
        **(state or {}),
    }
    if checkpoint is not None:
        everything |= _unshared_state(checkpoint.state, everything)
    own = OwnGroup(process_group)
    fits_any_size = resizable and isinstance(way, Alone) and sync_every is None
    process = _process(everything, state or {}, optimizers, checkpoint, resizable=fits_any_size)
    if sync_every is None or outer is None:
        replicas = Replicas(everything, optimizers, start, own, way, checkpoint, process=process)
    else:
        replicas = OuterReplicas(
            everything, optimizers, start, own, way, sync_every, outer, checkpoint, process
        )
    for each in everything.values():
        if isinstance(each, Epochs | ElasticShards):
            each.deal_to(replicas)
    if not process.joins:  # else it can ask nobody before its loop
        replicas.load_unless_others_train()
    return replicas


def _unshared_state(checkpoint: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has with a state of its own that the groups do not share yet, by new names.

    A module is shared where one is that has it, or that it has, as DistributedDataParallel has a model.
    """
    return {
        f"checkpoint_{name}": checkpoint[name]
        for name in _without(shared, checkpoint)
        if hasattr(checkpoint[name], "load_state_dict")
    }


def _without(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of what the other state has and this one has no part of."""
    there = {id(part) for thing in one.values() for part in _parts(thing)}
    return [name for name, thing in other.items() if there.isdisjoint(map(id, _parts(thing)))]


def _parts(thing: object) -> Iterator[object]:
    yield thing
    if isinstance(thing, torch.nn.Module):
        yield from thing.modules()


def _process(
    everything: Mapping[str, Any],
    state: Mapping[str, Any],
    optimizers: Sequence[Optimizer],
    checkpoint: Checkpointer | None,
    *,
    resizable: bool,
) -> LivingProcess:
    """Return what lets this process live on when a peer dies: a checkpoint, by which a step is undone."""
    if checkpoint is None:
        return Mortal()
    modules = [each for each in everything.values() if isinstance(each, torch.nn.Module)]
    unsaved = ", ".join(_without(checkpoint.state, state))
    why_not = f"name {unsaved} in the Checkpointer's state too, where a step is undone" if unsaved else ""
    return survivor_of_process(checkpoint, modules, optimizers, why_not, resizable=resizable)


def _refuse_other_types(
    model: object, optimizer: object, checkpoint: object, start: object, sync_every: object, outer: object
) -> None:
    """Raise TypeError for an argument of another type, which would fail later or be ignored."""
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    no_optimizer = [each for each in optimizers if not isinstance(each, Optimizer)]
    is_counted = sync_every is None or hasattr(sync_every, "__index__")
    makes = outer is None or (callable(outer) and not isinstance(outer, Optimizer))
    arguments = {
        "model": (model, "a torch module", isinstance(model, torch.nn.Module)),
        "optimizer": (
            no_optimizer[0] if no_optimizer else optimizer,
            "a torch optimizer, or a list of them",
            bool(optimizers) and not no_optimizer,
        ),
        "checkpoint": (
            checkpoint,
            "a dlr.checkpoint.Checkpointer",
            checkpoint is None or hasattr(checkpoint, "state"),
        ),
        "start": (start, "a number of steps", hasattr(start, "__index__")),
        "sync_every": (sync_every, "a number of steps", is_counted),
        "outer": (outer, "a function such as lambda parameters: torch.optim.SGD(parameters, lr=0.7)", makes),
    }
    for name, (value, expected, fits) in arguments.items():
        if not fits:
            found = type(value).__name__
            raise TypeError(f"dlr.replicas.join: {name} has to be {expected}, and is of type {found}")


def _refuse_contradictions(
    checkpoint: Checkpointer | None,
    start: int,
    sync_every: int | None,
    outer: Callable[[list[Tensor]], Optimizer] | None,
) -> None:
    if checkpoint is not None and start:
        raise ValueError(
            f"dlr.replicas.join: start is {start}, and checkpoint has a step to begin at itself: give one of "
            "them"
        )
    if (sync_every is None) != (outer is None):
        raise ValueError(
            "dlr.replicas.join: sync_every and outer belong together, so give both for DiLoCo, or neither to "
            "average each step's gradients"
        )
    if sync_every is not None and sync_every < 1:
        raise ValueError(
            f"dlr.replicas.join: sync_every is {sync_every}, and has to be 1 or more: it is the number of "
            "steps from one average to the next"
        )
