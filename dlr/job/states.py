"""The states of a job and of its workers in colours, the same on the terminal and in the timeline.

The colours are Okabe and Ito's, which people see apart whatever their eyes tell of red and green.
"""

from __future__ import annotations

from crds.job_status import JobState

WAITING = "Waiting"
"""A worker that is up and has no place in the world."""
UP = "Up"
"""A worker that is up: what it did there is not known, or not the job's world."""

COLORS = {
    JobState.TRAINING.value: "#009e73",
    JobState.RECOVERING.value: "#d55e00",
    JobState.FORMING.value: "#56b4e9",
    JobState.CHECKING.value: "#cc79a7",
    JobState.PENDING.value: "#bbbbbb",
    JobState.SUSPENDED.value: "#e4e4e4",
    JobState.DOWN.value: "#444444",
    WAITING: "#f0e442",
    UP: "#9fc9b7",
}
"""In the order in which a legend names them."""
UNKNOWN_COLOR = "#888888"


def color(state: str) -> str:
    return COLORS.get(state, UNKNOWN_COLOR)
