"""The Pod of a worker of a job or check: its template, and what the controller adds.

The template's own settings stay: restart policy, grace period, lifecycle hooks, volumes, affinity, all its
containers, its label `app.kubernetes.io/name`. The controller adds name, labels, owner, environment and,
where the template names none, the service account and a restart policy of Never (Kubernetes' default,
Always, would start a finished training again).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import orjson

from controller.resources import Object
from controller.salvage import parsed
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker

TOKEN_VOLUME = "dlr-token"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_LIFE_SECONDS = 3607
"""Kubernetes' own value; the kubelet renews the token in time."""


def give_token_to_agent(spec: Object) -> None:
    """Mount the token in the first container of a Pod's spec, and have Kubernetes mount it in none.

    A template that sets automountServiceAccountToken, or mounts something there, stays as it is.
    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
    """
    container = spec["containers"][0]
    mounts = container.get("volumeMounts") or []
    is_mounted = any(str(mount.get("mountPath")).rstrip("/") == TOKEN_FOLDER for mount in mounts)
    if is_mounted or spec.get("automountServiceAccountToken") is not None:
        return
    spec["automountServiceAccountToken"] = False
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_LIFE_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    volume = {"name": TOKEN_VOLUME, "projected": {"sources": sources}}
    mount = {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    container["volumeMounts"] = [*mounts, mount]


DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' terminationGracePeriodSeconds."""
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes' terminationMessagePath."""
GPU_RESOURCE = "nvidia.com/gpu"
MIN_HEARTBEAT_SECONDS = 10.0
WORKERS_PER_HEARTBEAT_SECOND = 100.0
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
STRONGEST_PREFERENCE = 100
DOMAIN_PREFERENCE = 50
WEAKEST_PREFERENCE = 1
"""No preference of the user's weighs less."""

# Affinity selects nodes by name and not by the label kubernetes.io/hostname, which may differ.
# Kubernetes takes one value for a field, so every node is a requirement of its own, and all of them must
# hold. https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity

Variables = Mapping[str, Object]
"""Environment variables by name, each an EnvVar without its name."""


def pod_name(worker: ElasticWorker) -> str:
    return f"{worker.metadata.name}-{worker.spec.incarnation}"


def heartbeat_seconds(workers: int, timeout_seconds: float) -> float:
    """Return the period of Lease renewals: at most ~100 a second for a job, and three in a time-out."""
    return min(max(MIN_HEARTBEAT_SECONDS, workers / WORKERS_PER_HEARTBEAT_SECOND), timeout_seconds / 3)


def labels(job: str, type_: str, index: int) -> dict[str, str]:
    """Return the labels of a job's ElasticWorker and its Pods."""
    return {names.LABEL_JOB: job, **_common_labels(type_, index)}


def check_labels(check: str, index: int) -> dict[str, str]:
    """Return the labels of a NodeCheck's ElasticWorker and its Pod."""
    return {names.LABEL_CHECK: check, **_common_labels(names.CHECK, index)}


def labels_of(worker: ElasticWorker) -> dict[str, str]:
    spec = worker.spec
    if spec.job_name is not None:
        return labels(spec.job_name, spec.type, spec.index)
    return check_labels(spec.check_name or "", spec.index)


def _common_labels(type_: str, index: int) -> dict[str, str]:
    return {
        names.LABEL_APP: names.APP,
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_TYPE: type_,
        names.LABEL_INDEX: str(index),
    }


def owner_reference(kind: str, name: str, uid: str) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def companion_metadata(job: ElasticJob) -> Object:
    """Return the metadata of an object beside a job's Pods, which has the job's name and owner reference."""
    return owned_metadata({"kind": "ElasticJob", "metadata": job.metadata.to_wire()}, job.metadata.name)


def owned_name(owner_uid: str) -> str:
    """Return the name of an object that each ElasticJob and each NodeCheck has once.

    It contains the owner's uid, since a job, a check and an earlier owner may have the same name.
    """
    return f"dlr-{owner_uid}"


def owned_metadata(owner: Object, name: str) -> Object:
    """Return the metadata of an object that an ElasticJob or NodeCheck owns."""
    metadata = owner["metadata"]
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "labels": {names.LABEL_APP: names.APP, **owner_label(owner), names.LABEL_MANAGED_BY: names.MANAGER},
        "ownerReferences": [owner_reference(owner["kind"], metadata["name"], metadata["uid"])],
    }


_OWNERS = (names.LABEL_JOB, names.LABEL_CHECK, names.LABEL_GROUPED_JOB, names.LABEL_GROUP_INDEX)
"""Labels that name a Pod's owner, never from the template: NetworkPolicies and Services select by them."""


def owner_label(owner: Object) -> dict[str, str]:
    """Return the label that only the Pods of this ElasticJob or NodeCheck have."""
    label = names.LABEL_JOB if owner["kind"] == "ElasticJob" else names.LABEL_CHECK
    return {label: owner["metadata"]["name"]}


