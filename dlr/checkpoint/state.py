"""Contents of a checkpoint: the tensors of a training's state by name, and one pickle of all other values.

`capture` separates them without a copy; `restore` fills the live state in place. Names are those that
`torch.distributed.checkpoint` gives to a nested dict: `model.0.weight`, `optimizer.state.0.weight.exp_avg`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from agent.slots.format import TensorPart
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
from dlr.checkpoint.values import NotAllowedError, TensorReference, load_values, write_values

VALUES = "dlr.values"
"""Name of the pickle of all values that are no tensors, stored as a tensor of bytes."""
RNG = "dlr.rng"
"""Name of the pickle of the random number generators."""
_LEAST_CAPACITY = 4096
_MERSENNE, _MERSENNE_WORDS = "MT19937", 624


@dataclass(frozen=True)
class Captured:
    """A state, separated into tensors and pickles."""

    tensors: dict[str, Tensor]
    """Live tensors, including DTensors, by name."""
    settled: frozenset[str]
    """Names of tensors that change only in the step of an optimizer of the state."""
    pickles: dict[str, bytes]
    """Pickles `VALUES` and `RNG`."""
    modules: tuple[nn.Module, ...]
    """Modules of the state."""


def capture(state: Mapping[str, Any], *, weights_only: bool = True, rng_state: bool = True) -> Captured:
    """Separate the state into tensors and pickles, without a copy of the tensors.

    Args:
        state: names, and modules, optimizers, anything else with `state_dict`, or plain values.
        weights_only: whether to refuse values that only `weights_only=False` can load.
        rng_state: whether to include the random number generators.

    Raises:
        TypeError, ValueError: a value cannot be saved; the message names it.
    """
    values = _nested(state)
    tensors: dict[str, Tensor] = {}
    _collect((), values, tensors)
    generators = generators_of_process() if rng_state else {}
    pickles = {VALUES: _pickled(values, tensors, weights_only), RNG: write_values(generators, {})}
    lasting = settled_tensors(state)
    settled = frozenset(name for name, tensor in tensors.items() if id(tensor) in lasting)
    modules = tuple(thing for thing in state.values() if isinstance(thing, nn.Module))
    return Captured(tensors, settled, pickles, modules)


def calm_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return modules, optimizers and plain values, whose state may be read at any time.

    Reading the state of other objects may have side effects: torchdata's StatefulDataLoader, for example,
    begins its epoch, with workers, before the script has set the sampler's.
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
    saved: Iterable[TensorPart],
    fill: Callable[[dict[str, Tensor]], None],
    *,
    weights_only: bool = True,
) -> None:
    """Load a checkpoint into the live state.

    Args:
        values: the pickle `VALUES`.
        rng: the pickle `RNG`; None leaves the generators unchanged.
        saved: tensors of the checkpoint.
        fill: copies the checkpoint's tensors into the given ones, by name.
        weights_only: as in `load_values`.

    Raises:
        MismatchError: the checkpoint does not fit the state.
        NotAllowedError, UnpicklingError: as `load_values`.
    """
    live: dict[str, Tensor] = {}
    _collect((), _nested(state), live)
    referred: set[str] = set()

    def refer(name: str) -> TensorReference:
        referred.add(name)
        return TensorReference(name)

    names = load_values(values, refer, weights_only)
    if not isinstance(names, dict):
        raise UnpicklingError("the values are none of a state")
    missing, unknown = sorted(set(state) - set(names)), sorted(set(names) - set(state))
    if missing or unknown:
        raise MismatchError(
            f"the checkpoint has {', '.join(sorted(names)) or 'nothing'}, "
            f"and the state has {', '.join(sorted(state)) or 'nothing'}"
        )
    # Storage may have tensors that only other ranks need, such as those of other pipeline stages.
    saved = [part for part in saved if part.name in live or part.name in referred]
    check_modules(state, live, {part.name: part for part in saved})
    targets = targets_for(saved, live, state)
    fill(targets)
    loaded = load_values(values, targets.__getitem__, weights_only)
    for name, thing in state.items():
        _load(state, name, thing, loaded[name])
    if rng is not None:
        try:
            set_generators(load_values(rng, TensorReference))
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UnpicklingError(f"the random numbers cannot be set: {error}") from error


def flatten_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Flatten the values as `torch.distributed.checkpoint` flattens a nested dict.

    Args:
        values: values with a TensorReference for each tensor.

    Returns:
        the values that are no tensors, by name; and the path of each name, including tensors.
    """
    from torch.distributed.checkpoint._traverse import traverse_state_dict  # takes a second to import

    leaves: dict[str, Any] = {}
    paths: dict[str, tuple[str | int, ...]] = {}

    def visit(path: tuple[str | int, ...], value: object) -> None:
        name = ".".join(map(str, path))
        paths[name] = path
        if not isinstance(value, TensorReference):
            leaves[name] = value

    traverse_state_dict(dict(values), visit, lambda value: isinstance(value, TensorReference))
    return leaves, paths


