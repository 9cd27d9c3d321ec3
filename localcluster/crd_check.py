"""What is refused in the schema of a CRD: levels without a type, bad defaults, rules that cannot be asked.

The paths and words are those of pkg/apis/apiextensions/validation of Kubernetes' apiextensions-apiserver,
which refuses more: whatever keeps a schema from being structural, and rules that may cost too much.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.cel import VARIABLES_OF_RULES, compile_expression
from localcluster.cel_check import Checked
from localcluster.cel_syntax import CelSyntaxError, parse
from localcluster.cel_types import Type, declare
from localcluster.field_errors import FieldError, Finding, Reason
from localcluster.jsonpath import JsonPathError, field_names
from localcluster.patterns import problem_of
from localcluster.pruning import PruningCompiler, UnknownField
from localcluster.resource import JSON
from localcluster.rules import RULES, RulesCompiler
from localcluster.schema_nodes import RESOURCE_FIELDS, Components, Node, build
from localcluster.validation import ValidationCompiler

_RESULTS = {"bool": "cel expression must evaluate to a bool", "string": "must evaluate to a string"}


def check_crd_schema(schema: JSON, components: Components, path: str = "openAPIV3Schema") -> list[FieldError]:
    """Why a CRD with this schema is refused; none if it is taken."""
    faults = list(_structure_faults(schema, path))
    if faults:
        return faults
    root = build(schema, components, is_resource=True)
    rules = list(_rule_faults(root, path, uncorrelatable=""))
    # Defaults are held to the rules, which must be there to be asked.
    return rules or list(_default_faults(root, path))


def _structure_faults(schema: JSON, path: str) -> Iterator[FieldError]:
    if "$ref" in schema:
        yield FieldError(f"{path}.$ref", Reason.FORBIDDEN, "", "is not supported")
    flexible = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if not schema.get("type") and not flexible:
        yield FieldError(f"{path}.type", Reason.REQUIRED, "", "must not be empty for specified object fields")
    if (pattern := schema.get("pattern")) and (problem := problem_of(pattern)):
        detail = f"must be a valid regular expression, but isn't: {problem}"
        yield FieldError(f"{path}.pattern", Reason.INVALID, pattern, detail)
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if schema.get("type") == "array" and not isinstance(items, dict):
        yield FieldError(f"{path}.items", Reason.REQUIRED, "", "must be specified")
    if additional is not None and schema.get("properties"):
        detail = "additionalProperties and properties are mutual exclusive"
        yield FieldError(f"{path}.additionalProperties", Reason.FORBIDDEN, "", detail)
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        detail = "must not be empty if x-kubernetes-list-type is map"
        yield FieldError(f"{path}.x-kubernetes-list-map-keys", Reason.REQUIRED, "", detail)
    for name, child in (schema.get("properties") or {}).items():
        yield from _structure_faults(child, f"{path}.properties[{name}]")
    for name, child in (("items", items), ("additionalProperties", additional)):
        if isinstance(child, dict):
            yield from _structure_faults(child, f"{path}.{name}")


def _default_faults(node: Node, path: str) -> Iterator[FieldError]:
    default = node.schema.get("default")
    if default is not None:
        yield from _faults_of_default(node, default, f"{path}.default")
    for name, child in node.properties.items():
        if not (node.is_resource and name in RESOURCE_FIELDS):
            yield from _default_faults(child, f"{path}.properties[{name}]")
    if node.additional is not None:
        yield from _default_faults(node.additional, f"{path}.additionalProperties")
    if node.items is not None:
        yield from _default_faults(node.items, f"{path}.items")


def _faults_of_default(node: Node, default: object, path: str) -> Iterator[FieldError]:
    """A default must be complete as it is written: what defaults inside it would add does not count."""
    unknown: list[UnknownField] = []
    PruningCompiler().pruner(node)(default, None, unknown)
    if unknown:
        yield FieldError(path, Reason.INVALID, default, "must not have unknown fields")
    found: list[Finding] = []
    check = ValidationCompiler(custom=True, list_types=True).check(node)
    if check is not None:
        check(default, None, found)
    rules = RulesCompiler().check(node)
    if rules is not None and not found:
        rules.run(default, None, found)
        # Rules about changes are asked about a change from the default to itself.
        rules.run(default, default, found)
    for finding in found:
        fault = finding.error()
        separator = "" if not fault.field or fault.field.startswith("[") else "."
        yield FieldError(f"{path}{separator}{fault.field}", fault.reason, fault.value, fault.detail)


def _rule_faults(node: Node, path: str, *, uncorrelatable: str) -> Iterator[FieldError]:
    """`uncorrelatable`: the path above, if any, from which on a value cannot be matched with its old one."""
    if node.items is not None:
        is_map = node.schema.get("x-kubernetes-list-type") == "map"
        beyond = uncorrelatable or ("" if is_map else path)
        yield from _rule_faults(node.items, f"{path}.items", uncorrelatable=beyond)
    if node.additional is not None:
        yield from _rule_faults(
            node.additional, f"{path}.additionalProperties", uncorrelatable=uncorrelatable
        )
    is_atomic = node.schema.get("x-kubernetes-map-type") == "atomic"
    beyond = uncorrelatable or (path if is_atomic else "")
    for name, child in node.properties.items():
        if not (node.is_resource and name == "metadata"):
            yield from _rule_faults(child, f"{path}.properties[{name}]", uncorrelatable=beyond)
    for index, rule in enumerate(node.schema.get(RULES) or ()):
        yield from _faults_of_rule(rule, node, f"{path}.{RULES}[{index}]", uncorrelatable)


def _faults_of_rule(rule: JSON, node: Node, path: str, uncorrelatable: str) -> Iterator[FieldError]:
    source = (rule.get("rule") or "").strip()
    if not source:
        yield FieldError(f"{path}.rule", Reason.REQUIRED, "", "rule is not specified")
        return
    if rule.get("fieldPath") and not _is_field(rule["fieldPath"], node):
        detail = "fieldPath must be a valid path"
        yield FieldError(f"{path}.fieldPath", Reason.INVALID, rule["fieldPath"], detail)
    declared = declare(node)
    if declared is None:
        detail = "rule declared on schema that does not support validation rules"
        yield FieldError(path, Reason.INVALID, "", detail)
        return
    old = Type("optional", (declared,)) if rule.get("optionalOldSelf") else declared
    variables = {"self": declared, "oldSelf": old}
    for key, result in (("rule", "bool"), ("messageExpression", "string")):
        if rule.get(key):
            try:
                _compile(rule[key], variables, result)
            except CelSyntaxError as error:
                yield FieldError(f"{path}.{key}", Reason.INVALID, rule[key], str(error))
                return
    if uncorrelatable and "oldSelf" in compile_expression(source).projections:
        detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
        yield FieldError(f"{path}.rule", Reason.INVALID, source, detail)


def _compile(source: str, variables: dict[str, Type], result: str) -> None:
    """Raise CelSyntaxError for an expression that cannot be compiled, or gives something else."""
    try:
        compile_expression(source.strip()).check_variables(VARIABLES_OF_RULES)
        checked = Checked(source, parse(source), variables)
    except CelSyntaxError as error:
        raise CelSyntaxError(f"compilation failed: {error}") from None
    if checked.result.name != result:
        raise CelSyntaxError(_RESULTS[result])


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
