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
        words[SPEAKS] = TAKES_PART


def boundary(step: int) -> Tier | None:
    """Tell whether to leave after this step, and where to save it before. Call it on every rank.

    While a vote is open, it waits for its end: milliseconds, and never longer than the agent has said.

    Args:
        step: the number of optimizer steps so far, alike on all ranks, and more than the last time.

    Returns:
        None: go on.
    """
    words = _words()
    if words is None:
        return None
    words[BOUNDARY] = step  # before the look at the order, as the agent counts on it
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
    """Return what a process does that has ended a step: it leaves for a tier, waits, or goes on.

    One that was held and hears no more goes on alone. It leaves by no vote then: this one may yet be decided
    for a step that it has passed.

    Args:
        order: the word ORDER.
        speaks: the word SPEAKS.
        now: by CLOCK_MONOTONIC.
    """
    if speaks == GOES_ALONE:
        return "go alone"
    if order < GO_ON:
        return "wait" if now * 1_000 < -order else "go alone"
    if is_to_leave(order, step):
        return _TIERS[tier_of(order)]
    return "go on"


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
