"""Replica groups: training that goes on when a group dies. See docs/groups.md."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from dlr.data.epochs import Epochs
from dlr.replicas.channel import Channel, channel_of_process
from dlr.replicas.group import OwnGroup
from dlr.replicas.outer import OuterReplicas
from dlr.replicas.replicas import Replicas

if TYPE_CHECKING:
    from torch import Tensor, nn
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
    sync_every: int | None = None,
    outer: Callable[[list[Tensor]], Optimizer] | None = None,
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
        sync_every: number of steps from one average over the groups to the next (DiLoCo, docs/groups.md);
            None to average the gradients of each step.
        outer: with `sync_every`, makes the optimizer that steps the parameters, of which it is given the
            list, by what the groups have changed.

    Raises:
        ValueError: `sync_every` and `outer` do not fit together.
    """
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
    optimizers = [optimizer] if not isinstance(optimizer, Sequence) else list(optimizer)
    names = ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{at}" for at in range(len(optimizers))]
    everything: dict[str, Any] = {
        "model": model,
        **dict(zip(names, optimizers, strict=True)),
        **(state or {}),
    }
    way, own = channel or channel_of_process(), OwnGroup(process_group)
    if sync_every is None or outer is None:
        replicas = Replicas(everything, optimizers, start, own, way)
    else:
        replicas = OuterReplicas(everything, optimizers, start, own, way, sync_every, outer)
    for each in (state or {}).values():
        if isinstance(each, Epochs):
            each.deal_to(replicas)
    return replicas
