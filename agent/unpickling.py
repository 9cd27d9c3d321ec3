"""Pickles of strangers, read within limits that follow from their length, and without running anybody's code.

A reader says what a pickle may name, call, make, set and fill; without a word of its own, nothing. pickle's
unpickler in C cannot be stopped between two opcodes: it makes room for as many values as five bytes ask for,
sets attributes of classes, and hashes whatever is a key. The one in Python has a method an opcode, so a check
goes before each that calls, makes, sets or hashes.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Any

MAX_DEPTH = 1_000
"""Of tuples in each other, whose hash takes the stack, and of deques and defaultdicts, whose end does. pickle
itself writes nothing deeper."""
_WORK_PER_BYTE, _LEAST_WORK = 256, 1 << 20
"""Limit of all that is hashed or given to calls, since a pickle may name the same text many times."""
_OF_PART, _OF_PART_OF_KEY = 64, 16
"""What a part of a list counts there, and of a key."""
_MAX_EQUAL_HASHES = 64
"""Of keys of one dict: what more of them cost grows with the square of their number."""
_OWN_HASHES = range(-(1 << 61) + 2, (1 << 61) - 1)
"""Numbers that are their own hash."""
_LISTS, _DICTS = (list, deque), (dict, OrderedDict, defaultdict, Counter)
_FILLS: dict[str, tuple[tuple[type, ...], int]] = {
    "APPEND": (_LISTS, 1),
    "APPENDS": (_LISTS, 0),
    "SETITEM": (_DICTS, 2),
    "SETITEMS": (_DICTS, 0),
    "ADDITEMS": ((set,), 0),
}
"""What an opcode fills, and with how many values; 0 for all behind the last mark."""
_NESTS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_OTHERS = """
    PROTO FRAME STOP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET MARK POP POP_MARK NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES
    BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET FROZENSET GLOBAL STACK_GLOBAL
    REDUCE NEWOBJ NEWOBJ_EX BUILD
