"""Result of a run: the time of its job by use, which sums up to the horizon, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from crds.job_status import JobState


class TimeUse(StrEnum):
    """Uses of time: dlr's states (docs/metrics.md), some of them split."""

    PENDING = "Pending"
    CHECKING = "Checking"
    FORMING = "Forming"
    USEFUL = "Training"
    REDONE = "Training, again"
    SAVING = "Training, held up by saves"
    SLOWED = "Training, slowed down"
    MISSING = "Training, with nodes missing"
    NOTICING = "Recovering, until it is noticed"
    WAITING = "Recovering, for Pods and nodes"
    STARTING = "Recovering, until the first step"
    STALLED = "Recovering, while another group fails"
    DOWN = "Down"
    ENDED = "Failed"


STATES: dict[TimeUse, str] = {
    part: JobState(part.value.partition(",")[0]).value if part is not TimeUse.ENDED else "Failed"
    for part in TimeUse
}
"""State of dlr to which a part belongs."""

GOOGLES: dict[TimeUse, str] = {
    TimeUse.PENDING: "TPU_INITIALIZATION",
    TimeUse.CHECKING: "TPU_INITIALIZATION",
    TimeUse.FORMING: "TRAINING_PREP",
    TimeUse.REDONE: "WASTED_PROGRESS_FROM_DISRUPTION",
    TimeUse.SAVING: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    TimeUse.SLOWED: "OTHER",
    TimeUse.MISSING: "ELASTICITY_SLICE_DOWN",
    TimeUse.NOTICING: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    TimeUse.WAITING: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    TimeUse.STARTING: "TRAINING_PREP, UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    TimeUse.STALLED: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    TimeUse.DOWN: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    TimeUse.ENDED: "OTHER",
}
"""Nearest badput type of Google's ml-goodput-measurement."""

_OF_STATE = {
    JobState.PENDING: TimeUse.PENDING,
    JobState.CHECKING: TimeUse.CHECKING,
    JobState.FORMING: TimeUse.FORMING,
    JobState.DOWN: TimeUse.DOWN,
}


def part_of(state: JobState | None, *, noticed: bool, formed: bool) -> TimeUse:
    """Return the use of time of a job that does not train.

    Args:
        state: state in the controller's account.
        noticed: whether the world of the failure has been given up.
        formed: whether there is a world that has not made its first step.
    """
    if state in _OF_STATE:
        return _OF_STATE[state]
    if not noticed:
        return TimeUse.NOTICING
    return TimeUse.STARTING if formed else TimeUse.WAITING


@dataclass
class Account:
    seconds: dict[TimeUse, float] = field(default_factory=lambda: dict.fromkeys(TimeUse, 0.0))
    work: float = 0.0
    """Seconds of training at full size and speed, without repeated work."""
    lost: float = 0.0
    """Total work that had to be repeated."""

    def trains(self, seconds: float, saving: float, pace: float, present: float) -> None:
        """Add training time, given the share of saves, the pace (1 is full speed) and the share of nodes."""
        rest = seconds
        for part, kept in ((TimeUse.SAVING, 1 - saving), (TimeUse.SLOWED, pace), (TimeUse.MISSING, present)):
            self.seconds[part] += rest * (1 - kept)
            rest *= kept
        self.seconds[TimeUse.USEFUL] += rest
        self.work += rest

    def falls_back(self, to: float) -> float:
        """Go back to this much work; return the work to repeat."""
        lost = max(self.work - to, 0.0)
        self.work -= lost
        self.lost += lost
        self.seconds[TimeUse.USEFUL] -= lost
        self.seconds[TimeUse.REDONE] += lost
        return lost


@dataclass(frozen=True)
class PublishedWorld:
    """World of a run, for comparison with a real cluster."""

    seconds: float
    round: int
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    blamed: str
    """Worker and exit class of the failure to look at first; empty if there is none."""


@dataclass
class RunOutcome:
    """Counts and account of a run so far."""

    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    faults: Counter[str] = field(default_factory=Counter)
    """Faults of nodes in use by the job, by kind."""
    interruptions: int = 0
    """Number of times that a fault stopped training or a start."""
    rounds: int = 0
    cordons: int = 0
    cordons_held: int = 0
    """Cordons prevented by the limit."""
    repairs: int = 0
    ended: str = ""
    """Why the job failed before the end; empty if it did not."""
    story: list[PublishedWorld] = field(default_factory=list)
    cordoned: list[str] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Share of the time spent on kept steps (docs/metrics.md)."""
        stepping = (TimeUse.USEFUL, TimeUse.SAVING, TimeUse.SLOWED, TimeUse.MISSING)
        return sum(self.account.seconds[part] for part in stepping) / self.seconds

    @property
    def full_speed(self) -> float:
        """Share of the work of as many nodes that never fail, save or wait."""
        return self.account.seconds[TimeUse.USEFUL] / self.seconds