@dataclass(frozen=True)
class ContainerEnvironment:
    """The variables of a Pod's containers, and the account that they run as."""

    fixed: Variables
    """The controller's variables, which override the template's."""
    of_agent: Variables
    """More of these for the first container only, in which the agent runs."""
    account: str
    """The service account, unless the template names one."""
    of_owner: Variables = field(default_factory=dict)
    """The user's variables for all containers; a container's own definitions override them."""
    defaults: Variables = field(default_factory=dict)
    """The controller's variables that the user may override."""


def fixed_variables(owner: Variables, worker: ElasticWorker, spec: Object, beat_seconds: float) -> Variables:
    """Return the variables that the agent reads; `owner` names the job or the check."""
    return {
        **owner,
        names.ENV_REPLICA_TYPE: plain(worker.spec.type),
        names.ENV_NAMESPACE: from_field("metadata.namespace"),
        names.ENV_WORKER_NAME: plain(worker.metadata.name),
        names.ENV_WORKER_INDEX: plain(str(worker.spec.index)),
        names.ENV_INCARNATION: plain(str(worker.spec.incarnation)),
        names.ENV_POD_UID: from_field("metadata.uid"),
        names.ENV_POD_IP: from_field("status.podIP"),
        names.ENV_NODE_NAME: from_field("spec.nodeName"),
        names.ENV_HEARTBEAT_SECONDS: plain(f"{beat_seconds:g}"),
        names.ENV_GRACE_SECONDS: plain(str(grace_seconds(spec))),
    }


def copied(template: Object) -> Object:
    """Return a deep copy of the template, ten times as fast as `copy.deepcopy` for a large one."""
    fresh: Object = parsed(orjson.dumps(template))
    return fresh


def grace_seconds(spec: Object) -> int:
    """Return the time of a Pod between SIGTERM and SIGKILL."""
    seconds: int | None = spec.get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_SECONDS if seconds is None else seconds


def key_variable(owner_uid: str) -> Variables:
    """Return the variable with the key of the Pod's job or check (`reconcilers/worker/access.py`)."""
    reference = {"name": names.key_secret(owner_uid), "key": names.KEY_FIELD}
    return {names.ENV_JOB_KEY: {"valueFrom": {"secretKeyRef": reference}}}


def plain(text: str) -> Object:
    return {"value": text}


def from_field(path: str) -> Object:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod_of(worker: ElasticWorker, template: Object, environment: ContainerEnvironment) -> Object:
    """Return the Pod to create for the worker's incarnation; it shares parts of `template`."""
    metadata, spec = template.get("metadata") or {}, template["spec"]
    ours = {key: value for key, value in labels_of(worker).items() if key != names.LABEL_APP}
    own_labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key not in _OWNERS}
    _set_default(spec, "restartPolicy", "Never")
    if not service_account(spec):
        spec["serviceAccountName"] = environment.account
        give_token_to_agent(spec)
    rather_not_on(spec, dict.fromkeys((*worker.spec.excluded_nodes, *worker.spec.lost_nodes)))
    if home := last_good_node(worker):
        rather_on(spec, home)
    never_on(spec, dict.fromkeys((*worker.spec.faulty_nodes, *worker.spec.reported_nodes)))
    if worker.spec.node_name:
        only_on(spec, worker.spec.node_name)
    for container in containers(spec):
        mine = environment
        if container is spec["containers"][0]:
            fixed = {**environment.fixed, **environment.of_agent, **_termination_log(container)}
            mine = replace(environment, fixed=fixed)
        container["env"] = _merged(container.get("env") or [], mine)
        # A container that ends before its agent reports is explained by the last lines of its log.
        _set_default(container, "terminationMessagePolicy", "FallbackToLogsOnError")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(worker),
            "namespace": worker.metadata.namespace,
            "labels": {
                names.LABEL_APP: names.APP,
                **own_labels,
                **ours,
                names.LABEL_INCARNATION: str(worker.spec.incarnation),
            },
            "annotations": metadata.get("annotations") or {},
            "finalizers": metadata.get("finalizers") or [],
            "ownerReferences": [owner_reference("ElasticWorker", worker.metadata.name, worker.metadata.uid)],
        },
        "spec": spec,
    }


def _set_default(part: Object, field: str, value: str) -> None:
    """Set a field that a template leaves out, null or empty, where Kubernetes would set its own default."""
    part[field] = part.get(field) or value


def _termination_log(container: Object) -> Variables:
    """Return the agent's variable with the path of the container's termination message."""
    path = container.get("terminationMessagePath") or DEFAULT_TERMINATION_LOG
    return {names.ENV_TERMINATION_LOG: plain(path)}


