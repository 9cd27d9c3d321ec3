"""Faults of a GPU that its driver reports while processes train on it: Xids, by NVML's events.

A process on such a device need not die of it soon: it may wait in a kernel that never ends, and all others
for it. So a fault is a failure of its own. Not every Xid is one: what NVIDIA's catalogue calls the
application's doing, or answers with IGNORE, is left to the processes, which die of it with a text of their
own, or go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from healthcheck.probes.nvml import NoDriver, opened
from healthcheck.probes.report import Unavailable

logger = logging.getLogger(__name__)

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

WAIT_MILLISECONDS = 1_000
"""Of one call to NVML, so that the thread sees soon enough that it is to end."""

INCIDENT_SECONDS = 30.0
"""One fault makes several Xids, and a bad link thousands: what follows so closely is no fault of its own, or
it would end the next round too."""

NOT_THE_DEVICE = frozenset(
    {
        # The application: its kernels' exceptions, page faults, what follows of them (restart it).
        *(8, 11, 13, 25, 31, 32, 43, 45, 69, 80, 108, 137),
        # Video, JPEG and optical flow engines (restart it).
        *(68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139),
        # For the record: rows remapped, corrected errors, tests, power, what another Xid asks for (ignore).
        *(63, 67, 92, 93, 106, 107, 121, 141, 147, 148, 154, 157, 160, 161, *range(162, 166), 168),
    }
)
"""Kubernetes' device plugin of NVIDIA leaves out 13, 31, 43, 45, 68 and 109. The last is a fault here: the
catalogue's answer to it is a reset of the GPU."""

_WORDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "the GPU's firmware does not answer",
    120: "error of the GPU's firmware",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    158: "fatal timeout",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}


@dataclass(frozen=True)
class DeviceFault:
    """A fault of one device that its driver told of."""

    xid: int | None
    """None if the device is lost without an Xid of its own."""
    device: int | None = None
    """By NVML's index; None if unknown."""
    pci_bus_id: str = ""
    devices: int = 0
    """How many there are here."""

    @property
    def message(self) -> str:
        """One line, which `reconcilers/failure/hardware_smell.py` knows as hardware's too."""
        where = f"GPU {self.device}" if self.device is not None else "a GPU"
        where += f" ({self.pci_bus_id})" if self.pci_bus_id else ""
        if self.xid is None:
            return f"the GPU is lost: the driver does not reach {where} any more"
        what = _WORDS.get(self.xid)
        return f"Xid {self.xid} on {where}" + (f": {what}" if what else "") + f"; see {CATALOGUE}"

    def local_rank(self, local_world_size: int) -> int | None:
        """Of the process that trains on it, where each has one device; None if that cannot be said."""
        return self.device if self.devices == local_world_size else None


def is_device_fault(xid: int) -> bool:
    """An Xid that nobody knows is one: new ones are mostly those of new hardware."""
    return xid not in NOT_THE_DEVICE


class DeviceWatch(threading.Thread):
    """Waits for faults of this machine's GPUs; where there are none, it ends at once."""

    def __init__(self) -> None:
        super().__init__(name="dlr-xid", daemon=True)
        self._faults: deque[DeviceFault] = deque()
        self._told_at: dict[int | None, float] = {}
        """When each device had its last fault (CLOCK_MONOTONIC)."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stop_event = threading.Event()

    def fileno(self) -> int:
        """Becomes readable with a fault, until it is taken."""
        return self._reader

    def take(self) -> DeviceFault | None:
        """The first since the last call; all others are taken with it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        fault = None
        while self._faults:
            fault = self._faults.pop()
        return fault

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        try:
            with opened() as nvml:
                self._watch(nvml)
        except NoDriver:
            pass
        except Unavailable as error:
            logger.warning("faults of GPUs are not watched: %s", error)
        except Exception:  # an NVML that is broken is no reason to stop training
            logger.exception("faults of GPUs are watched no more")

    def _watch(self, nvml: Any) -> None:
        handles = _handles(nvml)
        events = nvml.nvmlEventSetCreate()
        try:
            watched = [index for index, handle in handles.items() if _register(nvml, handle, events)]
            if not watched:
                logger.info("the driver tells no Xids here devices=%d", len(handles))
                return
            while not self._stop_event.is_set():
                try:
                    event = nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
                except nvml.NVMLError as error:
                    if error.value == nvml.NVML_ERROR_TIMEOUT:
                        continue
                    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                        self._tell(DeviceFault(None, devices=len(handles)))
                        return  # and would say so again at once
                    logger.warning("faults of GPUs are watched no more: %s", error)
                    return
                self._hear(nvml, event, len(handles))
        finally:
            nvml.nvmlEventSetFree(events)

    def _hear(self, nvml: Any, event: Any, devices: int) -> None:
        if event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return
        index, bus_id = _where(nvml, event.device)
        fault = DeviceFault(int(event.eventData), index, bus_id, devices)
        if is_device_fault(int(event.eventData)):
            self._tell(fault)
        else:
            logger.info("left to the processes: %s", fault.message)

    def _tell(self, fault: DeviceFault) -> None:
        now = time.monotonic()
        last, self._told_at[fault.device] = self._told_at.get(fault.device), now
        if last is not None and now - last < INCIDENT_SECONDS:
            logger.info("again: %s", fault.message)
            return
        logger.error("%s", fault.message)
        self._faults.append(fault)
        os.write(self._writer, b"!")


def _handles(nvml: Any) -> dict[int, Any]:
    """Of the devices that answer."""
    handles = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            logger.warning("GPU %d cannot be watched: %s", index, error)
    return handles


def _register(nvml: Any, handle: Any, events: Any) -> bool:
    """Whether its Xids will be told."""
    try:
        if not nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError:
            return False
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError as error:
        logger.warning("a GPU's Xids are not told: %s", error)
        return False
    return True


def _where(nvml: Any, handle: Any) -> tuple[int | None, str]:
    """A device that is gone may not even say which one it is."""
    index, bus_id = None, ""
    try:
        index = int(nvml.nvmlDeviceGetIndex(handle))
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        pass
    return index, bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
