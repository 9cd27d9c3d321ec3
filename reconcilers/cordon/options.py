"""Options of the controller about cordons, and their limit. Standard library only, for the CLI's start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_LIMIT_PERCENT = 10


class CordonMode(StrEnum):
    ENFORCE = "enforce"
    """Faulty nodes are cordoned."""
    REPORT = "report"
    """A dry run: conditions and Events say what would be done; but for its record, no node changes."""
    OFF = "off"
    """Nodes are only read, as by a controller that has no other right to them."""


NOT_ENFORCED = "not cordoned: the controller runs with --cordon=report"
"""Statement on a node that a dry run leaves in service."""
HELD_BACK = "not cordoned: as many nodes are as --cordon-limit allows"
"""Statement on a node that the limit leaves in service."""


@dataclass(frozen=True)
class CordonOptions:
    mode: CordonMode = CordonMode.ENFORCE
    limit_percent: int = DEFAULT_LIMIT_PERCENT
    """How many of all nodes may be cordoned by us at once; one always may."""


def limit_of(nodes: int, percent: int) -> int:
    """How many of so many nodes may be cordoned by us at once; at least one."""
    return max(1, nodes * percent // 100)
