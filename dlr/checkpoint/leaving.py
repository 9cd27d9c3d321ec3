"""Leaving by vote, as a training process sees it: at the end of each step it looks whether to go on.

    leaving.take_part()                      # once, before the first step
    for step in ...:
        train()
        tier = leaving.boundary(step)
        if tier is not None:
            save(step, tier)
            leaving.leave()

For a planned change (a rescale, a suspension, a drained node) the agents of the job agree on a step, and
`boundary` tells every rank to leave after that one. A `Checkpointer` does all of this by itself. Outside of
dlr `boundary` always says to go on.
"""

from __future__ import annotations

import gc
import time

from crds.checkpoint_files import KeptIn
from crds.progress_record import BOUNDARY, EXIT_LEFT, KEEPS_IN, ORDER, SPEAKS
from dlr import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NoReturn

    Tier = Literal["memory", "storage"]

LOOK_SECONDS = 0.001
"""Between two looks of a process that is held, for the milliseconds that a vote takes."""

_TIERS: dict[int, Tier] = {KeptIn.MEMORY: "memory", KeptIn.STORAGE: "storage"}


def take_part(keeps_in: Tier = "memory") -> None:
    """Tell the agent that this process will call `boundary` after each step. It may be repeated.

    Args:
        keeps_in: "storage" if this process cannot save to memory; then no rank is told to.
    """
    words = _words()
    if words is None:
        return
    words[KEEPS_IN] = next(number for number, tier in _TIERS.items() if tier == keeps_in)
    if not words[SPEAKS]:
        words[BOUNDARY] = -1
        words[SPEAKS] = 1


def boundary(step: int) -> Tier | None:
    """Tell whether to leave after this step, and where to save it before. Call it on every rank.

    While a vote is open, it waits for its end: milliseconds, and never longer than the agent has said.

    Args:
        step: that has ended; at least 0, and more than the last time.

    Returns:
        None: go on.
    """
    words = _words()
    if words is None:
        return None
    words[BOUNDARY] = step  # before the look at the order, as the agent counts on it
    while is_held(order := words[ORDER], time.monotonic()):
        time.sleep(LOOK_SECONDS)
    return tier_to_leave(order, step)


def is_held(order: int, now: float) -> bool:
    """Whether a process that has ended a step waits, at `now` (CLOCK_MONOTONIC)."""
    return order < 0 and now * 1_000 < -order


def tier_to_leave(order: int, step: int) -> Tier | None:
    """Return the tier to save `step` in before this process leaves; None if it goes on."""
    return _TIERS.get(order & 3) if order > 0 and step >= order >> 2 else None


def prepare_to_end() -> None:
    """Have the interpreter end without collecting the garbage of all of torch, which takes up to 2 s."""
    gc.freeze()


def leave() -> NoReturn:
    """End this process, after `boundary` said so and the step was saved. That is no failure."""
    prepare_to_end()
    raise SystemExit(EXIT_LEFT)


def _words() -> memoryview[int] | None:
    slot = progress.slot()
    return slot[0] if slot is not False else None
