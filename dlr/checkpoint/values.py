"""The pickle of values that are no tensors, which can be read without running foreign code.

A slot may have come over a network, so reading is limited as in `torch.load(weights_only=True)`: to an
allow-list, and classes that the script has registered (`add_safe_globals`). Writing refuses the same classes.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import pathlib
import pickle
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.serialization import get_safe_globals

from dlr.checkpoint.tensors import is_copied
from dlr.checkpoint.unpickling import RestrictedUnpickler

WITHIN = "dlr.tensor."
"""Prefix of the names of tensors inside other objects; a number follows."""


class NotAllowedError(pickle.UnpicklingError):
    """A value is of a class that a checkpoint may hold only if the script registers it."""


@dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the pickle of the values."""

    name: str


def write_values(values: object, tensors: dict[str, Tensor], weights_only: bool = True) -> bytes:
    """Pickle the values; tensors inside other objects are added to `tensors`.

    Args:
        weights_only: whether to refuse values that `load_values` refuses by default.

    Raises:
        NotAllowedError: `load_values` would refuse a value.
        Exception: a value cannot be pickled.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, tensors, weights_only).dump(values)
    return buffer.getvalue()


def load_values(data: bytes, tensor: Callable[[str], Any], weights_only: bool = True) -> Any:
    """Unpickle the values.

    Args:
        tensor: returns the replacement for a tensor's name.
        weights_only: as in `torch.load`; with False, reading may run any code.

    Raises:
        NotAllowedError: a class is not registered by the script.
        UnpicklingError: `write_values` does not write such a pickle.
    """
    try:
        return (_Unpickler if weights_only else _AnyUnpickler)(data, tensor).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # invalid pickles may raise anything
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise pickle.UnpicklingError(f"the values cannot be read: {reason}") from error


# --- Allowed classes ------------------------------------------------------------------------------------


def _path_of(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath)
"""Path classes, whose modules differ between releases of Python."""
_PLAIN = (
    *(bool, bytes, complex, dict, float, int, list, set, str, tuple),
    *(Counter, OrderedDict, defaultdict, deque, decimal.Decimal),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(torch.Size, torch.device),
    *_PATHS,
)
"""Allowed classes whose objects are pickled in the usual way."""
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""Types of objects that pickle writes by name."""
_KINDS_OF_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_CONSTANTS = {
    f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, _KINDS_OF_CONSTANTS)
}
"""torch's constants, by name."""
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc)


def _safe_globals() -> dict[str, Any]:
    """Return the globals that the script and libraries have registered, by path."""
    pairs = (it if isinstance(it, tuple) else (it, None) for it in get_safe_globals())
    return {path or _path_of(named): named for named, path in pairs}


def refuse(path: str) -> NoReturn:
    """Raise NotAllowedError for the global with that path."""
    raise NotAllowedError(
        f"{path} may not be in a checkpoint: call torch.serialization.add_safe_globals"
        f"([{path.rpartition('.')[2]}]) before load() if you trust it, give the Checkpointer "
        "weights_only=False if you trust all who can write its checkpoints, or keep it out of the state"
    )


# --- Writing --------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Writes references instead of tensors, and with `weights_only` nothing that `_Unpickler` refuses."""

    def __init__(self, file: io.BytesIO, tensors: dict[str, Tensor], weights_only: bool) -> None:
        super().__init__(file, protocol=5)
        self._weights_only = weights_only
        self._tensors = tensors
        self._names = {id(tensor): name for name, tensor in tensors.items()}

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, Tensor):
            if isinstance(value, TensorReference):
                return TensorReference, (value.name,)
            return _reduce(value) if self._weights_only else NotImplemented
        if not is_copied(value):
            plain = value.detach()  # the content of a parameter subclass is a plain tensor
            if not is_copied(plain):
                return self._reduce_tensor(plain)
            value = plain
        name = self._names.get(id(value))
        if name is None:  # inside another object
            name = f"{WITHIN}{len(self._names)}"
            self._names[id(value)] = name
            self._tensors[name] = value
        return TensorReference, (name,)

    def _reduce_tensor(self, value: Tensor) -> Any:
        """Return pickle's reduction of a tensor that a slot cannot hold."""
        if hasattr(value, "__tensor_flatten__"):  # a wrapper of other tensors, such as torchao's
            names, context = value.__tensor_flatten__()
            inner = {name: getattr(value, name) for name in names}
            return _put_together, (type(value), inner, context, value.size(), value.stride())
        if type(value) is Tensor and value.layout in _SPARSE:
            torch.save(value, data := io.BytesIO())
            return _loaded, (data.getvalue(),)
        if not self._weights_only:
            return NotImplemented
        kind = f"{_path_of(type(value))} of {value.dtype} on {value.device.type}"
        raise NotAllowedError(f"a {kind} may not be in a checkpoint: keep it out of the state")


