"""Training progress, as the reports of agents and the status of a job have it."""

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
    """The first step that was reported."""
    last_step: Count
    """The highest step that was reported."""
    stepping_seconds: Seconds = 0.0
    """Between telling the one and the other, on the monotonic clock."""
    counted: bool | None = None
    """Set where the agent counted steps of optimizers, since the script reports none."""
    start_unknown: bool | None = None
    """Set where the step that the count began with is unknown: earlier starts may have come further."""
    samples_per_step: Ordinal | None = None
    """Samples per step of the world, if the script reports them (`dlr.report(step, samples=…)`)."""
    non_finite_step: Count | None = None
    """The first step for which a process reported a loss that is NaN or infinite."""

    @model_validator(mode="before")
    @classmethod
    def _ordered(cls, stored: Any) -> Any:
        """A round whose last step is below its first has no steps between them."""
        if not isinstance(stored, dict):
            return stored
        first, last = stored.get("firstStep"), stored.get("lastStep")
        is_reversed = isinstance(first, int) and isinstance(last, int) and last < first
        return stored | {"lastStep": first} if is_reversed else stored
