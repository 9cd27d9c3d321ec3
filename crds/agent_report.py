"""`status.agent` of an ElasticWorker: the report of an agent about itself and its training processes.

Agent, controller and CRD have it from here. The agent has no pydantic: see `crds.wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from crds.actions import Action
from crds.checkpoint_files import MAX_TROUBLE, CheckpointTrouble, Tier
from crds.grouping import MAX_GROUPS
from crds.progress_record import MAX_NUMBER_NAME, MAX_NUMBERS, MAX_RESULT
from crds.ranges import MAX_INDEX
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_SETS, MAX_SHARD_TEXT, SetDefinition
from crds.wire import MAX_INTEGER, MAX_NUMBER, MAX_SECONDS, Limits, OnWire, WireWord, is_in_this_age

CHECKPOINT_SECONDS = 10.0
"""Time between two reports for the sake of checkpoints that nobody awaits."""
LATER_POD = "a later Pod of this worker has reported"
"""Likewise for a report of an earlier incarnation."""
LATER_REPORT = "a later report of this worker is stored, or one of another Pod"
"""The API server's words for a report that comes too late, or before the status names its Pod."""
EARLIER_WORKER = "the worker has had no Pod of this incarnation: an earlier one of its name has"
"""Likewise for a report of an agent whose ElasticWorker is gone."""
PROTOCOL = 3
"""The form of a world that the agent reads. An agent with a lower one joins no world."""

MAX_PROCESSES = 4_096
"""Training processes of one Pod."""
MAX_REPORT_BYTES = 16_384
"""JSON of a report: a worker's status has twice as much at most. The agent shortens what people read."""
MAX_TEXT = 4_096
"""Characters of a failure's message, and of the end of its log."""
MAX_ROUNDS = 8
"""Entries of `rounds`: the number of rounds that the controller may miss."""
MAX_POINTS = 48
"""Entries of `series.points`."""
MAX_USAGE = 4
"""Entries of `series.points[].usage`."""
MAX_USAGE_NAME = 16
"""Characters of a name in it."""
MAX_STACKS = 16
"""Entries of `failure.stacks`."""
MAX_FRAMES = 1_024
"""Characters of the frames in one of them."""
MAX_REQUEST = 64
"""Characters of a request for stacks; a longer text is cut."""
MAX_LOCAL_PROBES = 8
"""Entries of `check.local`."""
MAX_PAIR_PROBES = 16
"""Entries of `check.pairs`."""
MAX_FIGURES = 16
"""Figures of one probe."""
MAX_FIGURE_NAME = 64
"""Characters of the name of a probe's figure."""
MAX_SENTENCES = 4
"""Faults, and notes, of one probe."""
MAX_SENTENCE = 512
"""Characters of one of them, and of a probe's reason."""
MAX_SHARDS_TEXT = 4_096
"""Characters of all elements that a report names, in all sets."""
MAX_UNDONE_TEXT = 3_072
"""Characters of those of them that restorations leave undone."""
MAX_SILENT_PEERS = 8
"""Entries of `silentPeers`."""
MAX_LATE_GROUPS = 100
"""Entries of `replicas.lateGroups`: of more groups that keep others waiting, the first are named."""

_ATOMIC = {"x-kubernetes-list-type": "atomic"}
_TIME = (
    r"^(19[7-9]\d|2\d{3})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"T([01]\d|2[0-3]):[0-5]\d:[0-5]\d([.]\d{1,9})?(Z|[+-](0\d|1[0-4]):[0-5]\d)$"
)


def _in_this_age(time: datetime) -> datetime:
    if not is_in_this_age(time):
        raise ValueError("must be a time between 1970 and 2999, with its zone")
    return time


def _list(limit: int) -> Limits:
    return Limits(max_length=limit, schema=_ATOMIC)


def _names(limit: int, characters: int) -> Limits:
    """Limits of a map, and of its names."""
    rule = {
        "rule": f"self.all(name, size(name) <= {characters})",
        "message": f"a name may have {characters} characters at most",
    }
    return Limits(max_length=limit, schema={"x-kubernetes-validations": [rule]})


