"""`status.agent` of an ElasticWorker: the report of an agent about itself and its training processes.

Agent, controller and CRD share this definition. The agent has no pydantic: see `crds.wire`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
"""Seconds between two reports that are sent only for checkpoints nobody waits for."""
LATER_POD = "a later Pod of this worker has reported"
"""The API server's message for a report of an earlier incarnation."""
LATER_REPORT = "a later report of this worker is stored, or one of another Pod"
"""The API server's message for a report that comes too late, or before the status names its Pod."""
EARLIER_WORKER = "the worker has had no Pod of this incarnation: an earlier one of its name has"
"""The API server's message for a report of an agent whose ElasticWorker is gone."""
PROTOCOL = 3
"""Version of the world's format that the agent reads. An agent with a lower one joins no world."""

MAX_PROCESSES = 4_096
"""Training processes of one Pod."""
MAX_REPORT_BYTES = 16_384
"""Bytes of a report's JSON; a worker's status has twice as much at most. The agent shortens texts that people
read."""
MAX_TEXT = 4_096
"""Characters of a failure's message, and of the end of its log."""
MAX_ROUNDS = 8
"""Entries of `rounds`: how many rounds the controller may miss."""
MAX_POINTS = 48
"""Entries of `series.points`."""
MAX_USAGE = 4
"""Entries of `series.points[].usage`."""
MAX_USAGE_NAME = 16
"""Characters of a name in `usage`."""
MAX_STACKS = 16
"""Entries of `failure.stacks`."""
MAX_FRAMES = 1_024
"""Characters of `failure.stacks[].frames`."""
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
"""Characters of one fault or note, and of a probe's reason."""
MAX_SHARDS_TEXT = 4_096
"""Characters of all elements that a report names, in all sets."""
MAX_UNDONE_TEXT = 3_072
"""Characters of those elements that restorations leave undone."""
MAX_SILENT_PEERS = 8
"""Entries of `silentPeers`."""
MAX_LATE_GROUPS = 100
"""Entries of `replicas.lateGroups`; of more late groups, the first are listed."""

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
    """Return the limits of a map and of its names."""
    rule = {
        "rule": f"self.all(name, size(name) <= {characters})",
        "message": f"a name may have {characters} characters at most",
    }
    return Limits(max_length=limit, schema={"x-kubernetes-validations": [rule]})


Time = Annotated[datetime, Limits(check=_in_this_age, schema={"pattern": _TIME, "maxLength": 35})]
"""Time that a worker writes. Kubernetes' own format check accepts `+99:99` and the year 0."""
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
    """The agent waits for a world newer than observedRound."""
    RUNNING = "Running"
    """Training processes of observedRound run."""
    FAILED = "Failed"
    """Training processes of observedRound failed; the agent waits for a newer world."""
    SUCCEEDED = "Succeeded"
    """All training processes of observedRound succeeded."""
    STOPPED = "Stopped"
    """The agent is leaving."""


class FailureCause(WireWord):
    """Cause of a failure, where exit code and text do not show it."""

    OOM = "OOM"
    """The container's cgroup killed a process for its memory."""
    HANG = "Hang"
    """There was no step for too long, so the agent ended the processes."""
    DEVICE = "Device"
    """The driver reported a device fault (an Xid)."""
    TIMED_OUT = "TimedOut"
    """A collective timed out waiting for another process."""
    KILLED_CHILD = "KilledChild"
    """SIGKILL ended a child of the failed process, such as a data loader."""


class ProbeEnding(WireWord):
    """How a probe of a node check ended."""

    PASSED = "Passed"
    FAILED = "Failed"
    """It ended by itself and reports what is wrong."""
    SKIPPED = "Skipped"
    """There is nothing here to test, which is no fault."""
    UNAVAILABLE = "Unavailable"
    """It could not run its test, which says nothing about the hardware."""
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    """A signal ended it, or it ended without a report."""


