"""The kinds that the API server serves without any CustomResourceDefinition, and their schemas.

Schemas are Kubernetes' own (`extract_schemas.py` refreshes the copy), overlaid with the defaults and limits
that a real API server keeps in code rather than in OpenAPI.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from localcluster.resource import JSON, ResourceType
from localcluster.schema_nodes import reference_to, referenced_component

DATA_FILE = Path(__file__).with_name("builtin_schemas.json")

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_CORE = "io.k8s.api.core.v1."
_APPS = "io.k8s.api.apps.v1."
_RBAC = "io.k8s.api.rbac.v1."
_NETWORKING = "io.k8s.api.networking.v1."
_ADMISSION = "io.k8s.api.admissionregistration.v1."
_AUTHENTICATION = "io.k8s.api.authentication.v1."
_AUTHORIZATION = "io.k8s.api.authorization.v1."
_COORDINATION = "io.k8s.api.coordination.v1."
_FLOW_CONTROL = "io.k8s.api.flowcontrol.v1."
_POLICY = "io.k8s.api.policy.v1."
_SCHEDULING = "io.k8s.api.scheduling.v1."
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
_GROUPS = {
    _CORE: "",
    _APPS: "apps",
    _RBAC: "rbac.authorization.k8s.io",
    _NETWORKING: "networking.k8s.io",
    _ADMISSION: "admissionregistration.k8s.io",
    _AUTHENTICATION: "authentication.k8s.io",
    _AUTHORIZATION: "authorization.k8s.io",
    _COORDINATION: "coordination.k8s.io",
    _FLOW_CONTROL: "flowcontrol.apiserver.k8s.io",
    _POLICY: "policy",
    _SCHEDULING: "scheduling.k8s.io",
    _EXTENSIONS: "apiextensions.k8s.io",
}

OBJECT_META = _META + "ObjectMeta"
LIST_META = _META + "ListMeta"
DELETE_OPTIONS = _META + "DeleteOptions"
STATUS = _META + "Status"
EVICTION = _POLICY + "Eviction"
BINDING = _CORE + "Binding"
TOKEN_REQUEST = _AUTHENTICATION + "TokenRequest"

_REPLICAS_SCALE: JSON = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}


def _type(
    package: str, kind: str, plural: str, short_names: str = "", subresources: str = "", **further: Any
) -> ResourceType:
    return ResourceType(
        group=_GROUPS[package],
        version="v1",
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        short_names=tuple(short_names.split()),
        subresources=frozenset(subresources.split()),
        schema=reference_to(package + kind),
        **further,
    )


_CLUSTER: dict[str, Any] = {"namespaced": False}
_REVIEW: dict[str, Any] = {"namespaced": False, "verbs": ("create",)}
"""Kinds that are only created, and answered in the reply."""
_ALL: dict[str, Any] = {"categories": ("all",)}
_DEFINITIONS = "customresourcedefinitions"
_POLICIES = "validatingadmissionpolicies"

BUILTIN_TYPES: tuple[ResourceType, ...] = (
    _type(_CORE, "ConfigMap", "configmaps", "cm"),
    _type(_CORE, "Event", "events", "ev"),
    _type(_CORE, "Namespace", "namespaces", "ns", "status finalize", **_CLUSTER),
    _type(_CORE, "Node", "nodes", "no", "status", **_CLUSTER),
    _type(_CORE, "Pod", "pods", "po", "status log binding eviction", **_ALL),
    _type(_CORE, "Secret", "secrets"),
    _type(_CORE, "ServiceAccount", "serviceaccounts", "sa", "token"),
    _type(_CORE, "Service", "services", "svc", "status", **_ALL),
    _type(_APPS, "Deployment", "deployments", "deploy", "status scale", scale=_REPLICAS_SCALE, **_ALL),
    _type(_APPS, "ReplicaSet", "replicasets", "rs", "status scale", scale=_REPLICAS_SCALE, **_ALL),
    _type(_ADMISSION, "ValidatingAdmissionPolicy", _POLICIES, "", "status", **_CLUSTER),
    _type(_ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", **_CLUSTER),
    _type(_EXTENSIONS, "CustomResourceDefinition", _DEFINITIONS, "crd crds", "status", **_CLUSTER),
    _type(_COORDINATION, "Lease", "leases"),
    _type(_FLOW_CONTROL, "FlowSchema", "flowschemas", "", "status", **_CLUSTER),
    _type(_NETWORKING, "NetworkPolicy", "networkpolicies", "netpol"),
    _type(_POLICY, "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "status"),
    _type(_SCHEDULING, "PriorityClass", "priorityclasses", "pc", **_CLUSTER),
    _type(_RBAC, "ClusterRole", "clusterroles", **_CLUSTER),
    _type(_RBAC, "ClusterRoleBinding", "clusterrolebindings", **_CLUSTER),
    _type(_RBAC, "Role", "roles"),
    _type(_RBAC, "RoleBinding", "rolebindings"),
    _type(_AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews", **_REVIEW),
    _type(_AUTHENTICATION, "TokenReview", "tokenreviews", **_REVIEW),
    _type(_AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", **_REVIEW),
    _type(_AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews", **_REVIEW),
)


def component_of(resource_type: ResourceType) -> str:
    """The component name of a built-in type."""
    component = referenced_component(resource_type.schema or {})
    if component is None:
        raise LookupError(f"{resource_type.group_resource} is not a built-in type")
    return component


ROOT_COMPONENTS: tuple[str, ...] = (
    *(component_of(resource_type) for resource_type in BUILTIN_TYPES),
    OBJECT_META,
    LIST_META,
    DELETE_OPTIONS,
    STATUS,
    EVICTION,
    BINDING,
    TOKEN_REQUEST,
    _CORE + "PodTemplateSpec",
)

_PROTOCOLS = ["TCP", "UDP", "SCTP"]
_PULL_POLICIES = ["Always", "Never", "IfNotPresent"]
_TAINT_EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
_FILE_MODE = 0o644
_CONTAINER: JSON = {
    "imagePullPolicy": {"default": "IfNotPresent", "enum": _PULL_POLICIES},
    "resources": {"default": {}},
    "terminationMessagePath": {"default": "/dev/termination-log"},
    "terminationMessagePolicy": {"default": "File", "enum": ["File", "FallbackToLogsOnError"]},
}
_VOLUME_MODE: JSON = {"defaultMode": {"default": _FILE_MODE, "minimum": 0, "maximum": 0o777}}

OVERLAY: dict[str, JSON] = {
    _CORE + "PodSpec": {
        "dnsPolicy": {"default": "ClusterFirst"},
        "enableServiceLinks": {"default": True},
        "restartPolicy": {"default": "Always", "enum": ["Always", "OnFailure", "Never"]},
        "schedulerName": {"default": "default-scheduler"},
        "securityContext": {"default": {}},
        "terminationGracePeriodSeconds": {"default": 30, "minimum": 0},
    },
    _CORE + "Container": _CONTAINER,
    _CORE + "ContainerPort": {
        "containerPort": {"minimum": 1, "maximum": 65535},
        "protocol": {"default": "TCP", "enum": _PROTOCOLS},
    },
    _CORE + "Probe": {
        "failureThreshold": {"default": 3},
        "periodSeconds": {"default": 10},
        "successThreshold": {"default": 1},
        "timeoutSeconds": {"default": 1},
    },
    _CORE + "HTTPGetAction": {"path": {"default": "/"}, "scheme": {"default": "HTTP"}},
    _CORE + "GRPCAction": {"service": {"default": ""}},
    _CORE + "ConfigMapVolumeSource": _VOLUME_MODE,
    _CORE + "DownwardAPIVolumeSource": _VOLUME_MODE,
    _CORE + "ProjectedVolumeSource": _VOLUME_MODE,
    _CORE + "SecretVolumeSource": _VOLUME_MODE,
    _CORE + "ServiceAccountTokenProjection": {"expirationSeconds": {"default": 3600}},
    _CORE + "HostPathVolumeSource": {"type": {"default": ""}},
    _CORE + "ObjectFieldSelector": {"apiVersion": {"default": "v1"}},
    _AUTHENTICATION + "TokenReviewSpec": {"token": {"default": ""}},
    _CORE + "Taint": {"effect": {"enum": _TAINT_EFFECTS}},
    _CORE + "Toleration": {"effect": {"enum": ["", *_TAINT_EFFECTS]}},
    _CORE + "Secret": {"type": {"default": "Opaque"}},
    _CORE + "ServiceSpec": {
        "sessionAffinity": {"default": "None"},
        "type": {"default": "ClusterIP", "enum": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]},
    },
    _CORE + "ServicePort": {"protocol": {"default": "TCP", "enum": _PROTOCOLS}},
    _NETWORKING + "NetworkPolicyPort": {"protocol": {"default": "TCP", "enum": _PROTOCOLS}},
    _POLICY + "PodDisruptionBudgetSpec": {
        "unhealthyPodEvictionPolicy": {"enum": ["AlwaysAllow", "IfHealthyBudget"]}
    },
    _APPS + "DeploymentSpec": {
        "progressDeadlineSeconds": {"default": 600},
        "replicas": {"default": 1, "minimum": 0},
        "revisionHistoryLimit": {"default": 10},
    },
    _APPS + "ReplicaSetSpec": {"replicas": {"default": 1, "minimum": 0}},
    _SCHEDULING + "PriorityClass": {"preemptionPolicy": {"default": "PreemptLowerPriority"}},
    _COORDINATION + "LeaseSpec": {"leaseDurationSeconds": {"minimum": 1}},
    _FLOW_CONTROL + "FlowSchemaSpec": {"matchingPrecedence": {"default": 1_000}},
    _RBAC + "RoleRef": {"apiGroup": {"default": "rbac.authorization.k8s.io"}},
    _ADMISSION + "ValidatingAdmissionPolicySpec": {
        "failurePolicy": {"default": "Fail", "enum": ["Fail", "Ignore"]}
    },
    _ADMISSION + "MatchResources": {
        "matchPolicy": {"default": "Equivalent"},
        "namespaceSelector": {"default": {}},
        "objectSelector": {"default": {}},
    },
    _ADMISSION + "NamedRuleWithOperations": {"scope": {"default": "*"}},
    _EXTENSIONS + "CustomResourceDefinitionSpec": {
        "conversion": {"default": {"strategy": "None"}},
        "scope": {"enum": ["Cluster", "Namespaced"]},
    },
}
"""Additions by the API server's code, by component and property. An init container is a Container too."""


@cache
def components() -> dict[str, JSON]:
    """Component name to OpenAPI v3 schema, for every built-in kind and all it refers to. Read-only."""
    loaded: dict[str, JSON] = json.loads(DATA_FILE.read_text())["components"]
    for name, properties in OVERLAY.items():
        for field, attributes in properties.items():
            loaded[name]["properties"][field].update(attributes)
    return loaded
