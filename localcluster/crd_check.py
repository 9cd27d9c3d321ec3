"""What a real API server refuses when a CRD is created: unstructural schemas, bad defaults, bad rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from localcluster.cel import CelSyntaxError, compile_expression
from localcluster.cel_cost import RULE_LIMIT, SCHEMA_LIMIT, RuleCost, largest_count
from localcluster.crd_structure import check_structure
from localcluster.field_errors import FieldError, Finding, Reason
from localcluster.jsonpath import JsonPathError, field_names
from localcluster.pruning import PruningCompiler, UnknownField
from localcluster.resource import JSON
from localcluster.rules import RULES
from localcluster.schema_nodes import Components, Node, build
from localcluster.validation import ValidationCompiler

VARIABLES = frozenset({"self", "oldSelf"})
REASONS = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")
_ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and "
    "strings are declared)"
)
RESOURCE_METADATA = Node(
    {"type": "object"},
    properties={"name": Node({"type": "string"}), "generateName": Node({"type": "string"})},
)
"""All that rules see of an object's metadata."""


def check_crd_schema(schema: JSON, components: Components, path: str = "openAPIV3Schema") -> list[FieldError]:
    """Why a real API server would refuse a CRD with this schema; none if it would take it."""
    faults = list(check_structure(schema, path))
    if faults:
        return faults
    root = build(schema, components, is_resource=True)
    faults += _check_defaults(root, path)
    check = _RulesCheck(path)
    check.visit(root, path, times=1, correlatable=True)
    return [*faults, *check.faults, *check.total_fault()]


def _check_defaults(node: Node, path: str) -> Iterator[FieldError]:
    for name, default in node.defaults.items():
        where = f"{path}.properties[{name}].default"
        child = node.properties[name]
        unknown: list[UnknownField] = []
        PruningCompiler().pruner(child)(default, None, unknown)
        if unknown:
            yield FieldError(where, Reason.INVALID, default, "must not have unknown fields")
        check = ValidationCompiler(list_types=True).check(child)
        found: list[Finding] = []
        if check is not None:
            check(default, None, found)
        for finding in found:
            fault = finding.error()
            inner = f"{where}.{fault.field}" if fault.field else where
            yield FieldError(inner, fault.reason, fault.value, fault.detail)
    for name, child in node.properties.items():
        if not (node.is_resource and name == "metadata"):
            yield from _check_defaults(child, f"{path}.properties[{name}]")
    if node.additional is not None:
        yield from _check_defaults(node.additional, f"{path}.additionalProperties")
    if node.items is not None:
        yield from _check_defaults(node.items, f"{path}.items")


