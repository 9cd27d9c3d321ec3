"""What to do about a node or a link, by what speaks against it: the first thing to try. Pure.

The texts are the probes' (`healthcheck/probes/device_faults.py`) and the agent's. What helps against an Xid
is what NVIDIA's catalogue (`crds/xids.py`) says: RESET_GPU, RESTART_BM, CONTACT_SUPPORT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from crds import xids
from crds.findings import PASSED_BY_LUCK, Action, Cause, Finding, Verdict

GONE = ("fallen off the bus", "not usable", "lost")
BEYOND_REPAIR = ("must be replaced", "could not be remapped", "computes wrongly", "bytes changed")
BY_A_RESET = ("uncorrectable ECC", "wait for a reset", "NVLinks are up", "of its memory is in use")
XIDS_TO_REPLACE = frozenset({54, 64, 140, 157, 161})
"""No reset helps: power that is not connected, memory that cannot be repaired."""
XIDS_TO_REBOOT = frozenset({62, 79, 109, 110, 119, 120, 143, 158, 167, 169})
"""The device does not answer, so it cannot be reset either."""

ADVICE: Mapping[str, str] = {
    Action.RESET_GPU: "reset its GPUs (nvidia-smi --gpu-reset), or reboot it",
    Action.REBOOT: "reboot it; if it is found faulty again, replace it",
    Action.REPLACE: "replace it",
    Action.LOOK_AT_LINK: "look at its network: interface, cable, switch port",
    Action.LOOK_AT_DOMAIN: "look at the rack or switch that it shares with others",
    Action.LOOK_AT_LOAD: "look at what else runs there, at clocks, temperature and power",
    Action.CHECK_AGAIN: "check it again",
}
"""What to do, in words."""


def advice(action: Action | str | None) -> str:
    """What to do, without a full stop; the word itself if it is of a newer controller."""
    return ADVICE.get(action, str(action)) if action else ""


_XID = re.compile(xids.NUMBER_PATTERN)


def action_for_text(text: str) -> Action:
    """Returns the action for the text of a device's fault, or of a failure of the hardware."""
    numbers = {int(number) for number in _XID.findall(text)}
    if numbers & XIDS_TO_REPLACE or _has(text, BEYOND_REPAIR):
        return Action.REPLACE
    if numbers & XIDS_TO_REBOOT or _has(text, GONE):
        return Action.REBOOT
    if any(map(xids.condemns_device, numbers)) or _has(text, BY_A_RESET):
        return Action.RESET_GPU
    return Action.REBOOT


def action_for(finding: Finding, faulty_before: bool = False) -> Action | None:
    """What to do about a node; None for a healthy one.

    Args:
        faulty_before: another check of its record found it faulty too: what was done did not help.
    """
    if finding.healthy:
        return None
    if finding.verdict is Verdict.INCONCLUSIVE:
        return Action.CHECK_AGAIN
    if finding.verdict is Verdict.STRAGGLER:
        return Action.LOOK_AT_LOAD if Cause.SLOW_COMPUTE in finding.causes else Action.LOOK_AT_LINK
    if faulty_before:
        return Action.REPLACE
    if Cause.LOCAL_TEST in finding.causes:
        return action_for_text(finding.message)
    return Action.REBOOT if PASSED_BY_LUCK.isdisjoint(finding.causes) else Action.LOOK_AT_LINK


def _has(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)
