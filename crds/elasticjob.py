"""ElasticJob: what the user submits. DLRover's fields under DLRover's group, and ours beside them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from crds.cluster_status import CLUSTER_RULES, ClusterStatus
from crds.intervals import LIMIT
from crds.model import (
    Conditions,
    Free,
    Index,
    Indices,
    Model,
    Name,
    ObjectMeta,
    Quantity,
    ResourceRequirements,
    cel,
    cut,
    rules,
)
from crds.names import MASTER_TYPES, WORKER
from crds.progress import RoundProgress
from crds.protocol import HANG_TIMEOUT_SECONDS, MAX_SHARD_REASON, MAX_SHARD_RETRIES, MAX_SHARD_SETS
from crds.protocol import JobPhase as JobPhase
from crds.protocol import RendezvousPhase as RendezvousPhase
from crds.protocol import Tier as Tier
from crds.ranges import MAX_CHARACTERS, OTHERS, PATTERN, from_text, grouped, incarnations_of
from crds.template import PodTemplate

TRAINING_TYPES = ("ps", "worker", "chief", "evaluator")
LONGEST_NAME = 51
"""Of a job's name and a type's together, so that a Pod's, with index and incarnation, is a DNS label."""
REPLICA_TYPES = (*TRAINING_TYPES, *MASTER_TYPES)
MAX_INCARNATION = 99_999

# All agents of a job watch its status, so its texts are short; docs/architecture.md says where there is more.
MAX_MESSAGE = 256
MAX_WORLD_REASON = 384
MAX_FAILURE = 512
MAX_SIGNATURE = 96
MAX_EPISODES = 12
MAX_EPISODES_OF_MANY = 2
"""Of a job of more than `MANY_WORKERS`, whose object all of them watch: the present one and the last."""
MANY_WORKERS = 1_000
MAX_EPISODE_MEMBERS = 24
MAX_EPISODE_REASON = 64

INCARNATIONS_PATTERN = rf"{PATTERN}|^\{OTHERS}$"


QUANTITY_PATTERN = r"^[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2}|[kMGTPE]|[KMGTPE]i)?$"
"""Of an amount of memory."""


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


class MemoryCheckpoint(Model):
    """Checkpoints in the memory of the agents, which outlive training processes (docs/checkpoints.md)."""

    size: Annotated[Quantity, Field(json_schema_extra={"pattern": QUANTITY_PATTERN})]
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
    """Of type worker: so many more Pods wait, ready, to step into the place of one that is lost."""
    memory_checkpoint: MemoryCheckpoint | None = None
    """Of type worker: keep the checkpoints of `dlr.checkpoint.Checkpointer` in memory, too."""
    template: PodTemplate
    """The Pod template, kept as it is: names, labels, owner, environment and service account are added."""
    restart_policy: RestartPolicy | None = None
    """DLRover's; the Pod's own restartPolicy in the template is what counts."""
    restart_count: Annotated[int, Field(ge=0, le=1_000)] = 3
    """How often the job, and each worker by its Pods, may fail in one class without getting further."""
    auto_scale: bool | None = None
    """Whether an automatic ScalePlan may change this type."""
    restart_timeout: Annotated[int, Field(ge=0)] | None = None
    """Seconds; DLRover's, accepted and not used."""
    priority: Annotated[str, Field(max_length=32)] | None = None
    """DLRover's: high, low, or the fraction that is high, such as "0.5"; accepted and not used."""


