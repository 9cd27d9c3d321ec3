"""Modules and optimizers: names of their tensors, tensors that only an optimizer's step changes, and loading.

Parameters have the names of the module inside all wrappers. An optimizer's state is saved by these names, so
that it fits whatever the order of the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX as EXTRA
from torch.optim import Optimizer

from agent.slots.format import TensorPart
from controller.errors import Error
from dlr.checkpoint.tensors import empty_like, is_copied, local_tensor, repeats_elements


class MismatchError(Error):
    """A checkpoint is of another model or optimizer than the state, or has values of classes that the script
    has not registered."""


_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Parts of parameter names that come from torch.compile and activation checkpointing."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel and torch.compile.

    Raises:
        TypeError: it is wrapped by FSDP1, whose state can only be read by collectives.
    """
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            break
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise TypeError(
            "dlr.checkpoint cannot read a FullyShardedDataParallel module: shard the model with "
            "torch.distributed.fsdp.fully_shard instead"
        )
    return module


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def module_state(module: nn.Module) -> dict[str, Any]:
    """Return the live tensors of a module, and its extra state, by name.

    Raises:
        TypeError: see `unwrapped`.
    """
    return {_clean(name): value for name, value in unwrapped(module).state_dict(keep_vars=True).items()}


def _parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """Return the parameters' names, by id; with several modules, the module's name is a prefix."""
    modules = {name: unwrapped(thing) for name, thing in state.items() if isinstance(thing, nn.Module)}
    return {
        id(parameter): _clean(name) if len(modules) == 1 else f"{outer}.{_clean(name)}"
        for outer, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def _ids(optimizer: Optimizer, names: dict[int, str]) -> dict[int, int | str]:
    """Return the names of an optimizer's parameters, by number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(id(parameter) in names for parameter in parameters):
        return {number: names[id(parameter)] for number, parameter in enumerate(parameters)}
    return {number: number for number in range(len(parameters))}


def optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state, by the names of its parameters.

    Args:
        state: the whole state, with the modules that have the parameters.
    """
    ids, saved = _ids(optimizer, _parameter_names(state)), optimizer.state_dict()
    return {
        **saved,
        "state": {ids.get(number, number): value for number, value in saved["state"].items()},
        "param_groups": [
            {**group, "params": [ids[number] for number in group["params"]]}
            for group in saved["param_groups"]
        ],
    }


def names_from_torch(
    paths: Mapping[str, tuple[str | int, ...]], state: Mapping[str, Any]
) -> dict[str, tuple[str | int, ...]]:
    """Translate paths in a checkpoint of torch.distributed.checkpoint without dlr to paths in the state.

    Its names may include a module's wrappers, and number an optimizer's parameters.

    Args:
        paths: paths in the nested dict that was written, by any key.
    """
    parameters = _parameter_names(state)
    modules = {name: module_state(it).keys() for name, it in state.items() if isinstance(it, nn.Module)}
    numbers = {
        name: {str(number): str(id_) for number, id_ in _ids(it, parameters).items()}
        for name, it in state.items()
        if isinstance(it, Optimizer)
    }

    def renamed(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        outer = str(path[0])
        if outer in modules and len(path) > 1:
            name = _clean(str(path[1]))
            name = name if name in modules[outer] else name.removeprefix("module.")
            return (path[0], name, *path[2:])
        if outer in numbers and len(path) > 2 and path[1] == "state":
            number = str(path[2])
            return (path[0], "state", numbers[outer].get(number, number), *path[3:])
        return path

    return {key: renamed(path) for key, path in paths.items()}


def numbered_parameters(
    saved: dict[str, Any], optimizer: Optimizer, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's state that torch wrote by parameter numbers, by parameter names."""
    ids = _ids(optimizer, _parameter_names(state))
    by_text = {str(id_): id_ for id_ in ids.values()}
    groups = [
        {**group, "params": [ids.get(id_, id_) for id_ in group["params"]]}
        for group in saved.get("param_groups", ())
    ]
    kept = {by_text.get(key, key): value for key, value in saved.get("state", {}).items()}
    return {**saved, "state": kept, "param_groups": groups}


def settled_tensors(state: Mapping[str, Any]) -> set[int]:
    """Return the ids of the tensors that change only in the step of an optimizer of the state.

    These are an optimizer's parameters and its state of each. Other parameters may change at any time, such
    as an average of the weights; an embedding with `max_norm` changes its weight in the forward pass.
    """
    found: set[int] = set()
    for thing in state.values():
        if isinstance(thing, Optimizer):
            found.update(id(parameter) for group in thing.param_groups for parameter in group["params"])
            for kept in filter(lambda of: isinstance(of, Mapping), thing.state.values()):
                found.update(id(value) for value in kept.values() if isinstance(value, Tensor))
    for thing in state.values():
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
                    found.discard(id(module.weight))
    return found


def _beginnings(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the prefixes of the tensor names of modules and optimizers."""
    return tuple(f"{name}." for name, thing in state.items() if isinstance(thing, (nn.Module, Optimizer)))


def trained_among(names: Iterable[str], state: Mapping[str, Any]) -> list[str]:
    """Return the names that belong to modules and optimizers, without the modules' buffers."""
    begin = _beginnings(state)
    buffers = {
        f"{outer}.{_clean(name)}"
        for outer, thing in state.items()
        if isinstance(thing, nn.Module)
        for name, _ in unwrapped(thing).named_buffers(remove_duplicate=False)
    }
    return [name for name in names if name.startswith(begin) and name not in buffers]


def optimized_parameters(state: Mapping[str, Any]) -> dict[str, nn.Parameter]:
    """Return the parameters for which optimizers keep tensors, by the prefix of those tensors' names."""
    names = _parameter_names(state)
    return {
        f"{name}.state.{id_}": parameter
        for name, optimizer in state.items()
        if isinstance(optimizer, Optimizer)
        for id_, parameter in zip(
            _ids(optimizer, names).values(),
            (parameter for group in optimizer.param_groups for parameter in group["params"]),
            strict=True,
        )
    }


def check_modules(state: Mapping[str, Any], live: dict[str, Tensor], saved: dict[str, TensorPart]) -> None:
    """Compare the names of modules' tensors.

    Raises:
        MismatchError: a tensor is on one side only, or cannot be filled.
    """
    extra = _extra_states(state)
    for name, thing in state.items():
        if isinstance(thing, nn.Module):
            for key, value in module_state(thing).items():
                if isinstance(value, Tensor) and value.is_meta:
                    raise MismatchError(
                        f"{name}.{key} is on the meta device, so call to_empty() before load()"
                    )
                if is_copied(value) and repeats_elements(value):
                    raise MismatchError(
                        f"{name}.{key} has elements that share their memory, as expand() makes them, so that "
                        "nothing can be copied into it: call contiguous() when the model is made"
                    )
            here = {key for key in live if key.startswith(f"{name}.") and not _is_extra(key, extra)}
            there = {key for key in saved if key.startswith(f"{name}.") and not _is_extra(key, extra)}
            if odd := sorted(here ^ there):
                where = "the checkpoint" if odd[0] in there else "the model"
                raise MismatchError(f"only {where} has {odd[0]}")


def targets_for(
    saved: Iterable[TensorPart], live: Mapping[str, Tensor], state: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors to copy a checkpoint into, by name: the live ones if they fit, otherwise new ones.

    Args:
        live: tensors of the state, by name.

    Raises:
        MismatchError: a tensor of a module or an optimizer has another shape or dtype.
    """
    parameters, begin = optimized_parameters(state), _beginnings(state)
    flexible, extra = _flexible_tensors(state), _extra_states(state)
    trained = {_memory(tensor) for name, tensor in live.items() if name.startswith(begin)}
    return {
        part.name: _target_like(
            part, live.get(part.name), parameters, part.name in flexible or _is_extra(part.name, extra)
        )
        if part.name.startswith(begin)
        else _target_of_value(part, live.get(part.name), trained)
        for part in saved
    }


def _flexible_tensors(state: Mapping[str, Any]) -> set[str]:
    """Return the names of buffers that may have changed their shape, as those of quantization's observers do.

    Their modules override `_load_from_state_dict`.
    """
    return {
        f"{outer}.{_clean(f'{path}.' if path else '')}{name}"
        for outer, thing in state.items()
        if isinstance(thing, nn.Module)
        for path, part in unwrapped(thing).named_modules()
        if type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
        for name, _ in part.named_buffers(recurse=False)
    }


def _extra_states(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the modules' `get_extra_state`, whose type and shape may change at any time.

    TransformerEngine's modules, for example, return an empty tensor until they have computed in FP8.
    """
    return {
        f"{outer}.{_clean(f'{path}.' if path else '')}{EXTRA}"
        for outer, thing in state.items()
        if isinstance(thing, nn.Module)
        for path, part in unwrapped(thing).named_modules(remove_duplicate=False)
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def _is_extra(name: str, extra: Collection[str]) -> bool:
    """Whether a tensor is an extra state, or a part of one."""
    before, found, behind = name.partition(EXTRA)
    return bool(found) and before + found in extra and behind[:1] in ("", ".")


def _target_like(
    part: TensorPart, present: Tensor | None, parameters: dict[str, nn.Parameter], is_flexible: bool
) -> Tensor:
    shape, dtype = part.global_shape or part.shape, getattr(torch, part.dtype)
    if present is not None and _is_alike(present, part):
        return _new(part) if repeats_elements(present) else present
    parameter = parameters.get(part.name.rpartition(".")[0])
    if parameter is not None and tuple(parameter.shape) == shape:
        return empty_like(parameter, dtype)
    if present is not None and part.name not in parameters and not is_flexible:
        raise MismatchError(
            f"{part.name} is {part.dtype}{list(shape)} in the checkpoint, and "
            f"{str(present.dtype).removeprefix('torch.')}{list(present.shape)} here"
        )
    return _new(part)


def _target_of_value(part: TensorPart, present: Tensor | None, trained: Collection[int]) -> Tensor:
    """Return the target for a tensor that belongs to neither a module nor an optimizer.

    Its shape may have changed since the start of the script. If it shares memory with the model now, as the
    best weights so far may at first, it may have been a copy when it was saved, and gets new memory.

    Args:
        trained: memory addresses of modules' and optimizers' tensors.
    """
    if present is None or not _is_alike(present, part):
        return _new(part, None if present is None else present.device)
    if repeats_elements(present) or _memory(present) in trained:
        return empty_like(present)
    return present


def _new(part: TensorPart, device: torch.device | None = None) -> Tensor:
    """Return a new tensor for one that the state lacks.

    Raises:
        MismatchError: it is a rank's part of a DTensor, which cannot become a plain tensor.
    """
    if part.global_shape not in (None, part.shape):
        raise MismatchError(
            f"{part.name} is a rank's part of a tensor of shape {list(part.global_shape or ())} in the "
            "checkpoint, and there is no such tensor here"
        )
    return torch.empty(part.shape, dtype=getattr(torch, part.dtype), device=device)


def _is_alike(tensor: Tensor, part: TensorPart) -> bool:
    return tuple(tensor.shape) == (part.global_shape or part.shape) and tensor.dtype == getattr(
        torch, part.dtype
    )


def _memory(tensor: Tensor) -> int:
    """Return an id of a tensor's memory, equal for tensors that share it."""
    local = local_tensor(tensor)
    return local.untyped_storage().data_ptr() if type(local) is Tensor and local.numel() else id(tensor)


def load_module(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load the part of a module's state that was not filled in place."""
    module = unwrapped(module)
    present = module.state_dict(keep_vars=True)
    # Differs for extra state, sparse tensors, copies made by hooks, and tensors that have grown.
    if not all(saved.get(_clean(key)) is value for key, value in present.items()):
        try:
            module.load_state_dict({key: saved[_clean(key)] for key in present if _clean(key) in saved})
        except RuntimeError as error:
            raise MismatchError(str(error)) from error


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any], state: Mapping[str, Any], name: str) -> None:
    """Load an optimizer's state.

    Args:
        saved: result of `optimizer_state`.
        state: the whole state.
        name: name of the optimizer in the state.

    Raises:
        MismatchError: the optimizer has other parameters, or is of another kind.
    """
    loaded = _numbered(optimizer, saved, _parameter_names(state), name)
    for group, live in zip(loaded["param_groups"], optimizer.param_groups, strict=True):
        only_live, only_saved = sorted(live.keys() - group.keys()), sorted(group.keys() - live.keys())
        if only_live and only_saved:  # a one-sided difference may come from another release, or a scheduler
            raise MismatchError(
                f"{name} is another kind of optimizer than in its checkpoint: only the checkpoint has "
                f"{only_saved[0]}, and only {type(optimizer).__name__} has {only_live[0]}"
            )
    optimizer.load_state_dict(loaded)


def _numbered(
    optimizer: Optimizer, saved: dict[str, Any], names: dict[int, str], name: str
) -> dict[str, Any]:
    """Return the optimizer's state with numbers instead of names, as `load_state_dict` takes it.

    The numbers follow the present order of the parameters, which may differ from the saved one.
    """
    every = iter(_ids(optimizer, names).values())
    here = [list(islice(every, len(group["params"]))) for group in optimizer.param_groups]
    numbers = {id_: number for number, id_ in enumerate(chain.from_iterable(here))}
    there = {id_ for group in saved["param_groups"] for id_ in group["params"]}
    if odd := sorted(map(str, there ^ set(numbers))):
        raise MismatchError(f"{name} has other parameters than its checkpoint, {odd[0]} for example")
    if [set(group["params"]) for group in saved["param_groups"]] != [set(ids) for ids in here]:
        raise MismatchError(f"{name} has other parameter groups than its checkpoint")
    groups = [
        {**group, "params": [numbers[id_] for id_ in ids]}
        | ({"param_names": live["param_names"]} if "param_names" in live else {})
        for group, ids, live in zip(saved["param_groups"], here, optimizer.param_groups, strict=True)
    ]
    kept = {numbers.get(id_, id_): value for id_, value in saved["state"].items()}
    return {**saved, "state": kept, "param_groups": groups}
