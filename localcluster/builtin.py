"""The kinds that the API server serves without any CustomResourceDefinition, and their schemas.

Schemas are Kubernetes' own (`extract_schemas.py` refreshes the copy), overlaid with the defaults and limits
that a real API server keeps in code rather than in OpenAPI.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from localcluster.resource import ALL_VERBS, JSON, ResourceType
from localcluster.schema_nodes import reference_to, referenced_component

DATA_FILE = Path(__file__).with_name("builtin_schemas.json")

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_CORE = "io.k8s.api.core.v1."
_RBAC = "io.k8s.api.rbac.v1."
_NETWORKING = "io.k8s.api.networking.v1."
_ADMISSION = "io.k8s.api.admissionregistration.v1."
_FLOW_CONTROL = "io.k8s.api.flowcontrol.v1."
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."

OBJECT_META = _META + "ObjectMeta"
LIST_META = _META + "ListMeta"
DELETE_OPTIONS = _META + "DeleteOptions"
STATUS = _META + "Status"
SCALE = "io.k8s.api.autoscaling.v1.Scale"
EVICTION = "io.k8s.api.policy.v1.Eviction"
BINDING = _CORE + "Binding"
TOKEN_REQUEST = "io.k8s.api.authentication.v1.TokenRequest"

_STATUS_ONLY = frozenset({"status"})
_SCALABLE = frozenset({"status", "scale"})
_REPLICAS_SCALE: JSON = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


def _type(
    component: str,
    plural: str,
    *,
    group: str = "",
    version: str = "v1",
    short_names: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    namespaced: bool = True,
    subresources: frozenset[str] = frozenset(),
    scale: JSON | None = None,
    verbs: tuple[str, ...] = ALL_VERBS,
) -> ResourceType:
    kind = component.rsplit(".", 1)[1]
    return ResourceType(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        short_names=short_names,
        categories=categories,
        namespaced=namespaced,
        subresources=subresources,
        schema=reference_to(component),
        scale=scale,
        verbs=verbs,
    )


def _core_types() -> tuple[ResourceType, ...]:
    pod_subresources = frozenset({"status", "log", "binding", "eviction"})
    return (
        _type(_CORE + "ConfigMap", "configmaps", short_names=("cm",)),
        _type(_CORE + "Event", "events", short_names=("ev",)),
        _type(
            _CORE + "Namespace",
            "namespaces",
            short_names=("ns",),
            namespaced=False,
            subresources=frozenset({"status", "finalize"}),
        ),
        _type(_CORE + "Node", "nodes", short_names=("no",), namespaced=False, subresources=_STATUS_ONLY),
        _type(
            _CORE + "PersistentVolumeClaim",
            "persistentvolumeclaims",
            short_names=("pvc",),
            subresources=_STATUS_ONLY,
        ),
        _type(_CORE + "Pod", "pods", short_names=("po",), categories=("all",), subresources=pod_subresources),
        _type(_CORE + "Secret", "secrets"),
        _type(
            _CORE + "ServiceAccount",
            "serviceaccounts",
            short_names=("sa",),
            subresources=frozenset({"token"}),
        ),
        _type(
            _CORE + "Service",
            "services",
            short_names=("svc",),
            categories=("all",),
            subresources=_STATUS_ONLY,
        ),
    )


def _apps_types() -> tuple[ResourceType, ...]:
    return tuple(
        _type(
            "io.k8s.api.apps.v1." + kind,
            plural,
            group="apps",
            short_names=(short_name,),
            categories=("all",),
            subresources=_SCALABLE,
            scale=_REPLICAS_SCALE,
        )
        for kind, plural, short_name in (
            ("Deployment", "deployments", "deploy"),
            ("ReplicaSet", "replicasets", "rs"),
        )
    )


def _rbac_types() -> tuple[ResourceType, ...]:
    return tuple(
        _type(_RBAC + kind, plural, group="rbac.authorization.k8s.io", namespaced=namespaced)
        for kind, plural, namespaced in (
            ("ClusterRole", "clusterroles", False),
            ("ClusterRoleBinding", "clusterrolebindings", False),
            ("Role", "roles", True),
            ("RoleBinding", "rolebindings", True),
        )
    )


def _review_types() -> tuple[ResourceType, ...]:
    """Kinds that are only ever created, and answered in the reply."""
    return tuple(
        _type(
            f"io.k8s.api.{name}.v1.{kind}",
            f"{kind.lower()}s",
            group=f"{name}.k8s.io",
            namespaced=False,
            verbs=("create",),
        )
        for name, kind in (
            ("authentication", "SelfSubjectReview"),
            ("authentication", "TokenReview"),
            ("authorization", "SelfSubjectAccessReview"),
            ("authorization", "SubjectAccessReview"),
        )
    )


def _other_types() -> tuple[ResourceType, ...]:
    admission = "admissionregistration.k8s.io"
    return (
        _type(
            _ADMISSION + "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            group=admission,
            categories=("api-extensions",),
            namespaced=False,
            subresources=_STATUS_ONLY,
        ),
        _type(
            _ADMISSION + "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            group=admission,
            categories=("api-extensions",),
            namespaced=False,
        ),
        _type(
            _EXTENSIONS + "CustomResourceDefinition",
            "customresourcedefinitions",
            group="apiextensions.k8s.io",
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            namespaced=False,
            subresources=_STATUS_ONLY,
        ),
        _type(
            "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
            group="autoscaling",
            version="v2",
            short_names=("hpa",),
            categories=("all",),
            subresources=_STATUS_ONLY,
        ),
        _type("io.k8s.api.coordination.v1.Lease", "leases", group="coordination.k8s.io"),
        _type("io.k8s.api.events.v1.Event", "events", group="events.k8s.io", short_names=("ev",)),
        _type(
            _FLOW_CONTROL + "FlowSchema",
            "flowschemas",
            group="flowcontrol.apiserver.k8s.io",
            namespaced=False,
            subresources=_STATUS_ONLY,
        ),
        _type(
            _NETWORKING + "NetworkPolicy",
            "networkpolicies",
            group="networking.k8s.io",
            short_names=("netpol",),
        ),
        _type(
            "io.k8s.api.policy.v1.PodDisruptionBudget",
            "poddisruptionbudgets",
            group="policy",
            short_names=("pdb",),
            subresources=_STATUS_ONLY,
        ),
        _type(
            "io.k8s.api.scheduling.v1.PriorityClass",
            "priorityclasses",
            group="scheduling.k8s.io",
            short_names=("pc",),
            namespaced=False,
        ),
    )


BUILTIN_TYPES: tuple[ResourceType, ...] = (
    *_core_types(),
    *_apps_types(),
    *_other_types(),
    *_rbac_types(),
    *_review_types(),
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
    SCALE,
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
    "io.k8s.api.authentication.v1.TokenReviewSpec": {"token": {"default": ""}},
    _CORE + "Taint": {"effect": {"enum": _TAINT_EFFECTS}},
    _CORE + "Toleration": {"effect": {"enum": ["", *_TAINT_EFFECTS]}},
    _CORE + "Secret": {"type": {"default": "Opaque"}},
    _CORE + "ServiceSpec": {
        "sessionAffinity": {"default": "None"},
        "type": {"default": "ClusterIP", "enum": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]},
    },
    _CORE + "ServicePort": {"protocol": {"default": "TCP", "enum": _PROTOCOLS}},
    _NETWORKING + "NetworkPolicyPort": {"protocol": {"default": "TCP", "enum": _PROTOCOLS}},
    "io.k8s.api.policy.v1.PodDisruptionBudgetSpec": {
        "unhealthyPodEvictionPolicy": {"enum": ["AlwaysAllow", "IfHealthyBudget"]}
    },
    _CORE + "PersistentVolumeClaimSpec": {"volumeMode": {"default": "Filesystem"}},
    "io.k8s.api.apps.v1.DeploymentSpec": {
        "progressDeadlineSeconds": {"default": 600},
        "replicas": {"default": 1, "minimum": 0},
        "revisionHistoryLimit": {"default": 10},
    },
    "io.k8s.api.apps.v1.ReplicaSetSpec": {"replicas": {"default": 1, "minimum": 0}},
    "io.k8s.api.autoscaling.v1.ScaleSpec": {"replicas": {"minimum": 0}},
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerSpec": {"minReplicas": {"default": 1}},
    "io.k8s.api.scheduling.v1.PriorityClass": {"preemptionPolicy": {"default": "PreemptLowerPriority"}},
    "io.k8s.api.coordination.v1.LeaseSpec": {"leaseDurationSeconds": {"minimum": 1}},
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
"""By component and property: what the API server adds in code. An init container is a Container too."""


@cache
def components() -> dict[str, JSON]:
    """Component name to OpenAPI v3 schema, for every built-in kind and all it refers to. Read-only."""
    loaded: dict[str, JSON] = json.loads(DATA_FILE.read_text())["components"]
    for name, properties in OVERLAY.items():
        for field, attributes in properties.items():
            loaded[name]["properties"][field].update(attributes)
    return loaded
