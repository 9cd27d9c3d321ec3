"""Pods: what a new one is given beyond its schema's defaults, and what may be changed later."""

from __future__ import annotations

from collections.abc import Iterable

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import cause, forbidden, forbidden_field, invalid_value, required
from localcluster.apiserver.metadata import LABEL_TEXT, is_label
from localcluster.json_text import copied
from localcluster.resource import JSON, ResourceType

EVICTION_DELAY_SECONDS = 300
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
BUILT_IN_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_EVICTION_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CHANGEABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations)"
)


def completed(obj: JSON, old: JSON | None) -> JSON:
    """The Pod with what does not depend on anything else. Before the schema's defaults, which are cruder."""
    spec = obj.get("spec")
    if not isinstance(spec, dict) or (old is not None and spec is old["spec"]):
        return obj
    complete = copied(spec)
    _complete_spec(complete)
    return {**obj, "spec": complete}


def _complete_spec(spec: JSON) -> None:
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in _containers(spec):
        if not container.get("imagePullPolicy") and isinstance(container.get("image"), str):
            container["imagePullPolicy"] = _pull_policy(container["image"])
        resources = container.get("resources")
        if isinstance(resources, dict) and isinstance(resources.get("limits"), dict):
            requests = resources.get("requests") or {}
            if isinstance(requests, dict):
                resources["requests"] = {**resources["limits"], **requests}


def _pull_policy(image: str) -> str:
    last = image.rpartition("/")[2]
    if "@" in last:
        return "IfNotPresent"
    return "IfNotPresent" if ":" in last and not last.endswith(":latest") else "Always"


def admit(cluster: Cluster, resource_type: ResourceType, obj: JSON) -> None:
    """Add pull secrets, tolerations and priority to a new Pod; its ServiceAccount must exist."""
    spec, metadata = obj["spec"], obj["metadata"]
    account = spec["serviceAccountName"]
    namespace = metadata["namespace"]
    stored = cluster.store.get("serviceaccounts", namespace, account)
    if stored is not None and stored.obj.get("imagePullSecrets"):
        spec["imagePullSecrets"] = spec.get("imagePullSecrets") or stored.obj["imagePullSecrets"]
    if stored is None and account != "default":
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden(resource_type, metadata["name"], why)
    _set_priority(cluster, resource_type, obj)
    tolerations = spec.setdefault("tolerations", [])
    for key in _EVICTION_TAINTS:
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**toleration, "tolerationSeconds": EVICTION_DELAY_SECONDS})
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def _tolerates(toleration: JSON, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _set_priority(cluster: Cluster, resource_type: ResourceType, obj: JSON) -> None:
    spec = obj["spec"]
    name = spec.get("priorityClassName")
    if not name:
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    if name in BUILT_IN_PRIORITIES:
        spec["priority"] = BUILT_IN_PRIORITIES[name]
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    stored = cluster.store.get(PRIORITY_CLASSES, "", name)
    if stored is None:
        why = f"no PriorityClass with name {name} was found"
        raise forbidden(resource_type, obj["metadata"]["name"], why)
    spec["priority"] = stored.obj["value"]
    spec["preemptionPolicy"] = stored.obj.get("preemptionPolicy", "PreemptLowerPriority")


def qos_class(spec: JSON) -> str:
    """Guaranteed, Burstable or BestEffort, by the containers' cpu and memory."""
    containers = list(_containers(spec))
    resources = [container.get("resources") or {} for container in containers]
    requests = [each.get("requests") or {} for each in resources]
    limits = [each.get("limits") or {} for each in resources]
    if not any(part.get(name) for part in (*requests, *limits) for name in ("cpu", "memory")):
        return "BestEffort"
    guaranteed = all(
        limit.get(name) and request.get(name, limit[name]) == limit[name]
        for request, limit in zip(requests, limits, strict=True)
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _containers(spec: JSON) -> Iterable[JSON]:
    for part in ("initContainers", "containers"):
        containers = spec.get(part)
        if isinstance(containers, list):
            yield from (container for container in containers if isinstance(container, dict))


def faults(obj: JSON) -> list[JSON]:
    """Return the faults of a new Pod that no schema can express."""
    spec = obj.get("spec")
    if spec is None:
        return [required("spec.containers")]
    found: list[JSON] = [] if spec.get("containers") else [required("spec.containers")]
    volumes = [volume.get("name", "") for volume in spec.get("volumes") or ()]
    found += _duplicates("spec.volumes", volumes)
    mountable = set(volumes)
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(part) or ()):
            path = f"spec.{part}[{index}]"
            name = container.get("name", "")
            if name in seen:
                found.append(cause(f"{path}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
            seen.add(name)
            if name and not is_label(name):
                found.append(invalid_value(f"{path}.name", name, LABEL_TEXT))
            if not container.get("image"):
                found.append(required(f"{path}.image"))
            for position, mount in enumerate(container.get("volumeMounts") or ()):
                if mount.get("name") not in mountable:
                    field = f"{path}.volumeMounts[{position}].name"
                    found.append(cause(field, "FieldValueNotFound", f'Not found: "{mount.get("name")}"'))
    return found


def _duplicates(path: str, names: list[str]) -> list[JSON]:
    found: list[JSON] = []
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            found.append(cause(f"{path}[{index}].name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
        seen.add(name)
    return found


def update_faults(old: JSON, new: JSON) -> list[JSON]:
    """Most of a Pod's spec is fixed when it is created."""
    before, after = old["spec"], new.get("spec") or {}
    if before == after:
        return []
    if len(before["containers"]) != len(after.get("containers") or ()):
        why = "pod updates may not add or remove containers"
        return [forbidden_field("spec.containers", why)]
    if _frozen(before) != _frozen(after) or not _only_adds_tolerations(before, after):
        why = f"pod updates may not change fields other than {_CHANGEABLE}"
        return [forbidden_field("spec", why)]
    return []


def _frozen(spec: JSON) -> JSON:
    """A Pod's spec without what may change."""
    frozen = {
        key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")
    }
    for part in ("initContainers", "containers"):
        if part in frozen:
            frozen[part] = [
                {key: value for key, value in container.items() if key != "image"}
                for container in frozen[part]
            ]
    return frozen


def _only_adds_tolerations(before: JSON, after: JSON) -> bool:
    remaining = after.get("tolerations") or []
    return all(toleration in remaining for toleration in before.get("tolerations") or ())
