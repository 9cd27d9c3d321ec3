"""`x-kubernetes-validations`: the CEL rules of a CRD, at every level of its schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cel

from localcluster.cel import Expression, Projection, compile_expression, merged, project
from localcluster.cel_syntax import CelError
from localcluster.cel_values import converter, declared
from localcluster.field_errors import OMITTED, Finding, MapKey, Reason, Segment
from localcluster.jsonpath import field_names
from localcluster.resource import JSON
from localcluster.schema_nodes import Node

RULES = "x-kubernetes-validations"
MESSAGE_LIMIT_BYTES = 5 * 1024

_REASONS = {
    "FieldValueForbidden": Reason.FORBIDDEN,
    "FieldValueRequired": Reason.REQUIRED,
    "FieldValueDuplicate": Reason.DUPLICATE,
}


@dataclass(frozen=True)
class Rule:
    """One rule, compiled."""

    expression: Expression
    message: str
    message_expression: Expression | None
    reason: Reason
    field: tuple[str, ...]
    """The field that shows the fault, below the rule's own level."""
    old_self_is_optional: bool

    @property
    def is_transition(self) -> bool:
        return "oldSelf" in self.expression.projections

    @property
    def looks_at(self) -> Projection:
        """Return the parts of `self` and `oldSelf` that it reads."""
        expressions = [self.expression, *([self.message_expression] if self.message_expression else [])]
        seen: Projection = {}
        for expression in expressions:
            for variable in ("self", "oldSelf"):
                seen = merged(seen, expression.projections.get(variable, {}))
        return seen


def read_rule(definition: JSON) -> Rule:
    """Compile a rule; raises CelSyntaxError."""
    message_expression = definition.get("messageExpression")
    return Rule(
        expression=compile_expression(definition["rule"].strip()),
        message=(definition.get("message") or "").strip(),
        message_expression=compile_expression(message_expression) if message_expression else None,
        reason=_REASONS.get(definition.get("reason", ""), Reason.INVALID),
        field=field_names(definition["fieldPath"]) if definition.get("fieldPath") else (),
        old_self_is_optional=bool(definition.get("optionalOldSelf")),
    )


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
        parts = [
            part
            for part in (self._own_rules(node), self._fields(node), self._items(node))
            if part is not None
        ]
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
        evaluator = _Evaluator(node, rules)
        return RuleCheck(evaluator.run, any(rule.is_transition for rule in rules))

    def _fields(self, node: Node) -> RuleCheck | None:
        children = {
            name: check for name, child in node.properties.items() if (check := self.check(child)) is not None
        }
        other = None if node.additional is None else self.check(node.additional)
        if not children and other is None:
            return None
        comparable = node.schema.get("x-kubernetes-map-type") != "atomic"

        def run(value: Any, old: Any, found: list[Finding]) -> None:
            old_fields: JSON = old if comparable and isinstance(old, dict) else {}
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


def _old_self(rule: Rule, old_view: Any) -> Any:
    if not rule.old_self_is_optional:
        return old_view
    return cel.OptionalValue.none() if old_view is None else cel.OptionalValue.of(old_view)


class _Evaluator:
    """Asks the rules of one node; they share one CEL context, so that a value is handed over once."""

    def __init__(self, node: Node, rules: list[Rule]) -> None:
        self._rules = rules
        self._type = node.schema.get("type", "")
        self._convert = converter(node)
        self._uses_old = any(rule.is_transition for rule in rules)
        looks_at: Projection = {}
        functions: dict[str, Any] = {}
        for rule in rules:
            looks_at = merged(looks_at, rule.looks_at)
            functions |= rule.expression.functions
            if rule.message_expression is not None:
                functions |= rule.message_expression.functions
        self._looks_at = declared(node, looks_at)
        self._context = cel.Context(functions=functions)

    def run(self, value: Any, old: Any, found: list[Finding]) -> None:
        seen = project(value, self._looks_at)
        old_seen = None if old is None else project(old, self._looks_at)
        unchanged = old_seen is not None and seen == old_seen
        if unchanged and not self._uses_old:
            return
        try:
            view = self._view(seen)
            old_view = None if old_seen is None or not self._uses_old else self._view(old_seen)
        except (ValueError, OverflowError) as error:  # a time or a span by its format, and not for CEL
            asked = self._rules[0].expression.source
            found.append(
                Finding(Reason.INVALID, self._type, f"{error} evaluating rule: {asked}", brackets=True)
            )
            return
        self._context.add_variable("self", view)
        for rule in self._rules:
            if rule.is_transition:
                if old_view is None and not rule.old_self_is_optional:
                    continue
                self._context.add_variable("oldSelf", _old_self(rule, old_view))
            elif unchanged:
                continue
            finding = self._ask(rule, value)
            if finding is not None:
                found.append(finding)

    def _view(self, seen: Any) -> Any:
        return seen if self._convert is None else self._convert(seen)

    def _ask(self, rule: Rule, value: Any) -> Finding | None:
        try:
            if rule.expression.execute(self._context) is True:
                return None
        except CelError as error:
            said = rule.message or rule.expression.source
            return Finding(Reason.INVALID, self._type, f"{error} evaluating rule: {said}", brackets=True)
        made = self._made_message(rule)
        shown = OMITTED if made or isinstance(value, dict | list) else value
        finding = Finding(rule.reason, shown, made or _message(rule), brackets=True)
        for name in reversed(rule.field):
            finding.at(name)
        return finding

    def _made_message(self, rule: Rule) -> str:
        """What the message expression gives; nothing where that cannot be shown."""
        if rule.message_expression is None:
            return ""
        try:
            text = rule.message_expression.execute(self._context)
        except CelError:
            return ""
        text = text.strip() if isinstance(text, str) else ""
        return text if len(text) <= MESSAGE_LIMIT_BYTES and "\n" not in text else ""


def _message(rule: Rule) -> str:
    return rule.message or f"failed rule: {rule.expression.source}"
