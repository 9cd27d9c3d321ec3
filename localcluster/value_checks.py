"""Checks of a value by one schema node: type, limits, pattern, format, enumeration, junctors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcluster.field_errors import Finding, Reason
from localcluster.formats import CHECKS, is_quantity
from localcluster.patterns import searcher
from localcluster.resource import JSON

Test = Callable[[Any], Finding | None]
"""Test of a value that already has the right type."""

_INTEGER_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"


def type_name(value: Any) -> str:
    """A value's type, as JSON schema calls it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _is_integer(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


_TYPE_TESTS: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: type(value) is list,
    "boolean": lambda value: type(value) is bool,
    "integer": _is_integer,
    "number": _is_number,
    "object": lambda value: type(value) is dict,
    "string": lambda value: type(value) is str,
}


def type_test(schema: JSON) -> tuple[Callable[[Any], bool], str] | None:
    """Whether a value has the type that a schema wants, and how that type is called."""
    if schema.get("x-kubernetes-int-or-string"):
        wanted = ["integer", "string"]
    elif _is_scalar_union(schema):
        wanted = [each["type"] for each in schema["oneOf"]]
    elif schema.get("type"):
        wanted = [schema["type"]]
    else:
        return None
    tests = [_TYPE_TESTS[name] for name in wanted]
    if len(tests) == 1:
        return tests[0], wanted[0]
    return (lambda value: any(test(value) for test in tests)), ",".join(wanted)


def _is_scalar_union(schema: JSON) -> bool:
    """How Kubernetes publishes quantities and ports: one of two types, and nothing else."""
    choices = schema.get("oneOf") or []
    return bool(choices) and "type" not in schema and all(each.keys() == {"type"} for each in choices)


def wrong_type(wanted: str, value: Any) -> Finding:
    found = type_name(value)
    return Finding(Reason.TYPE_INVALID, found, f'{{path}} in body must be of type {wanted}: "{found}"')


def _invalid(value: Any, detail: str) -> Finding:
    return Finding(Reason.INVALID, value, f"{{path}} in body {detail}")


def value_tests(schema: JSON) -> list[Test]:
    """Every test of a schema node, of its value but not of what is inside."""
    return [
        *_number_tests(schema),
        *_string_tests(schema),
        *_size_tests(schema),
        *_format_tests(schema),
        *_enum_tests(schema),
    ]


def _go_number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


def _number_tests(schema: JSON) -> list[Test]:
    tests: list[Test] = []
    if (minimum := schema.get("minimum")) is not None:
        exclusive = bool(schema.get("exclusiveMinimum"))
        words = f"should be greater than{'' if exclusive else ' or equal to'} {_go_number(minimum)}"

        def at_least(value: Any) -> Finding | None:
            good = value > minimum or (value == minimum and not exclusive)
            return None if good else _invalid(value, words)

        tests.append(_for_numbers(at_least))
    if (maximum := schema.get("maximum")) is not None:
        open_end = bool(schema.get("exclusiveMaximum"))
        text = f"should be less than{'' if open_end else ' or equal to'} {_go_number(maximum)}"

        def at_most(value: Any) -> Finding | None:
            good = value < maximum or (value == maximum and not open_end)
            return None if good else _invalid(value, text)

        tests.append(_for_numbers(at_most))
    if factor := schema.get("multipleOf"):

        def multiple(value: Any) -> Finding | None:
            good = (value / factor).is_integer()
            return None if good else _invalid(value, f"should be a multiple of {_go_number(factor)}")

        tests.append(_for_numbers(multiple))
    return tests


def _for_numbers(test: Test) -> Test:
    return lambda value: test(value) if _is_number(value) else None


def _for_strings(test: Test) -> Test:
    return lambda value: test(value) if type(value) is str else None


def _string_tests(schema: JSON) -> list[Test]:
    tests: list[Test] = []
    if (longest := schema.get("maxLength")) is not None:

        def short_enough(value: str) -> Finding | None:
            if len(value) <= longest:
                return None
            return Finding(Reason.TOO_LONG, value, f"may not be more than {longest} bytes")

        tests.append(_for_strings(short_enough))
    if (shortest := schema.get("minLength")) is not None:

        def long_enough(value: str) -> Finding | None:
            if len(value) >= shortest:
                return None
            return _invalid(value, f"should be at least {shortest} chars long")

        tests.append(_for_strings(long_enough))
    if pattern := schema.get("pattern"):
        search = searcher(pattern)

        def matches(value: str) -> Finding | None:
            return None if search(value) else _invalid(value, f"should match '{pattern}'")

        tests.append(_for_strings(matches))
    return tests


def _size_tests(schema: JSON) -> list[Test]:
    tests: list[Test] = []
    for kind, noun, upper, lower in (
        (list, "items", "maxItems", "minItems"),
        (dict, "properties", "maxProperties", "minProperties"),
    ):
        if (most := schema.get(upper)) is not None:
            tests.append(_most_test(kind, most))
        if (least := schema.get(lower)) is not None:
            tests.append(_least_test(kind, least, noun))
    return tests


def _most_test(kind: type[Any], most: int) -> Test:
    def test(value: Any) -> Finding | None:
        if type(value) is not kind or len(value) <= most:
            return None
        return Finding(Reason.TOO_MANY, len(value), f"must have at most {most} items")

    return test


def _least_test(kind: type[Any], least: int, noun: str) -> Test:
    def test(value: Any) -> Finding | None:
        if type(value) is not kind or len(value) >= least:
            return None
        return _invalid(value, f"should have at least {least} {noun}")

    return test


def _format_tests(schema: JSON) -> list[Test]:
    name = schema.get("format")
    if name == "quantity":
        return [_quantity]
    if name in _INTEGER_RANGES:
        lowest, highest = _INTEGER_RANGES[name]

        def in_range(value: Any) -> Finding | None:
            if not _is_number(value) or lowest <= value <= highest:
                return None
            return _invalid(value, f"must be of type integer with format {name}")

        return [in_range]
    if not isinstance(name, str) or name not in CHECKS:
        return []
    is_well_formed = CHECKS[name]

    def formatted(value: str) -> Finding | None:
        if is_well_formed(value):
            return None
        shown = value.replace("{path}", "")
        return Finding(Reason.TYPE_INVALID, value, f'{{path}} in body must be of type {name}: "{shown}"')

    return [_for_strings(formatted)]


def _quantity(value: Any) -> Finding | None:
    if type(value) is not str or is_quantity(value):
        return None
    return Finding(
        Reason.INVALID, value, f"quantities must match the regular expression '{_QUANTITY_PATTERN}'"
    )


def _enum_tests(schema: JSON) -> list[Test]:
    allowed = schema.get("enum")
    if not allowed:
        return []
    detail = "supported values: " + ", ".join(_enum_text(each) for each in allowed)

    def listed(value: Any) -> Finding | None:
        good = any(value == each and type(value) is type(each) for each in allowed)
        return None if good else Finding(Reason.NOT_SUPPORTED, value, detail)

    return [listed]


def _enum_text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
