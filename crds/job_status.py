"""The status of an ElasticJob. Everything in it is bounded."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from crds.agent_report import RoundProgress
from crds.cluster_status import ClusterStatus
from crds.grouping import MAX_GROUPS
from crds.model import (
    MAX_CONDITION_MESSAGE,
    ConditionData,
    Conditions,
    Index,
    Indices,
    Model,
    Name,
    ResourceRequirements,
    cut,
)
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from crds.replica_groups import BY_INDEX, GroupStatus, Membership, ReplicaGroupStatus
from crds.wire import MAX_INTEGER

# An ElasticJob of 10,000 workers has 32 KB at most (tests/crds/test_size.py); ElasticWorkers have more text.
MAX_MESSAGE = 256
MAX_FAILURE = 512
MAX_SIGNATURE = 96
MAX_EPISODES = 12
MAX_EPISODE_MEMBERS = 48
MAX_EPISODE_REASON = 128
MAX_WHY_NOT_MORE = 256
MAX_WARNINGS = 24


class JobWarning(Model):
    """Problem of a job. It is in the status for as long as it lasts."""

    type: Annotated[str, Field(max_length=64)]
    """Kind of problem, in one word, such as `CheckpointsFailing`."""
    reason: Annotated[str, cut(64), Field(max_length=64)] | None = None
    """Cause in one word, for types with several causes, such as `StorageFails`."""
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)]
    since: datetime
    """When it began."""
    data: ConditionData | None = None
    """Facts behind the message."""


class ProfileOutcome(StrEnum):
    TAKEN = "Taken"
    NO_HISTORY = "NoHistory"
    OVERRULED = "Overruled"
    """The job itself sets everything that the profile could."""
    REFUSED = "Refused"


class ProfileUse(Model):
    """Use of the profile of finished jobs at the start of a job with optimizeMode cluster."""

    outcome: ProfileOutcome
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)]


class GrowthStatus(Model):
    """Record of attempts to grow into free capacity, for a job with elasticPolicy.opportunistic."""

    base: Annotated[int, Field(ge=0)]
    """Requested count when this was written."""
    replicas: Annotated[int, Field(ge=0)]
    """Count that growth last requested or found."""
    asked_at: datetime | None = None
    """Time when the count was last set by other means."""
    grown_from: Annotated[int, Field(ge=0)] | None = None
    """Size before the growth that is under way or not measured yet."""
    unpaid_from: Annotated[int, Field(ge=0)] | None = None
    """Size before a worthwhile growth that has not yet made up for its restart."""
    ceiling: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of workers until `notBefore`."""
    not_before: datetime | None = None
    """Earliest time of the next probe."""
    reason: Annotated[str, cut(MAX_WHY_NOT_MORE), Field(max_length=MAX_WHY_NOT_MORE)] = ""
    """Why the last probe brought no workers, or why they were given back."""
    in_vain: Annotated[int, Field(ge=0)] = 0
    """Consecutive growths that ended before they made up for their restart."""


class QueueAdmission(Model):
    """Pods that an external queue grants the job."""

    queue: Annotated[str, Field(max_length=253)]
    workload: Annotated[str, Field(max_length=253)] = ""
    """Name of the queue's object to which the Pods are charged."""
    workers: Annotated[int, Field(ge=0)]
    """Maximum number of worker Pods, standby included; 0 while the job waits or has to stop."""
    reason: Annotated[str, cut(128), Field(max_length=128)] = ""
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)] = ""
    """The queue's message if it grants less than the job wants, or will grant no more."""
    fixed: bool = False
    """Whether the queue will grant no more than this, however long the job waits."""


class Scaling(Model):
    """Desired number of workers, and who requested it."""

    replicas: int
    by: Annotated[str, Field(max_length=300)]
    """Requester: `spec`, `the scale subresource`, `ScalePlan <name>`, or a part of dlr."""
    at: datetime
    base: Annotated[int, Field(ge=0)] | None = None
    """Number of required workers, if not all are. Worlds do not wait for the extra ones."""


MAX_WORLD_SIZES = 8


class WorldSize(Model):
    """Throughput of worlds of one size, over all rounds that have ended."""

    workers: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=0)]
    """Timed steps: all but the first of each round."""
    seconds: Annotated[float, Field(ge=0)]
    samples_per_step: Annotated[int, Field(ge=1)] | None = None
    """Samples per step of the whole world, if the script reports them."""


