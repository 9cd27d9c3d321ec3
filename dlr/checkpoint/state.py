"""What a checkpoint is made of: the tensors of a training's state by their names, and one pickle of all else.

`capture` takes the state apart without a copy; `restore` fills the live state in place. Names are those that
`torch.distributed.checkpoint` gives to a nested dict: `model.0.weight`, `optimizer.state.0.weight.exp_avg`.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from agent.memory.layout import Part
from dlr.checkpoint.modules import (
    MismatchError,
    check_modules,
    load_module,
    load_optimizer,
    module_state,
    optimizer_state,
    settled_tensors,
    targets_for,
)
from dlr.checkpoint.tensors import is_copied

VALUES = "dlr.values"
"""The name of the pickle of everything that is no tensor, as a tensor of bytes."""
RNG = "dlr.rng"
"""The name of the pickle of the random number generators."""
WITHIN = "dlr.tensor."
"""How the names of tensors begin that are within other objects; a number follows."""
_LEAST_CAPACITY = 4096


@dataclass(frozen=True)
class Captured:
    """A state, taken apart."""

    tensors: dict[str, Tensor]
    """The live tensors, DTensors among them, by name."""
    settled: frozenset[str]
    """Names of those that nothing but the step of an optimizer of the state changes."""
    pickles: dict[str, bytes]
    """`VALUES` and `RNG`."""
    modules: tuple[nn.Module, ...]
    """Those of the state."""


@dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the pickle of the values."""

    name: str


def capture(state: Mapping[str, Any]) -> Captured:
    """Take the state apart.

    Args:
        state: names, and modules, optimizers, anything else with `state_dict`, or plain values.

    Raises:
        TypeError, ValueError: something in it cannot be saved; the sentence names it.
    """
    values = _nested(state)
    tensors: dict[str, Tensor] = {}
    _collect((), values, tensors)
    pickles = {VALUES: _pickled(values, tensors), RNG: pickle.dumps(_generators())}
    lasting = settled_tensors(state)
    settled = frozenset(name for name, tensor in tensors.items() if id(tensor) in lasting)
    modules = tuple(thing for thing in state.values() if isinstance(thing, nn.Module))
    return Captured(tensors, settled, pickles, modules)


def calm_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Modules, optimizers and plain values, which anybody may look at any time.

    Other things are asked for a checkpoint and not otherwise: torchdata's StatefulDataLoader, say, begins its
    epoch by it, with workers, before the script has set its sampler's.
    """
    return {
        name: thing
        for name, thing in state.items()
        if isinstance(thing, (nn.Module, Optimizer)) or not hasattr(thing, "state_dict")
    }


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
    referred: set[str] = set()

    def refer(name: str) -> TensorReference:
        referred.add(name)
        return TensorReference(name)

    names = load_values(values, refer)
    missing, unknown = sorted(set(state) - set(names)), sorted(set(names) - set(state))
    if missing or unknown:
        raise MismatchError(
            f"the checkpoint has {', '.join(sorted(names)) or 'nothing'}, "
            f"and the state has {', '.join(sorted(state)) or 'nothing'}"
        )
    # Storage has what other ranks alone have too, as the stages of a pipeline do.
    saved = [part for part in saved if part.name in live or part.name in referred]
    check_modules(state, live, {part.name: part for part in saved})
    targets = targets_for(saved, live, state)
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


def capacity(nbytes: int) -> int:
    """How much room a pickle of that size gets: the next may be a little longer in the same layout."""
    room = _LEAST_CAPACITY
    while room < nbytes + nbytes // 8:
        room *= 2
    return room


# --- Taking apart ---------------------------------------------------------------------------------------


def _nested(state: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    # Modules first: FSDP2 has its parameters back in their shards by then, if an evaluation came before, and
    # an optimizer finds its own among them.
    for name, thing in sorted(state.items(), key=lambda item: not isinstance(item[1], nn.Module)):
        if not isinstance(name, str) or name.startswith("dlr."):
            raise ValueError(
                f"{name!r} cannot name a part of the state: use a string that does not begin with 'dlr.'"
            )
        if isinstance(thing, nn.Module):
            nested[name] = module_state(thing)
        elif isinstance(thing, Optimizer):
            nested[name] = optimizer_state(thing, state)
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            nested[name] = thing.state_dict()
        else:
            nested[name] = thing
    return nested


def _collect(path: tuple[str, ...], value: object, tensors: dict[str, Tensor]) -> None:
    if is_copied(value):
        tensors[".".join(path)] = value  # type: ignore[assignment]
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _collect((*path, str(key)), inner, tensors)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _collect((*path, str(index)), inner, tensors)


def _pickled(values: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Pickle what is no tensor. Tensors within objects of classes of their own are added to `tensors`.

    Raises:
        TypeError: something cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, tensors).dump(values)
    except Exception as error:  # a pickle may raise anything
        name = ".".join(_unpicklable(values))
        raise TypeError(
            f"{name} cannot be pickled, so take it out of the state: {type(error).__name__}: {error}"
        ) from error
    return buffer.getvalue()


def _unpicklable(values: Mapping[Any, Any]) -> Iterator[str]:
    """The path of the first value that cannot be pickled."""
    for key, value in values.items():
        try:
            _Pickler(io.BytesIO(), {}).dump(value)
        except Exception:
            yield str(key)
            if isinstance(value, Mapping):
                yield from _unpicklable(value)
            return


class _Pickler(pickle.Pickler):
    """Writes names instead of tensors."""

    def __init__(self, file: io.BytesIO, tensors: dict[str, Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._names = {id(tensor): name for name, tensor in tensors.items()}

    def reducer_override(self, value: object) -> Any:
        if not is_copied(value):
            return self._reduce_whole(value) if isinstance(value, Tensor) else NotImplemented
        name = self._names.get(id(value))
        if name is None:  # within an object of a class of its own
            name = f"{WITHIN}{len(self._names)}"
            self._names[id(value)] = name
            self._tensors[name] = value  # type: ignore[assignment]
        return TensorReference, (name,)

    @staticmethod
    def _reduce_whole(value: Tensor) -> Any:
        """A tensor that a slot does not hold as it is."""
        if hasattr(value, "__tensor_flatten__"):  # its class consists of tensors, as torchao's do
            names, context = value.__tensor_flatten__()
            inner = {name: getattr(value, name) for name in names}
            return _put_together, (type(value), inner, context, value.size(), value.stride())
        # Pickled beforehand: what puts it together takes no reference for a tensor.
        return pickle.loads, (pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL),)


def _put_together(
    cls: Any, inner: dict[str, Any], context: object, size: torch.Size, stride: tuple[int, ...]
) -> Any:
    """Make a tensor of a class that consists of tensors."""
    if any(isinstance(tensor, TensorReference) for tensor in inner.values()):
        return TensorReference(cls.__name__)  # for who asks for the names alone
    return cls.__tensor_unflatten__(inner, context, size, stride)


class _Unpickler(pickle.Unpickler):
    """Puts tensors where their names are."""

    def __init__(self, file: io.BytesIO, tensor: Callable[[str], Any]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        if name == TensorReference.__name__ and module == __name__:
            return self._tensor
        return super().find_class(module, name)


def _load(state: MutableMapping[str, Any], name: str, thing: Any, saved: Any) -> None:
    if isinstance(thing, nn.Module):
        load_module(thing, saved)
    elif isinstance(thing, Optimizer):
        load_optimizer(thing, saved, state, name)
    elif hasattr(thing, "load_state_dict"):
        thing.load_state_dict(saved)
    else:
        state[name] = saved


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
