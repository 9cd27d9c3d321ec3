"""Replica groups: training that goes on when a group dies. See docs/groups.md."""

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
    """Join the groups of this job. Every rank of the group calls it, once its process group is there.

    All groups have the same number of ranks, with tensors of the same names, shapes and dtypes. A rank
    exchanges what it has itself with the rank of its number in each other group: whole tensors, or its local
    shards of DTensors, in their dtype, on the device of the parameters (CPU by gloo, CUDA by NCCL). The mean
    is the sum divided by the number of groups that contribute, not of ranks.

    Args:
        model: plain, or in DistributedDataParallel, FSDP2 or tensor parallelism within the group.
        optimizer: that of the model, or several.
        state: what else the groups have in common, by name: schedulers, GradScalers, samplers, anything with
            `state_dict` and `load_state_dict`. A group that comes back takes it over. With a GradScaler,
            call `average()` before it looks at the gradients: else training fails at the first infinity that
            one group has alone. Samplers, streams and shards of `dlr.data` deal to the groups from then on.
        checkpoint: the groups' Checkpointer. Where no other group trains, the newest checkpoint is loaded
            here; else this group takes over the state of the others, and reads none. One group at a time
            writes to storage. What else is in its state follows too, but for plain values.
        start: number of optimizer steps that the state has, where the script has loaded a checkpoint of its
            own.
        process_group: the group's ranks; None for the default one.
        sync_every: number of steps from one average over the groups to the next (DiLoCo, docs/groups.md);
            None to average the gradients of each step.
        outer: with `sync_every`, makes the optimizer that steps the parameters, of which it is given the
            list, by what the groups have changed.
        resizable: whether nothing that depends on the rank or the size of the world is from before the loop,
            so that processes that live on (docs/elasticity.md) go on in a world of another size, too. In
            replica groups, which keep their size, it has no effect.

    Raises:
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