class JobUsage(Model):
    """Memory used by the job, and throughput by world size: its profile for the next job."""

    round: Annotated[int, Field(ge=0)] = 0
    """Last round that is included."""
    worlds: Annotated[
        list[WorldSize],
        Field(
            max_length=MAX_WORLD_SIZES,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["workers"]},
        ),
    ] = Field(default_factory=list)
    memory_peak_bytes: Annotated[dict[str, Annotated[int, Field(ge=1)]], Field(max_length=6)] = Field(
        default_factory=dict
    )
    """Memory peak of the Pod that used most, by replica type."""


class Moves(Model):
    """Slots being replaced: the first of `targets` replaces the first of `sources`, and so on."""

    sources: Indices = Field(default_factory=list)
    targets: Indices = Field(default_factory=list)


class ReplicaStatus(Model):
    """Pods of one type, counted by phase."""

    desired: int = 0
    pending: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    standby: int = 0
    """Running Pods that stand by outside the world; they do not count as active."""


class JobFailure(Model):
    """The failure to look at first."""

    worker: Name
    rank: Index | None = None
    exit_class: Annotated[str, Field(max_length=64)]
    exit_code: int | None = None
    message: Annotated[str, cut(MAX_FAILURE), Field(max_length=MAX_FAILURE)] = ""
    """Beginning of the error. The ElasticWorker has more of it, and the end of the log."""
    round: Annotated[int, Field(ge=0)] | None = None
    """Round that it broke."""
    step: Annotated[int, Field(ge=0)] | None = None
    """The last step that the failed process reported."""
    after_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time from the start of the round's processes to the failure, as its agent measured it."""
    time: datetime
    """When the controller recorded it."""
    domain: Annotated[str, Field(max_length=63)] | None = None
    """Domain whose switch is to blame: most of its workers failed alike (`elasticPolicy.domain`)."""
    unanswered: bool | None = None
    """Whether the training hung and this worker did not report where its processes are."""


class FailureBudget(Model):
    """Failures since training last exceeded its highest step."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Highest step that was reached at the last failure."""
    spent: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures in place since then, by exit class."""
    start_unknown: bool | None = None
    """Whether training began at an unknown step before one of these failures, and so may have exceeded it."""
    exit_class: Annotated[str, Field(max_length=64)] = ""
    """Exit class of the last failure."""
    ignored: bool | None = None
    """Whether a rule of failurePolicy ignores the last failure."""
    signature: Annotated[str, cut(MAX_SIGNATURE), Field(max_length=MAX_SIGNATURE)] = ""
    """Text of the last failure, without the parts that vary from one time to the next."""
    alike: Annotated[int, Field(ge=0)] = 0
    """Number of consecutive failures with this signature."""
    consequences: Annotated[int, Field(ge=0)] = 0
    """Consecutive failures that followed from a peer's failure which was not found; they do not count as
    spent."""
    held_until: datetime | None = None
    """Time before which no world is formed, to space out quick failures."""


class JobState(StrEnum):
    """State of a job to which its time is attributed (docs/metrics.md)."""

    PENDING = "Pending"
    """Before the first world: Pods are created, scheduled and started."""
    CHECKING = "Checking"
    """Its nodes are being tested."""
    FORMING = "Forming"
    """A world is formed, but not after a failure, and has not trained its first step."""
    TRAINING = "Training"
    RECOVERING = "Recovering"
    """Between a failure and the first step after it."""
    REFORMING = "Reforming"
    """The same, if training processes survived into the round after the failure."""
    SUSPENDED = "Suspended"
    DOWN = "Down"
    """There are too few workers for a world, and no more are coming."""


class Departed(Model):
    """Counts of workers whose slots the job no longer has."""

    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Pods of these workers that ended and were replaced, by exit class."""
    failures: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures of workers or replica groups that are gone, by exit class."""
    leaving: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """Slots of workers that are already counted and have not ended yet, by type."""


class Goodput(Model):
    """Time of the job by state, and its steps. Exact as of `since`."""

    state: JobState
    since: datetime
    seconds: Annotated[dict[str, float], Field(max_length=8)] = Field(default_factory=dict)
    """Seconds in earlier states, by name; the current state's time comes on top."""
    first_step: Annotated[int, Field(ge=0)] | None = None
    """The first step that this job trained."""
    last_step: Annotated[int, Field(ge=0)] | None = None
    """Highest step trained; the steps between are kept."""
    steps_redone: Annotated[int, Field(ge=0)] = 0
    """Steps that were trained again by a later round."""
    steps_timed: Annotated[int, Field(ge=0)] = 0
    """Steps between the first and the last of each round."""
    stepping_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Duration of the timed steps, in seconds."""
    round: Annotated[int, Field(ge=0)] = 0
    """Last round that is included."""
    latest: RoundProgress | None = None
    """Included figures of that round, which may still rise."""
    ratio: Annotated[float, Field(ge=0)] | None = None
    """Kept steps × seconds per step / time since submission, when this was written."""


class EpisodeFailure(Model):
    """A failure from which the job recovers in an episode."""

    worker: Name
    """Name of the ElasticWorker that failed first."""
    exit_class: Annotated[str, Field(max_length=64)]
    round: Annotated[int, Field(ge=0)] | None = None
    """Round that broke because training processes failed in it; unset where a Pod ended."""
    message: Annotated[str, cut(MAX_EPISODE_REASON), Field(max_length=MAX_EPISODE_REASON)] = ""
    """Beginning of the failure's message."""
    time: datetime
    """When the controller recorded it."""


