"""The spec of an ElasticJob: DLRover's fields, under DLRover's API group, with ours beside them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from crds.cluster_status import CLUSTER_RULES
from crds.failure_policy import FailurePolicy
from crds.grouping import MAX_GROUPS
from crds.model import MAX_QUANTITY, MAX_TIME_SECONDS, Free, Model, Quantity, cel, rules
from crds.names import MASTER_TYPES, WORKER
from crds.phases import HANG_TIMEOUT_SECONDS
from crds.replica_groups import ReplicaGroups
from crds.template import MAX_ITEMS, PodTemplate

TRAINING_TYPES = ("ps", "worker", "chief", "evaluator")
REPLICA_TYPES = (*TRAINING_TYPES, *MASTER_TYPES)


QUANTITY_PATTERN = r"^[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2}|[kMGTPE]|[KMGTPE]i)?$"
"""Pattern of an amount of memory."""
LIMIT_PATTERN = r"^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?$"
"""Pattern of a non-negative amount of any resource."""


class DistributionStrategy(StrEnum):
    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"
    CUSTOM = "CustomStrategy"


class OptimizeMode(StrEnum):
    MANUAL = "manual"
    SINGLE_JOB = "single-job"
    CLUSTER = "cluster"


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class MemoryCheckpointSpec(Model):
    """Checkpoints in the memory of the agents, which outlive training processes (docs/checkpoints.md)."""

    size: Annotated[
        Quantity, Field(json_schema_extra={"pattern": QUANTITY_PATTERN, "maxLength": MAX_QUANTITY})
    ]
    """Memory for all slots of a Pod: three per process, and two more per replica. It is part of the
    container's memory."""
    replicas: Annotated[int, Field(ge=0, le=1)] = 0
    """Copies of each checkpoint in the memory of other Pods, so that it survives the loss of its own Pod. At
    most one: if a Pod and its peer are lost together, storage still has a checkpoint."""
    persist_on_failure: bool = False
    """Whether, after a failure, the checkpoint in memory from which training resumes is also written to
    storage, in the background."""


class ReplicaSpec(Model):
    """Number and template of the Pods of one type."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "minReplicas must not be greater than maxReplicas",
            ),
            cel(
                "!has(self.minReplicas) || self.minReplicas <= self.replicas",
                "replicas must not be less than minReplicas",
            ),
            cel(
                "!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
                "replicas must not be greater than maxReplicas",
            ),
        )
    )

    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Number of Pods of this type."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Smallest number of workers that training continues with; the default is `replicas`."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Upper limit of `replicas`."""
    standby: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of additional worker Pods that stand by to replace a lost one. For type worker only."""
    memory_checkpoint: MemoryCheckpointSpec | None = None
    """Also keep checkpoints of `dlr.checkpoint.Checkpointer` in memory. For type worker only."""
    template: PodTemplate
    """Pod template; dlr adds names, labels, owner, environment and service account."""
    restart_policy: RestartPolicy | None = None
    """DLRover's; accepted and not used. The restartPolicy in the Pod template applies."""
    restart_count: Annotated[int, Field(ge=0, le=1_000)] = 3
    """Number of failures of one exit class without progress that the job, and the Pods of each worker, may
    have."""
    auto_scale: bool | None = None
    """Whether an automatic ScalePlan, or dlr itself, may change this type."""
    restart_timeout: Annotated[int, Field(ge=0, le=MAX_TIME_SECONDS)] | None = None
    """Seconds; DLRover's, accepted and not used."""
    priority: Annotated[str, Field(max_length=32)] | None = None
    """DLRover's: high, low, or the fraction that is high, such as "0.5"; accepted and not used."""


IGNORED_REPLICA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "description": "DLRover's, accepted and ignored: dlr has no master Pod.",
}
IGNORED_REPLICA = {
    "replicas": 0,
    "template": {"spec": {"containers": [{"name": "ignored", "image": "none"}]}},
}
"""Placeholder for a master's spec, which may contain anything or nothing."""


