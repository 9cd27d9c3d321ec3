"""Where a process learns which groups take part: from its agent, or, alone, from nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch.distributed import Store  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Membership:
    """The groups that take part in a version."""

    version: int
    groups: tuple[tuple[int, int], ...]
    """Index and round of each, by index."""
    me: tuple[int, int]
    """Index of this process's group, and the round of its processes."""

    @property
    def place(self) -> int | None:
        """The place of this process's group among them; None if it takes no part."""
        return self.groups.index(self.me) if self.me in self.groups else None

    def indices(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of the groups at these places."""
        return tuple(self.groups[place][0] for place in places)


class Channel(Protocol):
    """The way to this process's agent."""

    def follow(self, changed: Callable[[], None], rank: int, size: int) -> None:
        """Tell the agent that this process is ready to take part, and have every news called out.

        Args:
            changed: is called by a thread, after `membership` has changed.
            rank: of the process, in its group.
            size: number of the group's processes.
        """

    @property
    def membership(self) -> Membership | None:
        """The newest; None before the first."""

    def open_store(self, version: int) -> Store:
        """Connect to the store of a version, through which its processes find each other."""

    def at(self, version: int, step: int) -> None:
        """Tell that this process is in that version's exchange, and has applied so many steps."""

    def broken(self, version: int) -> None:
        """Tell that the exchange of a version failed, although no newer one is there."""


class Alone:
    """The channel of a group that has no others."""

    membership = Membership(1, ((0, 1),), (0, 1))

    def follow(self, changed: Callable[[], None], rank: int, size: int) -> None:
        """There is no news."""

    def open_store(self, version: int) -> Store:
        raise RuntimeError("a group that is alone has no store")

    def at(self, version: int, step: int) -> None:
        """Nobody asks."""

    def broken(self, version: int) -> None:
        """Nobody asks."""
