"""ValidatingAdmissionPolicies: CEL expressions that every write which they match must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from localcluster.apiserver.authentication import User
from localcluster.apiserver.errors import ApiError, forbidden, forbidden_field, invalid_value, required
from localcluster.apiserver.rbac import Attributes, Authorizer
from localcluster.apiserver.store import Event, Store
from localcluster.cel import CelError, CelEvaluationError, CelSyntaxError, Expression, compile_expression
from localcluster.resource import JSON, ResourceType
from localcluster.selectors import SelectorError, from_selector

GROUP = "admissionregistration.k8s.io"
POLICIES = f"validatingadmissionpolicies.{GROUP}"
BINDINGS = f"validatingadmissionpolicybindings.{GROUP}"
VARIABLES = frozenset(
    {"object", "oldObject", "request", "params", "namespaceObject", "variables", "authorizer"}
)
_UNKNOWN = ("paramKind", "paramRef", "auditAnnotations")
_NOT_HERE = "this cluster evaluates policies without parameters and audits"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}


class Operation(Enum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Admission:
    """One write, as policies see it."""

    operation: Operation
    type: ResourceType
    subresource: str
    namespace: str
    name: str
    user: User
    obj: JSON | None
    old: JSON | None
    namespace_object: JSON | None
    dry_run: bool

    @property
    def resource(self) -> str:
        return f"{self.type.plural}/{self.subresource}" if self.subresource else self.type.plural

    def request(self) -> JSON:
        """CEL's `request`."""
        kind = {"group": self.type.group, "version": self.type.version, "kind": self.type.kind}
        resource = {"group": self.type.group, "version": self.type.version, "resource": self.type.plural}
        return {
            "kind": kind,
            "resource": resource,
            "subResource": self.subresource,
            "name": self.name,
            "namespace": self.namespace,
            "operation": self.operation.value,
            "userInfo": self.user.info(),
            "dryRun": self.dry_run,
        }


