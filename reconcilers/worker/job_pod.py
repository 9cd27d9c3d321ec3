"""The Pod of a job's worker: the replica type's template, with what torchrun and DLRover scripts look for."""

from __future__ import annotations

from typing import Any

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.builder import (
    GPU_RESOURCE,
    Environment,
    Variables,
    copied,
    fixed_variables,
    from_field,
    heartbeat_seconds,
    key_variable,
    owned_name,
    plain,
    pod_of,
)
from reconcilers.observed.extra import priority_class_of
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.quantities import whole
from reconcilers.observed.resources import (
    limits_of,
    resources_digest,
    resources_of,
    template_digest,
)
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import slot_count
from reconcilers.roles.progress import sets_tf_config
from reconcilers.roles.tasks import cluster_of
from reconcilers.worker.gang import pod_group_of


def build_job_pod(job: ElasticJob, worker: ElasticWorker, whole: ElasticJob | None = None) -> Object:
    """The Pod object to create for the worker's incarnation.

    Args:
        job: as all decisions see it.
        whole: the same with all of its template and variables, where the cache has cut them.
    """
    written = job.spec if whole is None else whole.spec
    template = copied(written.replica_specs[worker.spec.type].template)
    resources = resources_of(job, worker.spec.type, worker.spec.resources)
    if resources:
        all_of_them = resources_of(whole or job, worker.spec.type, worker.spec.resources)
        template["spec"]["containers"][0]["resources"] = all_of_them
    priority_class = priority_class_of(job, worker)
    if priority_class is not None:
        template["spec"]["priorityClassName"] = priority_class
        template["spec"].pop("priority", None)
    pod = pod_of(worker, template, _environment(job, worker, template["spec"], written.envs))
    annotations = pod["metadata"]["annotations"]
    annotations[names.ANNOTATION_RESOURCES] = resources_digest(resources)
    annotations[names.ANNOTATION_TEMPLATE] = template_digest(job, worker.spec.type)
    if in_cluster(job):  # for the names by which others find it; the Service is named as the job
        pod["spec"]["hostname"], pod["spec"]["subdomain"] = worker.metadata.name, job.metadata.name
    group = pod_group_of(job) if worker.spec.type == names.WORKER else None
    if group is not None:
        group.enlist(pod, worker.metadata.name)
    return pod


def _environment(job: ElasticJob, worker: ElasticWorker, spec: Object, envs: Object) -> Environment:
    index, type_ = str(worker.spec.index), worker.spec.type
    replicas = job.spec.replica_specs[type_].replicas
    beat = heartbeat_seconds(
        slot_count(job.spec.replica_specs[type_]), job.spec.elastic_policy.heartbeat_timeout_seconds
    )
    defaults = {
        "NODE_IP": from_field("status.hostIP"),
        "NODE_TYPE": plain(type_),
        "WORKER_TYPE": plain(type_),
    }
    for prefix in ("NODE", "WORKER"):  # DLRover's two spellings
        defaults |= {
            f"{prefix}_ID": plain(index),
            f"{prefix}_RANK": plain(index),
            f"{prefix}_NUM": plain(str(replicas)),
        }
    fixed = fixed_variables(_policy(job, type_), worker, spec, beat)
    if in_cluster(job):
        fixed = {**fixed, **_cluster_variables(job, type_)}
        defaults |= _tf_config(job, worker)
    elif type_ == names.WORKER:
        defaults |= _torchrun_environment(job, index, spec)
    return Environment(
        fixed=fixed,
        of_agent=key_variable(job.metadata.uid),
        account=owned_name(job.metadata.uid),
        of_owner={name: _job_variable(value) for name, value in envs.items()},
        defaults=defaults,
    )


def _policy(job: ElasticJob, type_: str) -> Variables:
    """Returns the owner of the Pod, and what its agent has to know of the job beforehand."""
    variables = {names.ENV_JOB_NAME: plain(job.metadata.name)}
    if job.spec.elastic_policy.network_interfaces is not None:
        variables[names.ENV_NETWORK_INTERFACES] = plain(job.spec.elastic_policy.network_interfaces.value)
    memory = job.spec.replica_specs[type_].memory_checkpoint
    if memory is not None and type_ == names.WORKER:
        variables[names.ENV_MEMORY_BYTES] = plain(str(whole(memory.size)))
        variables[names.ENV_MEMORY_REPLICAS] = plain(str(memory.replicas))
        variables[names.ENV_MEMORY_PERSIST] = plain(str(int(memory.persist_on_failure)))
    return variables


def _cluster_variables(job: ElasticJob, type_: str) -> Variables:
    """The agent has its command told of the cluster, unless the user does."""
    variables = {names.ENV_CLUSTER_VERSION: plain(str(cluster_of(job).version))}
    return variables | ({names.ENV_TF_CONFIG_KEPT: plain("1")} if sets_tf_config(job, type_) else {})


def _tf_config(job: ElasticJob, worker: ElasticWorker) -> Variables:
    """Returns TF_CONFIG, with which a command without our agent does until something changes."""
    cluster, slot = cluster_of(job), (worker.spec.type, worker.spec.index)
    if cluster.place(*slot) is None:
        return {}
    return {names.ENV_TF_CONFIG: plain(cluster.variables(*slot)[names.ENV_TF_CONFIG])}


def _torchrun_environment(job: ElasticJob, index: str, spec: Object) -> Variables:
    """torchrun takes its flags from `PET_<FLAG>` too, so plain `torchrun train.py` joins the world.

    https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    replicas = job.spec.replica_specs[names.WORKER].replicas
    environment = {
        "PET_NNODES": plain(f"{minimum_workers(job)}:{replicas}"),
        "PET_NODE_RANK": plain(index),
        "PET_RDZV_BACKEND": plain("dlr"),
        "PET_RDZV_ID": plain(job.metadata.name),
    }
    gpus = limits_of(spec["containers"][0]).get(GPU_RESOURCE)
    if gpus:
        environment["PET_NPROC_PER_NODE"] = plain(str(gpus))
    return environment


def _job_variable(value: Any) -> Object:
    """An entry of `spec.envs`: a plain value, or an EnvVar without its name."""
    if isinstance(value, dict):
        return {key: value[key] for key in ("value", "valueFrom") if key in value}
    return plain(str(value))
