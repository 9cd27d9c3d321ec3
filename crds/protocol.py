"""What the agent, the controller and the SDK must agree on: words, fields and texts, each written down once.

The agent and the SDK run in training images, on any Python ≥ 3.10, and cannot load the pydantic models of the
resources. So this module imports the standard library alone, and little of it. The models take their enums
from here, and are refused at import when their fields are others than those named here (`crds.model.agreed`).

The names of labels and of the variables in a worker's environment are in `crds.names`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, TypedDict


class Word(str, Enum):  # noqa: UP042 (the agent runs on Python 3.10 too)
    """What StrEnum is from Python 3.11 on: a member is equal to its value, and is printed as it."""

    __str__ = str.__str__


# --- The ElasticJob, as its agents read it ----------------------------------------------------------------


class JobPhase(Word):
    CREATED = "Created"
    PENDING = "Pending"
    RUNNING = "Running"
    SCALING = "Scaling"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class RendezvousPhase(Word):
    FORMING = "Forming"
    FORMED = "Formed"
    REFORMING = "Reforming"


HANG_TIMEOUT_SECONDS = 1_800
"""The default of `spec.elasticPolicy.hangTimeoutSeconds`."""


# --- The NodeCheck, as the agents of its nodes read it ----------------------------------------------------


class NodeCheckPhase(Word):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    """There are verdicts, good or bad."""
    FAILED = "Failed"
    """It could not be carried out; the condition Failed says why."""

    @property
    def finished(self) -> bool:
        return self in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


class Accelerator(Word):
    """What the probes can test, besides CPU and network."""

    NVIDIA_GPU = "nvidia.com/gpu"
    NONE = "none"


CHECK_TIMEOUT_SECONDS = 300
"""The default of `spec.timeoutSeconds`."""


# --- The agent's report: `status.agent` of an ElasticWorker -----------------------------------------------

MAX_INTEGER = 1 << 53
"""The greatest integer in a report: what every reader of JSON has exactly."""
MAX_SECONDS = 10**9
"""The longest duration in a report, some thirty years."""
MAX_NUMBER = 10**18
"""The greatest magnitude of any other number in a report: a sum of a million stays finite."""
MAX_FIGURE_NAME = 64
"""Characters of the name of a probe's figure."""

PROTOCOL = 3
"""The form of a world that the agent reads. An agent with a lower one joins no world."""


CHECKPOINT_SECONDS = 10.0
"""A checkpoint that nobody awaits is a reason to report once in so long a time, and told so late at most.
What is written meanwhile for other reasons tells of the newest one too."""


class AgentState(Word):
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


class FailureCause(Word):
    """What the agent knows of a failure's cause beyond exit code and text."""

    OOM = "OOM"
    """The container's cgroup killed a process for its memory."""
    HANG = "Hang"
    """No step for too long: the agent ended the processes."""
    DEVICE = "Device"
    """The driver reported a device's fault (an Xid)."""


class ProbeEnding(Word):
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


MAX_ROUNDS = 8
"""Entries of `status.agent.rounds`: so many rounds the controller may miss."""
MAX_POINTS = 96
"""Entries of `status.agent.series.points`."""
MAX_STACKS = 16
"""Entries of `status.agent.failure.stacks`."""
MAX_FRAMES = 1_024
"""Characters of the frames in one of them."""
MAX_REQUEST = 64
"""Characters of what asks for stacks, or a profile; a longer text is cut."""
NATIVE = "/native"
"""How a request ends that asks for the frames of C and C++, too."""

MAX_LOCAL_PROBES = 16
"""Entries of `status.agent.check.local`."""
MAX_PAIR_PROBES = 16
"""Entries of `status.agent.check.pairs`."""
MAX_FIGURES = 32
"""Figures of one probe."""
MAX_SENTENCES = 4
"""Faults, and notes, of one probe."""
MAX_SENTENCE = 512
"""Characters of one of them, and of a probe's reason."""


class RankStackStatus(TypedDict):
    """One of `status.agent.failure.stacks`."""

    rank: int
    step: int | None
    inCollective: bool
    offered: bool
    frames: str


MAX_PROFILE_BYTES = 192 << 10
"""Of a compressed profile: an object has 1.5 MiB at most, and this is a third more in base64."""
MAX_PROFILE_TEXT = 4 * (MAX_PROFILE_BYTES + 2) // 3
MAX_PROFILE_NOTE = 512
MAX_PROFILE_SECONDS = 60.0


