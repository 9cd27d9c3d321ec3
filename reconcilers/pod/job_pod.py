"""The Pod of a job's worker: the replica type's template, with what torchrun and DLRover scripts look for."""

from __future__ import annotations

import copy
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.pod.builder import (
    GPU_RESOURCE,
    Environment,
    Object,
    Variables,
    fixed_variables,
    from_field,
    heartbeat_seconds,
    plain,
    pod_of,
)
from reconcilers.pod.gang import pod_group_of
from reconcilers.pod.resources import limits_of, resources_digest, resources_of
from reconcilers.world.minimum import minimum_workers
from reconcilers.world.slots import slot_count


def build_job_pod(job: ElasticJob, worker: ElasticWorker) -> Object:
    """The Pod object to create for the worker's incarnation."""
    template = copy.deepcopy(job.spec.replica_specs[worker.spec.type].template)
    resources = resources_of(job, worker.spec.type, worker.spec.resources)
    if resources:
        template["spec"]["containers"][0]["resources"] = resources
    pod = pod_of(worker, template, _environment(job, worker, template["spec"]))
    pod["metadata"]["annotations"][names.ANNOTATION_RESOURCES] = resources_digest(resources)
    group = pod_group_of(job) if worker.spec.type == names.WORKER else None
    if group is not None:
        group.enlist(pod, worker.metadata.name)
    return pod


def _environment(job: ElasticJob, worker: ElasticWorker, spec: Object) -> Environment:
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
    if type_ == names.WORKER:
        defaults |= _torchrun_environment(job, index, spec)
    return Environment(
        fixed=fixed_variables({names.ENV_JOB_NAME: plain(job.metadata.name)}, worker, spec, beat),
        of_owner={name: _job_variable(value) for name, value in job.spec.envs.items()},
        defaults=defaults,
    )


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
