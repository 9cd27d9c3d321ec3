"""What a real API server refuses when a CRD is created: unstructural schemas, bad defaults, bad rules.

After pkg/apis/apiextensions/validation of Kubernetes' apiextensions-apiserver, in its order: defaults are
looked at when the schema is structural, and rules are compiled where the schema below them has no faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from localcluster.cel import VARIABLES_OF_RULES, compile_expression
from localcluster.cel_check import Checked
from localcluster.cel_cost import ENDLESS, RULE_LIMIT, SCHEMA_LIMIT, CostEstimate, cardinality
from localcluster.cel_syntax import CelSyntaxError, parse
from localcluster.cel_types import Declaration, Type, declare
from localcluster.crd_structure import check_structure
from localcluster.field_errors import FieldError, Finding, Reason
from localcluster.jsonpath import JsonPathError, field_names
from localcluster.pruning import PruningCompiler, UnknownField
from localcluster.resource import JSON
from localcluster.rules import RULES, RulesCompiler
from localcluster.schema_nodes import RESOURCE_FIELDS, Components, Node, build
from localcluster.validation import ValidationCompiler

REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and "
    "strings are declared)"
)
_TOTAL = f"{RULES} estimated rule cost total for entire OpenAPIv3 schema"
_CONTRIBUTED = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
_MOST_EXPENSIVE = 4


def check_crd_schema(schema: JSON, components: Components, path: str = "openAPIV3Schema") -> list[FieldError]:
    """Why a real API server would refuse a CRD with this schema; none if it would take it."""
    faults = list(check_structure(schema, path))
    if faults:
        return faults
    root = build(schema, components, is_resource=True)
    faults = list(_check_defaults(root, path))
    check = _RulesCheck(path, compiles=not faults)
    check.visit(root, path, times=1, uncorrelatable="")
    return [*faults, *check.form_faults, *check.faults, *check.total_faults()]


def _check_defaults(node: Node, path: str) -> Iterator[FieldError]:
    default = node.schema.get("default")
    if default is not None:
        yield from _default_faults(node, default, f"{path}.default")
    for name, child in node.properties.items():
        if not (node.is_resource and name in RESOURCE_FIELDS):
            yield from _check_defaults(child, f"{path}.properties[{name}]")
    if node.additional is not None:
        yield from _check_defaults(node.additional, f"{path}.additionalProperties")
    if node.items is not None:
        yield from _check_defaults(node.items, f"{path}.items")


def _default_faults(node: Node, default: object, path: str) -> Iterator[FieldError]:
    """A default must be complete as it is written: what defaults inside it would add does not count."""
    unknown: list[UnknownField] = []
    PruningCompiler().pruner(node)(default, None, unknown)
    if unknown:
        yield FieldError(path, Reason.INVALID, default, "must not have unknown fields")
    found: list[Finding] = []
    check = ValidationCompiler(custom=True, list_types=True).check(node)
    if check is not None:
        check(default, None, found)
    if not found:
        try:
            rules = RulesCompiler().check(node)
            if rules is not None:
                rules.run(default, None, found)
                # Rules about changes are asked about a change from the default to itself.
                rules.run(default, default, found)
        except CelSyntaxError as error:
            kind = node.schema.get("type", "")
            yield FieldError(path, Reason.INVALID, kind, f"rule compile error: compilation failed: {error}")
    for finding in found:
        fault = finding.error()
        separator = "" if not fault.field or fault.field.startswith("[") else "."
        yield FieldError(f"{path}{separator}{fault.field}", fault.reason, fault.value, fault.detail)


@dataclass
class _RulesCheck:
    """Visits every rule of a schema, and adds up what they may cost."""

    path: str
    compiles: bool
    form_faults: list[FieldError] = field(default_factory=list)
    faults: list[FieldError] = field(default_factory=list)
    costs: list[tuple[int, str]] = field(default_factory=list)

    def visit(self, node: Node, path: str, *, times: int | None, uncorrelatable: str) -> None:
        """`times`: how often this level can be in an object, None where nothing limits that;
        `uncorrelatable`: the path above, if any, from which on a value cannot be matched with its old one."""
        before = len(self.form_faults)
        most = node.schema.get("maxItems" if node.items is not None else "maxProperties")
        inside = None if times is None or most is None else times * max(0, most)
        if node.items is not None:
            is_map = node.schema.get("x-kubernetes-list-type") == "map"
            beyond = uncorrelatable or ("" if is_map else path)
            self.visit(node.items, f"{path}.items", times=inside, uncorrelatable=beyond)
        if node.additional is not None:
            where = f"{path}.additionalProperties"
            self.visit(node.additional, where, times=inside, uncorrelatable=uncorrelatable)
        is_atomic = node.schema.get("x-kubernetes-map-type") == "atomic"
        beyond = uncorrelatable or (path if is_atomic else "")
        for name, child in node.properties.items():
            if not (node.is_resource and name == "metadata"):
                self.visit(child, f"{path}.properties[{name}]", times=times, uncorrelatable=beyond)
        rules = node.schema.get(RULES) or ()
        for index, rule in enumerate(rules):
            self.form_faults += _rule_form_faults(rule, node, f"{path}.{RULES}[{index}]")
        if rules and self.compiles and len(self.form_faults) == before:
            self._check_rules(rules, node, f"{path}.{RULES}", times, uncorrelatable)

    def _check_rules(
        self, rules: list[JSON], node: Node, path: str, times: int | None, uncorrelatable: str
    ) -> None:
        declaration = declare(node)
        if declaration is None:
            kind, keeps = node.schema.get("type", ""), str(node.preserves_unknown).lower()
            detail = (
                "rule declared on schema that does not support validation rules type: "
                f"'{kind}' x-kubernetes-preserve-unknown-fields: '{keeps}'"
            )
            self.faults.append(FieldError(path, Reason.INTERNAL, "", detail))
            return
        for index, rule in enumerate(rules):
            self._check_rule(rule, declaration, f"{path}[{index}]", times, uncorrelatable)

    def _check_rule(
        self, rule: JSON, declaration: Declaration, path: str, times: int | None, uncorrelatable: str
    ) -> None:
        source = rule["rule"]
        optional = bool(rule.get("optionalOldSelf"))
        try:
            cost = _estimate(source, declaration, optional, "bool") * cardinality(declaration, times)
            self._add_cost(f"{path}.rule", "estimated rule cost", min(cost, ENDLESS))
        except CelSyntaxError as error:
            self.faults.append(FieldError(f"{path}.rule", Reason.INVALID, _as_printed(rule), str(error)))
            return
        self._check_message(rule, declaration, f"{path}.messageExpression", optional)
        uses_old_self = "oldSelf" in compile_expression(source.strip()).projections
        if uses_old_self and uncorrelatable:
            detail = (
                f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
            )
            self.faults.append(FieldError(f"{path}.rule", Reason.INVALID, source, detail))
        elif not uses_old_self and rule.get("optionalOldSelf") is not None:
            detail = "may not be set if oldSelf is not used in rule"
            value = rule["optionalOldSelf"]
            self.faults.append(FieldError(f"{path}.optionalOldSelf", Reason.INVALID, value, detail))

    def _check_message(self, rule: JSON, declaration: Declaration, path: str, optional: bool) -> None:
        source = rule.get("messageExpression")
        if not source:
            return
        try:
            # A message is made once for a fault, so it is not multiplied by how often the level can be.
            self._add_cost(
                path, "estimated messageExpression cost", _estimate(source, declaration, optional, "string")
            )
        except CelSyntaxError as error:
            self.faults.append(
                FieldError(path, Reason.INVALID, _as_printed(rule), f"messageExpression {error}")
            )

    def _add_cost(self, path: str, name: str, cost: int) -> None:
        self.costs.append((cost, path))
        if cost > RULE_LIMIT:
            self.faults.append(FieldError(path, Reason.FORBIDDEN, "", _over_budget(name, cost, RULE_LIMIT)))

    def total_faults(self) -> Iterator[FieldError]:
        total = sum(cost for cost, _ in self.costs)
        if total <= SCHEMA_LIMIT:
            return
        expensive = sorted((each for each in self.costs if each[0] >= SCHEMA_LIMIT / 100), reverse=True)
        for _, path in expensive[:_MOST_EXPENSIVE]:
            yield FieldError(path, Reason.FORBIDDEN, "", _CONTRIBUTED)
        yield FieldError(self.path, Reason.FORBIDDEN, "", _over_budget(_TOTAL, total, SCHEMA_LIMIT))


def _estimate(source: str, declaration: Declaration, optional_old_self: bool, result: str) -> int:
    """The cost of an expression; raises CelSyntaxError for one that cannot be compiled."""
    old = Type("optional", (declaration.type,)) if optional_old_self else declaration.type
    try:
        compile_expression(source.strip()).check_variables(VARIABLES_OF_RULES)
        checked = Checked(source, parse(source), {"self": declaration.type, "oldSelf": old})
    except CelSyntaxError as error:
        raise CelSyntaxError(f"compilation failed: {error}") from None
    if checked.result.name != result:
        kinds = {"bool": "cel expression must evaluate to a bool", "string": "must evaluate to a string"}
        raise CelSyntaxError(kinds[result])
    return CostEstimate(checked, declaration).total


def _as_printed(rule: JSON) -> JSON:
    """A rule as Kubernetes prints it in its messages."""
    texts = {
        name: rule.get(name[0].lower() + name[1:]) or "" for name in ("Rule", "Message", "MessageExpression")
    }
    return texts | {
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath") or "",
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }


def _over_budget(name: str, cost: int, limit: int) -> str:
    ratio = cost / limit
    exact = f"{ratio:.6f}x" if ratio < 1.5 else f"{ratio:.1f}x"
    factor = "more than 100x" if ratio > 100 else exact
    return f"{name} exceeds budget by factor of {factor} {_ADVICE}"


def _has_line_breaks(text: str) -> bool:
    return "\n" in text or "\r" in text


def _rule_form_faults(rule: JSON, node: Node, path: str) -> Iterator[FieldError]:
    source, message = (rule.get("rule") or "").strip(), rule.get("message") or ""
    if not source:
        yield FieldError(f"{path}.rule", Reason.REQUIRED, "", "rule is not specified")
    elif message and not message.strip():
        detail = "message must be non-empty if specified"
        yield FieldError(f"{path}.message", Reason.INVALID, message, detail)
    elif _has_line_breaks(message.strip()):
        yield FieldError(f"{path}.message", Reason.INVALID, message, "message must not contain line breaks")
    elif _has_line_breaks(source) and not message:
        detail = "message must be specified if rule contains line breaks"
        yield FieldError(f"{path}.message", Reason.REQUIRED, "", detail)
    expression = rule.get("messageExpression") or ""
    if expression and not expression.strip():
        detail = "messageExpression must be non-empty if specified"
        yield FieldError(f"{path}.messageExpression", Reason.REQUIRED, "", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        detail = "supported values: " + ", ".join(f'"{each}"' for each in REASONS)
        yield FieldError(f"{path}.reason", Reason.NOT_SUPPORTED, reason, detail)
    if rule.get("fieldPath"):
        yield from _field_path_faults(rule["fieldPath"], node, f"{path}.fieldPath")


def _field_path_faults(text: str, node: Node, path: str) -> Iterator[FieldError]:
    if not text.strip():
        yield FieldError(path, Reason.INVALID, text, "fieldPath must be non-empty if specified")
    if _has_line_breaks(text):
        yield FieldError(path, Reason.INVALID, text, "fieldPath must not contain line breaks")
    if not _is_field(text, node):
        yield FieldError(path, Reason.INVALID, text, "fieldPath must be a valid path")


def _is_field(text: str, node: Node) -> bool:
    try:
        names = field_names(text)
    except JsonPathError:
        return False
    for name in names:
        child = node.properties.get(name) or node.additional
        if child is None:
            return False
        node = child
    return True