Time = Annotated[datetime, Limits(check=_in_this_age, schema={"pattern": _TIME, "maxLength": 35})]
"""A time that a worker writes. Kubernetes' own check of the format lets `+99:99` and the year 0 pass."""
Count = Annotated[int, Limits(at_least=0, at_most=MAX_INTEGER)]
Ordinal = Annotated[int, Limits(at_least=1, at_most=MAX_INTEGER)]
Index = Annotated[int, Limits(at_least=0, at_most=MAX_INDEX)]
GroupIndex = Annotated[int, Limits(at_least=0, at_most=MAX_GROUPS - 1)]
Seconds = Annotated[float, Limits(at_least=0, at_most=MAX_SECONDS)]
Number = Annotated[float, Limits(at_least=-MAX_NUMBER, at_most=MAX_NUMBER)]
Cores = Annotated[float, Limits(at_least=0, at_most=MAX_INTEGER)]
Share = Annotated[float, Limits(at_least=0, at_most=1)]
Amount = Annotated[float, Limits(at_least=0, at_most=MAX_NUMBER)]
Text = Annotated[str, Limits(max_length=MAX_TEXT)]
Sentence = Annotated[str, Limits(max_length=MAX_SENTENCE)]
Sentences = Annotated[tuple[Sentence, ...], _list(MAX_SENTENCES)]
NumberName = Annotated[str, Limits(max_length=MAX_NUMBER_NAME)]
UsageName = Annotated[str, Limits(max_length=MAX_USAGE_NAME)]
FigureName = Annotated[str, Limits(max_length=MAX_FIGURE_NAME)]


class AgentState(WireWord):
    READY = "Ready"
    """Waits for a world newer than observedRound."""
    RUNNING = "Running"
    """Training processes of observedRound run."""
    FAILED = "Failed"
    """Training processes of observedRound failed; waits for a newer world."""
    SUCCEEDED = "Succeeded"
    """All training processes of observedRound ended well."""
    STOPPED = "Stopped"
    """The agent is leaving."""


class FailureCause(WireWord):
    """What the agent knows of a failure's cause beyond exit code and text."""

    OOM = "OOM"
    """The container's cgroup killed a process for its memory."""
    HANG = "Hang"
    """No step for too long: the agent ended the processes."""
    DEVICE = "Device"
    """The driver reported a device's fault (an Xid)."""
    TIMED_OUT = "TimedOut"
    """A collective waited for another process until its time was up."""
    KILLED_CHILD = "KilledChild"
    """SIGKILL ended a process that the failed one had started, such as a data loader's."""


class ProbeEnding(WireWord):
    """How a probe of a node check ended."""

    PASSED = "Passed"
    FAILED = "Failed"
    """It ended by itself and says what is wrong."""
    SKIPPED = "Skipped"
    """There is nothing here for it to test, and nothing is wrong with that."""
    UNAVAILABLE = "Unavailable"
    """It could not test what it was asked to; that says nothing about the hardware."""
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    """A signal ended it, or it ended without a report."""


@dataclass(frozen=True)
class RankStack(OnWire):
    """The place of one training process when it was found hanging, or when `dlr job stacks` asked."""

    rank: Index
    """Global rank."""
    step: Count | None = None
    """The last step it reported."""
    in_collective: bool = False
    """Waiting for other ranks, so rather a victim of the hang than its cause."""
    frames: Annotated[str, Limits(max_length=MAX_FRAMES)] = ""
    """The main thread's Python frames, the innermost first, one a line; or why there are none."""
    offered: bool = True
    """Whether the process offers its stack, which takes a call of `dlr.report`."""


@dataclass(frozen=True, kw_only=True)
class AgentFailure(OnWire):
    """The last failure of the agent's training processes; it stays until the next."""

    sequence: Ordinal
    """1, 2, … within the incarnation, so that none is counted twice or missed."""
    round: Count
    rank: Index | None = None
    """The failed process's global rank."""
    local_rank: Index = 0
    exit_code: Annotated[int, Limits(at_least=-(1 << 31), at_most=(1 << 32) - 1)] | None = None
    """Exit code as torch gives it: negative for a signal; unset for a process that has not ended. If `cause`
    is unset too, the process is well: this answers the question where it hangs."""
    signal: Annotated[str, Limits(max_length=32)] | None = None
    cause: FailureCause | None = None
    """Cause, where exit code and text do not say it."""
    step: Count | None = None
    """The last step that the failed process reported in this round."""
    stacks: Annotated[tuple[RankStack, ...], _list(MAX_STACKS)] = ()
    """Places of the worker's processes in a hang."""
    message: Text = ""
    """The exception with the end of its traceback, from torch's error file."""
    log_tail: Text = ""
    time: Time
    """Time by the node's clock, for people: it is compared with no other machine's."""
    after_seconds: Seconds | None = None
    """Time from the start of the round's processes, which all agents start together, to the failure; of a
    hang to the last sign of life."""


