"""Unconnected groups for a process that joins others, which connect only when its loop begins."""

from __future__ import annotations

from typing import Any

from torch.distributed import distributed_c10d

_connecting: list[tuple[Any, str, Any]] = []
"""Owner, name and original of each function that `make_unconnected` has replaced."""


def make_unconnected() -> None:
    """Make torch create groups without connections, and DDP and DTensors without collectives, from now on.

    The other ranks created theirs long ago, and would not answer; `ReformableGroups` connects these later.
    Initial values of parameters do not matter, since a checkpoint is loaded next.
    """
    from torch.distributed.tensor import _api, _random, placement_types
    from torch.nn.parallel import distributed as ddp

    make, track = distributed_c10d._new_process_group_helper, _random.OffsetBasedRNGTracker.__init__

    def without_connection(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **{**kwargs, "enable_reconfigure": True})

    def without_sync(tracker: Any, mesh: Any, run_state_sync: bool = True) -> None:
        track(tracker, mesh, run_state_sync=False)

    for owner, name, function in (
        (distributed_c10d, "_new_process_group_helper", without_connection),
        (distributed_c10d, "_store_based_barrier", _nothing),
        (ddp, "_verify_param_shape_across_processes", _nothing),
        (ddp, "_sync_module_states", _nothing),
        (placement_types, "mesh_scatter", _own_part),
        (placement_types, "mesh_broadcast", _nothing),
        (_api, "mesh_broadcast", _nothing),
        (_random.OffsetBasedRNGTracker, "__init__", without_sync),
    ):
        _connecting.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)


def make_connected() -> None:
    """Undo `make_unconnected`."""
    while _connecting:
        owner, name, function = _connecting.pop()
        setattr(owner, name, function)


def _own_part(output: Any, scatter_list: Any, mesh: Any, mesh_dim: int = 0, **_: Any) -> None:
    """Replace `mesh_scatter`: take this rank's part of its own tensor."""
    output.copy_(scatter_list[mesh.get_local_rank(mesh_dim)])


def _nothing(*_: Any, **__: Any) -> None:
    """Replace a collective."""
