"""What both an agent and a job tell of training's progress."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crds.model import Model, agreed
from crds.protocol import RoundStatus


@agreed(RoundStatus)
class RoundProgress(Model):
    """What a worker's processes trained in one round: raw figures for the job's goodput."""

    round: Annotated[int, Field(ge=0)]
    first_step: Annotated[int, Field(ge=0)]
    """The first that was told."""
    last_step: Annotated[int, Field(ge=0)]
    """The highest that was told."""
    stepping_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Between telling the one and the other, on the monotonic clock."""
    counted: bool | None = None
    """Set where the agent counted the steps of optimizers, since the script tells none."""
    start_unknown: bool | None = None
    """Set where nobody knows which step the count began with: earlier starts may have come further."""
    samples_per_step: Annotated[int, Field(ge=1)] | None = None
    """Of the whole world, where the script tells it (`dlr.report_step(step, samples=…)`)."""
    non_finite_step: Annotated[int, Field(ge=0)] | None = None
    """The first step of which a process told that its loss was NaN or infinite."""
