"""The pickle of what is no tensor: written so that it can be read without running anybody's code.

A slot may have come over a network, so reading is limited as `torch.load(weights_only=True)` is, and by the
same list (`agent.unpickling`). Writing refuses what reading would refuse.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import pathlib
import pickle
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.serialization import get_safe_globals

from agent import unpickling
from dlr.checkpoint.tensors import is_copied

WITHIN = "dlr.tensor."
"""How the names of tensors begin that are within other objects; a number follows."""


class NotAllowedError(pickle.UnpicklingError):
    """A value is of a class that no checkpoint may hold, as long as the script has not registered it."""


@dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the pickle of the values."""

    name: str


def write_values(values: object, tensors: dict[str, Tensor], weights_only: bool = True) -> bytes:
    """Pickle what is no tensor. Tensors within objects of classes of their own are added to `tensors`.

    Args:
        weights_only: whether only what `load_values` reads by default may be in it.

    Raises:
        NotAllowedError: `load_values` would refuse it.
        Exception: something cannot be pickled.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, tensors, weights_only).dump(values)
    return buffer.getvalue()


def load_values(data: bytes, tensor: Callable[[str], Any], weights_only: bool = True) -> Any:
    """Unpickle the values.

    Args:
        tensor: gives what a tensor's name stands for.
        weights_only: as `torch.load` has it. Without, reading may run any code.

    Raises:
        NotAllowedError: it names what the script has not registered.
        UnpicklingError: it is not what `write_values` writes.
    """
    try:
        return (TensorUnpickler if weights_only else _AnyUnpickler)(data, tensor).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # what is no pickle may raise anything
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise pickle.UnpicklingError(f"the values cannot be read: {reason}") from error


def load_readable_values(data: bytes, tensor: Callable[[str], Any]) -> Any:
    """Unpickle the values, with something that pickle refuses in the place of what is not registered here.

    Raises:
        Exception: it cannot be done.
    """
    return _LenientUnpickler(data, tensor).load()


# --- What may be in a checkpoint ------------------------------------------------------------------------


def _path_of(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


_FACTORIES = (bool, bytes, dict, float, int, list, set, str, tuple, Counter, OrderedDict, deque)
"""What a defaultdict may call, and the rest may name."""
_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath)
"""Releases of Python name them differently."""
_OF_ATOMS = (
    complex,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    *_PATHS,
    torch.Size,
    torch.device,
)
"""What is called with numbers and texts alone, and uses no more memory than they do."""
_SMALL = {datetime.timedelta, datetime.timezone}
"""What such a call may be given besides, of which each has a few bytes."""
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""What pickle writes by its name."""
_KINDS_OF_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_CONSTANTS = {
    f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, _KINDS_OF_CONSTANTS)
}
"""What torch has names for, by them."""
_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
"""The methods that give the indices of a compressed sparse tensor."""


def _safe_globals() -> dict[str, Any]:
    """What the script and libraries have registered, by its path."""
    pairs = (it if isinstance(it, tuple) else (it, None) for it in get_safe_globals())
    return {path or _path_of(named): named for named, path in pairs}


def refuse(path: str) -> NoReturn:
    """Raise NotAllowedError for what has that path."""
    raise NotAllowedError(
        f"{path} may not be in a checkpoint: call torch.serialization.add_safe_globals"
        f"([{path.rpartition('.')[2]}]) before load() if you trust it, give the Checkpointer "
        "weights_only=False if you trust whoever can write its checkpoints, or keep it out of the state"
    )


# --- Writing --------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Writes names instead of tensors, and with `weights_only` nothing that `TensorUnpickler` refuses."""

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
            plain = value.detach()  # of a class of its own, a parameter's content is a plain tensor
            if not is_copied(plain):
                return self._reduce_parts(plain)
            value = plain
        name = self._names.get(id(value))
        if name is None:  # within an object of a class of its own
            name = f"{WITHIN}{len(self._names)}"
            self._names[id(value)] = name
            self._tensors[name] = value
        return TensorReference, (name,)

    def _reduce_parts(self, value: Tensor) -> Any:
        try:
            return _reduce_parts(value)
        except NotAllowedError:
            if self._weights_only:
                raise
            return NotImplemented


