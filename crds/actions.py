"""What to do about a node or a link: the first thing to try. Probes report it with the fault that they find.

It imports the standard library alone, because it is part of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable

from crds.wire import WireWord


class Action(WireWord):
    """What to do about a node, or a link; the first thing to try."""

    RESET_GPU = "ResetGPU"
    REBOOT = "Reboot"
    REPLACE = "Replace"
    LOOK_AT_LINK = "LookAtLink"
    """At its network interface, cable and switch port."""
    LOOK_AT_DOMAIN = "LookAtDomain"
    """At the rack or switch that it shares with others."""
    LOOK_AT_LOAD = "LookAtLoad"
    """At what else runs there, at clocks, temperature and power."""
    CHECK_AGAIN = "CheckAgain"


_WORST_FIRST = (Action.REPLACE, Action.REBOOT, Action.RESET_GPU)


def worst(actions: Iterable[Action | None]) -> Action | None:
    """Return the action that helps against all faults of a machine; None if none of them has one."""
    found = set(actions)
    return next((action for action in _WORST_FIRST if action in found), None)