@dataclass(frozen=True)
class StepProgress(OnWire):
    """The last training step reported, and when."""

    step: Count
    time: Time
    checkpoint_step: Count | None = None
    """The step of the last checkpoint that the script reported (`dlr.checkpoint_saved`)."""
    seconds_per_step: Seconds | None = None
    """Lately."""
    checkpoint_time: Time | None = None
    """When the last checkpoint was reported."""


@dataclass(frozen=True)
class RoundProgress(OnWire):
    """What a worker's processes trained in one round: raw figures for the job's goodput."""

    round: Count
    first_step: Count
    """The first step that was reported."""
    last_step: Count
    """The highest step that was reported."""
    stepping_seconds: Seconds = 0.0
    """Between the reports of the one and the other, on the monotonic clock."""
    counted: bool | None = None
    """Set where the agent counted steps of optimizers, since the script reports none."""
    start_unknown: bool | None = None
    """Set where the step that the count began with is unknown: earlier starts may have come further."""
    samples_per_step: Ordinal | None = None
    """Samples per step of the world, if the script reports them (`dlr.report(step, samples=…)`)."""
    non_finite_step: Count | None = None
    """The first step for which a process reported a loss that is NaN or infinite."""

    def __post_init__(self) -> None:
        """A round whose last step is below its first has no steps between them."""
        if self.last_step < self.first_step:
            object.__setattr__(self, "last_step", self.first_step)


@dataclass(frozen=True)
class SeriesPoint(OnWire):
    """A few steps of the job's past."""

    step: Count
    """The last of them."""
    time: Time
    world_size: Count
    seconds_per_step: Seconds
    """Their median."""
    numbers: Annotated[Mapping[NumberName, Number], _names(MAX_NUMBERS, MAX_NUMBER_NAME)] = field(
        default_factory=dict
    )
    """Numbers of `dlr.report`, by name: the mean since the point before."""
    usage: Annotated[Mapping[UsageName, Amount], _names(MAX_USAGE, MAX_USAGE_NAME)] = field(
        default_factory=dict
    )
    """The use of rank 0's Pod, by the names of `status.agent.usage`: the mean since the point before."""


@dataclass(frozen=True)
class Series(OnWire):
    """The job's past by rank 0's agent, thinned evenly as it grows."""

    every: Ordinal = 1
    """Windows of five looks that a point stands for."""
    points: Annotated[tuple[SeriesPoint, ...], _list(MAX_POINTS)] = ()
    """The oldest first."""
    latest: SeriesPoint | None = None
    """The newest window."""


@dataclass(frozen=True)
class Slow(OnWire):
    """Steps take longer than they did, as rank 0's agent noticed."""

    since: Time
    step: Count
    """The first that took longer."""
    seconds_per_step: Seconds
    """When it was noticed."""
    usual_seconds: Seconds
    """Seconds of a step before that."""


@dataclass(frozen=True)
class Usage(OnWire):
    """What the worker's Pod uses."""

    cpu_cores: Cores
    """CPU cores used over the last seconds."""
    memory_peak_bytes: Count
    """The most since its agent has started, of readings every few seconds."""
    memory_bytes: Count | None = None
    """Memory at the last reading."""
    gpu_share: Share | None = None
    """Share of the time that its GPUs compute (NVML's utilization), as their mean at the last reading; unset
    where NVML does not say it."""
    gpu_memory_bytes: Count | None = None
    """Memory in use on the fullest of its GPUs; unset likewise."""


@dataclass(frozen=True)
class Network(OnWire):
    """The interface on which the others of its world reach the agent."""

    interface: Annotated[str, Limits(max_length=64)]
    address: Annotated[str, Limits(max_length=64)]


@dataclass(frozen=True)
class Resumed(OnWire):
    """The checkpoint that all processes of a round have loaded."""

    round: Count
    tier: Tier
    step: Count | None = None
    """The step; unset where the checkpoint in storage does not give it."""


