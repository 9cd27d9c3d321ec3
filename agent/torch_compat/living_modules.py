"""Adapts the modules of a process that lives on: after an aborted step, and in a world of another size.

FSDP2's parameters are resized by its own code: by the function that shards a parameter at first, and by the
one for a parameter whose memory was replaced (`reset_sharded_param`). Checked in the sources of torch 2.14.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

T = TypeVar("T")
_c10d: Any = torch.distributed
_SHARDING_ARGUMENTS = ("self", "param", "device", "shard_placement_fn", "mesh_info")
"""Parameters of the method by which FSDP2 shards a parameter, as this module expects it."""
_PLACE_OF_MESH = ("_layout", "_rank_map", "_flatten_rank_map", "_rank", "_coordinate_on_dim", "_hash")
"""Attributes of a DeviceMesh that follow from the world's size and the rank."""


# --- after an aborted step --------------------------------------------------------------------------------


def reset_modules(modules: Sequence[nn.Module]) -> None:
    """Return modules to their state at the beginning of a step, after one was aborted.

    FSDP2 drops its gathered parameters. DDP gets a new reducer, whose first backward pass is a collective by
    itself, and therefore has to be the first for all ranks.
    """
    from torch.nn.parallel import DistributedDataParallel

    _end_gathers(modules)
    for root in modules:
        for module in root.modules():
            if isinstance(module, DistributedDataParallel):
                _renew_reducer(module)
        for module in _fsdp_roots(root):
            if hasattr(module._get_fsdp_state()._comm_ctx, "all_gather_state"):  # it has run
                module.reset_iter_state()
            else:  # parameters may have been gathered ahead of its first run
                for group in _parameter_groups([module]):
                    group._all_gather_result = None
                    group.reshard()
    _drop_whole_gradients(modules)


def _fsdp_roots(module: nn.Module) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from _fsdp_roots(child)


def _end_gathers(modules: Iterable[nn.Module]) -> None:
    """End gathers that were begun ahead, since `reset_iter_state` would raise their errors."""
    for group in _parameter_groups(modules):
        if (result := group._all_gather_result) is not None:
            if result.all_gather_work is not None:
                with contextlib.suppress(RuntimeError):
                    result.all_gather_work.wait()
            group._all_gather_result = result._replace(all_gather_work=None)


def _drop_whole_gradients(modules: Iterable[nn.Module]) -> None:
    """Drop the gradients of backward passes without synchronization, which `reset_iter_state` leaves."""
    for group in _parameter_groups(modules):
        for parameter in group.fsdp_params:
            parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


def _renew_reducer(module: Any) -> None:
    # One of torch's built-in hooks is only in the reducer, and its name only in DDP's logging data.
    logged = module.logger._get_ddp_logging_data().strs_map.get("comm_hook", "")
    _, _, built_in = logged.partition("BuiltinCommHookType.")
    parameters, expects_sparse = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    module.reducer._remove_autograd_hooks()
    module._ddp_init_helper(parameters, expects_sparse, names, module.static_graph)
    for hook, state in module._comm_hooks:
        _c10d._register_comm_hook(module.reducer, state, hook)
    if built_in:
        module._register_builtin_comm_hook(getattr(_c10d.BuiltinCommHookType, built_in))
    module.require_forward_param_sync = True  # as a newcomer begins; a pass in `no_sync` ends it
    if module.static_graph:
        module.reducer._set_static_graph()
        module.logger._set_static_graph()
        module._static_graph_delay_allreduce_enqueued = False  # the first pass of a reducer reduces late


def random_tracker() -> Any:
    """Return what makes DTensors' random numbers on a GPU; None before the first, which is a collective."""
    module: Any = sys.modules.get("torch.distributed.tensor._random")
    return module and module._rng_tracker


def set_random_tracker(tracker: Any) -> None:
    """Make random numbers by that of `random_tracker`; by a new one, if it was None."""
    if module := sys.modules.get("torch.distributed.tensor._random"):
        module._rng_tracker = tracker  # type: ignore[attr-defined]


# --- in a world of another size ---------------------------------------------------------------------------