class ProfileStatus(TypedDict):
    """`status.agent.profile`."""

    request: str
    by: str
    seconds: float
    data: str
    note: str


class AskedStacksStatus(TypedDict):
    """`status.agent.askedStacks`."""

    request: str
    time: str
    stacks: list[RankStackStatus]


class FailureStatus(TypedDict):
    """`status.agent.failure`."""

    sequence: int
    round: int
    rank: int | None
    localRank: int
    exitCode: int | None
    signal: str | None
    cause: FailureCause | None
    step: int | None
    stacks: list[RankStackStatus]
    message: str
    logTail: str
    time: str
    afterSeconds: float | None


class ProgressStatus(TypedDict):
    """`status.agent.progress`."""

    step: int
    time: str
    checkpointStep: int | None
    secondsPerStep: float | None


class SeriesPointStatus(TypedDict):
    """One of `status.agent.series.points`."""

    step: int
    time: str
    worldSize: int
    secondsPerStep: float
    numbers: dict[str, float]


class SeriesStatus(TypedDict):
    """`status.agent.series`."""

    every: int
    points: list[SeriesPointStatus]
    latest: SeriesPointStatus | None


class SlowStatus(TypedDict):
    """`status.agent.slow`."""

    since: str
    step: int
    secondsPerStep: float
    usualSeconds: float


class RoundStatus(TypedDict):
    """One of `status.agent.rounds`."""

    round: int
    firstStep: int
    lastStep: int
    steppingSeconds: float
    counted: bool | None
    startUnknown: bool | None
    samplesPerStep: int | None
    nonFiniteStep: int | None


class Tier(Word):
    """The place of a checkpoint."""

    MEMORY = "memory"
    PEER = "peer"
    """Memory, with parts that were fetched from other Pods. Processes read `memory`."""
    STORAGE = "storage"

    @property
    def origin(self) -> str:
        """Return the word for a sentence such as `goes on from memory`."""
        return "from a peer's copy" if self is Tier.PEER else f"from {self.value}"


class ResumedStatus(TypedDict):
    """`status.agent.memory.resumed`."""

    round: int
    step: int
    tier: Tier


class MemoryStatus(TypedDict):
    """`status.agent.memory`."""

    step: int | None
    replicatedStep: int | None
    every: int | None
    resumed: ResumedStatus | None


AFTER_FAILURE = "failure-"
"""How the attempt of savers begins that an agent starts after a failure; the round's number follows."""


class CheckpointTrouble(Word):
    """What does not work with a process's checkpoints; where more than one does not, the first counts."""

    STATE = "StateNotSaved"
    """The state cannot be taken apart, or the steps do not rise: nothing is saved."""
    LOST = "CheckpointLost"
    """Training has begun at step 0, though there was a checkpoint in memory."""
    SLOT = "SlotTooSmall"
    """The state does not fit into the memory that the job asks for."""
    MEMORY = "MemoryFails"
    """That memory cannot be used for another reason."""
    STORAGE = "StorageFails"
    """The last step that was due has not reached the storage."""
    SKIPPED = "SaveSkipped"
    """The last step that was due is not in the storage, since the one before was still being written."""


MAX_TROUBLE = 512
"""Characters of what is told of it."""


class CheckpointTroubleStatus(TypedDict):
    """`status.agent.checkpointTrouble`."""

    reason: CheckpointTrouble
    message: str


class UsageStatus(TypedDict):
    """`status.agent.usage`."""

    cpuCores: float
    memoryBytes: int
    gpuUtilization: float | None
    gpuMemoryBytes: int | None
    memoryPeakBytes: int | None
    cpuMeanCores: float | None
    gpuMeanUtilization: float | None


class NetworkStatus(TypedDict):
    """`status.agent.network`."""

    interface: str
    address: str


class AcceleratorsStatus(TypedDict):
    """`status.agent.accelerators`."""

    kind: str
    count: int
    model: str


class ProbeStatus(TypedDict):
    """One of `status.agent.check.local`."""

    probe: str
    ending: ProbeEnding
    reason: str
    figures: dict[str, float]
    faults: list[str]
    notes: list[str]
    seconds: float