@dataclass(frozen=True)
class CheckpointMemory(OnWire):
    """The worker's checkpoints in memory, where the job keeps any."""

    step: Count | None = None
    """The newest of its processes'."""
    replicated_step: Count | None = None
    """The newest that another Pod holds too."""
    every: Ordinal | None = None
    """Steps between two saves, as the script or `every="auto"` has it."""
    resumed: Resumed | None = None


@dataclass(frozen=True)
class LivedOn(OnWire):
    """Training processes that have lived through the end of a round into the next one."""

    round: Count
    """The round that they have lived on into."""
    processes: Annotated[int, Limits(at_least=0, at_most=MAX_PROCESSES)]


@dataclass(frozen=True)
class AgentCheckpointTrouble(OnWire):
    """Failures with checkpoints, of the first process that reports any."""

    reason: CheckpointTrouble
    message: Annotated[str, Limits(max_length=MAX_TROUBLE)]


@dataclass(frozen=True)
class Accelerators(OnWire):
    """What this worker computes on."""

    kind: Annotated[str, Limits(max_length=32)]
    count: Count
    model: Annotated[str, Limits(max_length=256)] = ""


@dataclass(frozen=True, kw_only=True)
class ProbeOutcome(OnWire):
    """The result of one probe; what is to blame is judged later."""

    probe: Annotated[str, Limits(max_length=64)]
    ending: ProbeEnding
    reason: Sentence = ""
    figures: Annotated[Mapping[FigureName, Number], _names(MAX_FIGURES, MAX_FIGURE_NAME)] = field(
        default_factory=dict
    )
    faults: Sentences = ()
    action: Action | None = None
    """What helps against its faults, where the probe knows it."""
    signal: Annotated[str, Limits(max_length=16)] = ""
    """The signal that ended the probe itself, such as SIGSEGV."""
    notes: Sentences = ()
    seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class PairOutcome(ProbeOutcome):
    """How the test with others went in one round."""

    round: Ordinal


@dataclass(frozen=True)
class AgentCheck(OnWire):
    """What the agent found out for one NodeCheck, the last that it took part in."""

    uid: Annotated[str, Limits(max_length=64)]
    """Uid of the NodeCheck."""
    local: Annotated[tuple[ProbeOutcome, ...], _list(MAX_LOCAL_PROBES)] = ()
    """The node's own tests, when all of them have ended."""
    pairs: Annotated[tuple[PairOutcome, ...], _list(MAX_PAIR_PROBES)] = ()
    """The tests with others, one a round that it took part in, the oldest first."""


@dataclass(frozen=True)
class RoundArrival(OnWire):
    """How the worker came into a round, by its node's clock: the parts of a recovery that its agent sees."""

    round: Count
    seen: Time
    """When the agent learned that the round before was over; of a first round, that there is one."""
    joined: Time
    """When nothing ran here any more, and the agent went to meet the others."""
    started: Time
    """When all had met, and the processes were started."""
    imported: Time | None = None
    """When the last of its processes had imported what it needs, and called `init_process_group`. Unset until
    all have, and where they were not forked: another interpreter has nobody who notes it."""
    initialized: Time | None = None
    """When the last of its processes was through with that."""


@dataclass(frozen=True)
class Departure(OnWire):
    """All training processes of a round left after the same step, by vote of their agents."""

    round: Count
    step: Count
    """The step. It is saved, unless the process's log says why not."""


@dataclass(frozen=True)
class AskedStacks(OnWire):
    """Places of the worker's processes when `dlr job stacks` asked."""

    request: Annotated[str, Limits(max_length=MAX_REQUEST)]
    """What asked: the job's annotation elastic.iml.github.io/stacks."""
    time: Time
    """When they were taken."""
    stacks: Annotated[tuple[RankStack, ...], _list(MAX_STACKS)]


