"""Pickles of strangers: they name nothing but what a reader allows, so that reading runs nobody's code.

It is what Python's documentation calls restricting globals, and what `torch.load(weights_only=True)` does,
for protocol 2 alone. The unpickler is the one in Python: that in C makes room for as many values as five
bytes ask for. https://docs.python.org/3/library/pickle.html#restricting-globals
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

_NEVER_SET = (type, types.FunctionType, types.BuiltinFunctionType)


class RestrictedUnpickler(pickle._Unpickler):
    """Reads one pickle."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def named(self, path: str) -> Any:
        """Return what a pickle may name, by its path; raise UnpicklingError for all else."""
        raise NotImplementedError

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        return _member if path in ("builtins.getattr", "__builtin__.getattr") else self.named(path)

    def load_build(self) -> None:
        if isinstance(self.stack[-2], _NEVER_SET):
            raise pickle.UnpicklingError("it sets attributes of a class or function")
        super().load_build()  # type: ignore[misc]

    def load_bytearray8(self) -> None:
        nbytes = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(nbytes)))  # pickle would make room for as many before it reads them

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _member(kind: Any, name: Any) -> Enum:
    """Return a member of an enumeration that may be named: Python 3.11.0 to 3.11.3 write it by `getattr`."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError("builtins.getattr is not called this way")