class Episode(Model):
    """Period of a job in one state and one world, for its timeline."""

    state: JobState
    since: datetime
    round: Annotated[int, Field(ge=0)] = 0
    """Round of the world; of a job with replica groups, the version."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Number of workers in the world; unset before the first world and for replica groups."""
    members: Annotated[str, cut(MAX_EPISODE_MEMBERS), Field(max_length=MAX_EPISODE_MEMBERS)] = ""
    """The world's members, or the version's groups, as ranges such as `0-3,6`; cut where there are many."""
    reason: Annotated[str, cut(MAX_EPISODE_REASON), Field(max_length=MAX_EPISODE_REASON)] = ""
    """Why it began."""
    failure: EpisodeFailure | None = None
    """The failure that the job recovers from."""
    lived_on: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    """Training processes that survived into the round from the previous one; unset if none did."""
    processes: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    """Training processes of the round, if some survived into it."""


class ElasticJobStatus(Model):
    """Observed state of the job, and the world that its agents converge to. Written by the controller."""

    observed_generation: int | None = None
    phase: JobPhase | None = None
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why the job does not train, in one word: the reason of a warning or condition."""
    message: Annotated[str, cut(MAX_MESSAGE), Field(max_length=MAX_MESSAGE)] = ""
    """The same in a sentence, or what the world waits for if nothing else keeps it from training."""
    conditions: Conditions = Field(default_factory=list)
    warnings: Annotated[
        list[JobWarning],
        Field(
            max_length=MAX_WARNINGS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = Field(default_factory=list)
    """Current problems of the job, one entry per type (docs/events.md)."""
    profile: ProfileUse | None = None
    """Values that the job took from finished jobs at its start (optimizeMode cluster)."""
    replica_statuses: Annotated[dict[str, ReplicaStatus], Field(max_length=6)] = Field(default_factory=dict)
    rendezvous: Rendezvous | None = None
    cluster: ClusterStatus | None = None
    """The tasks of a job with parameter servers, which has no rendezvous."""
    scaling: Scaling | None = None
    admission: QueueAdmission | None = None
    """Limit of the job's Pods, if a queue admits them (`reconcilers/kueue`)."""
    growth: GrowthStatus | None = None
    scale_request: Annotated[str, Field(max_length=64)] | None = None
    """Id of the last scale request merged into `retired`, `migrations` and `resources`; of a ScalePlan, its
    uid."""
    retired: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """Slots that are not in use, by type; the others keep their index and their order. A slot may be used
    again once nothing of it is left (`reconcilers/observed/slots.py`)."""
    migrations: Annotated[dict[str, Moves], Field(max_length=6)] = Field(default_factory=dict)
    """Slots being replaced, by type; the replacements run first."""
    resources: Annotated[dict[str, ResourceRequirements], Field(max_length=6)] = Field(default_factory=dict)
    """Resources of a type's Pods that differ from the template's, by type."""
    active_check: Name | None = None
    """The NodeCheck that workers of this job carry out now; no world is formed meanwhile."""
    suspected_at: datetime | None = None
    """Time of the last failure that may be due to hardware, or when steps became slower. Checks that passed
    earlier no longer count."""
    membership: Membership | None = None
    """Groups that train together, if the job has replica groups."""
    groups: Annotated[list[GroupStatus], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """All replica groups."""
    replica_group: ReplicaGroupStatus | None = None
    """Progress of this job as a replica group of another."""
    replicas: int | None = None
    """Worker Pods that exist, standby Pods excepted, for the scale subresource."""
    selector: Annotated[str, Field(max_length=1_024)] | None = None
    """Selects the worker Pods, for the scale subresource."""
    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Worlds that broke because training processes failed in place, by exit class."""
    failures: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures of processes and Pods since submission, each counted once, by exit class; planned stops do not
    count."""
    departed: Departed | None = None
    """Counts of workers that are gone."""
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
    """The last periods of the job, the current one at the end."""

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.phase is not None and self.phase.finished

    @property
    def world(self) -> Rendezvous:
        """The published world; an empty one before the first."""
        return self.rendezvous or Rendezvous()
