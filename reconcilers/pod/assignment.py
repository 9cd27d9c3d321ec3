"""What a worker is there for: the training of an ElasticJob, or the test of a node for a NodeCheck.

The Worker reconciler keeps Pods; what it has to know of their owner for that is an Assignment: the Pod that
the worker gets, when it may go, and what has to be there before it.

* The Pod of a job's worker is the replica type's template, with what torchrun and DLRover scripts look for.
* The Pod that checks a node is pinned to the node, whatever keeps others away from it. It is the NodeCheck's
  template or, without one, a small Pod of our own. Either asks for all GPUs of the node: what is not asked
  for is not seen, and what somebody else uses cannot be tested.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.resources import ELASTICJOBS, NODECHECKS, NODES
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.failure_policy import FailureRule
from crds.nodecheck import Accelerator, NodeCheck
from crds.protocol import JobPhase
from reconcilers.failure.rules import rules_of
from reconcilers.job import run_policy
from reconcilers.pod.builder import (
    GPU_RESOURCE,
    Environment,
    Object,
    Variables,
    containers,
    fixed_variables,
    from_field,
    grace_seconds,
    heartbeat_seconds,
    plain,
    pod_of,
)
from reconcilers.pod.gang import PodGroup, pod_group_of
from reconcilers.pod.ownership import owner_uids
from reconcilers.pod.quantities import whole
from reconcilers.pod.resources import limits_of, resources_digest, resources_of, template_digest
from reconcilers.roles.progress import sets_tf_config
from reconcilers.roles.rules import in_cluster
from reconcilers.roles.tasks import cluster_of
from reconcilers.world.extra import is_extra, priority_class_of
from reconcilers.world.minimum import minimum_workers
from reconcilers.world.slots import slot_count

CHECK_COMMAND = ["dlr", "check-worker"]
CHECK_HEARTBEAT_TIMEOUT_SECONDS = 30.0
CHECK_GRACE_SECONDS = 5
ANY_TAINT = {"operator": "Exists"}
_ENDS = {JobPhase.SUCCEEDED: WorkerPhase.SUCCEEDED, JobPhase.FAILED: WorkerPhase.FAILED}


@dataclass(frozen=True)
class Assignment(ABC):
    """What the owner of a worker wants of it."""

    worker: ElasticWorker
    owner: Object
    """The job or the check as the API server has it, to tell Events on."""

    @property
    @abstractmethod
    def released(self) -> bool:
        """Whether the worker may go: it gets no new Pod, and to lose the one it has is no failure."""

    @property
    def ended(self) -> WorkerPhase | None:
        """How the job that it is there for has ended, if it has."""
        return None

    @property
    @abstractmethod
    def heartbeat_timeout_seconds(self) -> float:
        """For how long its agent may be silent."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many of its kind start with it, itself included."""

    @property
    def is_probe(self) -> bool:
        """Whether its Pod is to find out whether there is room: its owner waits to hear that it has a node,
        before it runs; and nobody else is told of what becomes of it."""
        return False

    @property
    def failure_rules(self) -> Sequence[FailureRule]:
        """What its owner says to particular ends."""
        return ()

    @property
    def topology_keys(self) -> Sequence[str]:
        """Labels of nodes that say what they share, as far as its agent is to know it."""
        return ()

    @property
    @abstractmethod
    def pod_group(self) -> PodGroup | None:
        """What has to be there before the Pod."""

    @abstractmethod
    def build_pod(self) -> Object:
        """The Pod to create for the worker's incarnation, without what is injected."""

    @property
    @abstractmethod
    def wants_agent(self) -> bool:
        """Whether the agent is to be injected into its Pod."""

    @abstractmethod
    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Until the Pod of a released worker is to be deleted; None if it may stay."""


@dataclass(frozen=True)
class JobAssignment(Assignment):
    """To train, until the job is suspended or finished. One that is resumed stays suspended until its status
    says otherwise: until then its reconciler has to see which Pods are on their way out."""

    job: ElasticJob

    @property
    def released(self) -> bool:
        phase = self.job.status.phase
        return self.job.spec.suspend or (
            phase is not None and (phase.finished or phase is JobPhase.SUSPENDED)
        )

    @property
    def ended(self) -> WorkerPhase | None:
        phase = self.job.status.phase
        return None if phase is None else _ENDS.get(phase)

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return float(self.job.spec.elastic_policy.heartbeat_timeout_seconds)

    @property
    def workers(self) -> int:
        return slot_count(self.job.spec.replica_specs[self.worker.spec.type])

    @property
    def is_probe(self) -> bool:
        return is_extra(self.job, self.worker)

    @property
    def failure_rules(self) -> Sequence[FailureRule]:
        return rules_of(self.job)

    @property
    def topology_keys(self) -> Sequence[str]:
        memory = self.job.spec.replica_specs[self.worker.spec.type].memory_checkpoint
        return self.job.spec.node_check.topology_keys if memory is not None and memory.replicas else ()

    @property
    def pod_group(self) -> PodGroup | None:
        return pod_group_of(self.job) if self.worker.spec.type == names.WORKER else None

    def build_pod(self) -> Object:
        return build_job_pod(self.job, self.worker)

    @property
    def wants_agent(self) -> bool:
        has_agent = self.worker.spec.type == names.WORKER or in_cluster(self.job)
        return has_agent and self.job.spec.agent.inject

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        return run_policy.seconds_to_cleaning(self.job, self.worker.spec.type, pod_ended=pod_ended, now=now)


@dataclass(frozen=True)
class CheckAssignment(Assignment):
    """To test its node, until the check has its verdicts or was given up."""

    check: NodeCheck
    node: Object | None
    image: str

    @property
    def released(self) -> bool:
        phase = self.check.status.phase
        return phase is not None and phase.finished

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return CHECK_HEARTBEAT_TIMEOUT_SECONDS

    @property
    def workers(self) -> int:
        return len(self.check.status.nodes)

    @property
    def pod_group(self) -> PodGroup | None:
        return None

    def build_pod(self) -> Object:
        return build_check_pod(self.check, self.worker, self.node, self.image)

    @property
    def wants_agent(self) -> bool:
        return True

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Agents leave by themselves, and their logs stay. But a Pod that never started, or hangs on a broken
        node, would hold the node's GPUs for ever."""
        template, completed = self.check.spec.template, self.check.status.completion_time
        if pod_ended or completed is None:
            return None
        grace = CHECK_GRACE_SECONDS if template is None else grace_seconds(template["spec"])
        return run_policy.seconds_to_leave(grace, completed, now)


