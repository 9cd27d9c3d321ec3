"""Xids: what the numbers in NVIDIA's driver messages mean, for whoever reads them.

The agent hears them from NVML while processes train, the probes find them in the kernel log, and the
controller finds them in the texts of failures. All judge by this one table. It follows NVIDIA's catalogue of
October 2025: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

Like `crds.names` it imports no package, because it is part of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from crds.actions import Action


class XidBlame(Enum):
    """The part of a machine that an Xid accuses."""

    HARDWARE = "hardware"
    """The device's or its firmware's, or that of a link between devices."""
    APPLICATION = "application"
    """The program's: an illegal access, an exception in a kernel."""
    EITHER = "either"
    """The number alone does not say."""


class Effect(Enum):
    """What an Xid does to training."""

    NONE = "none"
    """It is for the record: nothing fails by it (the catalogue's IGNORE)."""
    PROCESS = "process"
    """The process on the device fails by it, and the device goes on (RESTART_APP)."""
    DEVICE = "device"
    """The device must be reset, rebooted or replaced (RESET_GPU, RESTART_BM, CONTACT_SUPPORT)."""


class Xid(NamedTuple):
    """What the catalogue says of one number."""

    words: str
    blame: XidBlame
    effect: Effect


TO_REPLACE = frozenset({54, 64, 140, 157, 161})
"""No reset helps: power that is not connected, memory that cannot be repaired (CONTACT_SUPPORT)."""
TO_REBOOT = frozenset({62, 79, 109, 110, 119, 120, 143, 158, 167, 169})
"""The device does not answer, so it cannot be reset either (RESTART_BM)."""
UNKNOWN = Xid("", XidBlame.HARDWARE, Effect.DEVICE)
"""A number that the table does not have. New ones are mostly those of new hardware."""

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
    """What an Xid means; `UNKNOWN` for one that is not in the table."""
    return XIDS.get(number, UNKNOWN)


def fails_by_hardware(number: int) -> bool:
    """Whether what trains on the device fails, and no program is to blame for it."""
    xid = of(number)
    return xid.blame is XidBlame.HARDWARE and xid.effect is not Effect.NONE


def ends_training(number: int) -> bool:
    """Whether processes on the device should not be waited for: it is not usable, or its fault ended them."""
    return of(number).effect is Effect.DEVICE or fails_by_hardware(number)


def condemns_device(number: int) -> bool:
    """Whether the device is certainly faulty until it is reset. A number that nobody knows condemns none."""
    xid = XIDS.get(number)
    return xid is not None and xid.blame is XidBlame.HARDWARE and xid.effect is Effect.DEVICE


def action_for(number: int) -> Action | None:
    """What the catalogue advises to do about the device; None for an Xid that does not condemn it."""
    if number in TO_REPLACE:
        return Action.REPLACE
    if number in TO_REBOOT:
        return Action.REBOOT
    return Action.RESET_GPU if condemns_device(number) else None


def call_for_check(numbers: Iterable[int]) -> bool:
    """Whether one of these may be the hardware's doing, so that its node should be tested."""
    found = map(of, numbers)
    return any(xid.blame is not XidBlame.APPLICATION and xid.effect is not Effect.NONE for xid in found)
