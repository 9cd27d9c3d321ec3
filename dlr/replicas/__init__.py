"""Replica groups: training that continues when a group dies. See docs/groups.md."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from dlr.replicas.channel import channel_of_process
from dlr.replicas.joining import join_over
from dlr.replicas.replicas import Replicas

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    from dlr.checkpoint import Checkpointer

__all__ = ["Replicas", "join"]


def join(
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
    """Join the groups of this job. Every rank of the group calls it, after it has created its process group.

    All groups have the same number of ranks, with tensors of the same names, shapes and dtypes. A rank
    exchanges its own tensors, or local shards of DTensors, with the same rank of each other group, in their
    dtype, on the device of the parameters (CPU by gloo, CUDA by NCCL). The mean is the sum divided by the
    number of groups that contribute, not of ranks.

    Args:
        model: plain, or in DistributedDataParallel, FSDP2 or tensor parallelism within the group.
        optimizer: the optimizer of the model, or several.
        state: other objects that the groups share, by name: schedulers, GradScalers, samplers, anything with
            `state_dict` and `load_state_dict`. A group that returns receives their state. With a GradScaler,
            call `average()` before it reads the gradients: otherwise training fails at the first infinity in
            a single group. From then on, samplers, streams and shards of `dlr.data` divide data by groups.
        checkpoint: the groups' Checkpointer. If no other group trains, it loads the newest checkpoint;
            otherwise this group receives the state of the others, and loads none. One group at a time writes
            to storage. The other objects in its state are shared, too, except plain values.
        start: number of optimizer steps that the state has, if the script has loaded a checkpoint itself.
        process_group: process group of the group's ranks; None for the default one.
        sync_every: number of steps from one average over the groups to the next (DiLoCo, docs/groups.md);
            None to average the gradients of each step.
        outer: with `sync_every`, builds the outer optimizer from a list of the parameters; it steps them by
            the groups' averaged changes.
        resizable: whether nothing from before the loop depends on the rank or the size of the world, so that
            processes that live on (docs/elasticity.md) may continue in a world of another size. It has no
            effect in replica groups, which keep their size.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `sync_every` and `outer` do not fit together, or `start` and `checkpoint`; or the outer
            optimizer lacks parameters of the list.
        OSError: the agent does not answer.
        agent.torch_compat.UnsupportedTorchError: torch is older than 2.8, and parameters are on a GPU.
        DamagedCheckpointError, StorageError, MismatchError: as `Checkpointer.load`.
    """
    return join_over(
        channel_of_process(),
        model,
        optimizer,
        state=state,
        checkpoint=checkpoint,
        start=start,
        process_group=process_group,
        sync_every=sync_every,
        outer=outer,
        resizable=resizable,
    )
