"""What whoever runs the controller says about cordons. Standard library only: the CLI reads it at start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_LIMIT_PERCENT = 10


class CordonMode(StrEnum):
    ENFORCE = "enforce"
    """Faulty nodes are cordoned."""
    REPORT = "report"
    """A dry run: conditions and Events tell what would be done, and nothing else of a node changes."""
    OFF = "off"
    """Nodes are only read, as by a controller that has no other right to them."""


@dataclass(frozen=True)
class CordonOptions:
    mode: CordonMode = CordonMode.ENFORCE
    limit_percent: int = DEFAULT_LIMIT_PERCENT
    """How many of all nodes may be cordoned by us at once; one always may."""
