"""A step of the loop, and the interfaces of processes that live through a peer's death in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

logger = logging.getLogger(__name__)


class LivingTraining(Protocol):
    """Training in which a process lives on: `dlr.replicas.Replicas`."""

    def wake(self) -> None:
        """End all waits for other groups, since the round is over. Thread-safe."""

    def leave_round(self) -> None:
        """Stop taking part in the round."""

    def begin_round(self) -> None:
        """Load or receive a state, in a round whose groups are formed, and proceed to its next step."""


class StepGuard(Protocol):
    """The part of a process at the beginning and the end of a step."""

    def enter(self) -> None:
        """Begin a step."""

    def ends(self, error: BaseException | None) -> bool:
        """End a step, successfully or by an error; return whether to suppress the error."""


class TrainingStep(int):
    """A step of the loop: as an int, the number of steps before it, so that the first is 0.

    `dlr.report` and `Checkpointer.step` take it unchanged, and use its `number`. `with step:` makes the step
    again if a peer dies in it.
    """

    _process: StepGuard

    @property
    def number(self) -> int:
        """Number of steps up to and including this one, which the rest of dlr uses: the first is 1."""
        return self + 1

    @classmethod
    def of(cls, number: int, process: StepGuard) -> TrainingStep:
        """Return a step of this process, which may be able to live on."""
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
    """A process that ends when a peer dies, with the methods of `Survivor`.

    Args:
        why: the reason, to log for a script that uses `with step`; empty for none.
    """

    training: LivingTraining
    joins = is_round_over = False
    round = 0

    def __init__(self, why: str = "") -> None:
        self._why = why

    def join(self) -> None: ...

    def enter(self) -> None:
        """Log once why `with step` has no effect."""
        if self._why:
            logger.warning("with step: all processes start again where one dies: %s", self._why)
            self._why = ""

    def ends(self, error: BaseException | None) -> bool:
        """Leave each error to the script."""
        return False

    def next_round(self) -> bool:
        """Return False: there is no other round."""
        return False

    def carry_through(self, act: Callable[[], None]) -> None:
        """Run the action."""
        act()

    def give_up(self) -> None: ...