class PairProbeStatus(ProbeStatus):
    """One of `status.agent.check.pairs`."""

    round: int


class CheckStatus(TypedDict):
    """`status.agent.check`."""

    uid: str
    local: list[ProbeStatus]
    pairs: list[PairProbeStatus]


class DepartureStatus(TypedDict):
    """`status.agent.departure`."""

    round: int
    step: int


ENV_SHARDS_SOCKET = "DLR_SHARDS_SOCKET"
"""Names the Unix socket of the agent from which its training processes pull shards."""
ENV_ROUND = "DLR_ROUND"
"""The round of the world that a training process belongs to."""
MAX_SHARD_SETS = 16
"""Of one job: `status.shards`, and so `status.agent.shards`."""
MAX_SHARD_RETRIES = 16
MAX_SHARD_REASON = 256
"""Characters of why an element failed."""
MAX_SHARD_TEXT = 16_384
"""Characters of the elements that a restoration leaves undone."""
MAX_UNDONE_TEXT = 65_536
"""Characters of these in all sets of one report."""
MAX_FAILED_TEXT = 2_048
"""Characters of the elements of one lease that have failed."""
MAX_REST_TEXT = 2 * MAX_FAILED_TEXT
"""Characters of those that are neither done nor failed; all between failed ones have room."""


class ShardSetDefinition(TypedDict):
    """What all who pull from a set have to say alike (`crds.shard_set`)."""

    name: str
    epoch: int
    size: int
    digest: str
    retries: int
    maxFailed: int


class ShardsStatus(ShardSetDefinition):
    """One of `status.agent.shards`: a set that the worker's processes pull from."""

    lease: int
    rest: str
    failed: str
    reason: str
    wants: bool
    leaves: bool
    restoration: int
    undone: str


class AgentStatus(TypedDict):
    """`status.agent`. What is None is absent in the object."""

    protocol: int
    incarnation: int
    podUid: str
    address: str
    storePort: int
    localWorldSize: int
    observedRound: int
    state: AgentState
    since: str
    failure: FailureStatus | None
    progress: ProgressStatus | None
    rounds: list[RoundStatus]
    series: SeriesStatus | None
    slow: SlowStatus | None
    usage: UsageStatus | None
    network: NetworkStatus | None
    memory: MemoryStatus | None
    checkpointTrouble: CheckpointTroubleStatus | None
    accelerators: AcceleratorsStatus | None
    check: CheckStatus | None
    departure: DepartureStatus | None
    result: str | None
    askedStacks: AskedStacksStatus | None
    profile: ProfileStatus | None
    shards: list[ShardsStatus] | None


# --- Texts of failures that merely follow from a peer's death ---------------------------------------------

FOLLOWS_FROM_A_PEER = (
    # gloo/transport/tcp/pair.cc: "[…/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:53"
    r"gloo/[^\n]*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
    r"gloo/[^\n]*(?:Timed out waiting|Application timeout caused pair closure|Read error|Socket closed)",
    r"Connection closed by peer",
    # c10d/TCPStore.cpp: "Failed to recv, got 0 bytes", "sendBytes failed on SocketImpl(…): Broken pipe"
    r"[Ff]ailed to recv|(?:sendBytes|recvValue|recvValueWithTimeout) failed on",
    r"The client socket has (?:timed out|failed to connect)",
    r"DistNetworkError|DistStoreError",
    # c10d/ProcessGroupNCCL.cpp: the watchdog, and what its other ranks then say
    r"Watchdog caught collective operation timeout|[Ww]atchdog thread terminated with exception",
    r"remote process exited or there was a network error|ncclRemoteError",
    r"NCCL communicator was aborted|another rank reported",
    r"caused by unexpected exit of a remote peer",
    r"DistBackendError",
)
"""Texts of torch 2.x, as its sources and libraries have them."""

ITS_OWN_FAILURE = (
    # The port is taken, or the master's name is wrong
    r"EADDRINUSE|[Aa]ddress already in use|failed to listen|failed to bind",
    r"Name or service not known|Temporary failure in name resolution",
    # What NCCL says of the rank's own call, device or build
    r"ncclInvalidUsage|ncclInvalidArgument|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error",
    r"invalid usage|Duplicate GPU detected",
)
"""A text with one of these tells of the process's own failure, whatever else it says."""