@dataclass(frozen=True)
class RankStack(OnWire):
    """Stack of one training process when it hung, or when `dlr job stacks` requested it."""

    rank: Index
    """Global rank."""
    step: Count | None = None
    """Last step that the process reported."""
    in_collective: bool = False
    """Whether it waits for other ranks, and so is rather a victim of the hang than its cause."""
    frames: Annotated[str, Limits(max_length=MAX_FRAMES)] = ""
    """Python frames of the main thread, innermost first, one per line; or why there are none."""
    offered: bool = True
    """Whether the process provides its stack, which it does after a call of `dlr.report`."""


@dataclass(frozen=True, kw_only=True)
class AgentFailure(OnWire):
    """Last failure of the agent's training processes; it stays until the next."""

    sequence: Ordinal
    """Number of the failure within the incarnation, from 1, so that none is counted twice or missed."""
    round: Count
    rank: Index | None = None
    """Global rank of the failed process."""
    local_rank: Index = 0
    exit_code: Annotated[int, Limits(at_least=-(1 << 31), at_most=(1 << 32) - 1)] | None = None
    """Exit code as torch gives it: negative for a signal; unset for a process that has not ended. If `cause`
    is unset too, nothing failed: this is the answer to a request for stacks in a hang."""
    signal: Annotated[str, Limits(max_length=32)] | None = None
    cause: FailureCause | None = None
    """Cause, where exit code and text do not say it."""
    step: Count | None = None
    """Last step that the failed process reported in this round."""
    stacks: Annotated[tuple[RankStack, ...], _list(MAX_STACKS)] = ()
    """Stacks of the worker's processes in a hang."""
    message: Text = ""
    """Exception with the end of its traceback, from torch's error file."""
    log_tail: Text = ""
    time: Time
    """Time by the node's clock, for people; it is not compared with other machines' clocks."""
    after_seconds: Seconds | None = None
    """Seconds from the start of the round's processes, which is the same for all agents, to the failure; for
    a hang, to the last sign of life."""


@dataclass(frozen=True)
class StepProgress(OnWire):
    """Last reported training step, with its time."""

    step: Count
    time: Time
    checkpoint_step: Count | None = None
    """Step of the last checkpoint that the script reported (`dlr.checkpoint_saved`)."""
    seconds_per_step: Seconds | None = None
    """Recent duration of a step, in seconds."""
    checkpoint_time: Time | None = None
    """Time when the last checkpoint was reported."""


@dataclass(frozen=True)
class RoundProgress(OnWire):
    """Training of a worker's processes in one round: raw figures for the job's goodput."""

    round: Count
    first_step: Count
    """First reported step."""
    last_step: Count
    """Highest reported step."""
    stepping_seconds: Seconds = 0.0
    """Seconds between these two reports, on the monotonic clock."""
    counted: bool | None = None
    """Whether the agent counted optimizer steps, because the script reports none."""
    start_unknown: bool | None = None
    """Whether the count began at an unknown step, so that earlier starts may have got further."""
    samples_per_step: Ordinal | None = None
    """Samples per step of the world, if the script reports them (`dlr.report(step, samples=…)`)."""
    non_finite_step: Count | None = None
    """First step for which a process reported a loss that is NaN or infinite."""

    def __post_init__(self) -> None:
        """Set `last_step` to `first_step` if it is lower: no steps lie between them."""
        if self.last_step < self.first_step:
            object.__setattr__(self, "last_step", self.first_step)


def steps_are_relative(counts: Collection[tuple[bool | None, bool | None]]) -> bool:
    """Return whether step numbers are only relative, since the step that a round began with is unknown.

    Args:
        counts: `counted` and `start_unknown` of each worker's part of the round.
    """
    return any(start_unknown for _, start_unknown in counts) and all(counted for counted, _ in counts)


