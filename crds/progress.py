"""What both an agent and a job tell of training's progress."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from crds.model import Count, Model, Ordinal, Seconds, agreed
from crds.protocol import RoundStatus


@agreed(RoundStatus)
class RoundProgress(Model):
    """What a worker's processes trained in one round: raw figures for the job's goodput."""

    round: Count
    first_step: Count
    """The first that was told."""
    last_step: Count
    """The highest that was told."""
    stepping_seconds: Seconds = 0.0
    """Between telling the one and the other, on the monotonic clock."""
    counted: bool | None = None
    """Set where the agent counted the steps of optimizers, since the script tells none."""
    start_unknown: bool | None = None
    """Set where nobody knows which step the count began with: earlier starts may have come further."""
    samples_per_step: Ordinal | None = None
    """Of the whole world, where the script tells it (`dlr.report_step(step, samples=…)`)."""
    non_finite_step: Count | None = None
    """The first step of which a process told that its loss was NaN or infinite."""

    @model_validator(mode="before")
    @classmethod
    def _ordered(cls, stored: Any) -> Any:
        """A round whose last step is below its first has no steps between them."""
        if not isinstance(stored, dict):
            return stored
        first, last = stored.get("firstStep"), stored.get("lastStep")
        is_reversed = isinstance(first, int) and isinstance(last, int) and last < first
        return stored | {"lastStep": first} if is_reversed else stored
