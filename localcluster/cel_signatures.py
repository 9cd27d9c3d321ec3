"""The functions that rules of CRDs may call, with their types.

After the standard definitions of CEL (https://github.com/google/cel-spec/blob/master/doc/langdef.md) and the
libraries that Kubernetes adds (https://kubernetes.io/docs/reference/using-api/cel/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from localcluster.cel_types import Type

_NUMBERS = ("int", "uint", "double")
_ORDERED = ("bool", "string", "bytes", "timestamp", "duration")


@dataclass(frozen=True)
class Signature:
    """One overload of a function."""

    function: str
    target: Type | None
    """What the function is called on, as in `target.function(...)`."""
    parameters: tuple[Type, ...]
    result: Type


_TEXT = """
    !_(bool) bool
    -_(int) int
    -_(double) double
    -_(duration) duration
    _&&_(bool, bool) bool
    _||_(bool, bool) bool
    _?_:_(bool, A, A) A
    _==_(A, A) bool
    _!=_(A, A) bool
    @in(A, list<A>) bool
    @in(A, map<A, B>) bool
    _[_](list<A>, int) A
    _[_](map<A, B>, A) B
    _+_(string, string) string
    _+_(bytes, bytes) bytes
    _+_(list<A>, list<A>) list<A>
    _+_(duration, duration) duration
    _+_(duration, timestamp) timestamp
    _+_(timestamp, duration) timestamp
    _-_(duration, duration) duration
    _-_(timestamp, duration) timestamp
    _-_(timestamp, timestamp) duration
    _%_(int, int) int
    _%_(uint, uint) uint

    size(string) int
    size(bytes) int
    size(list<A>) int
    size(map<A, B>) int
    string.size() int
    bytes.size() int
    list<A>.size() int
    map<A, B>.size() int
    dyn(A) dyn
    type(A) type
    bool(bool) bool
    bool(string) bool
    bytes(bytes) bytes
    bytes(string) bytes
    double(double) double
    double(int) double
    double(uint) double
    double(string) double
    duration(duration) duration
    duration(string) duration
    int(int) int
    int(uint) int
    int(double) int
    int(string) int
    int(timestamp) int
    string(string) string
    string(bool) string
    string(int) string
    string(uint) string
    string(double) string
    string(bytes) string
    string(timestamp) string
    string(duration) string
    timestamp(timestamp) timestamp
    timestamp(string) timestamp
    timestamp(int) timestamp
    uint(uint) uint
    uint(int) uint
    uint(double) uint
    uint(string) uint
    duration.getHours() int
    duration.getMinutes() int
    duration.getSeconds() int
    duration.getMilliseconds() int

    matches(string, string) bool
    string.matches(string) bool
    string.contains(string) bool
    string.startsWith(string) bool
    string.endsWith(string) bool
    string.charAt(int) string
    string.format(list<dyn>) string
    string.indexOf(string) int
    string.indexOf(string, int) int
    string.lastIndexOf(string) int
    string.lastIndexOf(string, int) int
    string.lowerAscii() string
    string.upperAscii() string
    string.replace(string, string) string
    string.replace(string, string, int) string
    string.split(string) list<string>
    string.split(string, int) list<string>
    string.substring(int) string
    string.substring(int, int) string
    string.trim() string
    string.find(string) string
    string.findAll(string) list<string>
    string.findAll(string, int) list<string>
    list<string>.join() string
    list<string>.join(string) string

    list<A>.indexOf(A) int
    list<A>.lastIndexOf(A) int
    sets.contains(list<A>, list<A>) bool
    sets.equivalent(list<A>, list<A>) bool
    sets.intersects(list<A>, list<A>) bool

    isQuantity(string) bool
    quantity(string) quantity
    quantity.sign() int
    quantity.isInteger() bool
    quantity.asInteger() int
    quantity.asApproximateFloat() double
    quantity.add(quantity) quantity
    quantity.add(int) quantity
    quantity.sub(quantity) quantity
    quantity.sub(int) quantity
    quantity.isLessThan(quantity) bool
    quantity.isGreaterThan(quantity) bool
    quantity.compareTo(quantity) int

    authorizer.group(string) group_check
    group_check.resource(string) resource_check
    resource_check.subresource(string) resource_check
    resource_check.namespace(string) resource_check
    resource_check.name(string) resource_check
    resource_check.check(string) decision
    decision.allowed() bool

    optional.of(A) optional<A>
    optional.ofNonZeroValue(A) optional<A>
    optional.none() optional<A>
    optional<A>.hasValue() bool
    optional<A>.value() A
    optional<A>.or(optional<A>) optional<A>
    optional<A>.orValue(A) A
"""
_DATE_PARTS = ("FullYear", "Month", "DayOfYear", "DayOfMonth", "Date", "DayOfWeek")
_TIME_PARTS = ("Hours", "Minutes", "Seconds", "Milliseconds")
_LINE = re.compile(
    r"(?:(?P<target>[a-z]\w*(?:<[\w, ]+>)?)\.)?(?P<name>[^\s(]+)\((?P<parameters>.*)\) (?P<result>\S.*)"
)
_PART = re.compile(r"\w+(?:<[^>]*>)?")
QUALIFIERS = frozenset({"sets", "optional"})
"""Names before a dot that are part of a function's name."""


def _type(text: str) -> Type:
    name, _, parameters = text.rstrip(">").partition("<")
    return Type(name, tuple(_type(each) for each in _PART.findall(parameters)))


def _signature(line: str) -> Signature:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    target, name = found["target"], found["name"]
    if target in QUALIFIERS:
        target, name = None, f"{target}.{name}"
    parameters = tuple(_type(each) for each in _PART.findall(found["parameters"]))
    return Signature(name, _type(target) if target else None, parameters, _type(found["result"]))


def _lines() -> list[str]:
    lines = [line.strip() for line in _TEXT.splitlines() if line.strip()]
    for operator in "+-*/":
        lines += [f"_{operator}_({number}, {number}) {number}" for number in _NUMBERS]
    for operator in ("<", "<=", ">", ">="):
        lines += [f"_{operator}_({left}, {right}) bool" for left in _NUMBERS for right in _NUMBERS]
        lines += [f"_{operator}_({each}, {each}) bool" for each in _ORDERED]
    for part in _DATE_PARTS + _TIME_PARTS:
        lines += [f"timestamp.get{part}() int", f"timestamp.get{part}(string) int"]
    for element in (*_NUMBERS, *_ORDERED):
        lines += [f"list<{element}>.isSorted() bool"]
        lines += [f"list<{element}>.{name}() {element}" for name in ("min", "max")]
    lines += [f"list<{each}>.sum() {each}" for each in (*_NUMBERS, "duration")]
    return lines


SIGNATURES: dict[str, list[Signature]] = {}
"""By function."""
for _line in _lines():
    _found = _signature(_line)
    SIGNATURES.setdefault(_found.function, []).append(_found)