def _one_property_a_type(schema: dict[str, Any]) -> None:
    """Give each type its own property: a map has one schema for all values, and masters are not validated."""
    of_type = schema.pop("additionalProperties")
    schema["properties"] = {
        type_: IGNORED_REPLICA_SCHEMA if type_ in MASTER_TYPES else of_type for type_ in REPLICA_TYPES
    }


def _without_masters_own(specs: Any) -> Any:
    if not isinstance(specs, dict):
        return specs
    return {type_: IGNORED_REPLICA if type_ in MASTER_TYPES else spec for type_, spec in specs.items()}


ReplicaSpecs = Annotated[
    dict[str, ReplicaSpec],
    Field(min_length=1, json_schema_extra=_one_property_a_type),
    BeforeValidator(_without_masters_own),
]
"""Specs by replica type; in the CRD, an object with a property for each type."""


class ShardScaling(Model):
    """Scales the workers to the work in the job's shard sets, from minReplicas (1 if unset) to maxReplicas
    (docs/shards.md). A worker that holds a lease is not removed."""

    slots_per_worker: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Number of elements that a worker processes at a time."""
    idle_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """Seconds without a lease after which a surplus worker is removed."""


class Opportunistic(Model):
    """Grows the world into capacity that no other Pod uses, up to maxReplicas, and gives it back when another
    Pod needs it or the gain is too small (docs/capacity.md)."""

    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Priority class of the extra Pods, so that any other Pod preempts them."""
    probe_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds that an extra Pod waits for a node before it is deleted; the next follows after half that
    time."""
    min_efficiency: Annotated[float, Field(ge=0.0, le=1.0)] = 0.6
    """Share of a linear speed-up below which extra workers are given back."""


class NetworkInterfaces(StrEnum):
    AUTO = "auto"


LABEL_PATTERN = (
    "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""
NodeLabel = Annotated[str, Field(max_length=317, pattern=LABEL_PATTERN)]


class ElasticPolicy(Model):
    """How the world of workers forms, shrinks and grows, and when a worker counts as lost."""

    node_unit: Annotated[int, Field(ge=1, le=1_000)] = 1
    """The number of workers in a world is a multiple of this. With `domain`, each such unit lies within one
    domain."""
    domain: NodeLabel | None = None
    """Node label that names a node's NVLink domain, or auto: ranks are contiguous by domain, and workers are
    replaced within it."""
    last_call_seconds: Annotated[int, Field(ge=0, le=3_600)] = 30
    """Seconds to wait for more workers after the last one joined, once minReplicas are ready."""
    shrink_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 120
    """Seconds that a broken world waits for a lost worker's replacement before it goes on without it."""
    heartbeat_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 30
    """Seconds without a renewal of its agent's Lease after which a worker is lost, if its node is silent
    too."""
    grow_at_checkpoint_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0
    """Longest wait for the next checkpoint (`dlr.checkpoint_saved`) before a world grows, in seconds."""
    eviction_patience_seconds: Annotated[int, Field(ge=0, le=3_600)] = 120
    """Seconds that an eviction from a node that announces it, such as a cordoned one, waits at most for a
    worker elsewhere to take over. Other evictions are refused. 0: evictions neither wait nor are prepared."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = HANG_TIMEOUT_SECONDS
    """Seconds without step progress after which living processes count as hung."""
    shard_scaling: ShardScaling | None = None
    """Scaling of the workers that pull shards: their number follows the work."""
    opportunistic: Opportunistic | None = None
    """Growth into free capacity beyond `replicas`."""
    network_interfaces: NetworkInterfaces | None = None
    """auto: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that reaches rank 0's agent."""
    spare_processes: Annotated[int, Field(ge=0, le=1)] = 0
    """Spare processes per training process of a worker, started in advance up to the script's loop. A spare
    replaces a process that dies while the others keep running, and takes as much memory."""
    replica_groups: ReplicaGroups | None = None
    """Training in groups of workers: if one fails, the others go on (docs/groups.md)."""


