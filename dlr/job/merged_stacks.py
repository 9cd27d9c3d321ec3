"""Merges the stacks of a job's processes: equal ones are one place, the odd ones first. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds.ranges import as_ranges

JSON = dict[str, Any]

INDENT = "    "
NAMED_RANKS = 4
"""At a place with so few processes, where not most of them are, each is told with its Pod and node."""


_FOLDERS = re.compile(r"^\S*/", re.MULTILINE)
"""Of each frame's file: a script may have been copied to another one in each Pod."""


@dataclass(frozen=True)
class Place:
    """Processes with the same stack."""

    ranks: Sequence[int]
    """The ranks in order."""
    steps: tuple[int, int] | None
    """The lowest and the highest step that they have told; None if none has."""
    waits: bool
    """Whether it waits for other ranks."""
    frames: str
    """The frames of the first rank."""


def merge(stacks: Sequence[JSON]) -> list[Place]:
    """Merge stacks. A rank that waits for no other is rather the cause, as is one that is behind.

    Args:
        stacks: as `RankStack`. A step apart is no difference: who is asked while it trains is between two.

    Returns:
        One place for each stack: those that wait for nobody first, then those of fewer ranks.
    """
    furthest = max((stack["step"] for stack in stacks if stack.get("step") is not None), default=0)
    # Most frames are equal, and a dashboard merges a thousand of them every second.
    bare = {frames: _FOLDERS.sub("", frames) for frames in {stack.get("frames") or "" for stack in stacks}}
    at: dict[tuple[bool, int | None, str], list[JSON]] = {}
    for stack in sorted(stacks, key=lambda each: int(each["rank"])):
        step = stack.get("step")
        behind = None if step is None or step >= furthest - 1 else step
        place = (bool(stack.get("inCollective")), behind, bare[stack.get("frames") or ""])
        at.setdefault(place, []).append(stack)
    places = [_place(waits, there) for (waits, _, _), there in at.items()]
    return sorted(places, key=lambda place: (place.waits, len(place.ranks), place.ranks[0]))


def _place(waits: bool, stacks: Sequence[JSON]) -> Place:
    steps = [stack["step"] for stack in stacks if stack.get("step") is not None]
    return Place(
        ranks=[stack["rank"] for stack in stacks],
        steps=(min(steps), max(steps)) if steps else None,
        waits=waits,
        frames=stacks[0].get("frames") or "(no stack)",
    )


def stack_lines(places: Sequence[Place], where: Mapping[int, str] | None = None) -> list[str]:
    """A line on who is there, and then the stack.

    Args:
        where: Pod and node of each rank, to be named where a few are.
    """
    most = max(reversed(places), key=lambda place: len(place.ranks), default=None)
    lines = []
    for place in places:
        who = f"rank{'s' if len(place.ranks) > 1 else ''} {as_ranges(place.ranks)}"
        if where and place is not most and len(place.ranks) <= NAMED_RANKS:
            who += f" ({', '.join(dict.fromkeys(where[rank] for rank in place.ranks))})"
        lines.append(f"{who}{_steps(place)}{', waiting for other ranks' if place.waits else ''}:")
        lines += [f"{INDENT}{line}" for line in place.frames.splitlines()]
    return lines


def _steps(place: Place) -> str:
    if place.steps is None:
        return ""
    lowest, highest = place.steps
    return f", step {lowest}" if lowest == highest else f", steps {lowest}-{highest}"
