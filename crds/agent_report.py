"""`status.agent` of an ElasticWorker: the report of an agent about itself and its training processes.

Each model here has the fields that `crds/protocol.py` names for it, which the agent writes without pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from crds.model import Count, Index, Model, Ordinal, Seconds, Time, agreed, cel, rules
from crds.progress import RoundProgress
from crds.protocol import (
    MAX_FAILED_TEXT,
    MAX_FIGURE_NAME,
    MAX_FIGURES,
    MAX_FRAMES,
    MAX_INTEGER,
    MAX_LOCAL_PROBES,
    MAX_NUMBER,
    MAX_NUMBER_NAME,
    MAX_NUMBERS,
    MAX_PAIR_PROBES,
    MAX_POINTS,
    MAX_PROFILE_NOTE,
    MAX_PROFILE_TEXT,
    MAX_REQUEST,
    MAX_REST_TEXT,
    MAX_RESULT,
    MAX_ROUNDS,
    MAX_SENTENCE,
    MAX_SENTENCES,
    MAX_SHARD_REASON,
    MAX_SHARD_SETS,
    MAX_SHARD_TEXT,
    MAX_STACKS,
    MAX_TROUBLE,
    MAX_UNDONE_TEXT,
    AcceleratorsStatus,
    AgentState,
    AgentStatus,
    AskedStacksStatus,
    CheckpointTrouble,
    CheckpointTroubleStatus,
    CheckStatus,
    DepartureStatus,
    FailureCause,
    FailureStatus,
    MemoryStatus,
    NetworkStatus,
    PairProbeStatus,
    ProbeEnding,
    ProbeStatus,
    ProfileStatus,
    ProgressStatus,
    RankStackStatus,
    ResumedStatus,
    SeriesPointStatus,
    SeriesStatus,
    ShardsStatus,
    SlowStatus,
    Tier,
    UsageStatus,
)
from crds.shard_set_status import DefinedShardSet

Text = Annotated[str, Field(max_length=8_192)]

ATOMIC = {"x-kubernetes-list-type": "atomic"}

MAX_PROCESSES = 4_096
"""Training processes of one Pod."""

Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]


def _names(limit: int) -> dict[str, Any]:
    """Return the rule of a map whose names have `limit` characters at most."""
    return rules(cel(f"self.all(name, size(name) <= {limit})", f"a name may have {limit} characters at most"))


_UNDONE_LIMIT = rules(
    cel(
        f"self.map(set, has(set.undone) ? size(set.undone) : 0).sum() <= {MAX_UNDONE_TEXT}",
        f"what is undone may have {MAX_UNDONE_TEXT} characters at most in all sets together",
    )
)


@agreed(RankStackStatus)
class RankStack(Model):
    """The place of one training process when it was found hanging, or when `dlr job stacks` asked."""

    rank: Index
    """Global."""
    step: Count | None = None
    """The last step it reported."""
    in_collective: bool = False
    """Waiting for other ranks, so rather a victim of the hang than its cause."""
    offered: bool = True
    """Whether the process offers its stack, which takes a call of `dlr.report`."""
    frames: Annotated[str, Field(max_length=MAX_FRAMES)] = ""
    """The main thread's Python frames, the innermost first, one a line."""