TopologyKeys = Annotated[
    list[NodeLabel],
    Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]
"""Node labels that name what nodes share, such as rack and switch, the smallest first."""


class NodeCheckPolicy(Model):
    """When the job's nodes are checked, and what follows from it."""

    enabled: bool = False
    """Check the job's nodes before its first training, and after failures that may be due to hardware."""
    straggler_ratio: Annotated[float, Field(gt=1.0, le=10.0)] = 1.5
    """Factor by which a node must be slower than the median to be a straggler; a better later measurement
    clears it."""
    exclude_stragglers: bool = False
    """Leave stragglers out while enough other nodes remain."""
    cordon: bool = True
    """Cordon nodes found faulty."""
    timeout_seconds: Annotated[int, Field(ge=10, le=3_600)] = 300
    """Time limit for one step of the check. A node that misses it has given no answer, which counts against
    it."""
    fresh_seconds: Annotated[int, Field(ge=0, le=604_800)] = 3_600
    """Seconds for which a node that passed a check is not checked again, unless hardware failed since."""
    topology_keys: TopologyKeys = Field(default_factory=list)
    """Node labels that name racks or switches, the smallest first, beside `elasticPolicy.domain`."""


class CleanPodPolicy(StrEnum):
    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class RunPolicy(Model):
    """Time limits of the job, and its clean-up."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which Pods to delete when the job has finished: none, those still running, or all."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_TIME_SECONDS)] | None = None
    """Delete the job itself this many seconds after it finished."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=MAX_TIME_SECONDS)] | None = None
    """Fail the job when it has not finished this many seconds after it started."""


class Gang(StrEnum):
    AUTO = "auto"
    NONE = "none"
    KUBERNETES = "kubernetes"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"


class SchedulingPolicy(Model):
    """Scheduling of the job's Pods."""

    gang: Gang = Gang.AUTO
    """Scheduler whose PodGroup holds the Pods back until the minimum of them fits. auto: Kubernetes' own,
    where the API server serves `scheduling.k8s.io/v1beta1`, and none elsewhere."""


class NetworkPolicy(Model):
    """NetworkPolicy of the job's Pods, which accept connections only from each other."""

    enabled: bool = True
    """Create the NetworkPolicy. If anything else must reach the Pods, such as TensorBoard or Prometheus, add
    a NetworkPolicy of your own: policies add up. None applies to Pods with hostNetwork."""


class AgentPolicy(Model):
    """The agent in worker Pods."""

    inject: bool = True
    """Inject the agent into the Pods, so that their image needs only Python and torch. false: the image has
    dlr."""


DOMAIN_PREFIXED_PATH = (
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~%!$&'()*+,;=:-]+$"
)
"""https://pkg.go.dev/k8s.io/apimachinery/pkg/util/validation#IsDomainPrefixedPath"""

ManagedBy = Annotated[
    str,
    Field(
        max_length=63,
        json_schema_extra=rules(
            cel(
                f'self.matches("{DOMAIN_PREFIXED_PATH}")',
                "must be a domain-prefixed path, such as kueue.x-k8s.io/multikueue",
            )
        ),
    ),
]


