"""What a checkpoint is made of: the tensors of a training's state by their names, and one pickle of all else.

`capture` takes the state apart without a copy; `restore` fills the live state in place. Names are those that
`torch.distributed.checkpoint` gives to a nested dict: `model.0.weight`, `optimizer.state.0.weight.exp_avg`.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from agent.memory.slot import Part

VALUES = "dlr.values"
"""The name of the pickle of everything that is no tensor, as a tensor of bytes."""
RNG = "dlr.rng"
"""The name of the pickle of the random number generators."""
_LEAST_CAPACITY = 4096


class MismatchError(Exception):
    """A checkpoint is of another model or optimizer than the one that is to go on from it."""


@dataclass(frozen=True)
class Captured:
    """A state, taken apart."""

    tensors: dict[str, Tensor]
    """The live tensors, DTensors among them, by name."""
    settled: frozenset[str]
    """Names of those that nothing but an optimizer's step changes."""
    pickles: dict[str, bytes]
    """`VALUES` and `RNG`."""


@dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the pickle of the values."""

    name: str


def capture(state: Mapping[str, Any]) -> Captured:
    """Take the state apart.

    Args:
        state: names, and modules, optimizers, anything else with `state_dict`, or plain values.

    Raises:
        TypeError, ValueError, pickle.PicklingError: something in it cannot be saved.
    """
    values = _nested(state)
    tensors: dict[str, Tensor] = {}
    _collect((), values, tensors)
    buffer = io.BytesIO()
    _Pickler(buffer, tensors).dump(values)
    optimizers = tuple(f"{name}." for name, thing in state.items() if isinstance(thing, Optimizer))
    settled = frozenset(
        name
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter) or name.startswith(optimizers)
    )
    return Captured(tensors, settled, {VALUES: buffer.getvalue(), RNG: pickle.dumps(_generators())})


def restore(
    state: MutableMapping[str, Any],
    values: bytes,
    rng: bytes | None,
    saved: Iterable[Part],
    fill: Callable[[dict[str, Tensor]], None],
) -> None:
    """Make the live state what was saved.

    Args:
        values: the pickle of that name.
        rng: likewise; None leaves the generators as they are.
        saved: the tensors of the checkpoint.
        fill: copies the checkpoint's tensors into those that it is given, by name.

    Raises:
        MismatchError: the checkpoint does not fit the state.
    """
    live: dict[str, Tensor] = {}
    _collect((), _nested(state), live)
    names = load_values(values, TensorReference)
    missing, unknown = sorted(set(state) - set(names)), sorted(set(names) - set(state))
    if missing or unknown:
        raise MismatchError(
            f"the checkpoint has {', '.join(sorted(names)) or 'nothing'}, "
            f"and the state has {', '.join(sorted(state)) or 'nothing'}"
        )
    parameters = _optimized(state)
    _same_modules(state, live, {part.name: part for part in saved})
    targets = {part.name: _target(part, live, parameters) for part in saved}
    fill(targets)
    loaded = load_values(values, targets.__getitem__)
    for name, thing in state.items():
        _load(state, name, thing, loaded[name])
    if rng is not None:
        _set_generators(pickle.loads(rng))


def load_values(data: bytes, tensor: Callable[[str], Any]) -> dict[str, Any]:
    """Unpickle the values.

    Args:
        tensor: gives what a tensor's name stands for.
    """
    loaded: dict[str, Any] = _Unpickler(io.BytesIO(data), tensor).load()
    return loaded


def flatten_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Take the values apart as `torch.distributed.checkpoint` does with a nested dict.

    Args:
        values: with a TensorReference for each tensor.

    Returns:
        what is no tensor, by name; and the path of each name in the nested dict, tensors' too.
    """
    leaves: dict[str, Any] = {}
    paths: dict[str, tuple[str | int, ...]] = {}

    def visit(path: tuple[str | int, ...], value: object) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                visit((*path, str(key)), inner)
        elif isinstance(value, list) and any(_is_container(inner) for inner in value):
            for index, inner in enumerate(value):
                visit((*path, index), inner)
        else:
            name = ".".join(map(str, path))
            paths[name] = path
            if not isinstance(value, TensorReference):
                leaves[name] = value

    visit((), values)
    return leaves, paths


def _is_container(value: object) -> bool:
    return isinstance(value, (TensorReference, Mapping)) or (
        isinstance(value, list) and any(_is_container(inner) for inner in value)
    )


