"""The Pod of a worker: the user's template, and what is ours.

Whatever the template says stays: restart policy, grace period, lifecycle hooks, volumes, affinity, all its
containers. Added are name, labels, owner, environment and, where the template names none, the service account
and a restart policy of Never (Kubernetes' default, Always, would start a finished training again).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob, ReplicaSpec
from crds.elasticworker import ElasticWorker

DEFAULT_GRACE_SECONDS = 30
GPU_RESOURCE = "nvidia.com/gpu"
MIN_HEARTBEAT_SECONDS = 10.0
WORKERS_PER_HEARTBEAT_SECOND = 100.0


def pod_name(worker: ElasticWorker) -> str:
    return f"{worker.metadata.name}-{worker.spec.incarnation}"


def heartbeat_seconds(workers: int, timeout_seconds: float) -> float:
    """The Lease's period: a job never writes more than ~100 a second, and a time-out spans three beats."""
    return min(max(MIN_HEARTBEAT_SECONDS, workers / WORKERS_PER_HEARTBEAT_SECOND), timeout_seconds / 3)


def service_account(spec: ReplicaSpec) -> str:
    """Whose rights the Pods have: the template's own account, or ours."""
    account = spec.template["spec"].get("serviceAccountName")
    return account if isinstance(account, str) and account else names.SERVICE_ACCOUNT


def labels(job: str, type_: str, index: int) -> dict[str, str]:
    """Of an ElasticWorker and its Pods."""
    return {
        names.LABEL_APP: names.APP,
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_JOB: job,
        names.LABEL_TYPE: type_,
        names.LABEL_INDEX: str(index),
    }


def owner_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def build_pod(job: ElasticJob, worker: ElasticWorker) -> dict[str, Any]:
    """The Pod object to create for the worker's incarnation."""
    replica_spec = job.spec.replica_specs[worker.spec.type]
    template = copy.deepcopy(replica_spec.template)
    metadata, spec = template.get("metadata") or {}, template["spec"]
    spec.setdefault("restartPolicy", "Never")
    if "serviceAccount" not in spec:
        spec["serviceAccountName"] = service_account(replica_spec)
    _set_resources(worker, spec["containers"][0])
    _avoid_nodes(worker, spec)
    ours = _environment(job, worker, spec)
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["env"] = _merged_environment(container.get("env") or [], job, ours)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(worker),
            "namespace": worker.metadata.namespace,
            "labels": {
                **(metadata.get("labels") or {}),
                **labels(job.metadata.name, worker.spec.type, worker.spec.index),
                names.LABEL_INCARNATION: str(worker.spec.incarnation),
            },
            "annotations": metadata.get("annotations") or {},
            "finalizers": metadata.get("finalizers") or [],
            "ownerReferences": [owner_reference("ElasticWorker", worker.metadata.name, worker.metadata.uid)],
        },
        "spec": spec,
    }


def _set_resources(worker: ElasticWorker, container: dict[str, Any]) -> None:
    if worker.spec.resources is None:
        return
    resources = container.setdefault("resources", {})
    for kind, values in worker.spec.resources.to_wire().items():
        resources.setdefault(kind, {}).update(values)


def _avoid_nodes(worker: ElasticWorker, spec: dict[str, Any]) -> None:
    """Rather not on nodes that failed this slot; but better there than nowhere."""
    if not worker.spec.excluded_nodes:
        return
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
        {
            "weight": 100,
            "preference": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/hostname",
                        "operator": "NotIn",
                        "values": list(worker.spec.excluded_nodes),
                    }
                ]
            },
        }
    )


@dataclass(frozen=True)
class _Environment:
    """Variables that must be ours, and those that the user's own definition overrides."""

    fixed: dict[str, dict[str, Any]]
    defaults: dict[str, dict[str, Any]]


def _environment(job: ElasticJob, worker: ElasticWorker, spec: dict[str, Any]) -> _Environment:
    index, type_ = str(worker.spec.index), worker.spec.type
    replicas = job.spec.replica_specs[type_].replicas
    beat = heartbeat_seconds(replicas, job.spec.elastic_policy.heartbeat_timeout_seconds)
    fixed = {
        names.ENV_JOB_NAME: _value(job.metadata.name),
        names.ENV_NAMESPACE: _field("metadata.namespace"),
        names.ENV_WORKER_NAME: _value(worker.metadata.name),
        names.ENV_WORKER_INDEX: _value(index),
        names.ENV_INCARNATION: _value(str(worker.spec.incarnation)),
        names.ENV_POD_UID: _field("metadata.uid"),
        names.ENV_POD_IP: _field("status.podIP"),
        names.ENV_NODE_NAME: _field("spec.nodeName"),
        names.ENV_HEARTBEAT_SECONDS: _value(f"{beat:g}"),
        names.ENV_GRACE_SECONDS: _value(
            str(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
        ),
    }
    defaults = {"NODE_IP": _field("status.hostIP"), "NODE_TYPE": _value(type_), "WORKER_TYPE": _value(type_)}
    for prefix in ("NODE", "WORKER"):  # DLRover's two spellings
        defaults |= {
            f"{prefix}_ID": _value(index),
            f"{prefix}_RANK": _value(index),
            f"{prefix}_NUM": _value(str(replicas)),
        }
    if type_ == names.WORKER:
        defaults |= _torchrun_environment(job, index, spec)
    return _Environment(fixed, defaults)


def _torchrun_environment(job: ElasticJob, index: str, spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """torchrun takes its flags from `PET_<FLAG>` too, so plain `torchrun train.py` joins the world.

    https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    worker = job.spec.replica_specs[names.WORKER]
    environment = {
        "PET_NNODES": _value(f"{worker.min_replicas or worker.replicas}:{worker.replicas}"),
        "PET_NODE_RANK": _value(index),
        "PET_RDZV_BACKEND": _value("dlr"),
        "PET_RDZV_ID": _value(job.metadata.name),
    }
    gpus = (spec["containers"][0].get("resources") or {}).get("limits", {}).get(GPU_RESOURCE)
    if gpus:
        environment["PET_NPROC_PER_NODE"] = _value(str(gpus))
    return environment


def _merged_environment(
    container: list[dict[str, Any]], job: ElasticJob, ours: _Environment
) -> list[dict[str, Any]]:
    """Ours come first, so that the user's variables may refer to them as $(NAME)."""
    by_job = {name: _job_variable(value) for name, value in job.spec.envs.items()}
    users = {entry["name"] for entry in container} | set(by_job)
    first = ours.fixed | {k: v for k, v in ours.defaults.items() if k not in users}
    own = {entry["name"] for entry in container}
    return [
        *({"name": name, **value} for name, value in first.items()),
        *({"name": name, **value} for name, value in by_job.items() if name not in own | set(ours.fixed)),
        *(entry for entry in container if entry["name"] not in ours.fixed),
    ]


def _job_variable(value: Any) -> dict[str, Any]:
    """An entry of `spec.envs`: a plain value, or an EnvVar without its name."""
    if isinstance(value, dict):
        return {key: value[key] for key in ("value", "valueFrom") if key in value}
    return _value(str(value))


def _value(text: str) -> dict[str, Any]:
    return {"value": text}


def _field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}
