"""What the user writes into an ElasticJob. DLRover's fields under DLRover's group, and ours beside them."""

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
"""Of an amount of memory."""
LIMIT_PATTERN = r"^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?$"
"""Of an amount of any resource that is not negative."""


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
    """Memory for all slots of a Pod: three for each process, and two more for each replica. The container's
    memory counts it."""
    replicas: Annotated[int, Field(ge=0, le=1)] = 0
    """Copies of each checkpoint in the memory of other Pods, so that it outlives its own. More than one would
    help only if a Pod and its peer are lost at once, and storage is there for that."""
    persist_on_failure: bool = False
    """After a failure, what training goes on from in memory is written to storage too, in the background."""


class ReplicaSpec(Model):
    """How many Pods of one type are wanted, and what they are."""

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
    """How many Pods of this type are wanted."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Training goes on with as few workers as this; the default is `replicas`: no fewer."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """`replicas` may not be set above this."""
    standby: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of further worker Pods that wait, ready to replace one that is lost. For type worker only."""
    memory_checkpoint: MemoryCheckpointSpec | None = None
    """Keeps checkpoints of `dlr.checkpoint.Checkpointer` in memory, too. For type worker only."""
    template: PodTemplate
    """The Pod template, kept as it is: names, labels, owner, environment and service account are added."""
    restart_policy: RestartPolicy | None = None
    """DLRover's; the Pod's own restartPolicy in the template is what counts."""
    restart_count: Annotated[int, Field(ge=0, le=1_000)] = 3
    """How often the job, and each worker by its Pods, may fail in one class without getting further."""
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
"""What the reconcilers read of a master, which may say anything or nothing."""


def _one_property_a_type(schema: dict[str, Any]) -> None:
    """A map would have one schema for all of its values, and masters are not to be validated."""
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
"""By type; in the CRD it is an object with a property for each type that there is."""


class ShardScaling(Model):
    """Keeps as many workers as the job's shard sets have work for, from minReplicas (1 without it) to
    maxReplicas (docs/shards.md). It takes no worker that holds a lease."""

    slots_per_worker: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Elements that keep a worker busy at a time."""
    idle_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """A worker that is not needed goes when it has held no lease for this long."""


class Opportunistic(Model):
    """Grows the world into capacity that no other Pod uses, up to maxReplicas, and gives it back when another
    Pod needs it, or when it brings too little (docs/capacity.md)."""

    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Priority class of the extra Pods, so that any other Pod preempts them."""
    probe_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """An extra Pod waits so long for a node, then goes; the next comes after half as long."""
    min_efficiency: Annotated[float, Field(ge=0.0, le=1.0)] = 0.6
    """Extra workers that add less than this share of a linear gain are given back."""


class NetworkInterfaces(StrEnum):
    AUTO = "auto"


LABEL_PATTERN = (
    "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""
DomainLabel = Annotated[str, Field(max_length=317, pattern=LABEL_PATTERN)]


class ElasticPolicy(Model):
    """How the world of workers forms, shrinks and grows, and when a worker counts as lost."""

    node_unit: Annotated[int, Field(ge=1, le=1_000)] = 1
    """The world always has a multiple of this many workers. With `domain`, each so many are of one domain."""
    domain: DomainLabel | None = None
    """Node label that names a node's NVLink domain, or auto: ranks are contiguous by domain, and workers are
    replaced within it."""
    last_call_seconds: Annotated[int, Field(ge=0, le=3_600)] = 30
    """Seconds to wait for more workers after the last one joined, once minReplicas are ready."""
    shrink_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 120
    """Hold a broken world this long for a lost worker's replacement before going on without it."""
    heartbeat_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 30
    """A worker is lost when its agent's Lease was not renewed for this long, and its node is silent too."""
    grow_at_checkpoint_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0
    """Seconds that a world waits at most for the next checkpoint (`dlr.checkpoint_saved`) before it grows."""
    eviction_patience_seconds: Annotated[int, Field(ge=0, le=3_600)] = 120
    """Seconds for which evictions from a node that announces them, such as a cordoned one, wait at most for a
    worker elsewhere to take the place. Others are refused. 0: evictions neither wait nor are prepared."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = HANG_TIMEOUT_SECONDS
    """Seconds without step progress after which living processes count as hung."""
    shard_scaling: ShardScaling | None = None
    """Scaling of the workers that pull shards: their number follows the work."""
    opportunistic: Opportunistic | None = None
    """Use free room beyond `replicas`."""
    network_interfaces: NetworkInterfaces | None = None
    """auto: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that reaches rank 0's agent."""
    spare_processes: Annotated[int, Field(ge=0, le=1)] = 0
    """Spare processes for each training process of a worker, started ahead up to the script's loop: one takes
    the place of a process that dies while the others live on. It takes the memory of another process."""
    replica_groups: ReplicaGroups | None = None
    """Train in groups of workers, of which the others go on when one fails (docs/groups.md)."""


TopologyKeys = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=317)]],
    Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]