@dataclass(frozen=True)
class SeriesPoint(OnWire):
    """Point of the job's step history: a window of a few steps."""

    step: Count
    """Last step of the window."""
    time: Time
    world_size: Count
    seconds_per_step: Seconds
    """Median duration of a step, in seconds."""
    numbers: Annotated[Mapping[NumberName, Number], _names(MAX_NUMBERS, MAX_NUMBER_NAME)] = field(
        default_factory=dict
    )
    """Numbers of `dlr.report`, by name: means since the previous point."""
    usage: Annotated[Mapping[UsageName, Amount], _names(MAX_USAGE, MAX_USAGE_NAME)] = field(
        default_factory=dict
    )
    """Usage of rank 0's Pod, by the names of `status.agent.usage`: means since the previous point."""


@dataclass(frozen=True)
class Series(OnWire):
    """Step history of the job, kept by rank 0's agent and thinned evenly as it grows."""

    every: Ordinal = 1
    """Number of windows (of five readings each) that a point stands for."""
    points: Annotated[tuple[SeriesPoint, ...], _list(MAX_POINTS)] = ()
    """Points, the oldest first."""
    latest: SeriesPoint | None = None
    """Point of the newest window."""


@dataclass(frozen=True)
class Slow(OnWire):
    """Slowdown of the training steps, as rank 0's agent noticed it."""

    since: Time
    step: Count
    """First slower step."""
    seconds_per_step: Seconds
    """Duration of a step when the slowdown was noticed."""
    usual_seconds: Seconds
    """Duration of a step before the slowdown."""


@dataclass(frozen=True)
class Usage(OnWire):
    """Resource usage of the worker's Pod."""

    cpu_cores: Cores
    """CPU cores in use over the last seconds."""
    memory_peak_bytes: Count
    """Highest reading since its agent started; readings are taken every few seconds."""
    memory_bytes: Count | None = None
    """Memory at the last reading."""
    gpu_share: Share | None = None
    """Share of the time in which its GPUs compute (NVML's utilization), averaged over the GPUs, at the last
    reading; unset if NVML does not report it."""
    gpu_memory_bytes: Count | None = None
    """Memory in use on the fullest of its GPUs, in bytes; unset if NVML does not report it."""


@dataclass(frozen=True)
class Network(OnWire):
    """Network interface on which other members of the world reach the agent."""

    interface: Annotated[str, Limits(max_length=64)]
    address: Annotated[str, Limits(max_length=64)]


@dataclass(frozen=True)
class Resumed(OnWire):
    """Checkpoint that all processes of a round have loaded."""

    round: Count
    tier: Tier
    step: Count | None = None
    """Step of the checkpoint; unset if a checkpoint in storage does not state it."""


@dataclass(frozen=True)
class CheckpointMemory(OnWire):
    """Checkpoints in the worker's memory, if the job keeps any there."""

    step: Count | None = None
    """Step of the newest checkpoint."""
    replicated_step: Count | None = None
    """Step of the newest checkpoint that another Pod also has."""
    every: Ordinal | None = None
    """Steps between two saves, as set by the script or computed for `every="auto"`."""
    resumed: Resumed | None = None


@dataclass(frozen=True)
class LivedOn(OnWire):
    """Training processes that survived the end of a round into the next one."""

    round: Count
    """Round into which they survived."""
    processes: Annotated[int, Limits(at_least=0, at_most=MAX_PROCESSES)]


@dataclass(frozen=True)
class AgentCheckpointTrouble(OnWire):
    """Checkpoint problem of the first process that reports one."""

    reason: CheckpointTrouble
    message: Annotated[str, Limits(max_length=MAX_TROUBLE)]


@dataclass(frozen=True)
class Accelerators(OnWire):
    """Accelerators of this worker."""

    kind: Annotated[str, Limits(max_length=32)]
    count: Count
    model: Annotated[str, Limits(max_length=256)] = ""