def part_of(name: str, tensor: Tensor) -> Part:
    """Describe a tensor, or this rank's part of a DTensor."""
    local = local_tensor(tensor)
    global_shape = global_offset = None
    if is_distributed(tensor):
        global_shape = tuple(tensor.shape)
        chunks = tensor.__create_chunk_list__()  # type: ignore[attr-defined]  # DCP's protocol for such tensors
        global_offset = tuple(chunks[0].offsets)
    return Part(
        name,
        str(local.dtype).removeprefix("torch."),
        tuple(local.shape),
        local.numel() * local.element_size(),
        global_shape,
        global_offset,
    )


def is_distributed(tensor: object) -> bool:
    """Whether it is a DTensor, as FSDP2 and tensor parallelism make them."""
    module = sys.modules.get("torch.distributed.tensor")  # whoever has one has imported this
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """The memory that this rank has of it."""
    tensor = tensor.detach()
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def capacity(nbytes: int) -> int:
    """How much room a pickle of that size gets: the next may be a little longer in the same layout."""
    room = _LEAST_CAPACITY
    while room < nbytes + nbytes // 8:
        room *= 2
    return room


# --- Taking apart ---------------------------------------------------------------------------------------


def _nested(state: Mapping[str, Any]) -> dict[str, Any]:
    names: dict[int, str] | None = None
    nested: dict[str, Any] = {}
    for name, thing in state.items():
        if not isinstance(name, str) or name.startswith("dlr."):
            raise ValueError(
                f"{name!r} cannot name a part of the state: use a string that does not begin with 'dlr.'"
            )
        if isinstance(thing, nn.Module):
            nested[name] = _module_state(thing)
        elif isinstance(thing, Optimizer):
            if names is None:
                names = _parameter_names(state)
            nested[name] = _optimizer_state(thing, names)
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            nested[name] = thing.state_dict()
        else:
            nested[name] = thing
    return nested


def _collect(path: tuple[str, ...], value: object, tensors: dict[str, Tensor]) -> None:
    if _is_copied(value):
        tensors[".".join(path)] = value  # type: ignore[assignment]
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _collect((*path, str(key)), inner, tensors)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _collect((*path, str(index)), inner, tensors)


def _is_copied(value: object) -> bool:
    """Whether it is a tensor that a slot can hold. What else there is, such as sparse ones, is pickled."""
    if type(value) in (Tensor, nn.Parameter):
        return value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"  # type: ignore[attr-defined]
    return is_distributed(value)


