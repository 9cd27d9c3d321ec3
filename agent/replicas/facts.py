"""The groups that take part, by the ElasticWorld, and this agent's processes, by their messages. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crds.agent_report import ReplicasReport
from crds.wire import MAX_INTEGER


@dataclass(frozen=True)
class GroupAddress:
    """A group that takes part."""

    index: int
    round: int
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class Groups:
    """The groups that take part, as the grouped job's ElasticWorld has them."""

    version: int = 0
    groups: tuple[GroupAddress, ...] = ()

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> Groups:
        """Read them from the ElasticWorld."""
        replicas = (world.get("spec") or {}).get("replicas") or {}
        groups = (
            GroupAddress(each["index"], each["round"], each.get("address", ""), each.get("port", 0))
            for each in replicas.get("groups") or ()
        )
        return cls(replicas.get("version", 0), tuple(groups))


@dataclass(frozen=True)
class Training:
    """How far a process is, by its own messages."""

    version: int = 0
    step: int = 0
    broken: int = 0

    def after(self, message: Mapping[str, Any]) -> Training:
        """Return it after a message.

        Raises:
            LookupError, TypeError, ValueError: the message makes no sense.
        """
        if "at" in message:
            return replace(self, version=_count(message["at"]["version"]), step=_count(message["at"]["step"]))
        return replace(self, broken=max(_count(message["broken"]), self.broken))


def summary(round_: int, count: int, processes: Collection[Training]) -> ReplicasReport | None:
    """Return what the agent reports; None until all processes of the round are ready.

    Args:
        round_: the round of the processes.
        count: number of the agent's processes.
        processes: those that are ready.
    """
    if not processes or len(processes) < count:
        return None
    return ReplicasReport(
        round_,
        min(each.version for each in processes),
        min(each.step for each in processes),
        max(each.broken for each in processes),
    )


def _count(number: Any) -> int:
    if not 0 <= int(number) <= MAX_INTEGER:
        raise ValueError(f"{number} is no count")
    return int(number)
