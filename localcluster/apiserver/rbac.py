"""Authorizes by Kubernetes' RBAC over the Roles and bindings in the store; the admin may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localcluster.apiserver.authentication import AUTHENTICATED, User
from localcluster.apiserver.errors import ApiError
from localcluster.apiserver.store import Event, Store, Stored
from localcluster.resource import JSON
from localcluster.selectors import from_selector

RBAC_GROUP = "rbac.authorization.k8s.io"
ROLES = f"roles.{RBAC_GROUP}"
CLUSTER_ROLES = f"clusterroles.{RBAC_GROUP}"
ROLE_BINDINGS = f"rolebindings.{RBAC_GROUP}"
CLUSTER_ROLE_BINDINGS = f"clusterrolebindings.{RBAC_GROUP}"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"

PUBLIC_RULES: tuple[JSON, ...] = (
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews"],
        "verbs": ["create"],
    },
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
    {
        "nonResourceURLs": [
            *("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/"),
            *("/healthz", "/livez", "/readyz"),
        ],
        "verbs": ["get"],
    },
)
"""Rights of every authenticated user."""
KNOWN_RULES_MAX = 10_000
KNOWN_NAMES_MAX_LENGTH = 1000
"""Reviews ask about users and namespaces of any name, so that what is remembered has to be bounded."""


@dataclass(frozen=True)
class Attributes:
    """A request in RBAC's terms."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def rule_allows(rule: JSON, wanted: Attributes) -> bool:
    """Whether one rule of a Role grants a request."""
    names = rule.get("resourceNames") or ()
    return (
        _contains(rule.get("verbs"), wanted.verb)
        and _contains(rule.get("apiGroups"), wanted.group)
        and _names_resource(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def rule_allows_path(rule: JSON, verb: str, path: str) -> bool:
    """Whether one rule of a ClusterRole grants a request for what is no resource, such as /metrics."""
    return _contains(rule.get("verbs"), verb) and any(
        path == url or (url.endswith("*") and path.startswith(url.rstrip("*")))
        for url in rule.get("nonResourceURLs") or ()
    )


def _contains(allowed: list[str] | None, wanted: str) -> bool:
    return allowed is not None and ("*" in allowed or wanted in allowed)


def _names_resource(resources: list[str] | tuple[()], wanted: Attributes) -> bool:
    if "*" in resources or wanted.full_resource in resources:
        return True
    return bool(wanted.subresource) and f"*/{wanted.subresource}" in resources


def rule_covers(held: JSON, wanted: JSON) -> bool:
    """Whether a rule grants at least all that another one grants."""

    def within(field: str) -> bool:
        allowed, asked = held.get(field) or [], wanted.get(field) or []
        return "*" in allowed or set(asked) <= set(allowed)

    def resource_within(resource: str) -> bool:
        _, slash, subresource = resource.partition("/")
        return resource in resources or (bool(slash) and f"*/{subresource}" in resources)

    resources = held.get("resources") or []
    resources_fit = "*" in resources or all(map(resource_within, wanted.get("resources") or []))
    names_held, names_wanted = held.get("resourceNames") or [], wanted.get("resourceNames") or []
    names_fit = not names_held or (bool(names_wanted) and set(names_wanted) <= set(names_held))
    return names_fit and resources_fit and all(map(within, ("verbs", "apiGroups", "nonResourceURLs")))


def single_rules(rule: JSON) -> Iterator[JSON]:
    """Split a rule into one verb, group, resource and name each, which several other rules may hold."""
    names: list[JSON] = [{"resourceNames": [name]} for name in rule.get("resourceNames") or ()] or [{}]
    for verb in rule.get("verbs") or ():
        for url in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [url]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for named in names:
                    yield {"verbs": [verb], "apiGroups": [group], "resources": [resource], **named}


def binds(binding: JSON, user: User) -> bool:
    """Whether a binding names the user or one of its groups."""
    namespace = binding["metadata"].get("namespace", "")
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "User" and name in (user.name, "*"):
            return True
        if kind == "Group" and name in user.groups:
            return True
        if kind == "ServiceAccount":
            account = f"{SERVICE_ACCOUNT_PREFIX}{subject.get('namespace') or namespace}:{name}"
            if account == user.name:
                return True
    return False


class Authorizer:
    """Decides by what the store holds now; what a user may is remembered until a Role or binding changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rules: dict[tuple[str, tuple[str, ...], str], tuple[JSON, ...]] = {}
        store.observers.append(self._observe)

    def authorize(self, user: User, wanted: Attributes) -> None:
        """Raise 403, worded as Kubernetes does, unless the user may."""
        if not self.allows(user, wanted):
            raise denied(user, wanted)

    def allows(self, user: User, wanted: Attributes) -> bool:
        if user.is_superuser:
            return True
        return any(rule_allows(rule, wanted) for rule in self.rules(user, wanted.namespace))

    def allows_path(self, user: User, verb: str, path: str) -> bool:
        if user.is_superuser:
            return True
        return any(rule_allows_path(rule, verb, path) for rule in self.rules(user, ""))

    def allows_all(self, user: User, rules: list[JSON], namespace: str) -> bool:
        """Whether the user holds everything that the rules would give away."""
        if user.is_superuser:
            return True
        held = self.rules(user, namespace)
        return all(
            any(rule_covers(each, wanted) for each in held) for rule in rules for wanted in single_rules(rule)
        )

    def rules(self, user: User, namespace: str) -> tuple[JSON, ...]:
        """Everything granted to a user in a namespace (or, with an empty one, cluster-wide)."""
        key = (user.name, user.groups, namespace)
        rules = self._rules.get(key)
        if rules is None:
            rules = tuple(self._collect(user, namespace))
            if len(self._rules) >= KNOWN_RULES_MAX:
                self._rules.clear()
            if sum(map(len, (user.name, namespace, *user.groups))) <= KNOWN_NAMES_MAX_LENGTH:
                self._rules[key] = rules
        return rules

    def referenced_rules(self, role_ref: JSON, namespace: str) -> list[JSON]:
        """The rules of the role that a binding points at; none where it is missing."""
        stored = self.referenced_role(role_ref, namespace)
        return [*(stored.obj.get("rules") or ()), *self._aggregated(stored.obj)] if stored else []

    def referenced_role(self, role_ref: JSON, namespace: str) -> Stored | None:
        """The role that a binding points at."""
        if role_ref.get("kind") == "ClusterRole":
            return self._store.get(CLUSTER_ROLES, "", role_ref["name"])
        return self._store.get(ROLES, namespace, role_ref["name"])

    def _aggregated(self, role: JSON) -> Iterator[JSON]:
        """The rules of the ClusterRoles that another one selects by their labels."""
        selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
        for selector in map(from_selector, selectors):
            for _, other in self._store.select(CLUSTER_ROLES, None):
                if selector.matches(other.obj["metadata"].get("labels")):
                    yield from other.obj.get("rules") or ()

    def _collect(self, user: User, namespace: str) -> Iterator[JSON]:
        if AUTHENTICATED in user.groups:
            yield from PUBLIC_RULES
        bindings = self._store.select(CLUSTER_ROLE_BINDINGS, None)
        if namespace:
            bindings = [*bindings, *self._store.select(ROLE_BINDINGS, namespace)]
        for _, stored in bindings:
            if binds(stored.obj, user):
                yield from self.referenced_rules(stored.obj["roleRef"], namespace)

    def _observe(self, event: Event) -> None:
        if event.collection.endswith(RBAC_GROUP):
            self._rules.clear()


def denied(user: User, wanted: Attributes) -> ApiError:
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    subject = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    named = f' "{wanted.name}"' if wanted.name else ""
    message = (
        f'{subject}{named} is forbidden: User "{user.name}" cannot {wanted.verb} resource '
        f'"{wanted.full_resource}" in API group "{wanted.group}" {where}'
    )
    details: JSON = {"kind": wanted.resource}
    if wanted.name:
        details["name"] = wanted.name
    if wanted.group:
        details["group"] = wanted.group
    return ApiError(403, "Forbidden", message, details)