IGNORED_REPLICA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "description": "DLRover's; whatever it says is ignored: dlr has no master Pod.",
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
    maxReplicas (docs/tasks.md). It asks by automatic ScalePlans, and takes no worker that holds a lease."""

    slots_per_worker: Annotated[int, Field(ge=1, le=1_024)] = 1
    """So many elements at a time keep a worker busy."""
    idle_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """A worker that is not needed goes when it has held no lease for this long."""


class Opportunistic(Model):
    """Grows the world of workers into room that nobody else uses, up to maxReplicas, and gives it back when
    somebody does, or when it brings too little (docs/capacity.md). It asks by automatic ScalePlans."""

    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Of the extra Pods, so that any other Pod preempts them."""
    probe_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """An extra Pod waits so long for a node, then goes; the next comes after half as long."""
    min_efficiency: Annotated[float, Field(ge=0.0, le=1.0)] = 0.6
    """Extra workers that add less than this share of a linear gain are given back."""


class NetworkInterfaces(StrEnum):
    AUTO = "auto"


class ElasticPolicy(Model):
    """How the world of workers forms, shrinks and grows, and when a worker counts as lost."""

    node_unit: Annotated[int, Field(ge=1, le=1_000)] = 1
    """The world always has a multiple of this many workers."""
    last_call_seconds: Annotated[int, Field(ge=0, le=3_600)] = 30
    """With at least minReplicas ready, wait this long after the last one joined for more to come."""
    shrink_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 120
    """Hold a broken world this long for a lost worker's replacement before going on without it."""
    heartbeat_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 30
    """A worker whose Lease is not renewed for this long is lost."""
    grow_at_checkpoint_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0
    """A world that is to grow waits for the next checkpoint (`dlr.checkpoint_saved`), at most this long."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = HANG_TIMEOUT_SECONDS
    """Without step progress for this long, living processes count as hung."""
    shard_scaling: ShardScaling | None = None
    """Of a job whose workers pull shards: their number follows the work."""
    opportunistic: Opportunistic | None = None
    """Use free room beyond `replicas`."""
    network_interfaces: NetworkInterfaces | None = None
    """auto: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are set, to where rank 0's agent is reached."""


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
    """A node that has not answered a step of the check by then gave no answer, and that is a fault of its."""
    fresh_seconds: Annotated[int, Field(ge=0, le=604_800)] = 3_600
    """A node that passed a check so short a time ago is not checked again, unless hardware failed since."""
    topology_keys: TopologyKeys = Field(default_factory=list)


class FailureAction(StrEnum):
    RESTART = "Restart"
    REPLACE = "Replace"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


class ExitCodeOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"


class OnExitCodes(Model):
    """Matches a container's exit code."""

    container_name: Annotated[str, Field(max_length=63)] | None = None
    operator: ExitCodeOperator
    values: Annotated[
        list[int], Field(min_length=1, max_length=255, json_schema_extra={"x-kubernetes-list-type": "set"})
    ]


class OnPodCondition(Model):
    """Matches a condition of the Pod."""

    type: Annotated[str, Field(max_length=316)]
    status: Annotated[str, Field(max_length=16)] = "True"


