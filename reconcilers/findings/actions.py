"""The first action to try on a faulty node or link, by the finding. Pure.

A probe reports the action against the fault that it finds. The error of a training process is a text of torch
or the driver; for an Xid in it, the action is from NVIDIA's catalogue (`crds/xids.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crds import xids
from crds.actions import Action, worst
from crds.findings import PASSED_BY_LUCK, Cause, Finding, Verdict

UNCORRECTABLE = "uncorrectable ECC"
"""CUDA's text for a memory error: cudaErrorECCUncorrectable."""

ADVICE: Mapping[str, str] = {
    Action.RESET_GPU: "reset its GPUs (nvidia-smi --gpu-reset), or reboot it",
    Action.REBOOT: "reboot it; if it is found faulty again, replace it",
    Action.REPLACE: "replace it",
    Action.LOOK_AT_LINK: "look at its network: interface, cable, switch port",
    Action.LOOK_AT_DOMAIN: "look at the rack or switch that it shares with others",
    Action.LOOK_AT_LOAD: "look at what else runs there, at clocks, temperature and power",
    Action.CHECK_AGAIN: "check it again",
}
"""Advice by action."""


def advice(action: Action | str | None) -> str:
    """Return the advice, without a full stop; the action's name if it is of a newer controller."""
    return ADVICE.get(action, str(action)) if action else ""


_XID = re.compile(xids.NUMBER_PATTERN)


def action_for_error(text: str) -> Action:
    """Return the action against the fault that ended a training process."""
    found = worst(xids.action_for(int(number)) for number in _XID.findall(text))
    if found is not None:
        return found
    return Action.RESET_GPU if UNCORRECTABLE in text else Action.REBOOT


def action_for(finding: Finding, faulty_before: bool = False) -> Action | None:
    """Return the action on a node; None for a healthy one.

    Args:
        faulty_before: another check in its record found it faulty, too, so an earlier action did not help.
    """
    if finding.healthy:
        return None
    if finding.verdict is Verdict.INCONCLUSIVE:
        return Action.CHECK_AGAIN
    if finding.verdict is Verdict.STRAGGLER:
        return Action.LOOK_AT_LOAD if Cause.SLOW_COMPUTE in finding.causes else Action.LOOK_AT_LINK
    if finding.action is Action.LOOK_AT_DOMAIN:
        return finding.action
    if faulty_before:
        return Action.REPLACE
    if Cause.LOCAL_TEST in finding.causes:
        return finding.action or Action.REBOOT
    return Action.REBOOT if PASSED_BY_LUCK.isdisjoint(finding.causes) else Action.LOOK_AT_LINK
