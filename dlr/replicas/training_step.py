"""A step of the loop, and what is asked of those who live through one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

logger = logging.getLogger(__name__)


class LivingTraining(Protocol):
    """The training that a process lives on in: `dlr.replicas.Replicas`."""

    def wake(self) -> None:
        """End all waits for other groups, since the round is over; for any thread."""

    def leave_round(self) -> None:
        """Take no part in the round any more."""

    def begin_round(self) -> None:
        """Load or take over a state, in a round whose groups are formed, and come to its next step."""


class StepGuard(Protocol):
    """The part of a process at the beginning and the end of a step."""

    def enter(self) -> None:
        """Begin a step."""

    def ends(self, error: BaseException | None) -> bool:
        """End a step, well or by an error; return whether the error is none of the script's."""


class TrainingStep(int):
    """A step of the loop: as an int, how many steps come before it, so that the first is 0.

    `dlr.report` and `Checkpointer.step` take it as it is, and count it by its `number`. `with step:` makes
    the step again where a peer dies in it.
    """

    _process: StepGuard

    @property
    def number(self) -> int:
        """The number of steps that the training has with this one, as all of dlr counts: the first is 1."""
        return self + 1

    @classmethod
    def of(cls, number: int, process: StepGuard) -> TrainingStep:
        """Return a step of a process that lives on, or of one that does not."""
        step = cls(number)
        step._process = process
        return step

    def __enter__(self) -> TrainingStep:
        self._process.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._process.ends(error)


class Mortal:
    """The part of a process that ends when a peer dies, with the methods of `Survivor`.

    Args:
        why: the reason, for a script that has `with step`; empty for none.
    """

    training: LivingTraining
    joins = is_round_over = False
    round = 0

    def __init__(self, why: str = "") -> None:
        self._why = why

    def join(self) -> None: ...

    def enter(self) -> None:
        """Say once why `with step` changes nothing."""
        if self._why:
            logger.warning("with step: all processes start again where one dies: %s", self._why)
            self._why = ""

    def ends(self, error: BaseException | None) -> bool:
        """Leave each error to the script."""
        return False

    def next_round(self) -> bool:
        """Return False: there is none."""
        return False

    def carry_through(self, act: Callable[[], None]) -> None:
        """Do it."""
        act()

    def give_up(self) -> None: ...