class FailureRule(Model):
    """In the manner of a Job's podFailurePolicy: the first rule that matches decides."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.onExitCodes) || has(self.onMessagePattern) || "
                "(has(self.onPodConditions) && size(self.onPodConditions) > 0)",
                "a rule needs onExitCodes, onPodConditions or onMessagePattern",
            )
        )
    )

    action: FailureAction
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: Annotated[
        list[OnPodCondition], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    on_message_pattern: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=1_024,
                json_schema_extra=rules(
                    cel("''.matches(self) in [true, false]", "must be a regular expression (RE2)")
                ),
            ),
        ]
        | None
    ) = None
    """A regular expression (RE2), searched in the failure text. With other matchers, all must match."""


class FailurePolicy(Model):
    """What to do about particular failures."""

    rules: Annotated[
        list[FailureRule], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)


class CleanPodPolicy(StrEnum):
    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class RunPolicy(Model):
    """How long the job may run, and what stays of it."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which Pods to delete when the job has finished: none, those still running, or all."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Delete the job itself this many seconds after it finished."""
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """Fail the job when it has not finished this many seconds after it started."""


class Gang(StrEnum):
    NONE = "none"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"


class SchedulingPolicy(Model):
    """How the Pods come to their nodes."""

    gang: Gang = Gang.NONE
    """Whose PodGroup keeps the Pods back until there is room for the minimum of them."""


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
            *CLUSTER_RULES,
            *(
                cel(f"!has(self.elasticPolicy.opportunistic) || ({rule})", message)
                for rule, message in (
                    (
                        "has(self.replicaSpecs.worker) && has(self.replicaSpecs.worker.maxReplicas)",
                        "elasticPolicy.opportunistic needs replicaSpecs.worker.maxReplicas, how far it grows",
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
    optimize_mode: OptimizeMode | None = None
    """DLRover's. manual: nothing is judged or changed. single-job, the default: conditions Oversized and
    Undersized, and elasticPolicy.opportunistic. cluster: these, and a new job begins with the memory and the
    count of workers that finished jobs of its name came to (docs/capacity.md)."""
    brain_service: Annotated[str, Field(max_length=1_024)] | None = None
    """DLRover's; accepted and not used."""
    resource_limits: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """The most that automatic scaling may take in all."""
    envs: Free = Field(default_factory=dict)
    """Environment variables for every container: a value, or an EnvVar."""
    suspend: bool = False
    """Hold the job: its Pods are deleted, its state is kept."""
    managed_by: ManagedBy | None = None
    """The controller that manages this job, as in a batch/v1 Job. If it is unset, or
    elastic.iml.github.io/dlr-controller, that is dlr's; with any other, dlr leaves the job alone entirely.
    It cannot be changed."""
    replica_specs: ReplicaSpecs
    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)
    node_check: NodeCheckPolicy = Field(default_factory=NodeCheckPolicy)
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    scheduling_policy: SchedulingPolicy = Field(default_factory=SchedulingPolicy)
    agent: AgentPolicy = Field(default_factory=AgentPolicy)