"""
"""The further ones that pickle writes in its protocols 2 to 5."""
_BY_RECURSION = (deque, defaultdict)
"""What Python frees so, whatever the depth."""
_WITHOUT_PARTS = {str, bytes, bytearray, float, bool, type(None), list, dict, set, OrderedDict, Counter}
"""What cannot be a key, or has a hash that Python keeps."""


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
        self._sizes: dict[int, tuple[int, int]] = {}
        """Depth and number of parts, by the id of what has another number than its length."""
        self._held: set[int] = set()
        """Ids of deques and defaultdicts that are parts of others, and so are filled no more."""
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

    def note_parts(self, made: Any, parts: Iterable[Any]) -> None:
        """Count an object as a key that has these parts."""
        self._note(made, *self._measure(parts))

    def spend(self, work: int) -> None:
        """Count work of which a pickle of this length may cause so much."""
        self._work_left -= work
        if self._work_left < 0:
            raise pickle.UnpicklingError("it takes more time than its length allows")

    def are_plain(self, args: Iterable[Any], is_plain: Callable[[Any], bool]) -> bool:
        """Whether these are numbers, texts, and tuples and lists of them; each counts whenever it is named.

        Args:
            is_plain: whether anything else is.
        """
        waiting: list[Any] = [args]
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in (tuple, list):
                self.spend(_OF_PART * len(value))
                waiting.extend(value)
            elif kind in (str, bytes, bytearray):
                self.spend(len(value))
            elif kind not in (bool, float, int, type(None)) and not is_plain(value):
                return False
        return True

    # What opcodes do.

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        return _member if path in ("builtins.getattr", "__builtin__.getattr") else self.named(path)

    def load_reduce(self) -> None:
        args, before = self.stack.pop(), self._work_left
        called = self.stack[-1]
        if called is not _member and not self.may_call(called, args):
            raise pickle.UnpicklingError(f"{kind_of(called)} is not called this way")
        made = self.stack[-1] = called(*args)
        self._note(made, 0, 1 + (before - self._work_left) // _OF_PART)

    def load_newobj(self) -> None:
        _, args = self._to_be_made(self.stack[-2:])
        super().load_newobj()  # type: ignore[misc]
        self.note_parts(self.stack[-1], args)  # of a named tuple, these are its parts

    def load_newobj_ex(self) -> None:
        _, args = self._to_be_made(self.stack[-3:-1])
        super().load_newobj_ex()  # type: ignore[misc]
        self.note_parts(self.stack[-1], args)

    def load_build(self) -> None:
        made, state = self.stack[-2:]
        if self.set_state(made, state):
            self.stack.pop()
            return
        super().load_build()  # type: ignore[misc]
        if type(state) is dict:
            self.note_parts(made, state.values())

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        self._check_keys(items, object())
        made = frozenset(items)
        self.note_parts(made, items)
        self.append(made)

    def load_bytearray8(self) -> None:
        nbytes = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(nbytes)))  # pickle would make room for as many before it reads them

    def _to_be_made(self, what: list[Any]) -> tuple[Any, Any]:
        cls, args = what
        if not self.may_make(cls, args):
            raise pickle.UnpicklingError(f"{kind_of(cls)} is not made this way")
        return cls, args

    def _check_filled(self, target: Any, items: Sequence[Any], kinds: tuple[type, ...]) -> None:
        if type(target) not in kinds:
            if not self.may_fill(target):
                raise pickle.UnpicklingError(f"{kind_of(target)} is not filled this way")
        elif type(target) in _BY_RECURSION:
            if id(target) in self._held:
                raise pickle.UnpicklingError(f"{kind_of(target)} is filled after its use")
            self._sizes[id(target)] = max(self._sizes.get(id(target), (0, 1)), self._measure(items))
        if kinds is not _LISTS:
            self._check_keys(items[::2] if kinds is _DICTS else items, id(target))

    def _check_keys(self, keys: Iterable[Any], holder: Hashable) -> None:
        """Make sure that keys, or items of a set, have hashes that take little time, few of them the same."""
        for key in keys:
            kind = type(key)
            if kind in (str, bytes, bool, type(None)) or (kind is int and key in _OWN_HASHES):
                continue  # nobody knows the hash of a text beforehand
            self.spend(_OF_PART_OF_KEY * self._measure((key,))[1])
            hashed = holder, hash(key)
            self._hashes[hashed] += 1
            if self._hashes[hashed] > _MAX_EQUAL_HASHES:
                raise pickle.UnpicklingError("it has too many keys of one hash")

    def _measure(self, parts: Iterable[Any]) -> tuple[int, int]:
        """Return depth and number of parts of what consists of these."""
        depth, size = 0, 1
        for part in parts:
            kind = type(part)
            if kind is int:
                size += 1 + part.bit_length() // 64
            elif kind in _WITHOUT_PARTS:
                size += 1
            else:
                inner, parts_of_it = self._sizes.get(id(part)) or (0, 1 + (len(part) if kind is tuple else 0))
                depth, size = max(depth, inner + 1), size + parts_of_it
                if kind in _BY_RECURSION:
                    self._held.add(id(part))
        if depth > MAX_DEPTH:
            raise pickle.UnpicklingError("it is nested too deeply")
        return depth, size

    def _note(self, made: Any, depth: int, size: int) -> None:
        self._held.discard(id(made))  # what had that id before is gone
        if type(made) is tuple and (depth, size) == (0, 1 + len(made)):
            self._sizes.pop(id(made), None)
        else:
            self._sizes[id(made)] = depth, size


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


def _nesting(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def nest(self: BoundedUnpickler) -> None:
        load(self)
        self.note_parts(self.stack[-1], self.stack[-1])

    return nest


def _dispatch(cls: type) -> dict[int, Callable[[Any], None]]:
    """Return the methods of an unpickler, by opcode."""
    codes = {name: getattr(pickle, name)[0] for name in (*_OTHERS.split(), *_NESTS, *_FILLS)}
    loads = {name: getattr(cls, pickle._Unpickler.dispatch[code].__name__) for name, code in codes.items()}
    loads |= {name: _nesting(loads[name]) for name in _NESTS}
    loads |= {name: _filling(loads[name], *how) for name, how in _FILLS.items()}
    return {codes[name]: load for name, load in loads.items()}


BoundedUnpickler.dispatch = _dispatch(BoundedUnpickler)
