"""Pickles of strangers, read within limits that follow from their length, and without running anybody's code.

A reader says what a pickle may name, call, make, set and fill; without a word of its own, nothing. pickle's
unpickler in C cannot be stopped between two opcodes: it makes room for as many values as five bytes ask for,
sets attributes of classes, and hashes whatever is a key. The one in Python has a method an opcode, so a check
goes before each that calls, makes, sets or hashes.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

MAX_DEPTH = 1_000
"""Depth of what is hashed, which takes the stack, or given to calls. pickle itself writes nothing deeper."""
_WORK_PER_BYTE, _LEAST_WORK = 256, 1 << 20
"""Limit, in bytes, of all that is hashed or given to calls: a pickle may name the same text many times."""
_MAX_EQUAL_HASHES = 64
"""Limit of keys of one dict with one hash: what more cost grows with the square of their number."""
_OWN_HASHES = range(-(1 << 61) + 2, (1 << 61) - 1)
"""Numbers that are their own hash."""
_PLAIN = (bool, bytearray, bytes, float, int, list, str, tuple, type(None))
_LISTS, _DICTS = (list, deque), (dict, OrderedDict, defaultdict, Counter)
_FILLS: dict[str, tuple[tuple[type, ...], int]] = {
    "APPEND": (_LISTS, 1),
    "APPENDS": (_LISTS, 0),
    "SETITEM": (_DICTS, 2),
    "SETITEMS": (_DICTS, 0),
    "ADDITEMS": ((set,), 0),
}
"""What an opcode fills, and with how many values; 0 for all behind the last mark."""
_OTHERS = """
    PROTO FRAME STOP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET MARK POP POP_MARK NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES
    BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET FROZENSET GLOBAL STACK_GLOBAL
    REDUCE NEWOBJ NEWOBJ_EX BUILD TUPLE TUPLE1 TUPLE2 TUPLE3