def containers(spec: Object) -> list[Object]:
    """Return all containers of a Pod's spec."""
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def service_account(spec: Object) -> str:
    """Return the account whose rights the Pod has; empty if its template names none.

    `serviceAccount` is the old name of the field.
    """
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "")


def _merged(own: list[Object], environment: ContainerEnvironment) -> list[Object]:
    """Merge the variables, ours first, so that the user's may refer to them as $(NAME)."""
    fixed, of_owner = environment.fixed, environment.of_owner
    own_names = {entry["name"] for entry in own}
    users, taken = own_names | set(of_owner), own_names | set(fixed)
    first = {**fixed, **{name: value for name, value in environment.defaults.items() if name not in users}}
    return [
        *({"name": name, **value} for name, value in first.items()),
        *({"name": name, **value} for name, value in of_owner.items() if name not in taken),
        *(entry for entry in own if entry["name"] not in fixed),
    ]


def rather_not_on(spec: Object, nodes: Iterable[str]) -> None:
    """Prefer other nodes, but allow these."""
    if avoided := _by_name("NotIn", nodes):
        affinity = _node_affinity(spec)
        wish = {"weight": STRONGEST_PREFERENCE, "preference": {"matchFields": avoided}}
        affinity[PREFERRED] = [*(affinity.get(PREFERRED) or ()), wish]


def rather_on(spec: Object, node: str) -> None:
    """Prefer the node of the last Pod, which still has its image, for example."""
    affinity = _node_affinity(spec)
    wish = {"weight": WEAKEST_PREFERENCE, "preference": {"matchFields": _by_name("In", [node])}}
    affinity[PREFERRED] = [*(affinity.get(PREFERRED) or ()), wish]


def rather_in_domain(spec: Object, labels: Iterable[str], domain: str, *, operator: str = "In") -> None:
    """Prefer the nodes of a domain: the value of one of these labels, of which a node has only one.

    Args:
        operator: `NotIn` for any other domain.
    """
    weight = DOMAIN_PREFERENCE if operator == "In" else STRONGEST_PREFERENCE
    terms = [[{"key": label, "operator": operator, "values": [domain]}] for label in labels]
    affinity = _node_affinity(spec)
    wishes = [{"weight": weight, "preference": {"matchExpressions": term}} for term in terms]
    affinity[PREFERRED] = [*(affinity.get(PREFERRED) or ()), *wishes]


def rather_beside(spec: Object, topology_keys: Iterable[str], pods: Mapping[str, str]) -> None:
    """Prefer nodes that share the value of a topology key with a node of Pods that have the labels `pods`."""
    spec["affinity"] = affinity = spec.get("affinity") or {}
    affinity["podAffinity"] = found = affinity.get("podAffinity") or {}
    terms = [{"labelSelector": {"matchLabels": dict(pods)}, "topologyKey": key} for key in topology_keys]
    wishes = [{"weight": STRONGEST_PREFERENCE, "podAffinityTerm": term} for term in terms]
    found[PREFERRED] = [*(found.get(PREFERRED) or ()), *wishes]


def last_good_node(worker: ElasticWorker) -> str:
    """Return the node of the slot's last Pod; empty without one, or if the worker avoids that node."""
    earlier = [life for life in worker.status.history if life.incarnation < worker.spec.incarnation]
    node = next((life.node_name for life in reversed(earlier) if life.node_name), "")
    spec = worker.spec
    blamed = {*spec.excluded_nodes, *spec.lost_nodes, *spec.faulty_nodes, *spec.reported_nodes}
    return "" if node in blamed else node


def never_on(spec: Object, nodes: Iterable[str]) -> None:
    _require(spec, _by_name("NotIn", nodes))


def only_on(spec: Object, node: str) -> None:
    """Pin the Pod as a DaemonSet's Pods are; the scheduler still checks that it fits."""
    _require(spec, _by_name("In", [node]))


def _by_name(operator: str, nodes: Iterable[str]) -> list[Object]:
    return [{"key": "metadata.name", "operator": operator, "values": [node]} for node in nodes]


def _require(spec: Object, requirements: list[Object]) -> None:
    """Add requirements to each of the alternative terms; an empty one admits no node and stays empty."""
    if not requirements:
        return
    affinity = _node_affinity(spec)
    if affinity.get(REQUIRED) is None:
        affinity[REQUIRED] = {"nodeSelectorTerms": [{"matchFields": requirements}]}
        return
    for term in affinity[REQUIRED].get("nodeSelectorTerms") or ():
        if term.get("matchExpressions") or term.get("matchFields"):
            term["matchFields"] = [*(term.get("matchFields") or ()), *requirements]


def _node_affinity(spec: Object) -> Object:
    """Return the Pod's node affinity, created if missing."""
    spec["affinity"] = spec.get("affinity") or {}
    spec["affinity"]["nodeAffinity"] = spec["affinity"].get("nodeAffinity") or {}
    found: Object = spec["affinity"]["nodeAffinity"]
    return found