@dataclass(frozen=True, kw_only=True)
class ProbeOutcome(OnWire):
    """Result of one probe; the cause is judged later."""

    probe: Annotated[str, Limits(max_length=64)]
    ending: ProbeEnding
    reason: Sentence = ""
    figures: Annotated[Mapping[FigureName, Number], _names(MAX_FIGURES, MAX_FIGURE_NAME)] = field(
        default_factory=dict
    )
    faults: Sentences = ()
    action: Action | None = None
    """Remedy for the faults, if the probe knows one."""
    signal: Annotated[str, Limits(max_length=16)] = ""
    """Signal that ended the probe itself, such as SIGSEGV."""
    notes: Sentences = ()
    seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class PairOutcome(ProbeOutcome):
    """Result of the test with partners in one round."""

    round: Ordinal


@dataclass(frozen=True)
class AgentCheck(OnWire):
    """Results of the agent for one NodeCheck, the last that it took part in."""

    uid: Annotated[str, Limits(max_length=64)]
    """Uid of the NodeCheck."""
    local: Annotated[tuple[ProbeOutcome, ...], _list(MAX_LOCAL_PROBES)] = ()
    """Local tests of the node, once all of them have ended."""
    pairs: Annotated[tuple[PairOutcome, ...], _list(MAX_PAIR_PROBES)] = ()
    """Tests with partners, one per round that it took part in, oldest first."""


@dataclass(frozen=True)
class RoundArrival(OnWire):
    """Times of the worker's entry into a round, by its node's clock: the parts of a recovery that its agent
    sees."""

    round: Count
    seen: Time
    """When the agent saw that the previous round was over; for the first round, that it exists."""
    joined: Time
    """When all old processes had ended, and the agent went to meet the others."""
    started: Time
    """When all agents had met, and the processes were started."""
    imported: Time | None = None
    """When the last process had finished its imports and called `init_process_group`. Unset until all have,
    and for processes that were not forked, which do not record it."""
    initialized: Time | None = None
    """When that call had returned in the last process."""


@dataclass(frozen=True)
class Departure(OnWire):
    """Departure of all training processes of a round after the same step, by vote of their agents."""

    round: Count
    step: Count
    """Step after which they left. It is saved, unless the process's log states why not."""


@dataclass(frozen=True)
class AskedStacks(OnWire):
    """Stacks of the worker's processes, as requested by `dlr job stacks`."""

    request: Annotated[str, Limits(max_length=MAX_REQUEST)]
    """Text of the request, from the job's annotation elastic.iml.github.io/stacks."""
    time: Time
    """When the stacks were taken."""
    stacks: Annotated[tuple[RankStack, ...], _list(MAX_STACKS)]


