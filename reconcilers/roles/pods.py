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
    """A worker with a role in the job's cluster. Processes of all roles start with the Pod, by an agent."""

    waits_for_world: ClassVar[bool] = False
    has_agent: ClassVar[bool] = True

    def build_pod(self) -> Object:
        return role_pod(self.job, self.worker)


def role_pod(job: ElasticJob, worker: ElasticWorker) -> Object:
    """The Pod to create for the worker's incarnation, with a DNS name by which others find it."""
    fixed = _cluster_variables(job, worker.spec.type)
    pod = job_pod(job, worker, fixed=fixed, defaults=_tf_config(job, worker))
    pod["spec"]["hostname"], pod["spec"]["subdomain"] = worker.metadata.name, job.metadata.name
    if pod["spec"].get("hostNetwork"):  # by default it would use its node's resolver, without these names
        pod["spec"]["dnsPolicy"] = pod["spec"].get("dnsPolicy") or "ClusterFirstWithHostNet"
    return pod


def _cluster_variables(job: ElasticJob, type_: str) -> Variables:
    """Return the variables by which the agent passes the cluster to its command, unless the user does."""
    variables = {names.ENV_CLUSTER_VERSION: plain(str(cluster_of(job).version))}
    return variables | ({names.ENV_TF_CONFIG_KEPT: plain("1")} if sets_tf_config(job, type_) else {})


def _tf_config(job: ElasticJob, worker: ElasticWorker) -> Variables:
    """Return TF_CONFIG, which a command without our agent can use until the cluster changes."""
    cluster, slot = cluster_of(job), (worker.spec.type, worker.spec.index)
    if cluster.place(*slot) is None:
        return {}
    return {names.ENV_TF_CONFIG: plain(cluster.variables(*slot)[names.ENV_TF_CONFIG])}


def own_tf_config(job: ElasticJob) -> list[str]:
    """Return the types for whose Pods the user sets TF_CONFIG."""
    return sorted(type_ for type_ in job.spec.replica_specs if sets_tf_config(job, type_))


def sets_tf_config(job: ElasticJob, type_: str) -> bool:
    """Whether the user sets TF_CONFIG for the Pods of this type."""
    spec = job.spec.replica_specs[type_].template["spec"]
    own = (entry["name"] for entry in spec["containers"][0].get("env") or ())
    return names.ENV_TF_CONFIG in job.spec.envs or names.ENV_TF_CONFIG in own


def cluster_fault(job: ElasticJob) -> Fault | None:
    """Why TF_CONFIG does not fit into Pods, with the first type for which the user does not set it."""
    own = own_tf_config(job)
    type_ = next((type_ for type_ in training_types(job) if type_ not in own), None)
    fault = config_fault(job) if type_ is not None else None
    return None if type_ is None or fault is None else (type_, POD_INVALID, f"spec.replicaSpecs: {fault}")


def service_of(job: ElasticJob) -> Object:
    """The headless Service that gives each Pod a name, even before it is ready.

    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
    """
    selector = {names.LABEL_JOB: job.metadata.name}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return SERVICES.manifest(companion_metadata(job), spec=spec)
