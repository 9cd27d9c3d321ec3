"""Unpickler for untrusted pickles, with an allow-list of globals, so that reading runs no foreign code.

Python's documentation calls this restricting globals; `torch.load(weights_only=True)` does it for protocol 2
only. It is based on the unpickler in Python: the one in C allocates as many values as five bytes ask for.
https://docs.python.org/3/library/pickle.html#restricting-globals
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
        """Return an allowed global by its path; raise UnpicklingError for others."""
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
        self.append(bytearray(self.read(nbytes)))  # pickle would allocate before it reads

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _member(kind: Any, name: Any) -> Enum:
    """Return a member of an allowed enumeration: Python 3.11.0 to 3.11.3 pickle it as a `getattr` call."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError("builtins.getattr is not called this way")
