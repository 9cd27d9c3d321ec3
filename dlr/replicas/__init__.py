"""Replica groups: training that goes on when a group dies. See docs/groups.md."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from dlr.data.epochs import Epochs
from dlr.replicas.channel import Channel, channel_of_process
from dlr.replicas.group import OwnGroup
from dlr.replicas.replicas import Replicas

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

__all__ = ["Replicas", "join"]


def join(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    state: MutableMapping[str, Any] | None = None,
    start: int = 0,
    process_group: ProcessGroup | None = None,
    channel: Channel | None = None,
) -> Replicas:
    """Join the groups of this job. Every rank of the group calls it, once its process group is there.

    Args:
        model: plain, or in DistributedDataParallel, FSDP2 or tensor parallelism within the group.
        optimizer: that of the model, or several.
        state: what else the groups have in common, by name: schedulers, GradScalers, samplers, anything with
            `state_dict` and `load_state_dict`. A group that comes back takes it over. Samplers and streams of
            `dlr.data` deal to the groups from then on.
        start: number of steps that the state has, as after `Checkpointer.load`.
        process_group: the group's ranks; None for the default one.
        channel: the way to the agent; None for the one that the environment names.
    """
    optimizers = [optimizer] if not isinstance(optimizer, Sequence) else list(optimizer)
    names = ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{at}" for at in range(len(optimizers))]
    everything: dict[str, Any] = {
        "model": model,
        **dict(zip(names, optimizers, strict=True)),
        **(state or {}),
    }
    way = channel or channel_of_process()
    replicas = Replicas(everything, optimizers, start, OwnGroup(process_group), way)
    for each in (state or {}).values():
        if isinstance(each, Epochs):
            each.deal_to(replicas)
    return replicas