DAMAGED_CHECKPOINT = "DamagedCheckpointError"
"""The exception of a process whose checkpoint in memory is not what was written: the next start goes on from
another one."""
KILLED_BY = "the process was killed by"
FROM_OUTSIDE = "from outside (dlr did not send it)"
EXITED_WITH = "the process exited with code"
"""How the agent's message begins if the process left no exception: its log may tell."""
ASKED = "It says so because another rank reported a hang."
"""A line of that message: one of FOLLOWS_FROM_A_PEER, so that nobody takes it for a failure of its own."""


def early_finish_text(who: str, step: int | None) -> str:
    """What a failure says of a rank, or ranks, whose peers cannot train without it.

    Args:
        step: the last that it reported, if it reported any.
    """
    at = "" if step is None else f", at step {step}"
    return (
        f"{who} finished early{at}; the others cannot go on\n"
        "It ended with exit code 0 while they still trained. Do all ranks make the same number of steps?"
    )


class PeerDeathTexts:
    """Judges whether a failure merely follows from a peer's death, as far as its text tells.

    Args:
        compile: `re.compile`; or `re2.compile` where a thousand texts of 8 KB are judged at each look, for
            which `re` would take a second and a half.
    """

    def __init__(self, compile: Callable[[str], Any]) -> None:
        self._following = compile("|".join(FOLLOWS_FROM_A_PEER))
        self._own = compile("|".join(ITS_OWN_FAILURE))

    def explain(self, message: str, log_tail: str = "") -> bool:
        """Whether a peer's death explains the failure.

        Args:
            message: of the failure, as the agent reports it.
            log_tail: the end of the process's log; it counts only where the message has no exception.
        """
        silent = not message or message.startswith((KILLED_BY, EXITED_WITH))
        text = f"{message}\n{log_tail}" if silent else message
        return self._following.search(text) is not None and self._own.search(text) is None


# --- Checkpoints in memory: what an agent tells each of its training processes -----------------------------

OWN_SLOTS = 3
"""Of a process: the newest whole one, one to write into, and one that its saver may still read."""
REPLICA_SLOTS = 2
"""Of a held replica: a kill in the middle of writing must not cost the older one."""
SMALLEST_SLOT_BYTES = 64 << 10
"""Its control words and a small header take some of it."""


def slot_count(processes: int, replicas: int) -> int:
    """Slots of a Pod."""
    return processes * (OWN_SLOTS + REPLICA_SLOTS * replicas)


ENV_CHECKPOINT_FILE = "DLR_CHECKPOINT_FILE"
"""Names a JSON file (`CheckpointFile`), written anew for each start of the process."""


class ResumeFile(TypedDict, total=False):
    """`resume` in the file. Of tier storage it has `tier` alone."""

    tier: Tier
    round: int
    step: int
    worldSize: int
    slot: str
    """The file of this rank's slot, if the world has the size that it had."""
    shards: dict[str, str]
    """File, or tcp://host:port, of each rank of the world of another size, by rank."""
    key: str
    """The job's key in hexadecimal, by which the process proves to those agents that it is of the job; there
    with `shards`."""
    lastResort: bool
    """True where any checkpoint in storage goes first; otherwise absent."""


class CheckpointFile(TypedDict, total=False):
    """What the file says."""

    round: int
    """Round of the marks that the process writes."""
    slots: list[str]
    """The files of its slots. Where it resumes from one of them, that is the first."""
    resume: ResumeFile | None
    failuresPerHour: float
    """Failures of the job so far, an hour; absent if none has been counted."""
    slotsOfPod: int
    """Among how many slots the memory that the job asks for is divided."""
    storageFile: str
    """Into which the process is to say what it does with checkpoints (`CheckpointerFile`)."""
    copySecondsFile: str
    """File in which the agent writes how many seconds the last copy to its peer took, as a decimal number. It
    appears with the first copy; absent where the job asks for no replicas."""
    lostStep: int
    """The newest that was in memory here, where nothing in memory is of use any more; absent without one."""


class StorageFile(TypedDict):
    """The place of a job's checkpoints in storage."""

    path: str
    job: str
    """Owner of the checkpoints, as the manifests name it."""
    keep: int | None
    """How many stay; None: all."""