IndexList = Annotated[
    list[Index], Field(max_length=10_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
]


class Resume(Model):
    """What a world has gone on from, as its rank 0's agent tells when its processes have loaded it."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Unset where an older agent says it of storage."""
    tier: Tier


class Rendezvous(Model):
    """The desired world. One member list per round, for ever; agents converge to it."""

    round: Annotated[int, Field(ge=0)] = 0
    """Counts up with every world formed; 0 before the first."""
    phase: RendezvousPhase = RendezvousPhase.FORMING
    members: Indices = Field(default_factory=list)
    """Worker indices as ranges, such as `0-41,43-9998`; scattered ones are packed (`z…`). Rank is the place
    among them."""
    incarnations: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_INCARNATION)]],
        WithJsonSchema(
            {
                "type": "object",
                "maxProperties": 10_000,
                "additionalProperties": {
                    "type": "string",
                    "pattern": INCARNATIONS_PATTERN,
                    "maxLength": MAX_CHARACTERS,
                },
            }
        ),
    ] = Field(default_factory=list)
    """By incarnation, the members that have it; `*` is all others. Who is not named has incarnation 1."""
    world_size: Annotated[int, Field(ge=0)] = 0
    """Processes in all."""
    master_address: Annotated[str, Field(max_length=253)] = ""
    """Rank 0's agent store."""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    reason: Annotated[str, cut(MAX_WORLD_REASON), Field(max_length=MAX_WORLD_REASON)] = ""
    """Why this world was formed, or why the last one is being given up."""
    formed_at: datetime | None = None
    reforming_since: datetime | None = None
    """Since when a broken world waits for a replacement."""
    hang_since: datetime | None = None
    """Since when the members of a world that hangs are asked where their processes are; unset when that is
    judged."""
    checkpoint_awaited_since: datetime | None = None
    """Since when workers that are ready wait for a checkpoint to join: the next one is reported at once."""
    resume: Resume | None = None
    """What the processes of this round have gone on from, where the job keeps checkpoints in memory; for
    people."""
    broken_round: Annotated[int, Field(ge=0)] = 0
    """The newest round of which training processes died; 0 before the first. Whoever still runs it, or an
    older one, waits for the dead. A planned change and a Pod deleted in good order leave no dead."""

    @model_validator(mode="before")
    @classmethod
    def _parallel(cls, data: Any) -> Any:
        """In Python, `incarnations` has one for each member, as 0.1 wrote it too."""
        if not isinstance(data, dict) or isinstance(data.get("incarnations"), list | tuple):
            return data
        members = data.get("members") or []
        members = from_text(members) if isinstance(members, str) else members
        incarnations = incarnations_of(members, data.get("incarnations") or {})
        return {**data, "members": members, "incarnations": incarnations}

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.members) != len(self.incarnations):
            raise ValueError(f"{len(self.members)} members have {len(self.incarnations)} incarnations")
        return self

    @model_serializer(mode="wrap")
    def _to_wire(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        wire: dict[str, Any] = serialized(self)
        wire["incarnations"] = grouped(self.members, self.incarnations)
        return wire

    def incarnation_by_index(self) -> dict[int, int]:
        """The members, for those who ask for many of them."""
        return dict(zip(self.members, self.incarnations, strict=True))


MAX_WHY_NOT_MORE = 256


class Opportunity(Model):
    """What opportunistic growth remembers between two looks."""

    base: Annotated[int, Field(ge=0)]
    """The count that was asked for. Workers beyond it are extra."""
    grown_from: Annotated[int, Field(ge=0)] | None = None
    """The size before the growth that is under way, or whose gain is not known yet."""
    unpaid_from: Annotated[int, Field(ge=0)] | None = None
    """The size before a growth that was worth its workers, and has not yet paid for its restart."""
    ceiling: Annotated[int, Field(ge=0)] | None = None
    """No more than so many, before `not_before`."""
    not_before: datetime | None = None
    """The next probe, at the earliest."""
    reason: Annotated[str, cut(MAX_WHY_NOT_MORE), Field(max_length=MAX_WHY_NOT_MORE)] = ""
    """Why the last one gave no more workers, or these were given back."""
    in_vain: Annotated[int, Field(ge=0)] = 0
    """Growths in a row that ended before they had paid for their restart."""


class Scaling(Model):
    """The count of workers that is wanted, and whose intent it was."""

    replicas: int
    by: Annotated[str, Field(max_length=300)]
    """`spec`, `the scale subresource`, or `ScalePlan <name>`."""
    at: datetime
    opportunity: Opportunity | None = None
    """Of a job with elasticPolicy.opportunistic."""


MAX_WORLD_SIZES = 8
MAX_WORLD_SIZES_OF_MANY = 2


class WorldSize(Model):
    """What worlds of one size gave, over all their rounds that have ended."""

    workers: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=0)]
    """Timed: those after the first of each round."""
    seconds: Annotated[float, Field(ge=0)]
    samples_per_step: Annotated[int, Field(ge=1)] | None = None
    """Of the whole world, where the script tells it."""


