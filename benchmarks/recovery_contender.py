"""Interface of the contenders of benchmarks/recovery.py."""

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
    """Failure of rank 1."""

    PROCESS = "process kill"
    POD = "Pod kill"
    NODE = "node loss"


class Stage(Enum):
    """Consecutive parts of a recovery from a killed process."""

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
    """Times from a failure to the first step of all ranks in the next world."""

    struck_at: float
    stepped_at: float
    starts: Sequence[Start] = ()

    @property
    def seconds(self) -> float:
        return self.stepped_at - self.struck_at


@dataclass(frozen=True)
class Trial:
    """Result of one failure; `seconds` is None if the job hung."""

    seconds: float | None
    stages: Mapping[Stage, float] = field(default_factory=dict)


class Contender(ABC):
    """System that keeps two training processes running."""

    name: str
    failures: frozenset[Failure]
    """Failures that it can be tested with."""
    has_stages = False
    """Whether the parts of its recoveries can be observed."""

    @abstractmethod
    def start(self, events: Path, *, observed: bool) -> None:
        """Start the job.

        Args:
            events: folder for the notes of its ranks.
            observed: whether `stages` will be called; watches cost the job processor time.
        """

    @abstractmethod
    def strike(self, failure: Failure, victim: Step) -> float:
        """Cause a failure of the rank with this step; return its time (CLOCK_MONOTONIC)."""

    def stages(self, recoveries: Sequence[Recovery]) -> list[Mapping[Stage, float]]:
        """Return the stages of the last job's recoveries, before it ends; empty if none is observed."""
        return [{} for _ in recoveries]

    def mend(self) -> None:  # noqa: B027 (most have nothing to mend)
        """Repair the cluster after the job has recovered."""

    @abstractmethod
    def stop(self) -> None: ...
