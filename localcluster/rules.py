"""`x-kubernetes-validations`: the CEL rules of a CRD, at every level of its schema.

Rules see an object as its schema types it: numbers are doubles even when JSON wrote them without a point, and
a field that is null is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cel

from localcluster.cel import CelError, Expression, Projection, compile_expression, merged, project
from localcluster.field_errors import OMITTED, Finding, MapKey, Reason, Segment
from localcluster.resource import JSON
from localcluster.schema_nodes import Node

RULES = "x-kubernetes-validations"
VARIABLES = frozenset({"self", "oldSelf"})

_Converter = Callable[[Any], Any]


@dataclass(frozen=True)
class Rule:
    """One rule, compiled."""

    expression: Expression
    message: str

    @property
    def is_transition(self) -> bool:
        return "oldSelf" in self.expression.projections


def read_rule(definition: JSON) -> Rule:
    """Compile a rule; raises CelSyntaxError."""
    expression = compile_expression(definition["rule"].strip())
    expression.check_variables(VARIABLES)
    return Rule(expression, definition.get("message") or f"failed rule: {expression.source}")


@dataclass(frozen=True)
class RuleCheck:
    """The rules of a node and of all below it."""

    run: Callable[[Any, Any, list[Finding]], None]
    """Checks a value and its old state (None without one to compare with)."""
    has_transitions: bool
    """Transition rules are asked even about values that did not change."""


class RulesCompiler:
    """Makes the rule checks of a graph of nodes; None where there are no rules."""

    def __init__(self) -> None:
        self._checks: dict[Node, RuleCheck | None] = {}

    def check(self, node: Node) -> RuleCheck | None:
        if node not in self._checks:
            self._checks[node] = None  # Only built-in schemas contain themselves, and they have no rules.
            self._checks[node] = self._compile(node)
        return self._checks[node]

    def _compile(self, node: Node) -> RuleCheck | None:
        found = (self._own_rules(node), self._fields(node), self._items(node))
        parts = [part for part in found if part is not None]
        if len(parts) < 2:
            return parts[0] if parts else None

        def run(value: Any, old: Any, found: list[Finding]) -> None:
            for part in parts:
                if part.has_transitions or value is not old:
                    part.run(value, old, found)

        return RuleCheck(run, any(part.has_transitions for part in parts))

    def _own_rules(self, node: Node) -> RuleCheck | None:
        rules = [read_rule(definition) for definition in node.schema.get(RULES) or ()]
        if not rules:
            return None
        return RuleCheck(_Evaluator(node, rules).run, any(rule.is_transition for rule in rules))

    def _fields(self, node: Node) -> RuleCheck | None:
        children = {
            name: check for name, child in node.properties.items() if (check := self.check(child)) is not None
        }
        other = None if node.additional is None else self.check(node.additional)
        if not children and other is None:
            return None

        def run(value: Any, old: Any, found: list[Finding]) -> None:
            old_fields: JSON = old if isinstance(old, dict) else {}
            if other is not None:
                for key, child in value.items():
                    _step(other, child, old_fields.get(key), found, MapKey(key))
                return
            for key, check in children.items():
                if key in value:
                    _step(check, value[key], old_fields.get(key), found, key)

        checks = [*children.values(), *([other] if other else [])]
        return RuleCheck(run, any(check.has_transitions for check in checks))

    def _items(self, node: Node) -> RuleCheck | None:
        item = None if node.items is None else self.check(node.items)
        if item is None:
            return None
        is_map = node.schema.get("x-kubernetes-list-type") == "map"
        names = node.schema.get("x-kubernetes-list-map-keys") or []

        def run(value: Any, old: Any, found: list[Finding]) -> None:
            earlier: dict[tuple[Any, ...], Any] = {}
            if is_map and isinstance(old, list):
                earlier = {_key(each, names): each for each in old}
            for index, child in enumerate(value):
                _step(item, child, earlier.get(_key(child, names)) if earlier else None, found, index)

        return RuleCheck(run, item.has_transitions)


def _key(item: Any, names: list[str]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in names) if isinstance(item, dict) else ()


def _step(check: RuleCheck, value: Any, old: Any, found: list[Finding], segment: Segment) -> None:
    if value is None or (value is old and not check.has_transitions):
        return
    before = len(found)
    check.run(value, old, found)
    for finding in found[before:]:
        finding.at(segment)


class _Evaluator:
    """Asks the rules of one node; they share one CEL context, so that a value is handed over once."""

    def __init__(self, node: Node, rules: list[Rule]) -> None:
        self._rules = rules
        self._type = node.schema.get("type", "")
        self._convert = _converter(node)
        self._uses_old = any(rule.is_transition for rule in rules)
        self._looks_at: Projection = {}
        functions: dict[str, Any] = {}
        for rule in rules:
            functions |= rule.expression.functions
            for looks_at in rule.expression.projections.values():
                self._looks_at = merged(self._looks_at, looks_at)
        self._context = cel.Context(functions=functions)

    def run(self, value: Any, old: Any, found: list[Finding]) -> None:
        seen = project(value, self._looks_at)
        old_seen = None if old is None else project(old, self._looks_at)
        unchanged = old_seen is not None and seen == old_seen
        if unchanged and not self._uses_old:
            return
        self._context.add_variable("self", self._view(seen))
        if old_seen is not None and self._uses_old:
            self._context.add_variable("oldSelf", self._view(old_seen))
        for rule in self._rules:
            is_asked = old_seen is not None if rule.is_transition else not unchanged
            if is_asked and (finding := self._ask(rule, value)) is not None:
                found.append(finding)

    def _view(self, seen: Any) -> Any:
        return seen if self._convert is None else self._convert(seen)

    def _ask(self, rule: Rule, value: Any) -> Finding | None:
        try:
            if rule.expression.execute(self._context) is True:
                return None
        except CelError as error:
            why = f"{error} evaluating rule: {rule.message}"
            return Finding(Reason.INVALID, self._type, why, brackets=True)
        shown = OMITTED if isinstance(value, dict | list) else value
        return Finding(Reason.INVALID, shown, rule.message, brackets=True)


def _converter(node: Node) -> _Converter | None:
    """Return what makes CEL's value of an object's; None if they are the same."""
    kind = node.schema.get("type")
    if kind == "number":
        return lambda value: float(value) if type(value) is int else value
    if kind == "array" and node.items is not None:
        item = _converter(node.items)
        return None if item is None else lambda value: [item(each) for each in value] if value else value
    if kind == "object" and node.additional is not None:
        inner = _converter(node.additional)
        if inner is None:
            return None
        return lambda value: {key: inner(child) for key, child in value.items()} if value else value
    return _object_converter(node) if kind == "object" else None


def _object_converter(node: Node) -> _Converter | None:
    fields = {name: _converter(child) for name, child in node.properties.items() if name != "metadata"}
    if not any(fields.values()) and not any(child.nullable for child in node.properties.values()):
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        present = {key: child for key, child in value.items() if child is not None or key not in fields}
        return {
            key: child if (inner := fields.get(key)) is None else inner(child)
            for key, child in present.items()
        }

    return convert
