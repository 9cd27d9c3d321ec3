"""The functions that Kubernetes adds to CEL and the CEL library does not have.

A quantity is carried as its exact decimal number in a string, because a CEL value must be of a type that the
library knows; equal quantities are equal strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

from cel.stdlib import STDLIB_FUNCTIONS

from localcluster.formats import is_quantity
from localcluster.quantities import parse_quantity

NATIVE = frozenset(
    {"size", "matches", "contains", "startsWith", "endsWith", "bytes", "double", "duration", "dyn", "int"}
    | {"string", "timestamp", "type", "uint", "hasValue", "value", "or", "orValue", "of", "none"}
    | {"ofNonZeroValue", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"}
    | {"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has"}
)
"""What the library brings along."""

NAMESPACES = frozenset({"optional", "math", "sets", "base64", "strings", "lists"})
"""Names before a dot that are part of a function's name."""


def _quantity(text: str) -> str:
    if not is_quantity(text):
        raise ValueError(f"quantities must be numbers with a suffix such as 500m or 4Gi, not {text!r}")
    return _text(parse_quantity(text))


def _text(number: Decimal) -> str:
    return f"{number.normalize():f}"


def _compare(left: str, right: str) -> int:
    difference = Decimal(left) - Decimal(right)
    return (difference > 0) - (difference < 0)


def _as_integer(text: str) -> int:
    number = Decimal(text)
    if number != number.to_integral_value():
        raise ValueError("cannot convert value to integer")
    return int(number)


def _is_sorted(items: list[Any]) -> bool:
    return all(left <= right for left, right in pairwise(items))


def _index_of(where: Any, what: Any, *offset: int) -> int:
    if isinstance(where, list):
        return where.index(what) if what in where else -1
    return int(STDLIB_FUNCTIONS["indexOf"](where, what, *offset))


def _last_index_of(where: Any, what: Any, *offset: int) -> int:
    if isinstance(where, list):
        return len(where) - 1 - where[::-1].index(what) if what in where else -1
    return int(STDLIB_FUNCTIONS["lastIndexOf"](where, what, *offset))


def _narrowed(part: str) -> Callable[[dict[str, str], str], dict[str, str]]:
    """A function that says more of what a policy asks its `authorizer` about."""
    return lambda asked, value: {**asked, part: value}


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in re.finditer(pattern, text)]
    return found if limit < 0 else found[:limit]


def _format(template: str, arguments: list[Any]) -> str:
    """`%s`, `%d`, `%f` and `%%`."""
    rest = iter(arguments)

    def put(found: re.Match[str]) -> str:
        verb = found["verb"]
        if verb == "%":
            return "%"
        value = next(rest)
        if verb == "s":
            return str(value).lower() if isinstance(value, bool) else str(value)
        return str(int(value)) if verb == "d" else f"{float(value):.{found['precision'] or 6}f}"

    return re.sub(r"%(?:\.(?P<precision>\d+))?(?P<verb>[sdf%])", put, template)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: function for name, function in STDLIB_FUNCTIONS.items() if name not in NATIVE},
    **{part: _narrowed(part) for part in ("resource", "subresource", "namespace", "name", "check")},
    "group": lambda _, group: {"group": group},
    "allowed": bool,
    "add": lambda left, right: _text(Decimal(left) + Decimal(right)),
    "asApproximateFloat": float,
    "asInteger": _as_integer,
    "compareTo": _compare,
    "find": _find,
    "findAll": _find_all,
    "format": _format,
    "indexOf": _index_of,
    "isGreaterThan": lambda left, right: _compare(left, right) > 0,
    "isInteger": lambda text: Decimal(text) == Decimal(text).to_integral_value(),
    "isLessThan": lambda left, right: _compare(left, right) < 0,
    "isQuantity": is_quantity,
    "isSorted": _is_sorted,
    "lastIndexOf": _last_index_of,
    "quantity": _quantity,
    "sign": lambda text: _compare(text, "0"),
    "sub": lambda left, right: _text(Decimal(left) - Decimal(right)),
}
"""By name; those of a namespace with it (`math.greatest`). What `check` answers, a policy knows."""

SIMPLE_NAMES = {name.rpartition(".")[2] for name in FUNCTIONS}
