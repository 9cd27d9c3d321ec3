"""What benchmarks/recovery.py asks of those that it compares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from benchmarks.recovery_events import Start, Step

SCRIPT = Path(__file__).with_name("tiny_ddp.py")
MOST_RESTARTS = 1000


class Failure(Enum):
    """What is done to rank 1."""

    PROCESS = "process kill"
    POD = "Pod kill"
    NODE = "node loss"


class Stage(Enum):
    """The parts of a recovery from a killed process, one after the other."""

    DETECT = "detect"
    PUBLISH = "publish"
    OBSERVE = "observe"
    STOP = "stop"
    START = "start"
    IMPORT = "import"
    INIT = "init"
    FIRST_STEP = "first step"


@dataclass(frozen=True)
class Recovery:
    """The time from a failure to the first step of all ranks in the next world."""

    struck_at: float
    stepped_at: float
    starts: Sequence[Start] = ()

    @property
    def seconds(self) -> float:
        return self.stepped_at - self.struck_at


@dataclass(frozen=True)
class Trial:
    """What came of one failure; `seconds` is None where the job hung."""

    seconds: float | None
    stages: Mapping[Stage, float] = field(default_factory=dict)


class Contender(ABC):
    """Something that keeps two training processes running."""

    name: str
    failures: frozenset[Failure]
    """The failures that it can be tried with."""
    has_stages = False
    """Whether the parts of its recoveries can be seen."""

    @abstractmethod
    def start(self, events: Path, *, observed: bool) -> None:
        """Start the job.

        Args:
            events: the folder for what its ranks note.
            observed: whether `stages` will be asked for; watching costs the job processor time.
        """

    @abstractmethod
    def strike(self, failure: Failure, victim: Step) -> float:
        """Do it to where this step was ended. When that was (CLOCK_MONOTONIC)."""

    def stages(self, recoveries: Sequence[Recovery]) -> list[Mapping[Stage, float]]:
        """Return the stages of the last job's recoveries, before its end; nothing where none is seen."""
        return [{} for _ in recoveries]

    def mend(self) -> None:  # noqa: B027 (most have nothing to mend)
        """Give the cluster back what the failure took, once the job has recovered."""

    @abstractmethod
    def stop(self) -> None: ...