@agreed(FailureStatus)
class AgentFailure(Model):
    """The last failure of the agent's training processes; it stays until the next."""

    sequence: Ordinal
    """1, 2, … within the incarnation, so that none is counted twice or missed."""
    round: Count
    rank: Index | None = None
    """The failed process's global rank."""
    local_rank: Index = 0
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 32)] | None = None
    """Exit code as torch gives it: negative for a signal; unset for a process that has not ended. If `cause`
    is unset too, the process is well: this answers the question where it hangs."""
    signal: Annotated[str, Field(max_length=32)] | None = None
    cause: FailureCause | None = None
    """Cause, where exit code and text do not say it."""
    step: Count | None = None
    """The last step that the failed process reported in this round."""
    stacks: Annotated[list[RankStack], Field(max_length=MAX_STACKS, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """Places of the worker's processes in a hang."""
    message: Text = ""
    """The exception with the end of its traceback, from torch's error file."""
    log_tail: Text = ""
    time: Time
    """Time by the node's clock, for people: it is compared with no other machine's."""
    after_seconds: Seconds | None = None
    """Time from the start of the round's processes, which all agents start together, to the failure."""


@agreed(ProgressStatus)
class StepProgress(Model):
    """The last training step reported, and when."""

    step: Count
    time: Time
    checkpoint_step: Count | None = None
    """The step of the last checkpoint that the script reported (`dlr.checkpoint_saved`)."""
    seconds_per_step: Seconds | None = None
    """Lately."""


@agreed(SeriesPointStatus)
class SeriesPoint(Model):
    """A few steps of the job's past."""

    step: Count
    """The last of them."""
    time: Time
    world_size: Count
    seconds_per_step: Seconds
    """Their median."""
    numbers: Annotated[
        dict[str, Number], Field(max_length=MAX_NUMBERS, json_schema_extra=_names(MAX_NUMBER_NAME))
    ] = Field(default_factory=dict)
    """Numbers of `dlr.report`, by name: the mean since the point before."""


@agreed(SeriesStatus)
class Series(Model):
    """The job's past by rank 0's agent, thinned evenly as it grows."""

    every: Ordinal = 1
    """Windows of five looks that a point stands for."""
    points: Annotated[list[SeriesPoint], Field(max_length=MAX_POINTS, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """The oldest first."""
    latest: SeriesPoint | None = None
    """The newest window."""


@agreed(SlowStatus)
class Slow(Model):
    """Steps take longer than they did, as rank 0's agent noticed."""

    since: Time
    step: Count
    """The first that took longer."""
    seconds_per_step: Seconds
    """When it was noticed."""
    usual_seconds: Seconds
    """Seconds of a step before that."""


@agreed(UsageStatus)
class Usage(Model):
    """What the worker's Pod uses, lately."""

    cpu_cores: Annotated[float, Field(ge=0, le=MAX_INTEGER)]
    memory_bytes: Count
    gpu_utilization: Annotated[float, Field(ge=0, le=1)] | None = None
    """Mean over its GPUs, 0 to 1."""
    gpu_memory_bytes: Count | None = None
    """GPU memory in use, over all of its GPUs."""
    memory_peak_bytes: Count | None = None
    """The most since its agent has started, of readings every few seconds."""
    cpu_mean_cores: Annotated[float, Field(ge=0, le=MAX_INTEGER)] | None = None
    """Mean number of CPU cores used since the agent started."""
    gpu_mean_utilization: Annotated[float, Field(ge=0, le=1)] | None = None
    """Mean over its GPUs since the agent started, 0 to 1."""


@agreed(NetworkStatus)
class Network(Model):
    """The interface on which the others of its world reach the agent."""

    interface: Annotated[str, Field(max_length=64)]
    address: Annotated[str, Field(max_length=64)]


@agreed(ResumedStatus)
class Resumed(Model):
    """The checkpoint that all processes of a round have loaded."""

    round: Count
    step: Count | None = None
    """The step; unset where the checkpoint in storage does not give it."""
    tier: Tier


@agreed(MemoryStatus)
class CheckpointMemory(Model):
    """The worker's checkpoints in memory, where the job keeps any."""

    step: Count | None = None
    """The newest of its processes'."""
    replicated_step: Count | None = None
    """The newest that another Pod holds too."""
    every: Ordinal | None = None
    """Steps between two saves, as the script or `every="auto"` has it."""
    resumed: Resumed | None = None


@agreed(CheckpointTroubleStatus)
class AgentCheckpointTrouble(Model):
    """Failures with checkpoints, of the first process that reports any."""

    reason: CheckpointTrouble
    message: Annotated[str, Field(max_length=MAX_TROUBLE)]


@agreed(AcceleratorsStatus)
class Accelerators(Model):
    """What this worker computes on."""

    kind: Annotated[str, Field(max_length=32)]
    count: Count
    model: Annotated[str, Field(max_length=256)] = ""


Sentences = Annotated[
    list[Annotated[str, Field(max_length=MAX_SENTENCE)]],
    Field(max_length=MAX_SENTENCES, json_schema_extra=ATOMIC),
]


@agreed(ProbeStatus)
class ProbeOutcome(Model):
    """The result of one probe; what is to blame is judged later."""

    probe: Annotated[str, Field(max_length=64)]
    ending: ProbeEnding
    reason: Annotated[str, Field(max_length=MAX_SENTENCE)] = ""
    figures: Annotated[
        dict[str, Number], Field(max_length=MAX_FIGURES, json_schema_extra=_names(MAX_FIGURE_NAME))
    ] = Field(default_factory=dict)
    faults: Sentences = Field(default_factory=list)
    notes: Sentences = Field(default_factory=list)
    seconds: Seconds = 0.0


@agreed(PairProbeStatus)
class PairOutcome(ProbeOutcome):
    """How the test with others went in one round."""

    round: Ordinal


@agreed(CheckStatus)
class AgentCheck(Model):
    """What the agent found out for one NodeCheck, the last that it took part in."""

    uid: Annotated[str, Field(max_length=64)]
    """The NodeCheck's."""
    local: Annotated[
        list[ProbeOutcome],
        Field(max_length=MAX_LOCAL_PROBES, json_schema_extra=ATOMIC),
    ] = Field(default_factory=list)
    """The node's own tests, when all of them have ended."""
    pairs: Annotated[
        list[PairOutcome],
        Field(max_length=MAX_PAIR_PROBES, json_schema_extra=ATOMIC),
    ] = Field(default_factory=list)
    """The tests with others, one a round that it took part in."""


@agreed(DepartureStatus)
class Departure(Model):
    """All training processes of a round left after the same step, by vote of their agents."""

    round: Count
    step: Count
    """It is saved."""


@agreed(AskedStacksStatus)
class AskedStacks(Model):
    """Places of the worker's processes when `dlr job stacks` asked."""

    request: Annotated[str, Field(max_length=MAX_REQUEST)]
    """What asked: the job's annotation elastic.iml.github.io/stacks."""
    time: Time
    """When they were taken."""
    stacks: Annotated[list[RankStack], Field(max_length=MAX_STACKS, json_schema_extra=ATOMIC)]


@agreed(ProfileStatus)
class Profile(Model):
    """What one of the worker's processes did for some seconds (`dlr job profile`)."""

    request: Annotated[str, Field(max_length=MAX_REQUEST)]
    """What asked: the job's annotation elastic.iml.github.io/profile."""
    by: Annotated[str, Field(max_length=32)] = ""
    seconds: Seconds = 0.0
    data: Annotated[str, Field(max_length=MAX_PROFILE_TEXT)] = ""
    """Chrome's trace format, compressed by gzip, in base64; empty if there is none."""
    note: Annotated[str, Field(max_length=MAX_PROFILE_NOTE)] = ""
    """Why there is none, or why it is shorter than was asked for."""


@agreed(ShardsStatus)
class ShardsReport(DefinedShardSet):
    """A shard set that the worker's processes pull from (docs/shards.md), and what became of its lease."""

    lease: Count = 0
    """The number of the lease that the other fields are about; 0 without one."""
    rest: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """What of it is neither done nor failed."""
    failed: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """What of it has failed here."""
    reason: Annotated[str, Field(max_length=MAX_SHARD_REASON)] = ""
    """Why the first of these failed."""
    wants: bool = False
    """It could do with more elements."""
    leaves: bool = False
    """Nobody works on the lease any more: the rest is for others."""
    restoration: Count = 0
    """The number of the restoration that its processes ask for; 0 if the set is as they want it."""
    undone: Annotated[str, Field(max_length=MAX_SHARD_TEXT)] = ""
    """Elements left to do after it. All others count as done."""


@agreed(AgentStatus)
class AgentReport(Model):
    """`status.agent`, written by the agent alone; stale unless incarnation and podUid are current."""

    protocol: Ordinal = 1
    """The form of a world that the agent reads."""
    incarnation: Ordinal
    pod_uid: Annotated[str, Field(max_length=64)]
    address: Annotated[str, Field(max_length=253)]
    store_port: Annotated[int, Field(ge=0, le=65_535)]
    """The agent's port, where a world meets whose rank 0 it is; 0 where `dlr exec` needs none."""
    local_world_size: Annotated[int, Field(ge=1, le=MAX_PROCESSES)]
    observed_round: Count = 0
    """The highest round acted upon."""
    state: AgentState
    since: Time
    failure: AgentFailure | None = None
    progress: StepProgress | None = None
    rounds: Annotated[
        list[RoundProgress],
        Field(max_length=MAX_ROUNDS, json_schema_extra=ATOMIC),
    ] = Field(default_factory=list)
    """The last rounds of this incarnation in which steps were reported, the oldest first."""
    series: Series | None = None
    slow: Slow | None = None
    """Unset while training is as fast as it was."""
    usage: Usage | None = None
    network: Network | None = None
    """The network interface in use, if the job has `elasticPolicy.networkInterfaces`."""
    memory: CheckpointMemory | None = None
    checkpoint_trouble: AgentCheckpointTrouble | None = None
    """Unset where checkpoints work, or none was due yet."""
    accelerators: Accelerators | None = None
    check: AgentCheck | None = None
    departure: Departure | None = None
    """The last one of this agent's processes."""
    result: Annotated[str, Field(max_length=MAX_RESULT)] | None = None
    """What rank 0 has left with `dlr.report_result`, as JSON: `{"value": …}` or `{"error": …}`."""
    asked_stacks: AskedStacks | None = None
    """Stacks that were asked for, for about a minute."""
    profile: Profile | None = None
    """Likewise."""
    shards: (
        Annotated[
            list[ShardsReport], Field(max_length=MAX_SHARD_SETS, json_schema_extra=ATOMIC | _UNDONE_LIMIT)
        ]
        | None
    ) = None
    """The sets that its processes pull from; unset if they pull from none."""