class Assignments:
    """Finds the owners in the cache."""

    def __init__(self, cache: Cache, check_image: str) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._checks = cache.store(NODECHECKS)
        self._nodes = cache.store(NODES)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_check = cache.models(NODECHECKS, NodeCheck)
        self._check_image = check_image

    def of(self, worker: ElasticWorker, raw: Object) -> Assignment | None:
        """None if the owner is gone or going: garbage collection takes the worker and its Pods with it.

        Args:
            raw: as the API server has it. A job that is applied again has workers of the same names.
        """
        namespace, spec, owners = worker.metadata.namespace, worker.spec, owner_uids(raw)
        store = self._jobs if spec.job_name is not None else self._checks
        owner = store.get(namespace, spec.job_name or spec.check_name or "")
        metadata = owner["metadata"] if owner is not None else {}
        if owner is None or metadata.get("deletionTimestamp") or metadata["uid"] not in owners:
            return None
        if spec.job_name is not None:
            return JobAssignment(worker, owner, self._parse_job.parse(owner))
        node = self._nodes.get(None, spec.node_name) if spec.node_name else None
        return CheckAssignment(worker, owner, self._parse_check.parse(owner), node, self._check_image)


def build_job_pod(job: ElasticJob, worker: ElasticWorker) -> Object:
    """The Pod object to create for the worker's incarnation."""
    template = copy.deepcopy(job.spec.replica_specs[worker.spec.type].template)
    resources = resources_of(job, worker.spec.type, worker.spec.resources)
    if resources:
        template["spec"]["containers"][0]["resources"] = resources
    priority_class = priority_class_of(job, worker)
    if priority_class is not None:
        template["spec"]["priorityClassName"] = priority_class
        template["spec"].pop("priority", None)
    pod = pod_of(worker, template, _environment(job, worker, template["spec"]))
    annotations = pod["metadata"]["annotations"]
    annotations[names.ANNOTATION_RESOURCES] = resources_digest(resources)
    annotations[names.ANNOTATION_TEMPLATE] = template_digest(job, worker.spec.type)
    if in_cluster(job):  # for the names by which others find it; the Service is named as the job
        pod["spec"]["hostname"], pod["spec"]["subdomain"] = worker.metadata.name, job.metadata.name
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
    fixed = fixed_variables(_policy(job, type_), worker, spec, beat)
    if in_cluster(job):
        fixed = {**fixed, **_cluster_variables(job, type_)}
        defaults |= _tf_config(job, worker)
    elif type_ == names.WORKER:
        defaults |= _torchrun_environment(job, index, spec)
    return Environment(
        fixed=fixed,
        of_owner={name: _job_variable(value) for name, value in job.spec.envs.items()},
        defaults=defaults,
    )


def _policy(job: ElasticJob, type_: str) -> Variables:
    """Whose the Pod is, and what its agent has to know of the job beforehand."""
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
    """As long as nothing changes, a command without our agent does with that."""
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


def build_check_pod(check: NodeCheck, worker: ElasticWorker, node: Object | None, image: str) -> Object:
    """The Pod object to create for the worker.

    Args:
        node: the Node to check, for its GPUs; None if it is gone.
        image: of the Pod where the NodeCheck has no template.
    """
    template = _own_template(image) if check.spec.template is None else copy.deepcopy(check.spec.template)
    spec = template["spec"]
    spec.pop("nodeName", None)  # it would go past the scheduler, which knows whether the GPUs are free
    if not spec["containers"][0].get("command"):
        spec["containers"][0]["command"] = CHECK_COMMAND
    spec["tolerations"] = [*(spec.get("tolerations") or ()), ANY_TAINT]
    if check.spec.accelerator is not Accelerator.NONE and not any(map(_gpus_asked, containers(spec))):
        _ask_for_gpus(spec["containers"][0], node)
    owner = {names.ENV_CHECK_NAME: plain(check.metadata.name)}
    beat = heartbeat_seconds(len(check.status.nodes), CHECK_HEARTBEAT_TIMEOUT_SECONDS)
    return pod_of(worker, template, Environment(fixed_variables(owner, worker, spec, beat)))


def _own_template(image: str) -> Object:
    """NCCL exchanges data in /dev/shm, for which container runtimes leave only 64 MiB."""
    container = {
        "name": "check",
        "image": image,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "spec": {
            "terminationGracePeriodSeconds": CHECK_GRACE_SECONDS,
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        }
    }


def _gpus_asked(container: Object) -> bool:
    resources = container.get("resources") or {}
    return any(GPU_RESOURCE in (resources.get(kind) or {}) for kind in ("limits", "requests"))


def _ask_for_gpus(container: Object, node: Object | None) -> None:
    gpus = (node or {}).get("status", {}).get("allocatable", {}).get(GPU_RESOURCE)
    if gpus and str(gpus) != "0":
        resources = container["resources"] = container.get("resources") or {}
        resources["limits"] = {**(resources.get("limits") or {}), GPU_RESOURCE: gpus}