class CheckpointerFile(StorageFile, total=False):
    """What a process says of its checkpoints. It is replaced as a whole."""

    round: int
    """Round in which the process wrote this."""
    loaded: int
    """The step that `load` has brought back; absent before it has, and where there was none."""
    tier: Tier
    """Place of that step: memory or storage."""
    every: int
    """Steps between two saves to memory."""


# --- The progress record: what a training process tells its agent through a file --------------------------

ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"
"""Names a training process's file, which the process maps; the agent reads it now and then."""

TROUBLE_SUFFIX = ".trouble"
"""Of the record's name, for the JSON file beside it in which the process says what does not work with its
checkpoints: a message by `CheckpointTrouble`, which is empty if that works. It is replaced as a whole."""

RESULT_SUFFIX = ".result"
"""Of the record's name, for the JSON file beside it with what training came to: `{"value": …}`, or
`{"error": …}` where that cannot be kept. It is replaced as a whole."""
MAX_RESULT = 16_384
"""Characters of it."""

ENV_STACKS_FILE = "DLR_STACKS_FILE"
ENV_STACKS_SIGNAL = "DLR_STACKS_SIGNAL"
"""On this signal the process writes the stacks of its threads into that file."""
PROFILE_SECONDS, PROFILE_FILE, PROFILE_ERROR = "profile.seconds", "profile.json.gz", "profile.error"
"""Beside that file: for how long a forked process is to be profiled, the result, or why there is none."""


def profile_signal(stacks_signal: int) -> int:
    """Return the signal on which a forked process begins to profile itself."""
    return stacks_signal + 1


PROGRESS_FORMAT = "qdqdqdqdqdqdqqqqqq"
"""For `struct`: pairs of an int64 and a float64, then six int64, in native byte order. Times are of
CLOCK_MONOTONIC, in seconds, and 0 as long as nothing was told. Numbers follow. An older agent's file ends
after two, four, six, eight, twelve or sixteen words."""
MAX_NUMBERS = 8
"""Numbers that a process tells beside its step (`dlr.report`), by name; the loss is one of them."""
MAX_NUMBER_NAME = 24
"""Bytes of such a name."""
NUMBERS_FORMAT = f"d{MAX_NUMBER_NAME}s" * MAX_NUMBERS
"""What follows in the file: each number and its name in UTF-8, which is written after it; empty for none."""

STEP, STEP_AT = 0, 1
"""Positions in it: the newest step, and when it was told."""
CHECKPOINT, CHECKPOINT_AT = 2, 3
"""The step of the last checkpoint, and when it was told."""
NON_FINITE = 4
"""One more than the first step of which the loss was told to be NaN or infinite; 0 if there is none."""
BUSY_UNTIL = 5
"""Until then no step is to be expected."""
FIRST_STEP, FIRST_STEP_AT = 6, 7
"""The first step, and when it was told."""
COUNTED, COUNTED_AT = 8, 9
FIRST_COUNTED, FIRST_COUNTED_AT = 10, 11
"""The newest and the first step that `agent.warm.step_counter` has counted, and when. A script that tells
its steps has its word."""
SPEAKS = 12
"""1 once the process takes part in votes: it looks at ORDER after each step."""
BOUNDARY = 13
"""The step that the process has ended last, and -1 before the first. It is written before ORDER is read."""
ORDER = 14
"""What the agent wants at the end of a step (`hold_until`, `leave_at`); 0: go on."""
KEEPS_IN = 15
"""The safest place in which the process can keep the step after which it leaves: a `KeptIn`, or 0 for any."""
START_UNKNOWN = 16
"""1 where nobody knows which step the count began with. It is written before FIRST_COUNTED."""
SAMPLES = 17
"""How many samples a step has, over all ranks; 0 if not told."""


# --- Leaving by vote: what an agent says in ORDER, in one word that is written whole ----------------------


class KeptIn(IntEnum):
    """The place where the step is kept after which all ranks leave."""

    MEMORY = 1
    STORAGE = 2


EXIT_LEFT = 143
"""With this code a process leaves by vote: as one that SIGTERM has ended."""

GO_ON = 0


def hold_until(deadline: float) -> int:
    """Wait at the end of the step, until there is another order, or CLOCK_MONOTONIC is at `deadline`."""
    return -max(int(deadline * 1_000), 1)


def leave_at(step: int, tier: KeptIn) -> int:
    """Go on to the first step that is `step` or a later one, save it in the tier, and leave."""
    return step << 2 | tier