_GROUPED = "!has(self.elasticPolicy.replicaGroups)"
GROUP_RULES = (
    cel(
        f"{_GROUPED} || (has(self.replicaSpecs.worker) && "
        "self.replicaSpecs.worker.replicas % self.elasticPolicy.replicaGroups.workers == 0)",
        "replicaSpecs.worker.replicas must be a multiple of elasticPolicy.replicaGroups.workers",
    ),
    cel(
        f"{_GROUPED} || !has(self.replicaSpecs.worker) || self.elasticPolicy.replicaGroups.min * "
        "self.elasticPolicy.replicaGroups.workers <= self.replicaSpecs.worker.replicas",
        "elasticPolicy.replicaGroups.min must not be more than the number of groups, which is "
        "replicaSpecs.worker.replicas / elasticPolicy.replicaGroups.workers",
    ),
    cel(
        f"{_GROUPED} || !has(self.replicaSpecs.worker) || self.replicaSpecs.worker.replicas / "
        f"self.elasticPolicy.replicaGroups.workers <= {MAX_GROUPS}",
        f"elasticPolicy.replicaGroups may make {MAX_GROUPS} groups at most",
    ),
    *(
        cel(
            f"{_GROUPED} || !has(self.replicaSpecs.{type_})",
            f"elasticPolicy.replicaGroups divides workers: replicaSpecs.{type_} has no place in a group",
        )
        for type_ in TRAINING_TYPES
        if type_ != WORKER
    ),
    *(
        cel(
            f"{_GROUPED} || !has(self.replicaSpecs.worker) || !has(self.replicaSpecs.worker.{field})",
            f"replicaSpecs.worker.{field} cannot be combined with elasticPolicy.replicaGroups: the number of "
            "groups shrinks and grows, down to replicaGroups.min",
        )
        for field in ("minReplicas", "maxReplicas")
    ),
    *(
        cel(
            f"{_GROUPED} || !has(self.elasticPolicy.{field})",
            f"elasticPolicy has replicaGroups or {field}, and not both",
        )
        for field in ("shardScaling", "opportunistic")
    ),
    cel(
        f"{_GROUPED} || self.elasticPolicy.replicaGroups.workers % self.elasticPolicy.nodeUnit == 0",
        "elasticPolicy.replicaGroups.workers must be a multiple of elasticPolicy.nodeUnit: each group is a "
        "world",
    ),
    cel(
        f"{_GROUPED} || !has(self.optimizeMode) || self.optimizeMode != 'cluster'",
        "optimizeMode cluster cannot be combined with elasticPolicy.replicaGroups: it changes the count of "
        "workers, and each group has the same",
    ),
    cel(
        f"({_GROUPED}) == (!has(oldSelf.elasticPolicy.replicaGroups)) && ({_GROUPED} || "
        "self.elasticPolicy.replicaGroups.workers == oldSelf.elasticPolicy.replicaGroups.workers)",
        "elasticPolicy.replicaGroups cannot be added, taken away or given other workers; make another job",
    ),
)