@dataclass(frozen=True, kw_only=True)
class ShardsReport(SetDefinition):
    """A shard set that the worker's processes pull from (docs/shards.md), and what became of its lease."""

    uid: Annotated[str, Limits(max_length=64)] = ""
    """Uid of the ShardSet that the lease is in; empty before there is one."""
    lease: Count = 0
    """The number of the lease that the other fields are about; 0 without one."""
    rest: Annotated[str, Limits(max_length=2 * MAX_SHARDS_TEXT // 3)] = ""
    """What of it is neither done nor failed."""
    failed: Annotated[str, Limits(max_length=MAX_SHARDS_TEXT // 3)] = ""
    """What of it has failed here."""
    reason: Annotated[str, Limits(max_length=MAX_SHARD_REASON)] = ""
    """Why the first of these failed."""
    wants: bool = False
    """It could do with more elements."""
    leaves: bool = False
    """Nobody works on the lease any more: the rest is for others."""
    restoration: Count = 0
    """The number of the restoration that its processes ask for; 0 if the set is as they want it."""
    undone: Annotated[str, Limits(max_length=MAX_SHARD_TEXT)] = ""
    """Elements left to do after it. All others count as done."""


@dataclass(frozen=True)
class ReplicasReport(OnWire):
    """How far the worker's processes are in the training of all replica groups (docs/groups.md)."""

    round: Count
    """Round of the processes, all of which are ready to take part."""
    version: Count = 0
    """The newest version that all of them are in; 0 before the first."""
    step: Count = 0
    """Number of steps that all of them have applied."""
    broken_version: Count = 0
    """The newest version whose exchange failed for one of them, when there was no newer one."""
    left_out_version: Count = 0
    """The newest version that one of them has seen without its group while it waits for one with it."""
    late_version: Count = 0
    """The version in which one of them waits for other groups for longer than its patience."""
    late_groups: Annotated[tuple[GroupIndex, ...], _list(MAX_LATE_GROUPS)] = ()
    """Indices of the groups that it waits for."""


_ELEMENTS = " + ".join(f"(has(set.{name}) ? size(set.{name}) : 0)" for name in ("rest", "failed", "undone"))
_SHARDS_LIMIT: dict[str, Any] = {
    "x-kubernetes-validations": [
        {
            "rule": f"self.map(set, {_ELEMENTS}).sum() <= {MAX_SHARDS_TEXT}",
            "message": f"all elements may have {MAX_SHARDS_TEXT} characters at most in all sets together",
        }
    ]
}


@dataclass(frozen=True)
class SilentPeer(OnWire):
    """A member of the worker's world that does not answer its agent."""

    index: Index
    incarnation: Ordinal


@dataclass(frozen=True, kw_only=True)
class AgentReport(OnWire):
    """`status.agent`, written by the agent alone; stale unless incarnation and podUid are current."""

    protocol: Ordinal = 1
    """The form of a world that the agent reads."""
    incarnation: Ordinal
    sequence: Count = 0
    """Number of the report within the incarnation. The API server takes none of a lower incarnation than the
    one that it has, none of a lower number of the same Pod, and of another Pod of the incarnation none but of
    the one in `status.podUid`: a report that was long on its way replaces no later one."""
    pod_uid: Annotated[str, Limits(max_length=64)]
    address: Annotated[str, Limits(max_length=253)]
    store_port: Annotated[int, Limits(at_least=0, at_most=65_535)]
    """The agent's port, where a world meets whose rank 0 it is; 0 where `dlr exec` needs none."""
    local_world_size: Annotated[int, Limits(at_least=1, at_most=MAX_PROCESSES)]
    observed_round: Count = 0
    """The highest round acted upon."""
    state: AgentState
    since: Time
    failure: AgentFailure | None = None
    progress: StepProgress | None = None
    rounds: Annotated[tuple[RoundProgress, ...], _list(MAX_ROUNDS)] = ()
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
    start: RoundArrival | None = None
    """The newest start of its processes."""
    departure: Departure | None = None
    """The last one of this agent's processes."""
    result: Annotated[str, Limits(max_length=MAX_RESULT)] | None = None
    """What rank 0 has left with `dlr.report_result`, as JSON: `{"value": …}` or `{"error": …}`."""
    asked_stacks: AskedStacks | None = None
    """Stacks that were asked for, for about a minute."""
    shards: (
        Annotated[tuple[ShardsReport, ...], Limits(max_length=MAX_SHARD_SETS, schema=_ATOMIC | _SHARDS_LIMIT)]
        | None
    ) = None
    """The sets that its processes pull from; unset if they pull from none."""
    replicas: ReplicasReport | None = None
    """Unset until all processes of a replica group are ready to take part."""
    lived_on: LivedOn | None = None
    """Unset where the processes of the newest round were all started for it."""
    lingers: Sentence | None = None
    """What keeps a process alive whose script is over, or kept it until it was ended."""
    silent_peers: Annotated[tuple[SilentPeer, ...], _list(MAX_SILENT_PEERS)] | None = None
    """Neighbours in the world whose members met last that do not answer this agent; unset if all do."""