def _reduce(value: Any) -> Any:
    """Tell the pickler how to write what is no tensor, and not of Python's basic types.

    Raises:
        NotAllowedError: it could not be read.
    """
    kind = type(value)
    if kind in _WRITTEN:
        return NotImplemented
    if isinstance(value, _KINDS_OF_CONSTANTS):
        return _constant, (str(value),)
    if kind is Counter:  # as pickle has it, one call would copy what is named many times
        return Counter, (), None, None, iter(value.items())
    if (numpy := sys.modules.get("numpy")) is not None:
        if kind is numpy.ndarray:
            return _reduce_array(value)
        if isinstance(value, numpy.generic) and kind.__module__ == "numpy":
            return _scalar, (value.dtype, value.tobytes())
        if isinstance(value, numpy.dtype):
            return _dtype, (_description(value),)
    named = value if isinstance(value, _BY_NAME) else kind
    path = _path_of(named)
    if "<" in path or (named is not kind and _NAMED.get(path) is named):
        return NotImplemented  # of what is local to a function, pickle says itself that it has no name
    if _safe_globals().get(path) is not named:
        refuse(path)
    if isinstance(value, enum.Enum):  # of some releases of Python, it would be by getattr
        return kind, (value.value,)
    return NotImplemented


def _reduce_parts(value: Tensor) -> Any:
    """Tell the pickler of which plain tensors one consists that a slot does not hold as it is.

    Raises:
        NotAllowedError: it could not be read.
    """
    if hasattr(value, "__tensor_flatten__"):  # its class consists of tensors, as torchao's do
        names, context = value.__tensor_flatten__()
        inner = {name: getattr(value, name) for name in names}
        return _put_together, (type(value), inner, context, value.size(), value.stride())
    if type(value) is not Tensor or value.layout not in (torch.sparse_coo, *_INDICES):
        kind = f"{_path_of(type(value))} of {value.dtype} on {value.device.type}"
        raise NotAllowedError(f"a {kind} may not be in a checkpoint: keep it out of the state")
    if value.layout is torch.sparse_coo:
        parts = value._indices(), value._values()
    else:
        parts = (*(getattr(value, name)() for name in _INDICES[value.layout]), value.values())
    is_coalesced = value.layout is torch.sparse_coo and value.is_coalesced()
    return _sparse, (parts, tuple(value.shape), str(value.layout), is_coalesced)


def _reduce_array(array: Any) -> Any:
    from numpy import ascontiguousarray

    if array.dtype.hasobject:
        raise NotAllowedError("a NumPy array of objects may not be in a checkpoint: make it a list")
    flat: Any = ascontiguousarray(array).reshape(-1)
    return _array, (array.dtype, array.shape, pickle.PickleBuffer(flat.view("u1")) if array.size else b"")


def _description(dtype: Any) -> Any:
    from numpy.lib.format import descr_to_dtype, dtype_to_descr

    if dtype.hasobject or descr_to_dtype(description := dtype_to_descr(dtype)) != dtype:
        raise NotAllowedError(f"NumPy's type {dtype} may not be in a checkpoint: use another")
    return description


# --- Reading --------------------------------------------------------------------------------------------


def _put_together(
    cls: Any, inner: dict[str, Any], context: object, size: torch.Size, stride: tuple[int, ...]
) -> Any:
    """Make a tensor of a class that consists of tensors."""
    if any(isinstance(tensor, TensorReference) for tensor in inner.values()):
        return TensorReference(cls.__name__)  # for who asks for the names alone
    return cls.__tensor_unflatten__(inner, context, size, stride)


def _sparse(parts: tuple[Any, ...], size: tuple[int, ...], layout: str, is_coalesced: bool) -> Any:
    """Make a sparse tensor, which takes no more memory than its parts do."""
    if any(isinstance(part, TensorReference) for part in parts):
        return TensorReference(layout)  # for who asks for the names alone
    if layout == "torch.sparse_coo":
        indices, values = parts
        coalesced = True if is_coalesced else None
        return torch.sparse_coo_tensor(
            indices, values, size, device=values.device, check_invariants=True, is_coalesced=coalesced
        )
    compressed, plain, values = parts
    kind = cast(torch.layout, _constant(layout))
    return torch.sparse_compressed_tensor(
        compressed, plain, values, size, layout=kind, device=values.device, check_invariants=True
    )


def _constant(name: str) -> object:
    return _CONSTANTS[_text(name)]


def _dtype(description: Any) -> Any:
    from numpy.lib.format import descr_to_dtype

    return descr_to_dtype(description)