class RoleUsage(Model):
    """What the Pods of one type asked for, and used."""

    pods: Annotated[int, Field(ge=0)] = 0
    """The most at once."""
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    """What each may use, or asks for."""
    memory_peak_bytes: Annotated[int, Field(ge=0)] = 0
    """Of the one that used most."""
    cpu_cores: Annotated[float, Field(ge=0)] | None = None
    cpu_mean_cores: Annotated[float, Field(ge=0)] = 0.0
    """Of the one with the greatest mean."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    gpu_utilization: Annotated[float, Field(ge=0, le=1)] | None = None
    """The greatest mean of a Pod, 0 to 1."""


class JobUsage(Model):
    """What the job used, by role, and what each world size gave: all that is left of it for the next job."""

    round: Annotated[int, Field(ge=0)] = 0
    """The last that is counted in."""
    worlds: Annotated[
        list[WorldSize],
        Field(
            max_length=MAX_WORLD_SIZES,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["workers"]},
        ),
    ] = Field(default_factory=list)
    roles: Annotated[dict[str, RoleUsage], Field(max_length=6)] = Field(default_factory=dict)


class Moves(Model):
    """Slots being replaced by others: the first of `targets` takes the place of the first of `sources`, …"""

    sources: Indices = Field(default_factory=list)
    targets: Indices = Field(default_factory=list)


def _moves_by_type(value: Any) -> Any:
    """0.1 wrote a list with an entry for each move."""
    if not isinstance(value, list):
        return value
    pairs: dict[str, list[tuple[int, int]]] = {}
    for move in value:
        if isinstance(move, dict) and {"type", "source", "target"} <= move.keys():
            pairs.setdefault(move["type"], []).append((move["source"], move["target"]))
    return {
        type_: {"sources": sorted(s for s, _ in found), "targets": sorted(t for _, t in found)}
        for type_, found in pairs.items()
    }


class ReplicaStatus(Model):
    """Pods of one type, counted by phase."""

    desired: int = 0
    pending: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    standby: int = 0
    """Running too, but not counted as active: they are ready, beside the world."""


class JobFailure(Model):
    """The failure to look at first."""

    worker: Name
    rank: Index | None = None
    exit_class: Annotated[str, Field(max_length=64)]
    exit_code: int | None = None
    message: Annotated[str, cut(MAX_FAILURE), Field(max_length=MAX_FAILURE)] = ""
    """The beginning of what it said; its ElasticWorker has more of it, and the end of its log."""
    round: Annotated[int, Field(ge=0)] | None = None
    """The round that broke by it."""
    step: Annotated[int, Field(ge=0)] | None = None
    """The last that the failed process told."""
    time: datetime


class FailureBudget(Model):
    """What failures have spent since training last got further than ever before."""

    step: Annotated[int, Field(ge=0)] | None = None
    """The highest step that was reached when it last failed."""
    spent: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures in place since then, by exit class."""
    signature: Annotated[str, cut(MAX_SIGNATURE), Field(max_length=MAX_SIGNATURE)] = ""
    """What the last failure was, without what differs from one time to the next."""
    alike: Annotated[int, Field(ge=0)] = 0
    """How many times in a row it was that one."""
    consequences: Annotated[int, Field(ge=0)] = 0
    """Failures in a row that only followed from a peer's, of which none was found; they spend nothing."""
    held_until: datetime | None = None
    """No world is formed before, so that quick failures do not follow each other at once."""


class JobState(StrEnum):
    """What a job's time goes to (docs/goodput.md)."""

    PENDING = "Pending"
    """Before the first world: Pods are made, scheduled, started."""
    CHECKING = "Checking"
    """Its nodes are being tested."""
    FORMING = "Forming"
    """A world is formed that did not follow a failure, and has not trained its first step."""
    TRAINING = "Training"
    RECOVERING = "Recovering"
    """From a failure to the first step after it."""
    SUSPENDED = "Suspended"
    DOWN = "Down"
    """Too few workers for a world, and nobody on the way."""