"""
"""The further ones that pickle writes in its protocols 2 to 5."""


class BoundedUnpickler(pickle._Unpickler):
    """Reads one pickle."""

    stack: list[Any]
    metastack: list[list[Any]]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._work_left = _WORK_PER_BYTE * len(data) + _LEAST_WORK
        self._hashes: Counter[tuple[Hashable, int]] = Counter()

    def __init_subclass__(cls) -> None:
        cls.dispatch = _dispatch(cls)

    # What a reader says.

    def named(self, path: str) -> Any:
        """Return what a pickle may name."""
        raise pickle.UnpicklingError(f"it names {path:.200}, which does not belong there")

    def may_call(self, called: Any, args: Any) -> bool:
        return False

    def may_make(self, cls: Any, args: Any) -> bool:
        """Whether pickle may make an object by the class's `__new__`."""
        return False

    def may_fill(self, target: Any) -> bool:
        """Whether values may be put into what is no container of Python's own."""
        return False

    def set_state(self, made: Any, state: Any) -> bool:
        """Set an object's state; return False to have pickle do it."""
        raise pickle.UnpicklingError(f"{kind_of(made)} is given no state this way")

    def are_plain(self, args: Any, is_plain: Callable[[Any], bool]) -> bool:
        """Whether these are numbers, texts, and tuples and lists of them, or `is_plain` for all else."""
        return all(type(part) in _PLAIN or is_plain(part) for part in self._walk(args, _items))

    # What opcodes do.

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        return _member if path in ("builtins.getattr", "__builtin__.getattr") else self.named(path)

    def load_reduce(self) -> None:
        args = self.stack.pop()
        called = self.stack[-1]
        if called is not _member and not self.may_call(called, args):
            raise pickle.UnpicklingError(f"{kind_of(called)} is not called this way")
        self.stack[-1] = called(*args)

    def load_newobj(self) -> None:
        self._check_made(*self.stack[-2:])
        super().load_newobj()  # type: ignore[misc]

    def load_newobj_ex(self) -> None:
        self._check_made(*self.stack[-3:-1])
        super().load_newobj_ex()  # type: ignore[misc]

    def load_build(self) -> None:
        made, state = self.stack[-2:]
        if self.set_state(made, state):
            self.stack.pop()
        else:
            super().load_build()  # type: ignore[misc]

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        self._check_keys(items, object())
        self.append(frozenset(items))

    def load_bytearray8(self) -> None:
        nbytes = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(nbytes)))  # pickle would make room for as many before it reads them

    def _check_made(self, cls: Any, args: Any) -> None:
        if not self.may_make(cls, args):
            raise pickle.UnpicklingError(f"{kind_of(cls)} is not made this way")

    def _check_filled(self, target: Any, items: Sequence[Any], kinds: tuple[type, ...]) -> None:
        if type(target) not in kinds and not self.may_fill(target):
            raise pickle.UnpicklingError(f"{kind_of(target)} is not filled this way")
        if kinds is not _LISTS:
            self._check_keys(items[::2] if kinds is _DICTS else items, id(target))

    def _check_keys(self, keys: Iterable[Any], holder: Hashable) -> None:
        """Make sure that keys, or items of a set, have hashes that take little time, few of them the same."""
        for key in keys:
            kind = type(key)
            if kind in (str, bytes, bool, type(None)) or (kind is int and key in _OWN_HASHES):
                continue  # nobody knows the hash of a text beforehand
            for _ in self._walk(key, _hashed_parts):
                pass
            hashed = holder, hash(key)
            self._hashes[hashed] += 1
            if self._hashes[hashed] > _MAX_EQUAL_HASHES:
                raise pickle.UnpicklingError("it has too many keys of one hash")

    def _walk(self, value: Any, parts: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yield a value, its parts, and theirs, each as often as it is named there, which is counted."""
        level = [value]
        for _ in range(MAX_DEPTH):
            self._work_left -= sum(map(sys.getsizeof, level))
            if self._work_left < 0:
                raise pickle.UnpicklingError("it takes more time than its length allows")
            yield from level
            level = [part for each in level for part in parts(each)]
            if not level:
                return
        raise pickle.UnpicklingError("it is nested too deeply")


def _items(value: Any) -> Iterable[Any]:
    return value if type(value) in (tuple, list) else ()


def _hashed_parts(value: Any) -> Iterable[Any]:
    if isinstance(value, (tuple, frozenset)):
        return value
    return () if isinstance(value, type) else getattr(value, "__dict__", {}).values()


def _member(kind: Any, name: Any) -> Enum:
    """Return a member of an enumeration that may be named: Python 3.11.0 to 3.11.3 write it by `getattr`."""
    if isinstance(kind, type) and issubclass(kind, Enum) and type(name) is str and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError("builtins.getattr is not called this way")


def kind_of(value: object) -> str:
    """What to call a value, whose own text might be endless."""
    return getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"


def _filling(load: Callable[[Any], None], kinds: tuple[type, ...], count: int) -> Callable[[Any], None]:
    def fill(self: BoundedUnpickler) -> None:
        if count:
            target, items = self.stack[-count - 1], self.stack[-count:]
        else:
            target, items = self.metastack[-1][-1], self.stack
        self._check_filled(target, items, kinds)
        load(self)

    return fill


def _dispatch(cls: type) -> dict[int, Callable[[Any], None]]:
    """Return the methods of an unpickler, by opcode."""
    codes = {name: getattr(pickle, name)[0] for name in (*_OTHERS.split(), *_FILLS)}
    loads = {name: getattr(cls, pickle._Unpickler.dispatch[code].__name__) for name, code in codes.items()}
    loads |= {name: _filling(loads[name], *how) for name, how in _FILLS.items()}
    return {codes[name]: load for name, load in loads.items()}


BoundedUnpickler.dispatch = _dispatch(BoundedUnpickler)
