"""The way from a training process to its agent, which names the groups that take part."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from torch.distributed import Store  # type: ignore[attr-defined]

from agent.replicas.client import AgentChannel, Membership
from crds.names import ENV_REPLICAS_SOCKET
from crds.progress_record import ENV_ROUND


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

    def left_out(self, version: int) -> None:
        """Tell that this process waits for a version with its group, and has seen this one without it."""

    def late(self, version: int, groups: Sequence[int]) -> None:
        """Tell for which groups this process waits in that version for longer than its patience.

        Args:
            groups: their indices; none once they have come.
        """


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

    def left_out(self, version: int) -> None:
        """Nobody asks."""

    def late(self, version: int, groups: Sequence[int]) -> None:
        """Nobody asks."""


def channel_of_process() -> Channel:
    """Return the channel that the environment names; without one, this group is alone.

    Raises:
        OSError: the agent cannot be reached.
    """
    path = os.environ.get(ENV_REPLICAS_SOCKET)
    return AgentChannel(path, int(os.environ[ENV_ROUND])) if path else Alone()