class Departed(Model):
    """Workers that the job has let go, since nobody wants their slots."""

    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Of these: their Pods that had ended and were replaced, by exit class."""
    leaving: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """By type, the slots whose workers are counted already, and are still on their way out."""


ShardSetName = Annotated[
    str, Field(min_length=1, max_length=63, pattern="^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]

MAX_LEASES_TEXT = 262_144
MAX_REST_TEXT = 131_072
MAX_SHARDS_DONE = 128


class ShardSetStatus(Model):
    """Elements that the job's workers pull, each done once or more (docs/shards.md)."""

    name: ShardSetName
    epoch: Annotated[int, Field(ge=0)] = 0
    size: Annotated[int, Field(ge=1, lt=LIMIT)]
    digest: Annotated[str, Field(max_length=64)] = ""
    """Of the elements and their order, as far as they have a text of their own."""
    retries: Annotated[int, Field(ge=0, le=MAX_SHARD_RETRIES)] = 0
    max_failed: Annotated[int, Field(ge=0, lt=LIMIT)] = 0
    """With more elements that failed for good, the job fails."""
    done: Annotated[int, Field(ge=0)] = 0
    """So many elements are done, as far as workers' leases tell: what they do of one counts with the next."""
    leased: Annotated[int, Field(ge=0)] = 0
    waiting: Annotated[int, Field(ge=0)] = 0
    """With those that failed and are to be tried again."""
    failed: Annotated[int, Field(ge=0)] = 0
    """For good."""
    rest: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """The elements that wait: ranges such as `0-41,43`, or packed (crds/intervals.py)."""
    leases: Annotated[str, Field(max_length=MAX_LEASES_TEXT)] = ""
    """Who may work on what: `worker.incarnation.number=elements`, or packed (crds/leases.py)."""
    tried: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """Elements that failed and are to be tried again, behind the workers that they failed on."""
    again: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """The same of such elements that are leased."""
    failed_elements: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """Those that failed for good."""
    last_lease: Annotated[int, Field(ge=0)] = 0
    """The number of the newest lease."""
    restoration: Annotated[int, Field(ge=0)] = 0
    """The number of the last restoration: what is done was set by a checkpoint of the set."""
    reason: Annotated[str, cut(MAX_SHARD_REASON), Field(max_length=MAX_SHARD_REASON)] = ""
    """Why the first element failed."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Goodput(Model):
    """Where the job's time went, and what its steps came to. Exact at `since` of the state."""

    state: JobState
    since: datetime
    seconds: Annotated[dict[str, float], Field(max_length=8)] = Field(default_factory=dict)
    """In earlier states, by name; the current one's time comes on top."""
    first_step: Annotated[int, Field(ge=0)] | None = None
    """The first step that this job trained."""
    last_step: Annotated[int, Field(ge=0)] | None = None
    """The highest: what lies between is kept."""
    steps_redone: Annotated[int, Field(ge=0)] = 0
    """Steps that a round trained though an earlier one had trained them."""
    steps_timed: Annotated[int, Field(ge=0)] = 0
    """Steps between the first and the last of each round."""
    stepping_seconds: Annotated[float, Field(ge=0)] = 0.0
    """What these took."""
    round: Annotated[int, Field(ge=0)] = 0
    """The last round that is counted in."""
    latest: RoundProgress | None = None
    """What is counted in of that round: its last figures may still come."""
    ratio: Annotated[float, Field(ge=0)] | None = None
    """Steps kept × seconds a step, over the time since submission, when this was written."""


class Episode(Model):
    """A stretch of the job's life in one state and one world, for its timeline."""

    state: JobState
    since: datetime
    round: Annotated[int, Field(ge=0)] = 0
    members: Annotated[str, cut(MAX_EPISODE_MEMBERS), Field(max_length=MAX_EPISODE_MEMBERS)] = ""
    """The world's members as ranges, such as `0-3,6`; cut where there are many."""
    reason: Annotated[str, cut(MAX_EPISODE_REASON), Field(max_length=MAX_EPISODE_REASON)] = ""
    """Why it began."""