def _array(dtype: Any, shape: tuple[int, ...], data: bytes | bytearray) -> Any:
    import numpy

    if 0 in shape:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(data, dtype).reshape(shape)  # never an array of objects


def _scalar(dtype: Any, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype)[0] if dtype.itemsize else dtype.type()


_WRITTEN = {defaultdict, deque, OrderedDict, *(it for it in _OF_ATOMS if isinstance(it, type))}
_OF_PLAIN = (*_OF_ATOMS, _constant, _dtype, _array, _scalar)
_NAMED: dict[str, Any] = {
    **{f"{module}.{it.__name__}": it for module in ("pathlib", "pathlib._local") for it in _PATHS},
    **{
        _path_of(named): named
        for named in (*_FACTORIES, *_OF_PLAIN, defaultdict, TensorReference, _put_together, _sparse)
    },
}
"""What a pickle may name, by its path."""


class _AnyUnpickler(pickle.Unpickler):
    """Puts tensors where their names are, and runs whatever else it finds."""

    def __init__(self, data: bytes, tensor: Callable[[str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._tensor if found is TensorReference else found


class TensorUnpickler(unpickling.BoundedUnpickler):
    """Puts tensors where their names are, and calls nothing but what `_NAMED` and the script allow."""

    def __init__(self, data: bytes, tensor: Callable[[str], Any]) -> None:
        super().__init__(data)
        self._refer = lambda name: tensor(_text(name))
        self._registered = _safe_globals()
        self._registered_ids = frozenset(map(id, self._registered.values()))

    def named(self, path: str) -> Any:
        if path == _path_of(TensorReference):
            return self._refer
        if path in _NAMED:
            return _NAMED[path]
        if path not in self._registered:
            refuse(path)
        return self._registered[path]

    def may_call(self, called: Any, args: Any) -> bool:
        if called is self._refer or self._is_registered(called):
            return True
        if type(args) is not tuple:
            return False
        if called in (OrderedDict, Counter, defaultdict, deque) and args == ():
            return True
        if called is defaultdict:
            return len(args) == 1 and any(args[0] is it for it in (*_FACTORIES, *self._registered.values()))
        if called is deque:
            return len(args) == 2 and args[0] == () and type(args[1]) is int
        if called is _put_together:
            return self._is_registered(args[0]) and type(args[1]) is dict
        if called is _sparse:
            are_tensors = type(args[0]) is tuple and all(map(_is_tensor, args[0]))
            return are_tensors and self.are_plain(args[1:], self._is_small)
        return any(called is it for it in _OF_PLAIN) and self.are_plain(args, self._is_small)

    def may_make(self, cls: Any, args: Any) -> bool:
        return self._is_registered(cls)

    def may_fill(self, target: Any) -> bool:
        return self._is_registered(type(target))

    def set_state(self, made: Any, state: Any) -> bool:
        if type(made) is OrderedDict and type(state) is dict:  # as a module's state_dict() is
            if not any(hasattr(OrderedDict, name) for name in state):
                vars(made).update(state)
                return True
        elif self._is_registered(type(made)):
            return False
        return super().set_state(made, state)

    def _is_registered(self, named: object) -> bool:
        return id(named) in self._registered_ids

    def _is_small(self, value: object) -> bool:
        return type(value) in _SMALL or _is_dtype(value) or self._is_registered(type(value))


class _LenientUnpickler(TensorUnpickler):
    """Puts objects that pickle refuses in the place of those whose classes are not registered."""

    def named(self, path: str) -> Any:
        try:
            return super().named(path)
        except NotAllowedError:
            stand_in = self._registered[path] = _stand_in()
            self._registered_ids |= {id(stand_in)}
            return stand_in


def _stand_in() -> type:
    """Make a class that takes whatever is done to an object of another, and that has no name in a module."""

    class StandIn:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def _take(self, *_: object) -> None:
            pass

        __setstate__ = append = extend = add = __setitem__ = _take

        @classmethod
        def __tensor_unflatten__(cls, *_: object) -> StandIn:
            return cls()

    return StandIn


def _text(name: object) -> str:
    if type(name) is not str:
        raise pickle.UnpicklingError(f"{unpickling.kind_of(name)} is no name")
    return name


def _is_tensor(value: object) -> bool:
    """Whether it is a plain tensor, or stands for one."""
    return type(value) in (Tensor, torch.nn.Parameter, TensorReference)


def _is_dtype(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.dtype)
