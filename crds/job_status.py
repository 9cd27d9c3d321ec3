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
    """Something that is wrong with a job, or odd. It is in the status for as long as it is so."""

    type: Annotated[str, Field(max_length=64)]
    """What is wrong, in one word, such as `CheckpointsFailing`."""
    reason: Annotated[str, cut(64), Field(max_length=64)] | None = None
    """The cause in one word, of types that have several, such as `StorageFails`."""
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)]
    since: datetime
    """When it began."""
    data: ConditionData | None = None
    """Facts that the message puts in words."""


class ProfileOutcome(StrEnum):
    TAKEN = "Taken"
    NO_HISTORY = "NoHistory"
    OVERRULED = "Overruled"
    """The job says itself all that the profile could."""
    REFUSED = "Refused"


class ProfileUse(Model):
    """What became of the profile of finished jobs when a job of optimizeMode cluster began."""

    outcome: ProfileOutcome
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)]


class GrowthStatus(Model):
    """Record of tries to grow into free room, for a job with elasticPolicy.opportunistic."""

    base: Annotated[int, Field(ge=0)]
    """The count that was asked for, when this was written."""
    replicas: Annotated[int, Field(ge=0)]
    """The count that growth has asked for last, or found."""
    asked_at: datetime | None = None
    """When somebody else last set the count."""
    grown_from: Annotated[int, Field(ge=0)] | None = None
    """The size before the growth that is under way, or whose gain is not measured yet."""
    unpaid_from: Annotated[int, Field(ge=0)] | None = None
    """The size before a growth that was worth its workers, and has not yet paid for its restart."""
    ceiling: Annotated[int, Field(ge=0)] | None = None
    """The most workers before `not_before`."""
    not_before: datetime | None = None
    """The next probe, at the earliest."""
    reason: Annotated[str, cut(MAX_WHY_NOT_MORE), Field(max_length=MAX_WHY_NOT_MORE)] = ""
    """The reason why the last probe gave no more workers, or these were given back."""
    in_vain: Annotated[int, Field(ge=0)] = 0
    """Growths in a row that ended before they had paid for their restart."""


class QueueAdmission(Model):
    """What a queue beside the job grants it."""

    queue: Annotated[str, Field(max_length=253)]
    workload: Annotated[str, Field(max_length=253)] = ""
    """Name of the queue's object that what is granted is charged to."""
    workers: Annotated[int, Field(ge=0)]
    """The most Pods of workers, standby included; none while the job waits, or has to stop."""
    reason: Annotated[str, cut(128), Field(max_length=128)] = ""
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)] = ""
    """The queue's own words where it grants less than the job wants, or will grant no more."""
    fixed: bool = False
    """Whether the queue will grant no more than this, however long the job waits."""


class Scaling(Model):
    """The count of workers that is wanted, and whose intent it was."""

    replicas: int
    by: Annotated[str, Field(max_length=300)]
    """`spec`, `the scale subresource`, `ScalePlan <name>`, or the part of dlr that asked."""
    at: datetime
    base: Annotated[int, Field(ge=0)] | None = None
    """How many of these are needed, if not all. Workers beyond it are extra: no world waits for them."""


MAX_WORLD_SIZES = 8


class WorldSize(Model):
    """What worlds of one size gave, over all their rounds that have ended."""

    workers: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=0)]
    """Timed: those after the first of each round."""
    seconds: Annotated[float, Field(ge=0)]
    samples_per_step: Annotated[int, Field(ge=1)] | None = None
    """Samples per step of the whole world, if the script reports them."""


class JobUsage(Model):
    """Memory that the job used, and what each world size gave: all that is left of it for the next job."""

    round: Annotated[int, Field(ge=0)] = 0
    """The last that is counted in."""
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
    """Slots being replaced by others: the first of `targets` takes the place of the first of `sources`, …"""

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
    """Running too, but not counted as active: they are ready, beside the world."""


class JobFailure(Model):
    """The failure to look at first."""

    worker: Name
    rank: Index | None = None
    exit_class: Annotated[str, Field(max_length=64)]
    exit_code: int | None = None
    message: Annotated[str, cut(MAX_FAILURE), Field(max_length=MAX_FAILURE)] = ""
    """The beginning of the error; its ElasticWorker has more of it, and the end of its log."""
    round: Annotated[int, Field(ge=0)] | None = None
    """The round that broke by it."""
    step: Annotated[int, Field(ge=0)] | None = None
    """The last step that the failed process reported."""
    after_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time from the start of the round's processes to the failure, as its agent measured it."""
    time: datetime
    """When the controller recorded it."""
    domain: Annotated[str, Field(max_length=63)] | None = None
    """Domain whose switch is to blame: most of its workers failed alike (`elasticPolicy.domain`)."""
    unanswered: bool | None = None
    """The training hung, and this worker did not answer where its processes are."""


class FailureBudget(Model):
    """What failures have spent since training last got further than ever before."""

    step: Annotated[int, Field(ge=0)] | None = None
    """The highest step that was reached when it last failed."""
    spent: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures in place since then, by exit class."""
    start_unknown: bool | None = None
    """Training made steps from an unknown one before one of these failures: it may have got further."""
    exit_class: Annotated[str, Field(max_length=64)] = ""
    """Exit class of the last failure."""
    ignored: bool | None = None
    """A rule of failurePolicy ignores the last failure."""
    signature: Annotated[str, cut(MAX_SIGNATURE), Field(max_length=MAX_SIGNATURE)] = ""
    """What the last failure was, without what differs from one time to the next."""
    alike: Annotated[int, Field(ge=0)] = 0
    """How many times in a row it was that one."""
    consequences: Annotated[int, Field(ge=0)] = 0
    """Failures in a row that only followed from a peer's, of which none was found; they spend nothing."""
    held_until: datetime | None = None
    """No world is formed before, so that quick failures do not follow each other at once."""


