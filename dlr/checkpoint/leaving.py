"""Planned exits on the side of a training process, which checks after each step whether to leave.

    leaving.take_part()                      # once, before the first step
    for step in ...:
        train()
        tier = leaving.boundary(step)
        if tier is not None:
            save(step, tier)
            leaving.leave()

For a planned change (a rescale, a suspension, a drained node) the agents of the job agree on a step by vote,
and `boundary` makes every rank leave after that step. A `Checkpointer` does all of this itself. Outside of
dlr `boundary` always returns None.
"""

from __future__ import annotations

import gc
import time

from crds.checkpoint_files import KeptIn
from crds.progress_record import (
    BOUNDARY,
    EXIT_LEFT,
    GO_ON,
    GOES_ALONE,
    KEEPS_IN,
    ORDER,
    SPEAKS,
    TAKES_PART,
    is_to_leave,
    is_to_stay,
    tier_of,
)
from dlr import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NoReturn

    Tier = Literal["memory", "storage"]
    Move = Literal["wait", "go on", "go alone", Tier]

LOOK_SECONDS = 0.001
"""Pause between two looks of a process that waits for a vote, which takes milliseconds."""

_TIERS: dict[int, Tier] = {KeptIn.MEMORY: "memory", KeptIn.STORAGE: "storage"}


def take_part(keeps_in: Tier = "memory") -> None:
    """Tell the agent that this process will call `boundary` after each step. Calls may be repeated.

    Args:
        keeps_in: "storage" if this process cannot save to memory; then no rank is asked to.
    """
    words = _words()
    if words is None:
        return
    words[KEEPS_IN] = next(number for number, tier in _TIERS.items() if tier == keeps_in)
    if not words[SPEAKS]:
        words[BOUNDARY] = -1
        words[SPEAKS] = TAKES_PART


def boundary(step: int) -> Tier | None:
    """Decide whether to leave after this step. Every rank calls it.

    It waits for the end of an open vote: milliseconds, and at most as long as the agent has set.

    Args:
        step: the number of optimizer steps so far, equal on all ranks, and greater than at the last call.

    Returns:
        where to save the step before leaving; None to go on.
    """
    words = _words()
    if words is None:
        return None
    words[BOUNDARY] = step  # before reading the order: the agent relies on this sequence
    while (move := next_move(words[ORDER], words[SPEAKS], step, time.monotonic())) == "wait":
        time.sleep(LOOK_SECONDS)
    if move == "go alone":
        words[SPEAKS] = GOES_ALONE
    return move if move == "memory" or move == "storage" else None


def stays() -> bool:
    """Whether a process that `boundary` tells to leave may live on into the next round instead."""
    words = _words()
    return words is not None and is_to_stay(words[ORDER])


def next_move(order: int, speaks: int, step: int, now: float) -> Move:
    """Return the next move of a process that has ended a step: leave for a tier, wait, or go on.

    If the agent does not answer in time, the process goes on alone, and takes part in no vote any more: the
    open one may yet be decided for a step that the process has passed.

    Args:
        order: value of the record's word ORDER.
        speaks: value of the record's word SPEAKS.
        now: CLOCK_MONOTONIC time, in seconds.
    """
    if speaks == GOES_ALONE:
        return "go alone"
    if order < GO_ON:
        return "wait" if now * 1_000 < -order else "go alone"
    if is_to_leave(order, step):
        return _TIERS[tier_of(order)]
    return "go on"


def prepare_to_end() -> None:
    """Let the interpreter exit without a garbage collection through all of torch, which takes up to 2 s."""
    gc.freeze()


def leave() -> NoReturn:
    """End this process after the last step was saved; the exit code counts as no failure."""
    prepare_to_end()
    raise SystemExit(EXIT_LEFT)


def _words() -> memoryview[int] | None:
    slot = progress.slot()
    return slot[0] if slot is not False else None