class Policies:
    """The policies and bindings in the store."""

    def __init__(self, store: Store, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._active: tuple[tuple[JSON, JSON], ...] | None = None
        store.observers.append(self._observe)

    def _observe(self, event: Event) -> None:
        if event.collection.endswith(GROUP):
            self._active = None

    def check(self, admission: Admission) -> None:
        """Raise what the first policy that denies the write says."""
        for policy, binding in self._bound():
            if admission.type.group == GROUP or not _matches(policy, binding, admission):
                continue
            for denial in _Evaluation(policy, admission, self._authorizer).denials():
                _enforce(policy, binding, admission, denial)

    def any(self) -> bool:
        return bool(self._bound())

    def _bound(self) -> tuple[tuple[JSON, JSON], ...]:
        if self._active is None:
            policies = {key[1]: stored.obj for key, stored in self._store.select(POLICIES, None)}
            bindings = [stored.obj for _, stored in self._store.select(BINDINGS, None)]
            self._active = tuple(
                (policies[binding["spec"]["policyName"]], binding)
                for binding in bindings
                if binding["spec"]["policyName"] in policies
            )
        return self._active


@dataclass(frozen=True)
class _Denial:
    message: str
    reason: str = "Invalid"


class _Evaluation:
    """One policy, evaluated for one write. Variables are computed when something asks for them."""

    def __init__(self, policy: JSON, admission: Admission, authorizer: Authorizer) -> None:
        self._spec: JSON = policy["spec"]
        self._user = admission.user
        self._authorizer = authorizer
        self._environment: dict[str, Any] = {
            "object": admission.obj,
            "oldObject": admission.old,
            "request": admission.request(),
            "params": None,
            "namespaceObject": admission.namespace_object,
            "authorizer": {"requestResource": _request_resource(admission)},
        }
        self._definitions = {each["name"]: each["expression"] for each in self._spec.get("variables") or ()}
        self._values: JSON = {}

    def denials(self) -> Iterator[_Denial]:
        try:
            for condition in self._spec.get("matchConditions") or ():
                if self._value(condition["expression"]) is not True:
                    return
        except CelError as error:
            yield from self._failed(f"matchConditions: {error}")
            return
        for validation in self._spec.get("validations") or ():
            try:
                if self._value(validation["expression"]) is not True:
                    yield _Denial(self._message(validation), validation.get("reason") or "Invalid")
            except CelError as error:
                yield from self._failed(f"expression '{validation['expression']}' resulted in error: {error}")

    def _failed(self, message: str) -> Iterator[_Denial]:
        if self._spec.get("failurePolicy", "Fail") == "Fail":
            yield _Denial(message)

    def _message(self, validation: JSON) -> str:
        if validation.get("messageExpression"):
            try:
                message = self._value(validation["messageExpression"])
                if isinstance(message, str) and message.strip():
                    return message
            except CelError:
                pass  # Kubernetes falls back to the message too
        return validation.get("message") or f"failed expression: {validation['expression'].strip()}"

    def _value(self, source: str) -> Any:
        expression = compile_expression(source)
        variables = {**self._environment, "variables": self._used(expression)}
        return expression.evaluate(variables, {"check": self._may})

    def _may(self, asked: dict[str, str], verb: str) -> bool:
        """Return the answer of `authorizer`: whether the author of the write may do that, too."""
        return self._authorizer.allows(self._user, Attributes(verb, **asked))

    def _used(self, expression: Expression) -> JSON:
        if "variables" not in expression.projections:
            return {}
        used = expression.projections["variables"]
        for name in self._definitions if used is None else used:
            if name not in self._definitions:
                raise CelEvaluationError(f"no such key: {name}")
            if name not in self._values:
                self._values[name] = self._value(self._definitions[name])
        return self._values


def _request_resource(admission: Admission) -> dict[str, str]:
    """Return the written resource in the form of an authorizer's request."""
    return {
        "group": admission.type.group,
        "resource": admission.type.plural,
        "subresource": admission.subresource,
        "namespace": admission.namespace,
        "name": admission.name,
    }


def _enforce(policy: JSON, binding: JSON, admission: Admission, denial: _Denial) -> None:
    """Raise for a denial where the binding says so; warnings and audits have no meaning here."""
    names = f"'{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
    if "Deny" in binding["spec"]["validationActions"]:
        why = f"ValidatingAdmissionPolicy {names} denied request: {denial.message}"
        refused = forbidden(admission.type, admission.name, why)
        details = {**refused.details, "causes": [{"message": denial.message}]}
        raise ApiError(_CODES.get(denial.reason, 422), denial.reason, refused.message, details)


def _matches(policy: JSON, binding: JSON, admission: Admission) -> bool:
    """Whether a policy and its binding are about this write."""
    spec, binding_spec = policy["spec"], binding["spec"]
    constraints = spec.get("matchConstraints") or {}
    if not constraints.get("resourceRules"):
        return False
    return _resources_match(constraints, admission) and _resources_match(
        binding_spec.get("matchResources") or {}, admission
    )


def _resources_match(constraints: JSON, admission: Admission) -> bool:
    included = constraints.get("resourceRules")
    if included and not any(_rule_matches(rule, admission) for rule in included):
        return False
    return _selectors_match(constraints, admission)


def _rule_matches(rule: JSON, admission: Admission) -> bool:
    def named(part: str, value: str) -> bool:
        allowed = rule.get(part) or ()
        return "*" in allowed or value in allowed

    return (
        named("operations", admission.operation.value)
        and named("apiGroups", admission.type.group)
        and named("apiVersions", admission.type.version)
        and any(each in (rule.get("resources") or ()) for each in ("*/*", admission.resource))
    )


def _selectors_match(constraints: JSON, admission: Admission) -> bool:
    namespace_selector = constraints.get("namespaceSelector")
    if namespace_selector and admission.namespace_object is not None:
        labels = admission.namespace_object["metadata"].get("labels")
        if not from_selector(namespace_selector).matches(labels):
            return False
    object_selector = constraints.get("objectSelector")
    if not object_selector:
        return True
    selector = from_selector(object_selector)
    states = [state for state in (admission.obj, admission.old) if state is not None]
    return any(selector.matches(state["metadata"].get("labels")) for state in states)


def policy_faults(obj: JSON) -> list[JSON]:
    """Return the faults of a policy that its schema cannot express."""
    spec = obj.get("spec") or {}
    faults = []
    if not spec.get("validations"):
        faults.append(required("spec.validations"))
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    if not all(rule.get("resources") for rule in rules or [{}]):
        faults.append(required("spec.matchConstraints.resourceRules"))
    faults += [forbidden_field(f"spec.{name}", _NOT_HERE) for name in _UNKNOWN if spec.get(name)]
    for part in ("matchConditions", "variables", "validations"):
        for index, each in enumerate(spec.get(part) or ()):
            for key in ("expression", "messageExpression"):
                if each.get(key):
                    faults += _expression_faults(f"spec.{part}[{index}].{key}", each[key])
    constraints = spec.get("matchConstraints") or {}
    for key in ("namespaceSelector", "objectSelector"):
        try:
            from_selector(constraints.get(key) or {})
        except SelectorError as error:
            faults.append(invalid_value(f"spec.matchConstraints.{key}", "", str(error)))
    return faults


def binding_faults(obj: JSON) -> list[JSON]:
    """Return the faults of a binding that its schema cannot express."""
    spec = obj.get("spec") or {}
    faults = [required(f"spec.{name}") for name in ("policyName", "validationActions") if not spec.get(name)]
    return faults + [forbidden_field(f"spec.{name}", _NOT_HERE) for name in _UNKNOWN if spec.get(name)]


def _expression_faults(path: str, source: str) -> list[JSON]:
    try:
        compile_expression(source).check_variables(VARIABLES)
    except CelSyntaxError as error:
        return [invalid_value(path, source, f"compilation failed: {error}")]
    return []
