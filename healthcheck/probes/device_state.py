"""State of this node's NVIDIA devices: memory errors, Xids, NVLinks, throttling, memory in use."""

from __future__ import annotations

import argparse

from crds.actions import worst
from crds.agent_report import ProbeEnding
from healthcheck.probes import child, device_faults, kernel_log, nvml
from healthcheck.probes.report import ProbeReport, ProbeUnavailable, Skipped

GPU_COUNT = "gpu_count"
"""Name of the figure with the number of devices."""


def measure(arguments: argparse.Namespace) -> ProbeReport:
    try:
        with nvml.opened() as opened:
            devices = nvml.read_devices(opened)
    except nvml.NoDriver as error:
        raise _no_gpu(arguments.require_gpu, f"this machine has no NVIDIA driver ({error})") from error
    if not devices:
        raise _no_gpu(arguments.require_gpu, "the NVIDIA driver of this machine shows no GPU")
    return judge(devices, *_xids())


def judge(
    devices: tuple[nvml.DeviceState, ...], xids: list[kernel_log.XidError], log_unreadable: str = ""
) -> ProbeReport:
    """Return the report on the devices, with the Xids of the kernel log, or why that could not be read."""
    found = (*device_faults.faults(devices), *device_faults.xid_faults(xids))
    faults = tuple(fault.sentence for fault in found)
    busy = device_faults.in_the_way(devices)
    notes = (*device_faults.notes(devices), *device_faults.xid_notes(xids))
    if log_unreadable:
        notes += (f"Xid errors since boot are unknown: the kernel log cannot be read ({log_unreadable})",)
    ending = ProbeEnding.FAILED if faults else ProbeEnding.UNAVAILABLE if busy else ProbeEnding.PASSED
    action = worst(fault.action for fault in found)
    return ProbeReport(ending, "; ".join(faults or busy), {GPU_COUNT: len(devices)}, faults, notes, action)


def _no_gpu(required: bool, reason: str) -> Skipped | ProbeUnavailable:
    return ProbeUnavailable(f"a GPU was asked for, but {reason}") if required else Skipped(reason)


def _xids() -> tuple[list[kernel_log.XidError], str]:
    try:
        return list(kernel_log.xids(kernel_log.read_lines())), ""
    except OSError as error:
        return [], error.strerror or str(error)


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    parser.add_argument("--require-gpu", action="store_true")
    child.serve(parser, measure)