class ElasticJobStatus(Model):
    """What is, and the world that the agents converge to. Written by the controller."""

    observed_generation: int | None = None
    phase: JobPhase | None = None
    reason: Annotated[str, Field(max_length=128)] = ""
    """In one word, why the job does not train: the reason of the condition that says so."""
    message: Annotated[str, cut(MAX_MESSAGE), Field(max_length=MAX_MESSAGE)] = ""
    """The same in a sentence; what the world waits for, where no condition says why."""
    conditions: Conditions = Field(default_factory=list)
    replica_statuses: Annotated[dict[str, ReplicaStatus], Field(max_length=6)] = Field(default_factory=dict)
    rendezvous: Rendezvous | None = None
    cluster: ClusterStatus | None = None
    """Of a job with parameter servers, instead of a rendezvous."""
    scaling: Scaling | None = None
    scale_plan: Name | None = None
    """The ScalePlan being carried out."""
    scale_plan_uid: Annotated[str, Field(max_length=64)] | None = None
    """The last ScalePlan whose Pods and resources were taken over into the three fields below."""
    retired: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """By type, the slots that are left out: the others keep their index, and so their order. One of which
    nothing is left may come back into use (`reconcilers/world/slots.py`)."""
    migrations: Annotated[dict[str, Moves], Field(max_length=6), BeforeValidator(_moves_by_type)] = Field(
        default_factory=dict
    )
    """By type, slots being replaced by others, which are to be up first."""
    resources: Annotated[dict[str, ResourceRequirements], Field(max_length=6)] = Field(default_factory=dict)
    """By type, what its Pods are to have instead of what their template says."""
    active_check: Name | None = None
    """The NodeCheck that workers of this job carry out now; no world is formed meanwhile."""
    suspected_at: datetime | None = None
    """When something last failed that smells of hardware, or steps began to take longer: checks passed before
    then count no more."""
    replicas: int | None = None
    """Worker Pods that exist, but for those that are to stand by, for the scale subresource."""
    selector: Annotated[str, Field(max_length=1_024)] | None = None
    """Selects the worker Pods, for the scale subresource."""
    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Worlds that broke because training processes failed in place, by exit class."""
    departed: Departed | None = None
    """What workers that are gone would have told of themselves."""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    last_failure: JobFailure | None = None
    failure_budget: FailureBudget | None = None
    goodput: Goodput | None = None
    usage: JobUsage | None = None
    history: Annotated[
        list[Episode],
        cut(MAX_EPISODES),
        Field(max_length=MAX_EPISODES, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = Field(default_factory=list)
    """The last stretches of the job's life, the current one at the end."""
    shards: Annotated[
        list[ShardSetStatus],
        Field(
            max_length=MAX_SHARD_SETS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)
    shards_done: Annotated[str, cut(MAX_SHARDS_DONE), Field(max_length=MAX_SHARDS_DONE)] | None = None
    """How many elements of each set are done, for `kubectl get`."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_generation(cls, data: Any) -> Any:
        """A large job's conditions do not repeat the generation, which is that of the status."""
        if not isinstance(data, dict) or not isinstance(data.get("conditions"), list):
            return data
        observed = {"observedGeneration": data.get("observedGeneration")}
        conditions = [observed | each if isinstance(each, dict) else each for each in data["conditions"]]
        return {**data, "conditions": conditions}


class ElasticJob(Model):
    """An elastic, self-healing training job."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                " && ".join(
                    f"(!has(self.spec.replicaSpecs.{type_}) || "
                    f"size(self.metadata.name) <= {LONGEST_NAME - len(type_)})"
                    for type_ in TRAINING_TYPES
                ),
                f"metadata.name is too long: with a replica type's name it may have {LONGEST_NAME} "
                "characters, so that the Pods' names stay within 63",
            ),
            cel(
                "!self.metadata.name.contains('.')",
                "metadata.name must not contain dots: Pods are named by it",
            ),
            cel(
                "!has(self.spec.replicaSpecs.ps) || self.spec.replicaSpecs.ps.replicas == 0 || "
                "self.metadata.name.matches('^[a-z]')",
                "metadata.name must begin with a letter beside parameter servers: a Service has it too",
            ),
        )
    )

    metadata: ObjectMeta
    spec: ElasticJobSpec
    status: ElasticJobStatus = Field(default_factory=ElasticJobStatus)

    def with_status(self, **update: Any) -> Self:
        """The job with these fields of its status."""
        return self.model_copy(update={"status": self.status.model_copy(update=update)})