def _reduce(value: Any) -> Any:
    """Return pickle's reduction of an object that is neither a tensor nor of a basic type.

    Raises:
        NotAllowedError: reading would refuse it.
    """
    kind = type(value)
    if kind in _PLAIN:
        return NotImplemented
    if isinstance(value, _KINDS_OF_CONSTANTS):
        return _constant, (str(value),)
    if kind.__module__.partition(".")[0] == "numpy" and (found := _reduce_numpy(value)) is not None:
        return found
    named = value if isinstance(value, _BY_NAME) else kind
    path = _path_of(named)
    if "<" in path or (named is not kind and _NAMED.get(path) is named):
        return NotImplemented  # pickle itself reports objects that are local to a function
    if _safe_globals().get(path) is not named:
        refuse(path)
    if isinstance(value, enum.Enum):  # some releases of Python would pickle a getattr call
        return kind, (value.value,)
    return NotImplemented


def _reduce_numpy(value: Any) -> Any:
    """Return pickle's reduction of a NumPy array, scalar or dtype; None for other NumPy objects."""
    import numpy

    if isinstance(value, numpy.dtype):
        return _dtype, (_array_file(numpy.empty(0, value)),)
    if type(value) is numpy.ndarray:
        return _array, (_array_file(value),)
    if isinstance(value, numpy.generic):
        return _scalar, (_array_file(numpy.asarray(value)),)
    return None


def _array_file(array: Any) -> bytes:
    """Return an array in NumPy's file format."""
    import numpy

    try:
        numpy.save(data := io.BytesIO(), array, allow_pickle=False)
    except ValueError as error:
        raise NotAllowedError(
            f"a NumPy array of {array.dtype} may not be in a checkpoint: {error}"
        ) from error
    return data.getvalue()


# --- Reading --------------------------------------------------------------------------------------------


def _put_together(
    cls: Any, inner: dict[str, Any], context: object, size: torch.Size, stride: tuple[int, ...]
) -> Any:
    """Build a tensor of a class that wraps other tensors."""
    if any(isinstance(tensor, TensorReference) for tensor in inner.values()):
        return TensorReference(cls.__name__)  # the caller wants only the names
    return cls.__tensor_unflatten__(inner, context, size, stride)


def _loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def _constant(name: str) -> object:
    return _CONSTANTS[name]


def _array(data: bytes) -> Any:
    import numpy

    return numpy.load(io.BytesIO(data), allow_pickle=False)


def _scalar(data: bytes) -> Any:
    return _array(data)[()]


def _dtype(data: bytes) -> Any:
    return _array(data).dtype


_NAMED: dict[str, Any] = {
    **{f"{module}.{it.__name__}": it for module in ("pathlib", "pathlib._local") for it in _PATHS},
    **{_path_of(it): it for it in (*_PLAIN, _constant, _array, _scalar, _dtype, _loaded, _put_together)},
    _path_of(TensorReference): TensorReference,
}
"""Globals that a pickle may name, by path."""


class _AnyUnpickler(pickle.Unpickler):
    """Replaces references by tensors, and allows all globals."""

    def __init__(self, data: bytes, tensor: Callable[[str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._tensor if found is TensorReference else found


class _Unpickler(RestrictedUnpickler):
    """Replaces references by tensors, and allows only `_NAMED` and globals that the script has registered."""

    def __init__(self, data: bytes, tensor: Callable[[str], Any]) -> None:
        super().__init__(data)
        self._tensor = tensor
        self._allowed = {**_safe_globals(), **_NAMED}

    def named(self, path: str) -> Any:
        if path == _path_of(TensorReference):
            return self._tensor
        if path not in self._allowed:
            refuse(path)
        return self._allowed[path]
