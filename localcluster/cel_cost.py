"""What a CRD's rule may cost at worst, as a real API server estimates it before it takes the CRD.

After cel-go's checker/cost.go and Kubernetes' cel/library/cost.go: every step has a price, strings and lists
are as long as their schema allows, and what nobody can bound is endless. Only the upper ends of the
estimates are kept: limits ask for nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from localcluster.cel_check import Checked
from localcluster.cel_signatures import Signature
from localcluster.cel_syntax import (
    ACCUMULATOR,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
)
from localcluster.cel_types import REQUEST_BYTES, Declaration, key_of

RULE_LIMIT = 10_000_000
SCHEMA_LIMIT = 100_000_000
ENDLESS = 2**64 - 1
STRING_FACTOR = 0.1
REGEX_FACTOR = 0.25
_LIST_COST = 10
_MAP_COST = 30
_ONE_SIZE = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_TRAVERSALS = {"lowerAscii": 1, "upperAscii": 1, "substring": 1, "trim": 1, "replace": 2, "split": 2}
"""How often these go through the string that they are called on."""
_SET_FACTORS = {"contains": 1, "intersects": 1, "equivalent": 2}


@dataclass(frozen=True)
class Size:
    """How long a string, list or map can be."""

    least: int
    most: int

    def __add__(self, other: Size) -> Size:
        return Size(min(self.least + other.least, ENDLESS), min(self.most + other.most, ENDLESS))


UNKNOWN = Size(0, ENDLESS)


def product(*factors: float) -> int:
    """A product, rounded up; never more than ENDLESS."""
    return min(math.ceil(math.prod(factors)), ENDLESS)


def cardinality(declaration: Declaration, bounded: int | None) -> int:
    """How often a level can be in one object; `bounded` is what the limits above it say, None without any."""
    return REQUEST_BYTES // (declaration.min_bytes + 1) if bounded is None else bounded


class CostEstimate:
    """The price of one expression, whose variables `self` and `oldSelf` are as declared."""

    def __init__(self, checked: Checked, declaration: Declaration) -> None:
        self._checked = checked
        self._root = declaration
        self._paths: dict[Expr, tuple[str, ...]] = {}
        """From a variable to what a node stands for, where that is a part of the variable."""
        self._sizes: dict[Expr, Size] = {}
        self._loops: dict[str, tuple[str, ...]] = {ACCUMULATOR: ()}
        """By variable of a macro: the path to what it stands for."""
        self.total = min(self._cost(checked.tree), ENDLESS)

    def _cost(self, node: Expr) -> int:
        match node:
            case Ident():
                self._paths[node] = self._loops.get(node.name, (node.name,))
                return 1
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr():
                return _LIST_COST + sum(self._cost(each) for each in node.elements)
            case MapExpr():
                return _MAP_COST + sum(self._cost(key) + self._cost(value) for key, value in node.entries)
            case Comprehension():
                return self._comprehension(node)
            case _:
                return 0

    def _select(self, node: Select) -> int:
        cost = self._cost(node.operand)
        if node.test_only:
            return cost
        self._paths[node] = self._below(node.operand, node.field)
        return cost + (self._checked.types[node.operand].name in ("map", "object"))

    def _below(self, node: Expr, step: str) -> tuple[str, ...]:
        return (*self._paths.get(node, ()), step)

    def _comprehension(self, node: Comprehension) -> int:
        once = self._cost(node.range) + self._cost(node.initial)
        is_list = self._checked.types[node.range].name == "list"
        before = dict(self._loops)
        self._loops[node.variable] = self._below(node.range, "@items" if is_list else "@keys")
        each = self._cost(node.condition) + self._cost(node.step)
        self._loops = before
        once += self._cost(node.result)
        count = self._size(node.range)
        self._sizes[node] = count if isinstance(node.initial, ListExpr) else Size(1, 1)
        return min(once + product(count.most, each), ENDLESS)

    def _call(self, node: Call) -> int:
        arguments = [self._cost(argument) for argument in node.arguments]
        target = self._cost(node.target) if node.target and node.target in self._checked.types else 0
        if node.function == "dyn":
            self._paths[node] = self._paths.get(node.arguments[0], ())
            return 1 + arguments[0]
        if node.function == "_?_:_":
            sizes = [self._size(each) for each in node.arguments[1:]]
            self._sizes[node] = Size(min(size.least for size in sizes), max(size.most for size in sizes))
            return arguments[0] + max(arguments[1:])
        if node.function == "_[_]":
            is_map = self._checked.types[node.arguments[0]].name == "map"
            self._paths[node] = self._below(node.arguments[0], "@values" if is_map else "@items")
        own = max(self._price(node, signature) for signature in self._checked.overloads[node])
        return min(target + sum(arguments) + own, ENDLESS)

    def _price(self, node: Call, signature: Signature) -> int:
        """Price a call without its target and arguments, and note the size of its result."""
        sizes = [self._size(argument) for argument in node.arguments]
        kind = signature.first
        match signature.function:
            case "_&&_" | "_||_":
                return 0
            case "_==_" | "_!=_":
                return product(min(size.most for size in sizes), STRING_FACTOR)
            case "_<_" | "_<=_" | "_>_" | "_>=_" if kind in ("string", "bytes"):
                return product(min(size.most for size in sizes), STRING_FACTOR)
            case "_+_" if kind in ("string", "bytes", "list"):
                both = self._sizes[node] = sizes[0] + sizes[1]
                return 1 if kind == "list" else product(both.most, STRING_FACTOR)
            case "@in" if signature.parameters[1].name == "list":
                return sizes[1].most
            case "startsWith" | "endsWith":
                return product(sizes[0].most, STRING_FACTOR)
            case "bytes" | "string" if kind in ("string", "bytes") and kind != signature.function:
                self._sizes[node] = Size(0, product(sizes[0].most, 4 if kind == "string" else 1))
                return product(sizes[0].most, STRING_FACTOR)
            case _ if node.target is not None:
                return self._method_price(node, node.target, signature, sizes)
        return 1

    def _method_price(self, node: Call, target: Expr, signature: Signature, sizes: list[Size]) -> int:
        if signature.function.startswith("sets."):
            factor = _SET_FACTORS[node.function]
            return 1 + product(sizes[0].most, sizes[1].most, factor)
        if target not in self._checked.types:
            return 1
        own = self._size(target)
        match signature.function:
            case "contains":
                return product(product(own.most, STRING_FACTOR), product(sizes[0].most, STRING_FACTOR))
            case "matches" | "find" | "findAll":
                if signature.function != "matches":
                    self._sizes[node] = Size(0, own.most)
                text = product(min(own.most + 1, ENDLESS), STRING_FACTOR)
                return product(text, product(sizes[0].most, REGEX_FACTOR))
            case "format":
                return product(own.most, STRING_FACTOR)
            case "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf":
                return self._search_price(target, own)
            case "join":
                return self._join_price(node, target, own, sizes)
            case function if function in _TRAVERSALS:
                self._sizes[node] = _replaced(own, *sizes) if function == "replace" else Size(0, own.most)
                return product(own.most, _TRAVERSALS[function] * STRING_FACTOR)
        return 1

    def _search_price(self, target: Expr, own: Size) -> int:
        kind = self._checked.types[target]
        if kind.name != "list":
            return product(own.most, STRING_FACTOR)
        each = 1
        if kind.parameters[0].name in ("string", "bytes"):
            each += product(self._size_at(self._below(target, "@items")).most, STRING_FACTOR)
        return product(own.most, each)

    def _join_price(self, node: Call, target: Expr, own: Size, sizes: list[Size]) -> int:
        longest = product(own.most, self._size_at(self._below(target, "@items")).most)
        if sizes:
            longest = min(longest + product(sizes[0].most, max(0, own.most - 1)), ENDLESS)
        self._sizes[node] = Size(0, longest)
        return product(longest, STRING_FACTOR)

    def _size(self, node: Expr) -> Size:
        if node in self._sizes:
            return self._sizes[node]
        match node:
            case Literal(value, str() | bytes()) if isinstance(value, str | bytes):
                return Size(len(value), len(value))
            case Literal():
                return Size(1, 1)
            case ListExpr():
                return Size(len(node.elements), len(node.elements))
            case MapExpr():
                return Size(len(node.entries), len(node.entries))
        path = self._paths.get(node, ())
        if path and (declaration := self._declared(path)) is not None:
            return Size(0, declaration.max_elements)
        return Size(1, 1) if self._checked.types[node].name in _ONE_SIZE else UNKNOWN

    def _size_at(self, path: tuple[str, ...]) -> Size:
        declaration = self._declared(path)
        return UNKNOWN if declaration is None else Size(0, declaration.max_elements)

    def _declared(self, path: tuple[str, ...]) -> Declaration | None:
        """What the schema says of a path. Its first step is a variable, and taken for `self`."""
        current: Declaration | None = self._root
        for step in path[1:]:
            if current is None:
                return None
            if step in ("@items", "@values"):
                current = current.element
            elif step == "@keys":
                current = key_of(current)
            else:
                current = current.fields.get(step)
        return current


def _replaced(text: Size, old: Size, new: Size, *_: Size) -> Size:
    """The longest that replacing can make a text: the shortest pieces by the longest ones."""
    if old.least == 0:
        return Size(0, min(product(min(text.most + 1, ENDLESS), new.most) + text.most, ENDLESS))
    if new.most <= old.least:
        return Size(0, text.most)
    return Size(0, product(math.ceil(text.most / old.least), new.most))
