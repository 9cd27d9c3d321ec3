"""Admission of a well-formed write: the rules of single kinds, RBAC's, and the policies."""

from __future__ import annotations

from localcluster.apiserver import (
    budgets,
    crds,
    disruption,
    namespaces,
    pod_security_admission,
    pods,
    policies,
    rbac,
)
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import ApiError, forbidden, forbidden_field, invalid_value
from localcluster.apiserver.policies import Admission, Operation
from localcluster.apiserver.rbac import RBAC_GROUP, Attributes
from localcluster.apiserver.requests import Context
from localcluster.resource import JSON, ResourceType


def mutate_new(cluster: Cluster, resource_type: ResourceType, obj: JSON) -> None:
    """Fill in what the kind gets from the server when it is created."""
    match resource_type.group_resource:
        case "pods":
            pods.admit(cluster, resource_type, obj)
        case "namespaces":
            namespaces.prepare(obj)
        case crds.DEFINITIONS:
            crds.prepare(obj)


def create_faults(resource_type: ResourceType, obj: JSON) -> list[JSON]:
    """Return the faults of a new object that no schema can express."""
    match resource_type.group_resource:
        case "pods":
            return pods.faults(obj)
        case crds.DEFINITIONS:
            return crds.faults(obj)
        case policies.POLICIES:
            return policies.policy_faults(obj)
        case policies.BINDINGS:
            return policies.binding_faults(obj)
        case budgets.BUDGETS:
            return disruption.faults(obj)
        case "events":
            return _event_faults(obj)
    return []


def _event_faults(obj: JSON) -> list[JSON]:
    """Events about what has no namespace are kept in `default`."""
    about = obj["involvedObject"].get("namespace") or "default"
    if obj["metadata"]["namespace"] == about:
        return []
    return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]


def update_faults(resource_type: ResourceType, old: JSON, new: JSON, subresource: str) -> list[JSON]:
    """Return the faults of a change that no schema can express."""
    match resource_type.group_resource:
        case "pods" if not subresource:
            return pods.update_faults(old, new)
        case crds.DEFINITIONS if not subresource:
            return crds.faults(new) or crds.update_faults(old, new)
        case policies.POLICIES if not subresource:
            return policies.policy_faults(new)
        case policies.BINDINGS:
            return policies.binding_faults(new)
        case budgets.BUDGETS if not subresource:
            return disruption.faults(new)
        case rbac.ROLE_BINDINGS | rbac.CLUSTER_ROLE_BINDINGS if old["roleRef"] != new["roleRef"]:
            return [forbidden_field("roleRef", "cannot change roleRef")]
        case "configmaps" | "secrets" if old.get("immutable"):
            why = "field is immutable when `immutable` is set"
            fixed = ("immutable", "data", "binaryData", "stringData")
            return [forbidden_field(field, why) for field in fixed if old.get(field) != new.get(field)]
    return []


def check(
    cluster: Cluster, context: Context, operation: Operation, obj: JSON | None, old: JSON | None
) -> None:
    """The last gate before the store."""
    if obj is not None:
        if context.type.group == RBAC_GROUP and obj != old:
            _check_escalation(cluster, context, obj)
        pod_security_admission.check(cluster, context, obj, old)
    if cluster.policies.any():
        cluster.policies.check(_admission(cluster, context, operation, obj, old))


def _admission(
    cluster: Cluster, context: Context, operation: Operation, obj: JSON | None, old: JSON | None
) -> Admission:
    named = obj if obj is not None else old
    namespace = cluster.store.get(namespaces.NAMESPACES, "", context.namespace)
    return Admission(
        operation=operation,
        type=context.type,
        subresource=context.subresource,
        namespace=context.namespace,
        name=named["metadata"]["name"] if named is not None else context.name,
        user=context.user,
        obj=obj,
        old=old,
        namespace_object=namespace.obj if namespace is not None and context.namespace else None,
        dry_run=context.dry_run(),
    )


def _check_escalation(cluster: Cluster, context: Context, obj: JSON) -> None:
    """Nobody gives away rights that they do not hold, unless the verb `bind` or `escalate` lets them."""
    if cluster.authorizer.allows(context.user, _exemption(context, obj)):
        return
    rules = list(obj.get("rules") or ())
    if "roleRef" in obj:
        rules = _bound_rules(cluster, obj["roleRef"], context.namespace)
    if not cluster.authorizer.allows_all(context.user, rules, context.namespace):
        why = (
            f'user "{context.user.name}" (groups={list(context.user.groups)}) is attempting to grant RBAC '
            "permissions not currently held"
        )
        raise forbidden(context.type, obj["metadata"]["name"], why)


def _bound_rules(cluster: Cluster, role_ref: JSON, namespace: str) -> list[JSON]:
    """The rules of a bound role, which must exist: only who may `bind` it can bind it in advance."""
    if cluster.authorizer.referenced_role(role_ref, namespace) is None:
        plural = f"{role_ref['kind'].lower()}s"
        details = {"name": role_ref["name"], "group": RBAC_GROUP, "kind": plural}
        raise ApiError(404, "NotFound", f'{plural}.{RBAC_GROUP} "{role_ref["name"]}" not found', details)
    return cluster.authorizer.referenced_rules(role_ref, namespace)


def _exemption(context: Context, obj: JSON) -> Attributes:
    """https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping"""
    role_ref = obj.get("roleRef")
    if role_ref is None:
        return Attributes("escalate", RBAC_GROUP, context.type.plural, "", context.namespace, context.name)
    plural = f"{role_ref['kind'].lower()}s"
    return Attributes("bind", RBAC_GROUP, plural, "", context.namespace, role_ref["name"])
