"""Channel from a training process to its agent, which names the groups that take part."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from agent.replicas.client import AgentChannel
from agent.replicas.facts import VersionGroups
from crds.names import ENV_REPLICAS_SOCKET
from crds.progress_record import ENV_ROUND


class Alone:
    """Channel of a single group, with the methods of `AgentChannel`."""

    membership = VersionGroups(1, ((0, 1),), (0, 1))

    def renewed(self, round_: int) -> Alone:
        """Return this channel, which is the same in each round."""
        return self

    def look(self) -> VersionGroups:
        """Return this group, the only one."""
        return self.membership

    def open_store(self, version: int) -> NoReturn:
        """Raise RuntimeError: a group that is alone has no store."""
        raise RuntimeError("a group that is alone has no store")

    def follow(self, changed: Callable[[], None], rank: int, size: int) -> None: ...

    def at(self, version: int, step: int) -> None: ...

    def broken(self, version: int) -> None: ...

    def left_out(self, version: int) -> None: ...

    def late(self, version: int, groups: Sequence[int]) -> None: ...


Channel = AgentChannel | Alone


def channel_of_process() -> Channel:
    """Return the channel that the environment names; without one, this group is alone.

    Raises:
        OSError: the agent cannot be reached.
    """
    path = os.environ.get(ENV_REPLICAS_SOCKET)
    return AgentChannel(path, int(os.environ[ENV_ROUND])) if path else Alone()
