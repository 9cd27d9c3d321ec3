"""A `dlr.checkpoint.Checkpointer`, as far as replica groups and processes that live on need it."""

from __future__ import annotations

from typing import Protocol

from dlr.checkpoint.checkpointer import SavingGroups


class GroupCheckpointer(Protocol):
    """What groups need of it."""

    def load_beyond(self, step: int) -> int | None:
        """Bring back the newest checkpoint if it is of a later step; return its step, or None."""

    def join(self, groups: SavingGroups, loads: bool) -> int | None:
        """Save as one of these groups from now on; load the newest checkpoint if asked.

        Returns:
            the step that was loaded, or None.
        """


class LivingCheckpointer(Protocol):
    """What a process needs of it that lives on."""

    def rest(self) -> None:
        """Wait until nothing is written into the agent's memory any more."""

    def begin_again(self) -> None:
        """Take what the agent gives the next start."""

    lives_on: bool
    """Whether this process can live on."""

    @property
    def stays(self) -> bool:
        """Whether the round ends by plan after the step that was saved last, and this process goes on."""