class ElasticJobSpec(Model):
    """Desired state of the job."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.distributionStrategy == 'ParameterServerStrategy' || has(self.replicaSpecs.worker)",
                "replicaSpecs must have an entry 'worker'",
            ),
            cel(
                "!has(self.replicaSpecs.worker) || "
                "self.replicaSpecs.worker.replicas % self.elasticPolicy.nodeUnit == 0",
                "replicaSpecs.worker.replicas must be a multiple of elasticPolicy.nodeUnit",
            ),
            cel(
                " && ".join(
                    f"(!has(self.replicaSpecs.{type_}) || self.replicaSpecs.{type_}.standby == 0)"
                    for type_ in TRAINING_TYPES
                    if type_ != WORKER
                ),
                "only replicaSpecs.worker may have standby",
            ),
            cel(
                " && ".join(
                    f"(!has(self.replicaSpecs.{type_}) || !has(self.replicaSpecs.{type_}.memoryCheckpoint))"
                    for type_ in TRAINING_TYPES
                    if type_ != WORKER
                ),
                "only replicaSpecs.worker may have memoryCheckpoint",
            ),
            cel(
                "self.elasticPolicy.spareProcesses == 0 || (has(self.replicaSpecs.worker) && "
                "has(self.replicaSpecs.worker.memoryCheckpoint))",
                "elasticPolicy.spareProcesses needs replicaSpecs.worker.memoryCheckpoint: a spare goes on "
                "from a checkpoint in memory",
            ),
            *CLUSTER_RULES,
            *GROUP_RULES,
            *(
                cel(f"!has(self.elasticPolicy.opportunistic) || ({rule})", message)
                for rule, message in (
                    (
                        "has(self.replicaSpecs.worker) && has(self.replicaSpecs.worker.maxReplicas)",
                        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas, its upper limit",
                    ),
                    (
                        "!has(self.replicaSpecs.worker) || !has(self.replicaSpecs.worker.minReplicas) || "
                        "!has(self.replicaSpecs.worker.maxReplicas) || "
                        "self.replicaSpecs.worker.maxReplicas / self.elasticPolicy.nodeUnit > "
                        "(self.replicaSpecs.worker.minReplicas + self.elasticPolicy.nodeUnit - 1) / "
                        "self.elasticPolicy.nodeUnit",
                        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas to be one "
                        "nodeUnit above minReplicas at least: else the job can never grow",
                    ),
                    (
                        "!has(self.replicaSpecs.worker) || self.replicaSpecs.worker.standby == 0",
                        "elasticPolicy.opportunistic and replicaSpecs.worker.standby exclude each other: a "
                        "worker that stands by would take the place of each probe",
                    ),
                    (
                        "!has(self.replicaSpecs.worker) || !has(self.replicaSpecs.worker.autoScale) || "
                        "self.replicaSpecs.worker.autoScale",
                        "elasticPolicy.opportunistic needs replicaSpecs.worker.autoScale, which is false",
                    ),
                    (
                        "!has(self.elasticPolicy.shardScaling)",
                        "elasticPolicy has shardScaling or opportunistic, and not both",
                    ),
                    (
                        "!has(self.optimizeMode) || self.optimizeMode != 'manual'",
                        "elasticPolicy.opportunistic changes the count, which optimizeMode manual excludes",
                    ),
                )
            ),
            cel(
                "has(self.managedBy) == has(oldSelf.managedBy) && "
                "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
                "managedBy cannot be changed; make another job",
            ),
        )
    )

    distribution_strategy: DistributionStrategy = DistributionStrategy.ALLREDUCE
    """DLRover's. With CustomStrategy, workers may list all workers of the namespace, as `dlr hosts` does;
    other values have no effect."""
    optimize_mode: OptimizeMode | None = None
    """DLRover's. manual: nothing is changed automatically. single-job, the default:
    elasticPolicy.opportunistic. cluster: the same, and a new job starts with the memory and the number of
    workers that finished jobs of its name ended with (docs/capacity.md)."""
    brain_service: Annotated[str, Field(max_length=1_024)] | None = None
    """DLRover's; accepted and not used."""
    resource_limits: Annotated[
        dict[str, Annotated[Quantity, Field(json_schema_extra={"pattern": LIMIT_PATTERN})]],
        Field(max_length=32),
    ] = Field(default_factory=dict)
    """Total resources that automatic scaling may use."""
    envs: Annotated[Free, Field(max_length=MAX_ITEMS)] = Field(default_factory=dict)
    """Environment variables for every container: a value, or an EnvVar."""
    suspend: bool = False
    """Suspend the job: its Pods are deleted, its state is kept."""
    managed_by: ManagedBy | None = None
    """Controller that manages this job, as in a batch/v1 Job. dlr manages it if this is unset or
    elastic.iml.github.io/dlr-controller; otherwise dlr leaves the job alone entirely. It cannot be
    changed."""
    replica_specs: ReplicaSpecs
    """Pods of the job, by type; most jobs have only type worker."""
    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)
    node_check: NodeCheckPolicy = Field(default_factory=NodeCheckPolicy)
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    scheduling_policy: SchedulingPolicy = Field(default_factory=SchedulingPolicy)
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy)
    agent: AgentPolicy = Field(default_factory=AgentPolicy)
