"""The Pods of a job with parameter servers, and the Service by which they find each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from controller.resources import SERVICES, Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.failure.refusal import Fault
from reconcilers.observed.builder import Variables, companion_metadata, plain
from reconcilers.observed.slots import training_types
from reconcilers.observed.worker_state import POD_INVALID
from reconcilers.roles.tasks import cluster_of, config_fault
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.job_pod import job_pod


@dataclass(frozen=True)
class RoleAssignment(JobAssignment):
    """To play a role of the job's cluster. The processes of all roles start with the Pod, under an agent."""

    waits_for_world: ClassVar[bool] = False
    has_agent: ClassVar[bool] = True

    def build_pod(self) -> Object:
        return role_pod(self.job, self.worker)


def role_pod(job: ElasticJob, worker: ElasticWorker) -> Object:
    """The Pod object to create for the worker's incarnation, with the name by which others find it."""
    fixed = _cluster_variables(job, worker.spec.type)
    pod = job_pod(job, worker, fixed=fixed, defaults=_tf_config(job, worker))
    pod["spec"]["hostname"], pod["spec"]["subdomain"] = worker.metadata.name, job.metadata.name
    if pod["spec"].get("hostNetwork"):  # else it would ask its node's resolver, which knows none of them
        pod["spec"]["dnsPolicy"] = pod["spec"].get("dnsPolicy") or "ClusterFirstWithHostNet"
    return pod


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


def own_tf_config(job: ElasticJob) -> list[str]:
    """Return the types for whose Pods the user sets the variable instead of us."""
    return sorted(type_ for type_ in job.spec.replica_specs if sets_tf_config(job, type_))


def sets_tf_config(job: ElasticJob, type_: str) -> bool:
    """Whether the user does, for the Pods of this type."""
    spec = job.spec.replica_specs[type_].template["spec"]
    own = (entry["name"] for entry in spec["containers"][0].get("env") or ())
    return names.ENV_TF_CONFIG in job.spec.envs or names.ENV_TF_CONFIG in own


def cluster_fault(job: ElasticJob) -> Fault | None:
    """Why Pods could not have TF_CONFIG, with the first type for which the user does not set it."""
    told = own_tf_config(job)
    type_ = next((type_ for type_ in training_types(job) if type_ not in told), None)
    fault = config_fault(job) if type_ is not None else None
    return None if type_ is None or fault is None else (type_, POD_INVALID, f"spec.replicaSpecs: {fault}")


def service_of(job: ElasticJob) -> Object:
    """The headless Service by which each Pod has a name, before it is ready too.

    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
    """
    selector = {names.LABEL_JOB: job.metadata.name}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return SERVICES.manifest(companion_metadata(job), spec=spec)
