"""The ClusterRoles that every cluster has: what manifests and people refer to without making it first."""

from __future__ import annotations

from localcluster.apiserver.authentication import SUPERUSERS
from localcluster.apiserver.metadata import begin_life
from localcluster.apiserver.rbac import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, RBAC_GROUP
from localcluster.apiserver.store import Store
from localcluster.client.clock import utc_now
from localcluster.resource import JSON

_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_PLAIN_RESOURCES = [
    "configmaps",
    "events",
    "persistentvolumeclaims",
    "pods",
    "pods/log",
    "pods/status",
    "serviceaccounts",
    "services",
]
_GROUPS = ["apps", "autoscaling", "coordination.k8s.io", "networking.k8s.io", "policy"]


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> JSON:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


_VIEW = [_rule([""], [*_PLAIN_RESOURCES, "namespaces"], _READ), _rule(_GROUPS, ["*"], _READ)]
_EDIT = [
    *_VIEW,
    _rule([""], [*_PLAIN_RESOURCES, "secrets"], [*_READ, *_WRITE]),
    _rule([""], ["pods/eviction", "serviceaccounts/token"], ["create"]),
    _rule(_GROUPS, ["*"], [*_READ, *_WRITE]),
]
_ADMIN = [*_EDIT, _rule([RBAC_GROUP], ["roles", "rolebindings"], [*_READ, *_WRITE])]
ROLES: dict[str, list[JSON]] = {
    "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "admin": _ADMIN,
    "edit": _EDIT,
    "view": _VIEW,
    "system:auth-delegator": [
        _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
    ],
}


def ensure_roles(store: Store) -> None:
    """Create what is missing; leave alone what somebody changed."""
    for name, rules in ROLES.items():
        if store.get(CLUSTER_ROLES, "", name) is None:
            store.put(CLUSTER_ROLES, _object("ClusterRole", name, {"rules": rules} | _aggregation(name)))
    if store.get(CLUSTER_ROLE_BINDINGS, "", "cluster-admin") is None:
        content = {
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": SUPERUSERS}],
        }
        store.put(CLUSTER_ROLE_BINDINGS, _object("ClusterRoleBinding", "cluster-admin", content))


def _aggregation(name: str) -> JSON:
    """Operators add the rules for their kinds to these by labels of their own ClusterRoles."""
    if name not in ("admin", "edit", "view"):
        return {}
    selector = {"matchLabels": {f"{RBAC_GROUP}/aggregate-to-{name}": "true"}}
    return {"aggregationRule": {"clusterRoleSelectors": [selector]}}


def _object(kind: str, name: str, content: JSON) -> JSON:
    metadata: JSON = {"name": name}
    begin_life(metadata, utc_now())
    metadata["labels"] = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    return {"apiVersion": f"{RBAC_GROUP}/v1", "kind": kind, "metadata": metadata, **content}
