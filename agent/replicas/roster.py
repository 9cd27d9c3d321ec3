"""Decisions of an agent's desk for replica groups: which connections follow the groups, and get what. Pure.

Each connection of a training process has a key. The methods return acts to carry out in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.replicas.facts import GroupsView, Training, VersionGroups, summary
from crds.agent_report import ReplicasReport

MAX_CONNECTIONS = 1_024

Key = Any


@dataclass(frozen=True)
class Send:
    """Send a membership without waiting."""

    key: Key
    membership: VersionGroups


@dataclass(frozen=True)
class EndConnection:
    """End a connection, and wake both of its sides."""

    key: Key


@dataclass(frozen=True)
class ReportNow:
    """Have the agent report at once, since the controller has to decide on the news."""


Act = Send | EndConnection | ReportNow


@dataclass
class _Process:
    """A process that is ready to take part."""

    key: Key
    training: Training = field(default_factory=Training)


class Roster:
    """The connections of one agent's training processes, round after round."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._groups: GroupsView | None = None
        self._round, self._count = 0, 0
        self._processes: dict[int, _Process] = {}
        """The processes of the round that are ready, by rank."""
        self._stores: dict[Key, int] = {}
        """Connections to a version's store, with the version."""
        self._connections: set[Key] = set()
        self._reported: ReplicasReport | None = None
        """Last report that had to be written at once, without version and step."""
        self._is_closed = False

    @property
    def membership(self) -> VersionGroups:
        """The groups that take part now, for the processes of the round."""
        groups = self._groups or GroupsView()
        return VersionGroups(groups.version, groups.groups, (self._group, self._round))

    def summary(self) -> ReplicasReport | None:
        """Return the section of the agent's next report; None until all processes of the round are ready."""
        return summary(self._round, self._count, [each.training for each in self._processes.values()])

    # --- the agent ---------------------------------------------------------------------------------------

    def begin(self, round_: int, count: int) -> list[Act]:
        """Expect `count` processes of a round, and end the connections that earlier ones have left."""
        self._round, self._count, self._processes, self._reported = round_, count, {}, None
        return self._ends()

    def see(self, groups: GroupsView) -> list[Act]:
        """Note the groups that take part now."""
        if self._groups is not None and groups.version < self._groups.version:
            return []  # the object is missing for a moment
        self._groups = groups
        membership = self.membership
        acts: list[Act] = [Send(each.key, membership) for each in self._processes.values()]
        return acts + [
            EndConnection(key) for key, version in self._stores.items() if version < groups.version
        ]

    def close(self) -> list[Act]:
        """Accept no more connections, and end the existing ones."""
        self._is_closed = True
        return self._ends()

    def _ends(self) -> list[Act]:
        return [EndConnection(key) for key in self._connections]

    # --- connections -------------------------------------------------------------------------------------

    def admit(self, key: Key) -> bool:
        """Add a connection; return whether there is room for it."""
        if self._is_closed or len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(key)
        return True

    def look(self, round_: int) -> VersionGroups:
        """Return the membership for a process that is not ready yet.

        Raises:
            ConnectionError: its round is over.
        """
        self._check_round(round_)
        return self.membership

    def join(self, key: Key, rank: int, round_: int) -> list[Act]:
        """Note that a process is ready to take part.

        Raises:
            ConnectionError: its round is over.
        """
        self._check_round(round_)
        self._processes[rank] = _Process(key)
        sent: list[Act] = [] if self._groups is None else [Send(key, self.membership)]
        return sent + self._news()

    def take(self, key: Key, message: Mapping[str, Any]) -> list[Act]:
        """Process a report of a process.

        Raises:
            LookupError, TypeError, ValueError: it is malformed.
        """
        process = next((each for each in self._processes.values() if each.key == key), _Process(key))
        process.training = process.training.after(message, self.membership.version)
        return self._news()

    def open_store(self, key: Key, version: int) -> GroupsView | None:
        """Return the groups whose lead keeps the store of a version; None if that is not the newest."""
        groups = self._groups
        if groups is None or groups.version != version or not groups.groups:
            return None
        self._stores[key] = version
        return groups

    def is_newest(self, version: int) -> bool:
        """Return whether there is no newer version."""
        return self._groups is not None and self._groups.version == version

    def leave(self, key: Key) -> None:
        """Note that a connection has ended.

        Once all were ready, a process ends by a failure or with training, which the agent reports by itself.
        """
        self._connections.discard(key)
        self._stores.pop(key, None)
        if self.summary() is None:
            self._processes = {rank: each for rank, each in self._processes.items() if each.key != key}

    def _check_round(self, round_: int) -> None:
        if round_ != self._round:
            raise ConnectionResetError(f"a process of round {round_} comes when that is over")

    def _news(self) -> list[Act]:
        """Return the report that is due at once.

        Steps and versions wait for the next report, since all workers of all groups reach each new version.
        """
        report = self.summary()
        news = None if report is None else replace(report, version=0, step=0)
        is_news = news is not None and news != self._reported
        self._reported = news
        return [ReportNow()] if is_news else []
