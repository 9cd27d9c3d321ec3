"""State of devices as faults, as notes for a person, and as obstacles to a test.

A fault is certain: by NVIDIA's documentation, the device must be reset or replaced. Slowdowns are notes,
since measured figures judge the speed; so are counters with an unknown start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from crds import xids
from crds.actions import Action
from healthcheck.probes.kernel_log import XidError
from healthcheck.probes.nvml import DeviceState, NvLinks

MEMORY_IN_USE_SHARE = 0.3
"""Share of an unused device's memory that is too much: DLRover's threshold, above a driver's own use."""

XID_RECENT_SECONDS = 3600.0
"""Age from which Xids are notes: a reset may have fixed them, and unfixed ones are logged again."""

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Values of nvmlClocksEventReason… except for a healthy device at rest (0x01) or at its power limit
(0x04)."""


class DeviceTrouble(NamedTuple):
    """Fault of a device, and its remedy."""

    sentence: str
    action: Action | None


def faults(devices: Sequence[DeviceState]) -> list[DeviceTrouble]:
    siblings = _most_links(devices)
    return [
        DeviceTrouble(f"{_name(device)}: {fault.sentence}", fault.action)
        for device in devices
        for fault in (*_own_faults(device), *_missing_links(device.nvlinks, siblings[device.model]))
    ]


def xid_faults(found: Sequence[XidError]) -> list[DeviceTrouble]:
    return [
        DeviceTrouble(_described(xid), xids.action_for(xid.code)) for xid in _latest(found) if _is_fault(xid)
    ]


def xid_notes(found: Sequence[XidError]) -> list[str]:
    return [_described(xid) for xid in _latest(found) if not _is_fault(xid)]


def in_the_way(devices: Sequence[DeviceState]) -> list[str]:
    """Return messages on devices that cannot be judged because visible processes use them."""
    return [
        f"{_name(device)} is in use: process {', '.join(map(str, device.processes))} "
        f"holds {device.memory_used_share:.0%} of its memory"
        for device in devices
        if device.processes and device.memory_used_share and _is_full(device)
    ]


def notes(devices: Sequence[DeviceState]) -> list[str]:
    return [f"{_name(device)}: {note}" for device in devices for note in _own_notes(device)]


def _own_faults(device: DeviceState) -> list[DeviceTrouble]:
    if device.unusable:
        return [DeviceTrouble(f"it is not usable: {device.unusable}", Action.REBOOT)]
    found = []
    if device.uncorrectable_ecc_volatile:
        errors = f"{device.uncorrectable_ecc_volatile} uncorrectable ECC errors since its last reset"
        found.append(DeviceTrouble(errors, Action.RESET_GPU))
    if device.row_remap_failed:
        sentence = "a memory row could not be remapped, so the device must be replaced"
        found.append(DeviceTrouble(sentence, Action.REPLACE))
    if device.row_remap_pending:
        found.append(
            DeviceTrouble("memory rows wait for a reset of the device to be remapped", Action.RESET_GPU)
        )
    if device.retired_pages_pending:
        found.append(
            DeviceTrouble("memory pages wait for a reset of the device to be retired", Action.RESET_GPU)
        )
    if _is_full(device) and not device.processes:
        sentence = f"{device.memory_used_share:.0%} of its memory is in use, by no process that can be seen"
        found.append(DeviceTrouble(sentence, Action.RESET_GPU))
    return found


def _own_notes(device: DeviceState) -> list[str]:
    found = []
    if device.uncorrectable_ecc_aggregate:
        found.append(f"{device.uncorrectable_ecc_aggregate} uncorrectable ECC errors in its life")
    reasons = [text for bit, text in SLOWDOWNS.items() if (device.clocks_event_reasons or 0) & bit]
    if reasons:
        found.append(f"slowed down now: {', '.join(reasons)}")
    links = device.nvlinks
    counted = {"replays": links.replays, "recoveries": links.recoveries, "CRC errors": links.crc_errors}
    if any(counted.values()):
        counts = ", ".join(f"{count} {what}" for what, count in counted.items() if count)
        found.append(f"NVLink {counts} since the driver was loaded")
    return found


def _is_full(device: DeviceState) -> bool:
    return (device.memory_used_share or 0.0) > MEMORY_IN_USE_SHARE


def _most_links(devices: Sequence[DeviceState]) -> dict[str, int]:
    """Return the largest number of active NVLinks of a device, by model."""
    most: dict[str, int] = defaultdict(int)
    for device in devices:
        most[device.model] = max(most[device.model], len(device.nvlinks.active))
    return most


def _missing_links(links: NvLinks, siblings_have: int) -> list[DeviceTrouble]:
    """Return missing links compared with siblings: inactive links alone prove little, as some boards have
    fewer."""
    if not links.inactive or len(links.active) >= siblings_have:
        return []
    which = ", ".join(map(str, links.inactive))
    sentence = f"{len(links.active)} NVLinks are up where its siblings have {siblings_have} (down: {which})"
    return [DeviceTrouble(sentence, Action.RESET_GPU)]


def _latest(found: Sequence[XidError]) -> list[XidError]:
    """Return the latest Xid of each code and device."""
    oldest_first = sorted(found, key=lambda xid: -xid.seconds_ago)
    return [*{(xid.pci_bus_id, xid.code): xid for xid in oldest_first}.values()]


def _is_fault(xid: XidError) -> bool:
    return xids.condemns_device(xid.code) and xid.seconds_ago <= XID_RECENT_SECONDS


def _described(xid: XidError) -> str:
    minutes = xid.seconds_ago / 60
    ago = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    why = xids.of(xid.code).words or xid.text or "no details"
    return f"GPU at {xid.pci_bus_id}: Xid {xid.code} {ago} ago: {why}"


def _name(device: DeviceState) -> str:
    return f"GPU {device.index}" + (f" ({device.pci_bus_id})" if device.pci_bus_id else "")
