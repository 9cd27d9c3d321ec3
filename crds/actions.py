"""Remedies for a node or a link, which probes report with the faults that they find.

This module imports only the standard library, because it is part of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable

from crds.wire import WireWord


class Action(WireWord):
    """Remedy for a node or a link: the first thing to try."""

    RESET_GPU = "ResetGPU"
    REBOOT = "Reboot"
    REPLACE = "Replace"
    LOOK_AT_LINK = "LookAtLink"
    """Examine its network interface, cable and switch port."""
    LOOK_AT_DOMAIN = "LookAtDomain"
    """Examine the rack or switch that it shares with others."""
    LOOK_AT_LOAD = "LookAtLoad"
    """Examine other load on the node, clocks, temperature and power."""
    CHECK_AGAIN = "CheckAgain"


_WORST_FIRST = (Action.REPLACE, Action.REBOOT, Action.RESET_GPU)


def worst(actions: Iterable[Action | None]) -> Action | None:
    """Return the action that fixes all faults of a machine; None if no fault has one."""
    found = set(actions)
    return next((action for action in _WORST_FIRST if action in found), None)
