"""The parts of `dlr.checkpoint.Checkpointer` that replica groups and processes that live on need."""

from __future__ import annotations

from typing import Protocol

from dlr.checkpoint.checkpointer import SavingGroups


class GroupCheckpointer(Protocol):
    """The part that replica groups need."""

    def load_beyond(self, step: int) -> int | None:
        """Load the newest checkpoint if it is of a later step; return its step, or None."""

    def join(self, groups: SavingGroups, loads: bool) -> int | None:
        """Save as one of these groups from now on; load the newest checkpoint if `loads`.

        Returns:
            the step that was loaded, or None.
        """

    def wait(self) -> None:
        """Wait until the tensors that are being saved may change."""


class LivingCheckpointer(Protocol):
    """The part that a process needs to live on."""

    def rest(self) -> None:
        """Wait until all copies into the agent's memory have ended, and release it."""

    def begin_again(self) -> None:
        """Begin the next start of the training processes."""

    lives_on: bool
    """Whether this process can live on."""

    @property
    def stays(self) -> bool:
        """Whether the round ends by plan after the last save, and this process lives on."""