@dataclass
class _RulesCheck:
    """Visits every rule of a schema, and adds up what they may cost."""

    path: str
    faults: list[FieldError] = field(default_factory=list)
    total: float = 0

    def visit(self, node: Node, path: str, *, times: int, correlatable: bool) -> None:
        """`times`: how often this node can be in an object; `correlatable`: whether it has an old self."""
        for index, rule in enumerate(node.schema.get(RULES) or ()):
            self._check_rule(rule, _seen_by_rules(node), f"{path}.{RULES}[{index}]", times, correlatable)
        count = max(1, largest_count(node)) if node.items is not None or node.additional is not None else 1
        if node.items is not None:
            is_map = node.schema.get("x-kubernetes-list-type") == "map"
            self.visit(node.items, f"{path}.items", times=times * count, correlatable=correlatable and is_map)
        keeps = correlatable and node.schema.get("x-kubernetes-map-type") != "atomic"
        if node.additional is not None:
            self.visit(
                node.additional, f"{path}.additionalProperties", times=times * count, correlatable=keeps
            )
        for name, child in node.properties.items():
            if not (node.is_resource and name == "metadata"):
                self.visit(child, f"{path}.properties[{name}]", times=times, correlatable=keeps)

    def _check_rule(self, rule: JSON, node: Node, path: str, times: int, correlatable: bool) -> None:
        self.faults += _rule_form_faults(rule, node, path)
        source = (rule.get("rule") or "").strip()
        if not source:
            return
        expressions = {"rule": source}
        if rule.get("messageExpression"):
            expressions["messageExpression"] = rule["messageExpression"]
        for name, text in expressions.items():
            self._check_expression(text, node, f"{path}.{name}", name, times)
        if not correlatable and _uses_old_self(source):
            detail = "oldSelf cannot be used on the uncorrelatable portion of the schema"
            self.faults.append(FieldError(f"{path}.rule", Reason.INVALID, source, detail))

    def _check_expression(self, source: str, node: Node, path: str, name: str, times: int) -> None:
        try:
            compile_expression(source).check_variables(VARIABLES)
            cost = RuleCost(source, node).estimate() * times
        except CelSyntaxError as error:
            detail = f"compilation failed: ERROR: {error}"
            self.faults.append(FieldError(path, Reason.INVALID, source, detail))
            return
        self.total += cost
        if cost > RULE_LIMIT:
            detail = (
                f"estimated {name} cost exceeds budget by factor of {_factor(cost / RULE_LIMIT)} {_ADVICE}"
            )
            self.faults.append(FieldError(path, Reason.FORBIDDEN, "", detail))

    def total_fault(self) -> list[FieldError]:
        if self.total <= SCHEMA_LIMIT:
            return []
        detail = (
            f"{RULES} estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of "
            f"{_factor(self.total / SCHEMA_LIMIT)} {_ADVICE}"
        )
        return [FieldError(self.path, Reason.FORBIDDEN, "", detail)]


def _factor(ratio: float) -> str:
    return "more than 100x" if ratio > 100 else f"{ratio:.1f}x"


def _uses_old_self(source: str) -> bool:
    try:
        return "oldSelf" in compile_expression(source).projections
    except CelSyntaxError:
        return False


def _seen_by_rules(node: Node) -> Node:
    """A resource as rules see it."""
    if not node.is_resource:
        return node
    properties = {**node.properties, "metadata": RESOURCE_METADATA}
    return Node(node.schema, properties=properties, defaults=node.defaults, is_resource=True)


def _rule_form_faults(rule: JSON, node: Node, path: str) -> Iterator[FieldError]:
    source, message = (rule.get("rule") or "").strip(), rule.get("message") or ""
    if not source:
        yield FieldError(f"{path}.rule", Reason.REQUIRED, "", "rule is not specified")
    if message and not message.strip():
        detail = "message must be non-empty if specified"
        yield FieldError(f"{path}.message", Reason.INVALID, message, detail)
    if "\n" in message.strip():
        yield FieldError(f"{path}.message", Reason.INVALID, message, "message must not contain line breaks")
    if "\n" in source and not message:
        detail = "message must be specified if rule contains line breaks"
        yield FieldError(f"{path}.message", Reason.REQUIRED, "", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        detail = "supported values: " + ", ".join(f'"{each}"' for each in REASONS)
        yield FieldError(f"{path}.reason", Reason.NOT_SUPPORTED, reason, detail)
    if rule.get("optionalOldSelf") and source and not _uses_old_self(source):
        detail = "may not be set to true if oldSelf is not used in rule"
        yield FieldError(f"{path}.optionalOldSelf", Reason.INVALID, True, detail)
    if rule.get("fieldPath"):
        yield from _field_path_faults(rule["fieldPath"], node, f"{path}.fieldPath")


def _field_path_faults(text: str, node: Node, path: str) -> Iterator[FieldError]:
    try:
        names = field_names(text)
    except JsonPathError:
        yield FieldError(path, Reason.INVALID, text, "fieldPath must be a valid path")
        return
    for name in names:
        child = node.properties.get(name) or node.additional
        if child is None:
            detail = "fieldPath must be a valid path: does not refer to a valid field"
            yield FieldError(path, Reason.INVALID, text, detail)
            return
        node = child