def bound_to_size(modules: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> str | None:
    """Return the reason why a training fits only one size of the world; None if it fits any."""
    try:
        _forget_shapes()
        return _bound_to_size(modules, optimizers)
    except (ImportError, AttributeError) as error:  # private names, which another torch may not have
        return f"torch {torch.__version__} is not known to go into another size: {error}"


def _bound_to_size(modules: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> str | None:
    gc.collect()  # else unreachable objects would count
    meshes = _living(DeviceMesh)
    for mesh in meshes:
        if mesh.ndim != 1 or mesh.mesh.tolist() != list(range(torch.distributed.get_world_size())):
            return f"{mesh} is no mesh of all ranks in one dimension"
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is not None and _living(stages._PipelineStageBase):
        return "the stages of a pipeline have fixed ranks"
    groups = list(_parameter_groups(modules))
    if groups and (reason := _bound_by_fsdp(groups)):
        return reason
    if any(all(group.mesh_info.mesh is not mesh for mesh in meshes) for group in groups):
        return "its meshes are hidden by gc.freeze()"
    if "torch.distributed.tensor" in sys.modules:
        sharded = {id(parameter.sharded_param) for group in groups for parameter in group.fsdp_params}
        sharded |= {id(tensor) for optimizer in optimizers for tensor in _states(optimizer)}
        for tensor in _living(torch.distributed.tensor.DTensor):
            if id(tensor) not in sharded:
                return f"a DTensor of shape {list(tensor.shape)} is no parameter that fully_shard has sharded"
    return None


def _states(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the tensors of an optimizer's state, and the gradients of its parameters."""
    for parameter, state in optimizer.state.items():
        yield from (each for each in state.values() if isinstance(each, Tensor))
        if parameter.grad is not None:
            yield parameter.grad


def _bound_by_fsdp(groups: Iterable[Any]) -> str | None:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_common, _fsdp_param

    if tuple(inspect.signature(_fsdp_param.FSDPParam._init_sharded_param).parameters) != _SHARDING_ARGUMENTS:
        return f"the fully_shard of torch {torch.__version__} is not known to go into another size"
    default = _fsdp_collectives.DefaultAllGather, _fsdp_collectives.DefaultReduceScatter
    for group in groups:
        if (type(group._all_gather_comm), type(group._reduce_scatter_comm)) != default:
            return "fully_shard has collectives of its own"
        if type(group.mesh_info) is not _fsdp_common.FSDPMeshInfo:
            return "fully_shard has replicas"
        if group.post_forward_mesh_info not in (None, group.mesh_info):
            return "fully_shard has a number as reshard_after_forward"
        for each in group.fsdp_params:
            if each.is_dtensor or each.mesh_info is not group.mesh_info or each.fsdp_placement.dim != 0:
                return "fully_shard shards a parameter otherwise than by its first dimension over all ranks"
            if type(each._sharded_local_tensor) is not Tensor:
                return (
                    f"a parameter's class {type(each._sharded_local_tensor).__name__} gathers in its own way"
                )
    return None


def resize(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
    """Adapt meshes and FSDP2's parameters to the size of the world for which the groups were formed.

    Parameters then have undefined contents, and optimizers no state, until a checkpoint is loaded. Parameters
    and meshes remain the same objects.
    """
    for mesh in _living(DeviceMesh):
        _resize_mesh(mesh)
    _forget_shapes()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # a compiled graph has the size as a constant
    groups = list(_parameter_groups(modules))
    for info in {id(group.mesh_info): group.mesh_info for group in groups}.values():
        reduce_scatter = info.reduce_scatter_process_group
        info.__post_init__()
        info.reduce_scatter_process_group = reduce_scatter
    for group in groups:
        for parameter in group.fsdp_params:
            _resize_parameter(parameter)
    if groups:
        for optimizer in optimizers:
            optimizer.state.clear()


def _living(kind: type[T]) -> list[T]:
    """Return all objects of a class in this process."""
    # not isinstance, which would make lazy proxies load their objects
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _resize_mesh(mesh: Any) -> None:
    fitting = DeviceMesh(
        mesh.device_type,
        list(range(torch.distributed.get_world_size())),
        mesh_dim_names=mesh.mesh_dim_names,
        _init_backend=False,
    )
    for name in _PLACE_OF_MESH:
        setattr(mesh, name, getattr(fitting, name))


def _forget_shapes() -> None:
    """Clear torch's caches by shape and mesh, which assume that size and rank never change."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import _collective_utils, _redistribute
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        _redistribute._gen_transform_infos.cache_clear()
        _redistribute.clear_redistribute_planner_cache()
        _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()


def _resize_parameter(parameter: Any) -> None:
    """Resize one of FSDP2's parameters to this rank's present shard, with undefined contents."""
    kept, uid = parameter.sharded_param, parameter._orig_param_uid
    whole = nn.Parameter(
        torch.empty(parameter._orig_size, dtype=kept.dtype, device="meta"), requires_grad=kept.requires_grad
    )
    parameter._init_sharded_param(whole, parameter.device, None, parameter.mesh_info)
    parameter._orig_param_uid = uid
    kept.grad = None
    kept._local_tensor = kept._local_tensor.new_empty(parameter.sharded_size)
    kept._spec = parameter.sharded_param._spec
    parameter.sharded_param = kept
    parameter._setattr_on_modules(kept)
    parameter.reset_sharded_param()
    parameter.all_gather_outputs = []
    if hasattr(parameter, "_unsharded_param"):
        del parameter._unsharded_param


def _parameter_groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Yield FSDP2's groups of parameters."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[int, Any] = {}
    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                for group in module._get_fsdp_state()._fsdp_param_groups:
                    found[id(group)] = group
    yield from found.values()