class JobState(StrEnum):
    """What a job's time goes to (docs/metrics.md)."""

    PENDING = "Pending"
    """Before the first world: Pods are made, scheduled, started."""
    CHECKING = "Checking"
    """Its nodes are being tested."""
    FORMING = "Forming"
    """A world is formed that did not follow a failure, and has not trained its first step."""
    TRAINING = "Training"
    RECOVERING = "Recovering"
    """The time from a failure to the first step after it."""
    REFORMING = "Reforming"
    """The same, where training processes lived on into the round after the failure."""
    SUSPENDED = "Suspended"
    DOWN = "Down"
    """Too few workers for a world, and none on the way."""


class Departed(Model):
    """Workers of slots that the job does not want any more."""

    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Pods of these workers that had ended and were replaced, by exit class."""
    failures: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures of workers or replica groups that are gone, by exit class."""
    leaving: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """Slots of workers that are counted already and have not ended yet, by type."""


class Goodput(Model):
    """The job's time by state, and what its steps came to. Exact at `since` of the state."""

    state: JobState
    since: datetime
    seconds: Annotated[dict[str, float], Field(max_length=8)] = Field(default_factory=dict)
    """Seconds in earlier states, by name; the current state's time comes on top."""
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
    """A stretch of the job's life in one state and one world, for its timeline."""

    state: JobState
    since: datetime
    round: Annotated[int, Field(ge=0)] = 0
    """Round of the world; of a job with replica groups, the version."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Number of workers in the world; unset before the first and of replica groups."""
    members: Annotated[str, cut(MAX_EPISODE_MEMBERS), Field(max_length=MAX_EPISODE_MEMBERS)] = ""
    """The world's members, or the version's groups, as ranges such as `0-3,6`; cut where there are many."""
    reason: Annotated[str, cut(MAX_EPISODE_REASON), Field(max_length=MAX_EPISODE_REASON)] = ""
    """Why it began."""
    failure: EpisodeFailure | None = None
    """The failure that the job recovers from."""
    lived_on: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    """Training processes that lived on into the round from the one before; unset without any."""
    processes: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    """Training processes of the round, where some lived on into it."""


class ElasticJobStatus(Model):
    """What is, and the world that the agents converge to. Written by the controller."""

    observed_generation: int | None = None
    phase: JobPhase | None = None
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why the job does not train, in one word: the reason of a warning or condition."""
    message: Annotated[str, cut(MAX_MESSAGE), Field(max_length=MAX_MESSAGE)] = ""
    """The same in a sentence; what the world waits for, where nothing else keeps it from training."""
    conditions: Conditions = Field(default_factory=list)
    warnings: Annotated[
        list[JobWarning],
        Field(
            max_length=MAX_WARNINGS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = Field(default_factory=list)
    """What is wrong with the job or odd about it now, one entry of a type (docs/events.md)."""
    profile: ProfileUse | None = None
    """What the job took from finished jobs when it began (optimizeMode cluster)."""
    replica_statuses: Annotated[dict[str, ReplicaStatus], Field(max_length=6)] = Field(default_factory=dict)
    rendezvous: Rendezvous | None = None
    cluster: ClusterStatus | None = None
    """The tasks of a job with parameter servers, which has no rendezvous."""
    scaling: Scaling | None = None
    admission: QueueAdmission | None = None
    """Limit of the job's Pods, where it waits in a queue (`reconcilers/kueue`)."""
    growth: GrowthStatus | None = None
    scale_request: Annotated[str, Field(max_length=64)] | None = None
    """Id of the last scale request that was merged into the three fields below; of a ScalePlan, its uid."""
    retired: Annotated[dict[str, Indices], Field(max_length=6)] = Field(default_factory=dict)
    """Slots that are left out, by type: the others keep their index, and so their order. A slot of which
    nothing is left may come back into use (`reconcilers/observed/slots.py`)."""
    migrations: Annotated[dict[str, Moves], Field(max_length=6)] = Field(default_factory=dict)
    """Slots that others replace, which run first, by type."""
    resources: Annotated[dict[str, ResourceRequirements], Field(max_length=6)] = Field(default_factory=dict)
    """Resources of a type's Pods that differ from the template's, by type."""
    active_check: Name | None = None
    """The NodeCheck that workers of this job carry out now; no world is formed meanwhile."""
    suspected_at: datetime | None = None
    """When something last failed that smells of hardware, or steps began to take longer: checks passed before
    then count no more."""
    membership: Membership | None = None
    """The groups that train together, where the job has replica groups."""
    groups: Annotated[list[GroupStatus], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """All of them."""
    replica_group: ReplicaGroupStatus | None = None
    """How far this job is as a replica group of another."""
    replicas: int | None = None
    """Worker Pods that exist, standby Pods excepted, for the scale subresource."""
    selector: Annotated[str, Field(max_length=1_024)] | None = None
    """Selects the worker Pods, for the scale subresource."""
    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Worlds that broke because training processes failed in place, by exit class."""
    failures: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """All failures of processes and Pods since submission, each once, by exit class; no planned stops."""
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
    """The last stretches of the job's life, the current one at the end."""

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.phase is not None and self.phase.finished

    @property
    def world(self) -> Rendezvous:
        """The published world; an empty one before the first."""
        return self.rendezvous or Rendezvous()
