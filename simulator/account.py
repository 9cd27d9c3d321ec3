"""What a run gives: the time of its job by what it went to, which sums up to the horizon, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from crds.job_status import JobState


class Part(StrEnum):
    """What time goes to: dlr's states (docs/metrics.md), some of them in parts."""

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


STATES: dict[Part, str] = {
    part: JobState(part.value.partition(",")[0]).value if part is not Part.ENDED else "Failed"
    for part in Part
}
"""The state of dlr that a part belongs to."""

GOOGLES: dict[Part, str] = {
    Part.PENDING: "TPU_INITIALIZATION",
    Part.CHECKING: "TPU_INITIALIZATION",
    Part.FORMING: "TRAINING_PREP",
    Part.REDONE: "WASTED_PROGRESS_FROM_DISRUPTION",
    Part.SAVING: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    Part.SLOWED: "OTHER",
    Part.MISSING: "ELASTICITY_SLICE_DOWN",
    Part.NOTICING: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.WAITING: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.STARTING: "TRAINING_PREP, UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    Part.STALLED: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.DOWN: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.ENDED: "OTHER",
}
"""The nearest badput type of Google's ml-goodput-measurement."""

_OF_STATE = {
    JobState.PENDING: Part.PENDING,
    JobState.CHECKING: Part.CHECKING,
    JobState.FORMING: Part.FORMING,
    JobState.DOWN: Part.DOWN,
}


def part_of(state: JobState | None, *, noticed: bool, formed: bool) -> Part:
    """The part of the time of a job that does not train.

    Args:
        state: the state in the controller's account.
        noticed: the world of the failure has been given up.
        formed: there is a world that has not made its first step.
    """
    if state in _OF_STATE:
        return _OF_STATE[state]
    if not noticed:
        return Part.NOTICING
    return Part.STARTING if formed else Part.WAITING


@dataclass
class Account:
    seconds: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    work: float = 0.0
    """Seconds of training at full size and speed, without those that are done again."""
    lost: float = 0.0
    """Sum of the work that had to be done again."""

    def trains(self, seconds: float, saving: float, pace: float, present: float) -> None:
        """Add time of training, by the share of saves, the pace (1 is full speed) and the share of nodes."""
        rest = seconds
        for part, kept in ((Part.SAVING, 1 - saving), (Part.SLOWED, pace), (Part.MISSING, present)):
            self.seconds[part] += rest * (1 - kept)
            rest *= kept
        self.seconds[Part.USEFUL] += rest
        self.work += rest

    def falls_back(self, to: float) -> float:
        """Go back to this much work, and return the work that has to be done again."""
        lost = max(self.work - to, 0.0)
        self.work -= lost
        self.lost += lost
        self.seconds[Part.USEFUL] -= lost
        self.seconds[Part.REDONE] += lost
        return lost


@dataclass(frozen=True)
class PublishedWorld:
    """One world of the run, for comparison with a real cluster."""

    seconds: float
    round: int
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    blamed: str
    """Worker and class of the failure that is looked at first; empty if there is none."""


@dataclass
class Outcome:
    """What has happened so far in a run."""

    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    faults: Counter[str] = field(default_factory=Counter)
    """Faults of nodes that the job used, by kind."""
    interruptions: int = 0
    """Times that training stopped for a fault, or a start was cut short by one."""
    rounds: int = 0
    cordons: int = 0
    cordons_held: int = 0
    """Cordons for which the limit left no room."""
    repairs: int = 0
    ended: str = ""
    """Why the job failed before the time was over; empty if it did not."""
    story: list[PublishedWorld] = field(default_factory=list)
    cordoned: list[str] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Share of the time that kept steps took (docs/metrics.md)."""
        stepping = (Part.USEFUL, Part.SAVING, Part.SLOWED, Part.MISSING)
        return sum(self.account.seconds[part] for part in stepping) / self.seconds

    @property
    def full_speed(self) -> float:
        """Share of what as many nodes would do that never fail, save and wait."""
        return self.account.seconds[Part.USEFUL] / self.seconds
