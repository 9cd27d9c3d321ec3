"""Groups that take part, from the ElasticWorld, and state of this agent's processes, from their messages.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crds.agent_report import MAX_LATE_GROUPS, ReplicasReport
from crds.grouping import MAX_GROUPS
from crds.wire import MAX_INTEGER


@dataclass(frozen=True)
class GroupsView:
    """The groups that take part, from the grouped job's ElasticWorld."""

    version: int = 0
    groups: tuple[tuple[int, int], ...] = ()
    """Index and round of each, by index. The first one leads."""
    address: str = ""
    """Address of the lead's agent, which keeps the store."""
    port: int = 0

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> GroupsView:
        replicas = (world.get("spec") or {}).get("replicas") or {}
        groups = tuple((each["index"], each["round"]) for each in replicas.get("groups") or ())
        return cls(replicas.get("version", 0), groups, replicas.get("address", ""), replicas.get("port", 0))


@dataclass(frozen=True)
class VersionGroups:
    """The groups that take part in a version."""

    version: int
    groups: tuple[tuple[int, int], ...]
    """Index and round of each, by index."""
    me: tuple[int, int]
    """Index of this process's group, and the round of its processes."""

    @property
    def place(self) -> int | None:
        """Place of this process's group among them; None if it does not take part."""
        return self.groups.index(self.me) if self.me in self.groups else None

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of the other groups that take part."""
        return tuple(index for index, _ in self.groups if index != self.me[0])

    def indices(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of the groups at these places."""
        return tuple(self.groups[place][0] for place in places)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> VersionGroups:
        """Parse the agent's message."""
        groups = tuple((int(index), int(round_)) for index, round_ in fields["groups"])
        index, round_ = fields["me"]
        return cls(int(fields["version"]), groups, (int(index), int(round_)))


@dataclass(frozen=True)
class Training:
    """State of a process, by its own messages."""

    version: int = 0
    step: int = 0
    broken: int = 0
    left_out: int = 0
    """Newest version that it has seen without its group."""
    late: tuple[int, tuple[int, ...]] = (0, ())
    """Version in which it waits for others for longer than its patience, and their indices."""

    def after(self, message: Mapping[str, Any], newest: int) -> Training:
        """Return the state after a message.

        Args:
            newest: the newest version that the process can have seen; a later one counts as this.

        Raises:
            LookupError, TypeError, ValueError: the message is malformed.
        """
        if "at" in message:
            version, step = _version(message["at"]["version"], newest), _count(message["at"]["step"])
            return replace(self, version=version, step=step)
        if "late" in message:
            late, groups = message["late"], message["late"]["groups"]
            indices = tuple(map(_index, groups[:MAX_LATE_GROUPS]))
            return replace(self, late=(_version(late["version"], newest), indices))
        if "left_out" in message:
            return replace(self, left_out=max(_version(message["left_out"], newest), self.left_out))
        return replace(self, broken=max(_version(message["broken"], newest), self.broken))


def summary(round_: int, count: int, processes: Collection[Training]) -> ReplicasReport | None:
    """Return the section of the agent's report; None until all processes of the round are ready.

    Args:
        count: number of the agent's processes.
        processes: states of the ready processes.
    """
    if not processes or len(processes) < count:
        return None
    late_version = max((each.late[0] for each in processes if each.late[1]), default=0)
    late = {index for each in processes if each.late[0] == late_version for index in each.late[1]}
    return ReplicasReport(
        round_,
        min(each.version for each in processes),
        min(each.step for each in processes),
        max(each.broken for each in processes),
        max(each.left_out for each in processes),
        late_version,
        tuple(sorted(late)[:MAX_LATE_GROUPS]),
    )


def _count(number: Any) -> int:
    if not 0 <= int(number) <= MAX_INTEGER:
        raise ValueError(f"{number} is no count")
    return int(number)


def _version(number: Any, newest: int) -> int:
    return min(_count(number), newest)


def _index(number: Any) -> int:
    if not 0 <= int(number) < MAX_GROUPS:
        raise ValueError(f"{number} is no index of a group")
    return int(number)