class _Pickler(pickle.Pickler):
    """Writes names instead of tensors."""

    def __init__(self, file: io.BytesIO, tensors: dict[str, Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._names = {id(tensor): name for name, tensor in tensors.items()}

    def reducer_override(self, value: object) -> Any:
        if not _is_copied(value):
            return NotImplemented
        name = self._names.get(id(value))
        if name is None:  # within an object of a class of its own
            name = f"dlr.tensor.{len(self._names)}"
            self._names[id(value)] = name
            self._tensors[name] = value  # type: ignore[assignment]
        return TensorReference, (name,)


class _Unpickler(pickle.Unpickler):
    """Puts tensors where their names are."""

    def __init__(self, file: io.BytesIO, tensor: Callable[[str], Any]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        if name == TensorReference.__name__ and module == __name__:
            return self._tensor
        return super().find_class(module, name)


# --- Modules and optimizers -----------------------------------------------------------------------------

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile and activation checkpointing put into the names of what they wrap."""


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile.

    Raises:
        TypeError: FSDP's first version wraps it, whose state takes collectives to read.
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


def _module_state(module: nn.Module) -> dict[str, Any]:
    return {_clean(name): value for name, value in unwrapped(module).state_dict(keep_vars=True).items()}


def _parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """Names of the parameters of all modules, by identity; with the module's where there is more than one."""
    modules = {name: unwrapped(thing) for name, thing in state.items() if isinstance(thing, nn.Module)}
    return {
        id(parameter): _clean(name) if len(modules) == 1 else f"{outer}.{_clean(name)}"
        for outer, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def _ids(optimizer: Optimizer, names: dict[int, str]) -> dict[int, int | str]:
    """What each of an optimizer's parameters is called, by its number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(id(parameter) in names for parameter in parameters):
        return {number: names[id(parameter)] for number, parameter in enumerate(parameters)}
    return {number: number for number in range(len(parameters))}


def _optimizer_state(optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
    ids, saved = _ids(optimizer, names), optimizer.state_dict()
    return {
        **saved,
        "state": {ids.get(number, number): value for number, value in saved["state"].items()},
        "param_groups": [
            {**group, "params": [ids[number] for number in group["params"]]}
            for group in saved["param_groups"]
        ],
    }


# --- Putting back ---------------------------------------------------------------------------------------


def _optimized(state: Mapping[str, Any]) -> dict[str, nn.Parameter]:
    """The parameter that an optimizer keeps tensors of, by the beginning of their names."""
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


def _same_modules(state: Mapping[str, Any], live: dict[str, Tensor], saved: dict[str, Part]) -> None:
    for name, thing in state.items():
        if isinstance(thing, nn.Module):
            here = {key for key in live if key.startswith(f"{name}.")}
            there = {key for key in saved if key.startswith(f"{name}.")}
            if odd := sorted(here ^ there):
                where = "the checkpoint" if odd[0] in there else "the model"
                raise MismatchError(f"only {where} has {odd[0]}: is this the checkpoint of another model?")


def _target(part: Part, live: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> Tensor:
    """The live tensor, or a new one like it."""
    shape, dtype = part.global_shape or part.shape, getattr(torch, part.dtype)
    present = live.get(part.name)
    if present is not None and tuple(present.shape) == shape and present.dtype == dtype:
        return present
    parameter = parameters.get(part.name.rpartition(".")[0])
    if parameter is not None and tuple(parameter.shape) == shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    if present is not None and part.name not in parameters:
        raise MismatchError(
            f"{part.name} is {part.dtype}{list(shape)} in the checkpoint, and "
            f"{str(present.dtype).removeprefix('torch.')}{list(present.shape)} here"
        )
    return torch.empty(shape, dtype=dtype)


def _load(state: MutableMapping[str, Any], name: str, thing: Any, saved: Any) -> None:
    if isinstance(thing, nn.Module):
        module = unwrapped(thing)
        own = {id(tensor) for tensors in (module.parameters(), module.buffers()) for tensor in tensors}
        present = module.state_dict(keep_vars=True)
        if not all(id(value) in own for value in present.values()):  # extra state, or hooks that make copies
            module.load_state_dict({key: saved[_clean(key)] for key in present})
    elif isinstance(thing, Optimizer):
        thing.load_state_dict(_numbered(thing, saved, _parameter_names(state), name))
    elif hasattr(thing, "load_state_dict"):
        thing.load_state_dict(saved)
    else:
        state[name] = saved


def _numbered(
    optimizer: Optimizer, saved: dict[str, Any], names: dict[int, str], name: str
) -> dict[str, Any]:
    """The optimizer's state with numbers instead of names, as `load_state_dict` takes it."""
    numbers = {id_: number for number, id_ in _ids(optimizer, names).items()}
    there = {id_ for group in saved["param_groups"] for id_ in group["params"]}
    if odd := sorted(map(str, there ^ set(numbers))):
        raise MismatchError(f"{name} has other parameters than its checkpoint, {odd[0]} for example")
    if [len(group["params"]) for group in saved["param_groups"]] != [
        len(group["params"]) for group in optimizer.param_groups
    ]:
        raise MismatchError(f"{name} has other parameter groups than its checkpoint")
    return {
        **saved,
        "state": {numbers.get(id_, id_): value for id_, value in saved["state"].items()},
        "param_groups": [
            {**group, "params": [numbers[id_] for id_ in group["params"]]} for group in saved["param_groups"]
        ],
    }


# --- Random numbers -------------------------------------------------------------------------------------


def _generators() -> dict[str, Any]:
    generators: dict[str, Any] = {"python": random.getstate(), "torch": bytes(torch.get_rng_state().tolist())}
    if "numpy" in sys.modules:
        generators["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators["cuda"] = bytes(torch.cuda.get_rng_state().tolist())
    return generators


def _set_generators(generators: dict[str, Any]) -> None:
    random.setstate(generators["python"])
    torch.set_rng_state(_bytes(generators["torch"]))
    if "numpy" in generators:
        import numpy

        numpy.random.set_state(generators["numpy"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(generators["cuda"]))


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