@dataclass(frozen=True, kw_only=True)
class ShardsReport(SetDefinition):
    """Shard set that the worker's processes pull from (docs/shards.md), and the state of its lease."""

    uid: Annotated[str, Limits(max_length=64)] = ""
    """Uid of the ShardSet that has the lease; empty before there is one."""
    lease: Count = 0
    """Number of the lease that the other fields describe; 0 without one."""
    rest: Annotated[str, Limits(max_length=2 * MAX_SHARDS_TEXT // 3)] = ""
    """Elements of the lease that are neither done nor failed."""
    failed: Annotated[str, Limits(max_length=MAX_SHARDS_TEXT // 3)] = ""
    """Elements of the lease that have failed here."""
    reason: Annotated[str, Limits(max_length=MAX_SHARD_REASON)] = ""
    """Why the first of these elements failed."""
    wants: bool = False
    """Whether it needs more elements."""
    leaves: bool = False
    """Whether work on the lease has stopped; others may take the rest."""
    restoration: Count = 0
    """Number of the restoration that its processes request; 0 if the set is in the state that they want."""
    undone: Annotated[str, Limits(max_length=MAX_SHARD_TEXT)] = ""
    """Elements left to do after the restoration; all others count as done."""


@dataclass(frozen=True)
class ReplicasReport(OnWire):
    """Progress of the worker's processes in the training of all replica groups (docs/groups.md)."""

    round: Count
    """Round of the processes, all of which are ready to take part."""
    version: Count = 0
    """Newest version that all of them are in; 0 before the first."""
    step: Count = 0
    """Number of steps that all of them have applied."""
    broken_version: Count = 0
    """Newest version whose exchange failed for one of them, without a newer one to go to."""
    left_out_version: Count = 0
    """Newest version without its group that one of them has seen while it waits for a version with it."""
    late_version: Count = 0
    """Version in which one of them has waited for other groups longer than its patience."""
    late_groups: Annotated[tuple[GroupIndex, ...], _list(MAX_LATE_GROUPS)] = ()
    """Indices of the groups that are waited for."""


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
    """Member of the worker's world that does not answer its agent."""

    index: Index
    incarnation: Ordinal


@dataclass(frozen=True, kw_only=True)
class AgentReport(OnWire):
    """Content of `status.agent`, written only by the agent; stale unless incarnation and podUid are
    current."""

    protocol: Ordinal = 1
    """Version of the world's format that the agent reads."""
    incarnation: Ordinal
    sequence: Count = 0
    """Number of the report within the incarnation. The API server refuses a report of a lower incarnation,
    one with a lower number from the same Pod, and one from another Pod of the incarnation unless it is the
    Pod in `status.podUid`. So a delayed report never replaces a later one."""
    pod_uid: Annotated[str, Limits(max_length=64)]
    address: Annotated[str, Limits(max_length=253)]
    store_port: Annotated[int, Limits(at_least=0, at_most=65_535)]
    """Port of the agent's store, in which a world meets if this is its rank 0; 0 if `dlr exec` needs none."""
    local_world_size: Annotated[int, Limits(at_least=1, at_most=MAX_PROCESSES)]
    observed_round: Count = 0
    """Highest round that the agent has acted on."""
    state: AgentState
    since: Time
    failure: AgentFailure | None = None
    progress: StepProgress | None = None
    rounds: Annotated[tuple[RoundProgress, ...], _list(MAX_ROUNDS)] = ()
    """Last rounds of this incarnation with reported steps, oldest first."""
    series: Series | None = None
    slow: Slow | None = None
    """Unset while training is as fast as before."""
    usage: Usage | None = None
    network: Network | None = None
    """Network interface in use, if the job has `elasticPolicy.networkInterfaces`."""
    memory: CheckpointMemory | None = None
    checkpoint_trouble: AgentCheckpointTrouble | None = None
    """Unset while checkpoints work, or before the first is due."""
    accelerators: Accelerators | None = None
    check: AgentCheck | None = None
    start: RoundArrival | None = None
    """Newest start of its processes."""
    departure: Departure | None = None
    """Last departure of this agent's processes."""
    result: Annotated[str, Limits(max_length=MAX_RESULT)] | None = None
    """Result that rank 0 passed to `dlr.report_result`, as JSON: `{"value": …}` or `{"error": …}`."""
    asked_stacks: AskedStacks | None = None
    """Requested stacks, kept for about a minute."""
    shards: (
        Annotated[tuple[ShardsReport, ...], Limits(max_length=MAX_SHARD_SETS, schema=_ATOMIC | _SHARDS_LIMIT)]
        | None
    ) = None
    """Shard sets that its processes pull from; unset if there are none."""
    replicas: ReplicasReport | None = None
    """Unset until all processes of a replica group are ready to take part."""
    lived_on: LivedOn | None = None
    """Unset if all processes of the newest round were started for it."""
    lingers: Sentence | None = None
    """What keeps a process alive after the end of its script, or did until the process was killed."""
    silent_peers: Annotated[tuple[SilentPeer, ...], _list(MAX_SILENT_PEERS)] | None = None
    """Neighbours in the world that met last which do not answer this agent; unset if all answer."""
