"""The Pod of a job's worker: the template of its type with the variables of torchrun and DLRover scripts."""

from __future__ import annotations

from typing import Any

import orjson

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.builder import (
    GPU_RESOURCE,
    ContainerEnvironment,
    Variables,
    copied,
    fixed_variables,
    from_field,
    heartbeat_seconds,
    key_variable,
    owned_name,
    plain,
    pod_of,
    rather_beside,
    rather_in_domain,
)
from reconcilers.observed.domains import labels_of
from reconcilers.observed.groups import group_labels, group_of
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.resources import limits_of, resources_digest, resources_of, template_digest, whole
from reconcilers.observed.slots import priority_class_of, slot_count


def build_job_pod(job: ElasticJob, worker: ElasticWorker) -> Object:
    """The Pod object to create for the incarnation of a worker that trains in a world, or serves one."""
    is_member = worker.spec.type == names.WORKER
    return job_pod(job, worker, defaults=_torchrun_environment(job, worker) if is_member else {})


def job_pod(
    job: ElasticJob, worker: ElasticWorker, *, fixed: Variables | None = None, defaults: Variables
) -> Object:
    """The Pod object to create for the worker's incarnation.

    Args:
        fixed: further variables that replace the user's.
        defaults: further variables that give way to the user's.
    """
    template = copied(job.spec.replica_specs[worker.spec.type].template)
    resources = resources_of(job, worker.spec.type, worker.spec.resources)
    if resources:
        template["spec"]["containers"][0]["resources"] = resources
    priority_class = priority_class_of(job, worker)
    if priority_class is not None:
        template["spec"]["priorityClassName"] = priority_class
        template["spec"].pop("priority", None)
    environment = _environment(job, worker, template["spec"], fixed or {}, defaults)
    pod = pod_of(worker, template, environment)
    pod["metadata"]["labels"] |= group_labels(job)
    _keep_in_domain(pod, job, worker)
    annotations = pod["metadata"]["annotations"]
    annotations[names.ANNOTATION_RESOURCES] = resources_digest(resources)
    annotations[names.ANNOTATION_TEMPLATE] = template_digest(job, worker.spec.type)
    return pod


def _keep_in_domain(pod: Object, job: ElasticJob, worker: ElasticWorker) -> None:
    """Make the scheduler prefer one domain for the first Pods of a unit. Later Pods prefer the domain of the
    slot's last Pod, unless its switch failed.

    Without `nodeUnit` the first Pods have no preference: topology-aware schedulers place them, and the
    default one would look at all Pods of the cluster for each.
    """
    policy, excluded, last = job.spec.elastic_policy, worker.spec.excluded_domain, worker.status.domain
    labels = labels_of(policy.domain)
    if not labels or worker.spec.type != names.WORKER:
        return
    if excluded:
        rather_in_domain(pod["spec"], labels, excluded, operator="NotIn")
    if last and last != excluded:
        rather_in_domain(pod["spec"], labels, last)
    if policy.node_unit > 1:
        unit = {names.LABEL_UNIT: str(worker.spec.index // policy.node_unit)}
        pod["metadata"]["labels"] |= unit
        if not last and not excluded:
            rather_beside(pod["spec"], labels, {names.LABEL_JOB: job.metadata.name} | unit)


def _environment(
    job: ElasticJob, worker: ElasticWorker, spec: Object, fixed: Variables, defaults: Variables
) -> ContainerEnvironment:
    index, type_ = str(worker.spec.index), worker.spec.type
    replicas = job.spec.replica_specs[type_].replicas
    beat = heartbeat_seconds(
        slot_count(job.spec.replica_specs[type_]), job.spec.elastic_policy.heartbeat_timeout_seconds
    )
    own: dict[str, Object] = {
        "NODE_IP": from_field("status.hostIP"),
        "NODE_TYPE": plain(type_),
        "WORKER_TYPE": plain(type_),
    }
    for prefix in ("NODE", "WORKER"):  # DLRover's two spellings
        own |= {
            f"{prefix}_ID": plain(index),
            f"{prefix}_RANK": plain(index),
            f"{prefix}_NUM": plain(str(replicas)),
        }
    group = group_of(job)
    return ContainerEnvironment(
        fixed={**fixed_variables(_policy(job, type_), worker, spec, beat), **fixed},
        of_agent=key_variable(job.metadata.uid if group is None else group.uid),
        account=owned_name(job.metadata.uid),
        of_owner={name: _job_variable(value) for name, value in job.spec.envs.items()},
        defaults={**own, **defaults},
    )


def _policy(job: ElasticJob, type_: str) -> Variables:
    """Return the variables with the Pod's owner and the settings that its agent needs at its start."""
    variables = {names.ENV_JOB_NAME: plain(job.metadata.name)}
    if (group := group_of(job)) is not None:
        variables[names.ENV_GROUPED_JOB] = plain(group.name)
        variables[names.ENV_GROUP_INDEX] = plain(str(group.index))
    if job.spec.elastic_policy.network_interfaces is not None:
        variables[names.ENV_NETWORK_INTERFACES] = plain(job.spec.elastic_policy.network_interfaces.value)
    memory = job.spec.replica_specs[type_].memory_checkpoint
    if memory is not None and type_ == names.WORKER:
        variables[names.ENV_MEMORY_BYTES] = plain(str(whole(memory.size)))
        variables[names.ENV_MEMORY_REPLICAS] = plain(str(memory.replicas))
        variables[names.ENV_MEMORY_PERSIST] = plain(str(int(memory.persist_on_failure)))
    if (spares := job.spec.elastic_policy.spare_processes) and type_ == names.WORKER:
        variables[names.ENV_SPARE_PROCESSES] = plain(str(spares))
    return variables


def _torchrun_environment(job: ElasticJob, worker: ElasticWorker) -> Variables:
    """Return torchrun's flags as `PET_<FLAG>` variables, so that plain `torchrun train.py` joins the world.

    https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    replicas = job.spec.replica_specs[names.WORKER].replicas
    environment = {
        "PET_NNODES": plain(f"{minimum_workers(job)}:{replicas}"),
        "PET_NODE_RANK": plain(str(worker.spec.index)),
        "PET_RDZV_BACKEND": plain("dlr"),
        "PET_RDZV_ID": plain(job.metadata.name),
    }
    gpus = limits_of({"resources": resources_of(job, names.WORKER, worker.spec.resources)}).get(GPU_RESOURCE)
    if gpus:
        environment["PET_NPROC_PER_NODE"] = plain(str(gpus))
    return environment


def _job_variable(value: Any) -> Object:
    """An entry of `spec.envs`: an EnvVar without its name, a text, or another value as JSON."""
    if isinstance(value, dict):
        return {key: value[key] for key in ("value", "valueFrom") if key in value}
    return plain(value if isinstance(value, str) else orjson.dumps(value).decode())
