"""Xids: the meaning of the numbers in NVIDIA's driver messages.

The agent receives them from NVML during training, the probes find them in the kernel log, and the
controller in the texts of failures. All use this table, which follows NVIDIA's catalogue of October 2025:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

Like `crds.names` it imports only the standard library, because it is part of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from crds.actions import Action


class XidBlame(Enum):
    """Part of a machine to which an Xid points."""

    HARDWARE = "hardware"
    """The device, its firmware, or a link between devices."""
    APPLICATION = "application"
    """The program: an illegal access, an exception in a kernel."""
    EITHER = "either"
    """Not determined by the number alone."""


class Effect(Enum):
    """Effect of an Xid on training."""

    NONE = "none"
    """Informational: nothing fails (the catalogue's IGNORE)."""
    PROCESS = "process"
    """The process on the device fails, and the device stays usable (RESTART_APP)."""
    DEVICE = "device"
    """The device must be reset, rebooted or replaced (RESET_GPU, RESTART_BM, CONTACT_SUPPORT)."""


class Xid(NamedTuple):
    """Catalogue entry of one number."""

    words: str
    blame: XidBlame
    effect: Effect


TO_REPLACE = frozenset({54, 64, 140, 157, 161})
"""Numbers after which no reset helps: power is not connected, memory cannot be repaired (CONTACT_SUPPORT)."""
TO_REBOOT = frozenset({62, 79, 109, 110, 119, 120, 143, 158, 167, 169})
"""Numbers after which the device does not answer, and so cannot be reset (RESTART_BM)."""
UNKNOWN = Xid("", XidBlame.HARDWARE, Effect.DEVICE)
"""Entry for unlisted numbers, which mostly come from new hardware."""

XIDS: dict[int, Xid] = {
    # The program: its channel is torn down, and its process gets a CUDA error.
    8: Xid("GPU stopped processing", XidBlame.APPLICATION, Effect.PROCESS),
    11: Xid("invalid push buffer stream", XidBlame.APPLICATION, Effect.PROCESS),
    13: Xid("graphics engine exception", XidBlame.APPLICATION, Effect.PROCESS),
    25: Xid("invalid push buffer stream", XidBlame.APPLICATION, Effect.PROCESS),
    31: Xid("GPU memory page fault", XidBlame.APPLICATION, Effect.PROCESS),
    43: Xid("GPU stopped processing", XidBlame.APPLICATION, Effect.PROCESS),
    45: Xid("cleanup after a previous error", XidBlame.APPLICATION, Effect.PROCESS),
    69: Xid("graphics engine class error", XidBlame.APPLICATION, Effect.PROCESS),
    108: Xid("NVLink remote translation error", XidBlame.APPLICATION, Effect.PROCESS),
    137: Xid("NVLink privilege error", XidBlame.APPLICATION, Effect.PROCESS),
    # The program, or what carries its data.
    32: Xid("corrupted push buffer stream", XidBlame.EITHER, Effect.PROCESS),
    80: Xid("corrupted data sent to the GPU", XidBlame.EITHER, Effect.PROCESS),
    **dict.fromkeys(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        Xid("copy engine exception", XidBlame.EITHER, Effect.PROCESS),
    ),
    **dict.fromkeys(
        (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142),
        Xid("exception of a video, JPEG or optical flow engine", XidBlame.EITHER, Effect.PROCESS),
    ),
    109: Xid("context switch timeout", XidBlame.EITHER, Effect.DEVICE),
    151: Xid("key rotation error", XidBlame.EITHER, Effect.DEVICE),
    155: Xid("NVLink error defined by software", XidBlame.EITHER, Effect.DEVICE),
    # The device's memory.
    48: Xid("double-bit ECC error", XidBlame.HARDWARE, Effect.DEVICE),
    63: Xid("memory row remapped", XidBlame.HARDWARE, Effect.NONE),
    64: Xid("memory row cannot be remapped", XidBlame.HARDWARE, Effect.DEVICE),
    92: Xid("many single-bit ECC errors", XidBlame.HARDWARE, Effect.NONE),
    94: Xid("contained memory error", XidBlame.HARDWARE, Effect.PROCESS),
    95: Xid("uncontained memory error", XidBlame.HARDWARE, Effect.DEVICE),
    140: Xid("unrecovered ECC error", XidBlame.HARDWARE, Effect.DEVICE),
    156: Xid("resource retired", XidBlame.HARDWARE, Effect.DEVICE),
    157: Xid("resource cannot be retired", XidBlame.HARDWARE, Effect.NONE),
    160: Xid("memory channel retired", XidBlame.HARDWARE, Effect.NONE),
    161: Xid("memory channel cannot be retired", XidBlame.HARDWARE, Effect.NONE),
    168: Xid("reduced memory capacity", XidBlame.HARDWARE, Effect.NONE),
    171: Xid("uncorrectable DRAM error", XidBlame.HARDWARE, Effect.PROCESS),
    172: Xid("uncorrectable SRAM error", XidBlame.HARDWARE, Effect.PROCESS),
    # The device itself, and its firmware.
    46: Xid("GPU stopped processing", XidBlame.HARDWARE, Effect.DEVICE),
    54: Xid("auxiliary power is not connected", XidBlame.HARDWARE, Effect.DEVICE),
    62: Xid("internal micro-controller halt", XidBlame.HARDWARE, Effect.DEVICE),
    79: Xid("the GPU has fallen off the bus", XidBlame.HARDWARE, Effect.DEVICE),
    110: Xid("security fault", XidBlame.HARDWARE, Effect.DEVICE),
    119: Xid("GSP (the GPU's firmware) does not answer", XidBlame.HARDWARE, Effect.DEVICE),
    120: Xid("GSP (the GPU's firmware) error", XidBlame.HARDWARE, Effect.DEVICE),
    143: Xid("GPU initialization failed", XidBlame.HARDWARE, Effect.DEVICE),
    158: Xid("fatal timeout", XidBlame.HARDWARE, Effect.DEVICE),
    167: Xid("fatal PCIe timeout", XidBlame.HARDWARE, Effect.DEVICE),
    169: Xid("internal micro-controller halt", XidBlame.HARDWARE, Effect.DEVICE),
    # Links. Of the fifth generation of NVLink, a code within the message says whether it is fatal.
    74: Xid("NVLink error", XidBlame.HARDWARE, Effect.DEVICE),
    121: Xid("C2C link error", XidBlame.HARDWARE, Effect.NONE),
    136: Xid("NVLink training failed", XidBlame.HARDWARE, Effect.DEVICE),
    **dict.fromkeys((144, 145, 146, 149, 150), Xid("NVLink error", XidBlame.HARDWARE, Effect.PROCESS)),
    **dict.fromkeys((147, 148), Xid("NVLink error", XidBlame.HARDWARE, Effect.NONE)),
    # For the record: drivers, tests, power.
    **dict.fromkeys((37, 38, 44, 66, 67), Xid("driver or firmware error", XidBlame.EITHER, Effect.NONE)),
    93: Xid("InfoROM wear limit", XidBlame.HARDWARE, Effect.NONE),
    **dict.fromkeys((106, 107), Xid("test message", XidBlame.EITHER, Effect.NONE)),
    141: Xid("CUDA fast path error", XidBlame.EITHER, Effect.NONE),
    **dict.fromkeys((152, 153), Xid("DLA error", XidBlame.EITHER, Effect.NONE)),
    154: Xid("recovery action changed", XidBlame.EITHER, Effect.NONE),
    **dict.fromkeys(range(162, 166), Xid("power smoothing changed", XidBlame.HARDWARE, Effect.NONE)),
}

NUMBER_PATTERN = r"\bXid(?: \((?:PCI:)?[0-9a-fA-F:.]+\):)? \(?(\d{1,3})\b"
"""For `re` or `re2`: finds the number in a text such as "NVRM: Xid (PCI:0000:3b:00): 79" or "Xid 79"."""


def of(number: int) -> Xid:
    """Return the entry of an Xid; `UNKNOWN` if it is not in the table."""
    return XIDS.get(number, UNKNOWN)


def fails_by_hardware(number: int) -> bool:
    """Return whether processes on the device fail, and no program is to blame."""
    xid = of(number)
    return xid.blame is XidBlame.HARDWARE and xid.effect is not Effect.NONE


def ends_training(number: int) -> bool:
    """Return whether not to wait for processes on the device: it is unusable, or the fault ended them."""
    return of(number).effect is Effect.DEVICE or fails_by_hardware(number)


def condemns_device(number: int) -> bool:
    """Return whether the device is certainly faulty until it is reset; never for an unlisted number."""
    xid = XIDS.get(number)
    return xid is not None and xid.blame is XidBlame.HARDWARE and xid.effect is Effect.DEVICE


def action_for(number: int) -> Action | None:
    """Return the catalogue's advice on the device; None for an Xid that does not condemn it."""
    if number in TO_REPLACE:
        return Action.REPLACE
    if number in TO_REBOOT:
        return Action.REBOOT
    return Action.RESET_GPU if condemns_device(number) else None


def call_for_check(numbers: Iterable[int]) -> bool:
    """Return whether one of these may be due to hardware, so that the node should be tested."""
    found = map(of, numbers)
    return any(xid.blame is not XidBlame.APPLICATION and xid.effect is not Effect.NONE for xid in found)
