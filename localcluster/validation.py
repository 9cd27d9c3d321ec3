"""Validation of objects by their schema: types, limits, required fields, list sets and list maps.

Every node becomes one closure, made once. A value that is the very object of the stored state is not looked
at again, and faults of a value that equals its old state are forgiven: an update must not fail for what was
there before the schema was tightened (Kubernetes calls it ratcheting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from localcluster.field_errors import Finding, MapKey, Reason, Segment
from localcluster.resource import JSON
from localcluster.schema_nodes import Node, build
from localcluster.value_checks import Test, type_test, value_tests, wrong_type

Check = Callable[[Any, Any, list[Finding]], None]
"""Check of a value against its old state; adds its findings to the list."""


class ValidationCompiler:
    """Makes the checks of a graph of nodes; None where anything goes."""

    def __init__(self, *, list_types: bool) -> None:
        """`list_types`: hold lists to their x-kubernetes-list-type, as those of CRDs are."""
        self._list_types = list_types
        self._checks: dict[Node, Check | None] = {}

    def check(self, node: Node) -> Check | None:
        if node not in self._checks:
            self._checks[node] = lambda value, old, found: self._late(node, value, old, found)
            self._checks[node] = self._compile(node)
        return self._checks[node]

    def _late(self, node: Node, value: Any, old: Any, found: list[Finding]) -> None:
        check = self._checks[node]
        if check is not None:
            check(value, old, found)

    def _compile(self, node: Node) -> Check | None:
        typed = type_test(node.schema)
        tests = value_tests(node.schema) + _junctor_tests(node.schema)
        inside = self._inside(node)
        if typed is None and not tests and inside is None:
            return None
        has_type, wanted = typed or (lambda value: True, "")
        nullable = node.nullable or typed is None
        container = list if node.items is not None else dict

        def check(value: Any, old: Any, found: list[Finding]) -> None:
            if value is None and nullable:
                return
            if not has_type(value):
                found.append(wrong_type(wanted, value))
                return
            for test in tests:
                if (finding := test(value)) is not None:
                    found.append(finding)
            if inside is not None and isinstance(value, container):
                inside(value, old, found)

        return _ratcheting(check)

    def _inside(self, node: Node) -> Check | None:
        """The check of what a list or an object holds."""
        if node.items is not None:
            of_list = _list_type_check(node.schema) if self._list_types else None
            return _combined(of_list, _items_check(self.check(node.items)))
        children = {
            name: check for name, child in node.properties.items() if (check := self.check(child)) is not None
        }
        other = None if node.additional is None else self.check(node.additional)
        required = tuple(node.schema.get("required") or ())
        if node.schema.get("x-kubernetes-embedded-resource"):
            required = tuple(dict.fromkeys((*required, "apiVersion", "kind")))
        if not children and other is None and not required:
            return None
        return _fields_check(children, other, required)


def _ratcheting(check: Check) -> Check:
    def ratcheting(value: Any, old: Any, found: list[Finding]) -> None:
        before = len(found)
        check(value, old, found)
        if len(found) > before and old is not None and value == old:
            del found[before:]

    return ratcheting


def _combined(first: Check | None, second: Check | None) -> Check | None:
    if first is None or second is None:
        return first or second

    def both(value: Any, old: Any, found: list[Finding]) -> None:
        first(value, old, found)
        second(value, old, found)

    return both


def _step(check: Check, value: Any, old: Any, found: list[Finding], segment: Segment) -> None:
    """Check a part, and tell where it is only when something is wrong with it."""
    before = len(found)
    check(value, old, found)
    for finding in found[before:]:
        finding.at(segment)


def _items_check(item: Check | None) -> Check | None:
    if item is None:
        return None

    def check(value: list[Any], old: Any, found: list[Finding]) -> None:
        old_items = old if isinstance(old, list) else ()
        for index, child in enumerate(value):
            old_child = old_items[index] if index < len(old_items) else None
            if child is None or child is not old_child:
                _step(item, child, old_child, found, index)

    return check


def _fields_check(children: dict[str, Check], other: Check | None, required: tuple[str, ...]) -> Check:
    def check(value: JSON, old: Any, found: list[Finding]) -> None:
        old_fields: JSON = old if isinstance(old, dict) else {}
        for key, child in value.items():
            field_check = children.get(key)
            if field_check is None:
                if other is None or key in children:
                    continue
                field_check = other
            old_child = old_fields.get(key)
            if child is not None and child is old_child:
                continue
            before = len(found)
            field_check(child, old_child, found)
            for finding in found[before:]:
                finding.at(key if key in children else MapKey(key))
        for key in required:
            if key not in value:
                found.append(Finding(Reason.REQUIRED).at(key))

    return check


def _list_type_check(schema: JSON) -> Check | None:
    """Sets have no element twice, maps no two elements with the same keys."""
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return lambda value, old, found: found.extend(_duplicates(value, value))
        case "map":
            names = schema.get("x-kubernetes-list-map-keys") or []

            def check(value: list[Any], old: Any, found: list[Finding]) -> None:
                if all(isinstance(item, dict) for item in value):
                    keys = [{name: item[name] for name in names if name in item} for item in value]
                    found.extend(_duplicates(keys, value))

            return check
        case _:
            return None


def _duplicates(keys: list[Any], value: list[Any]) -> Iterable[Finding]:
    if len(value) < 2:
        return
    seen: set[bytes] = set()
    for index, key in enumerate(keys):
        encoded = orjson.dumps(key, option=orjson.OPT_SORT_KEYS)
        if encoded in seen:
            yield Finding(Reason.DUPLICATE, key, brackets=True).at(index)
        seen.add(encoded)


def _junctor_tests(schema: JSON) -> list[Test]:
    """allOf, anyOf, oneOf and not, of value validations only (structural schemas allow nothing else)."""
    if schema.get("x-kubernetes-int-or-string"):
        return []
    tests: list[Test] = []
    if choices := schema.get("anyOf"):
        tests.append(
            _count_test(choices, lambda count: count > 0, "must validate at least one schema (anyOf)")
        )
    if (choices := schema.get("oneOf")) and "type" in schema:
        detail = "must validate one and only one schema (oneOf)"
        tests.append(_count_test(choices, lambda count: count == 1, detail))
    if all_of := schema.get("allOf"):
        whole = len(all_of)
        tests.append(
            _count_test(all_of, lambda count: count == whole, "must validate all the schemas (allOf)")
        )
    if (forbidden := schema.get("not")) is not None:
        tests.append(_count_test([forbidden], lambda count: count == 0, "must not validate the schema (not)"))
    return tests


def _count_test(schemas: list[JSON], is_good: Callable[[int], bool], detail: str) -> Test:
    checks = [_nested_check(schema) for schema in schemas]

    def test(value: Any) -> Finding | None:
        count = sum(_holds(check, value) for check in checks)
        return None if is_good(count) else Finding(Reason.INVALID, "", f"{{path}} in body {detail}")

    return test


def _holds(check: Check | None, value: Any) -> bool:
    if check is None:
        return True
    found: list[Finding] = []
    check(value, None, found)
    return not found


def _nested_check(schema: JSON) -> Check | None:
    return ValidationCompiler(list_types=False).check(build(schema, {}, is_resource=False))