def capacity(nbytes: int) -> int:
    """Return the space to reserve for a pickle of that size, so that a longer one may fit the same layout."""
    room = _LEAST_CAPACITY
    while room < nbytes + nbytes // 8:
        room *= 2
    return room


# --- Capture --------------------------------------------------------------------------------------------


def _nested(state: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    # Modules first: after an evaluation FSDP2 then reshards its parameters, among which an optimizer looks up
    # its own.
    for name, thing in sorted(state.items(), key=lambda item: not isinstance(item[1], nn.Module)):
        if not isinstance(name, str) or f"{name}.".startswith("dlr."):
            raise ValueError(
                f"{name!r} cannot name a part of the state: use a string other than 'dlr' that does not "
                "begin with 'dlr.'"
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


def _pickled(values: dict[str, Any], tensors: dict[str, Tensor], weights_only: bool) -> bytes:
    """Pickle the values; tensors inside other objects are added to `tensors`.

    Raises:
        TypeError: a value cannot be pickled, or could not be loaded.
    """
    try:
        return write_values(values, tensors, weights_only)
    except NotAllowedError as error:
        raise TypeError(f"{_unpicklable(values, weights_only)} cannot be saved: {error}") from error
    except Exception as error:  # a pickle may raise anything
        raise TypeError(
            f"{_unpicklable(values, weights_only)} cannot be pickled, so take it out of the state: "
            f"{type(error).__name__}: {error}"
        ) from error


def _unpicklable(values: object, weights_only: bool) -> str:
    """Return the path of the first value that cannot be pickled."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(values, Mapping):
        items = values.items()
    elif isinstance(values, (list, tuple)):
        items = enumerate(values)
    for key, value in items:
        try:
            write_values(value, {}, weights_only)
        except Exception:
            return ".".join(filter(None, (str(key), _unpicklable(value, weights_only))))
    return ""


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


def generators_of_process() -> dict[str, Any]:
    """Return the states of the default generators of Python, torch, NumPy and the current GPU."""
    generators: dict[str, Any] = {"python": random.getstate(), "torch": bytes(torch.get_rng_state().tolist())}
    if "numpy" in sys.modules:
        drawn = sys.modules["numpy"].random.get_state(legacy=False)
        if drawn["bit_generator"] == _MERSENNE:  # another one is the script's choice, and its to seed
            key, place = drawn["state"]["key"].tolist(), drawn["state"]["pos"]  # readable without NumPy
            generators["numpy"] = (_MERSENNE, key, place, drawn["has_gauss"], drawn["gauss"])
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators["cuda"] = bytes(torch.cuda.get_rng_state().tolist())
    return generators


def set_generators(generators: dict[str, Any]) -> None:
    """Restore the default generators to the result of `generators_of_process`."""
    if not generators:  # the checkpoint was saved without them
        return
    random.setstate(generators["python"])
    torch.set_rng_state(_bytes(generators["torch"]))
    if "numpy" in generators:
        _set_numpy_generator(generators["numpy"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(generators["cuda"]))


def _set_numpy_generator(state: tuple[Any, ...]) -> None:
    _, _, at, *_ = state
    if not 0 <= at <= _MERSENNE_WORDS:  # NumPy would read beyond its end
        raise ValueError(f"NumPy's generator is at word {at} of {_MERSENNE_WORDS}")
    try:
        import numpy
    except ImportError:
        return  # the checkpoint is from an image that has NumPy; nothing draws from it here
    numpy.random.set_state(state)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