"""Node labels that name what nodes share, such as rack and switch, the smallest first."""


class NodeCheckPolicy(Model):
    """When the job's nodes are checked, and what follows from it."""

    enabled: bool = False
    """Check the job's nodes before its first training and after failures that smell of hardware."""
    straggler_ratio: Annotated[float, Field(gt=1.0, le=10.0)] = 1.5
    """A node slower than this many times the median is a straggler, unless it measures better again."""
    exclude_stragglers: bool = False
    """Leave slow nodes out while enough others remain."""
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
    """How long the job may run, and what stays of it."""

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
    """How the Pods come to their nodes."""

    gang: Gang = Gang.AUTO
    """The scheduler whose PodGroup keeps the Pods back until there is room for the minimum of them; auto:
    Kubernetes' own, where the API server serves `scheduling.k8s.io/v1beta1`, and none elsewhere."""


class NetworkPolicy(Model):
    """The NetworkPolicy of the job's Pods: they accept connections from each other alone."""

    enabled: bool = True
    """Make the NetworkPolicy. What else has to reach the Pods, such as TensorBoard or Prometheus, gets a
    NetworkPolicy of your own: policies add up. Pods with hostNetwork are not covered by any."""


class AgentPolicy(Model):
    """The agent in the Pods of the workers."""

    inject: bool = True
    """Bring the agent into the Pods, so that their image needs Python and torch alone; false: it has dlr."""


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
            f"replicaSpecs.worker.{field} has no place beside elasticPolicy.replicaGroups: the number of "
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
        "optimizeMode cluster has no place beside elasticPolicy.replicaGroups: it changes the count of "
        "workers, and each group has the same",
    ),
    cel(
        f"({_GROUPED}) == (!has(oldSelf.elasticPolicy.replicaGroups)) && ({_GROUPED} || "
        "self.elasticPolicy.replicaGroups.workers == oldSelf.elasticPolicy.replicaGroups.workers)",
        "elasticPolicy.replicaGroups cannot be added, taken away or given other workers; make another job",
    ),
)


class ElasticJobSpec(Model):
    """What is wanted."""

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
                "replicaSpecs.worker alone may have standby",
            ),
            cel(
                " && ".join(
                    f"(!has(self.replicaSpecs.{type_}) || !has(self.replicaSpecs.{type_}.memoryCheckpoint))"
                    for type_ in TRAINING_TYPES
                    if type_ != WORKER
                ),
                "replicaSpecs.worker alone may have memoryCheckpoint",
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
                        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas, how far it grows",
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
    """DLRover's. With CustomStrategy, workers may list those of the namespace, as `dlr hosts` does; other
    values have no effect."""
    optimize_mode: OptimizeMode | None = None
    """DLRover's. manual: nothing is judged or changed. single-job, the default: elasticPolicy.opportunistic.
    cluster: this, and a new job begins with the memory and the count of workers that finished jobs of its
    name came to (docs/capacity.md)."""
    brain_service: Annotated[str, Field(max_length=1_024)] | None = None
    """DLRover's; accepted and not used."""
    resource_limits: Annotated[
        dict[str, Annotated[Quantity, Field(json_schema_extra={"pattern": LIMIT_PATTERN})]],
        Field(max_length=32),
    ] = Field(default_factory=dict)
    """The most that automatic scaling may take in all."""
    envs: Annotated[Free, Field(max_length=MAX_ITEMS)] = Field(default_factory=dict)
    """Environment variables for every container: a value, or an EnvVar."""
    suspend: bool = False
    """Hold the job: its Pods are deleted, its state is kept."""
    managed_by: ManagedBy | None = None
    """The controller that manages this job, as in a batch/v1 Job. If it is unset, or
    elastic.iml.github.io/dlr-controller, that is dlr's; with any other, dlr leaves the job alone entirely.
    It cannot be changed."""
    replica_specs: ReplicaSpecs
    """The job's Pods, by their type; most jobs have type worker alone."""
    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)
    node_check: NodeCheckPolicy = Field(default_factory=NodeCheckPolicy)
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    scheduling_policy: SchedulingPolicy = Field(default_factory=SchedulingPolicy)
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy)
    agent: AgentPolicy = Field(default_factory=AgentPolicy)
