"""Faults of a GPU (Xids) that its driver reports by NVML while processes train on it.

A process may survive the fault of its device, waiting for a kernel that never ends, and all other ranks wait
for it. So the agent reports the fault as a failure by itself. Xids that the application may have caused, or
that are only informative (`crds.xids`), are left to the processes, which fail with a text of their own, or go
on.
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

from crds import xids
from healthcheck.probes.nvml import NoDriver, opened
from healthcheck.probes.report import ProbeUnavailable

logger = logging.getLogger(__name__)

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

WAIT_MILLISECONDS = 1_000
"""Time limit of one call to NVML, after which the thread checks whether it should end."""

INCIDENT_SECONDS = 30.0
"""Time between Xids of the same fault. One fault causes several, and a bad link thousands, which would end
the next round too."""


@dataclass(frozen=True)
class DeviceFault:
    """A fault of one device that its driver has reported."""

    xid: int | None
    """Number of the Xid; None if the device is lost without one."""
    device: int | None = None
    """Index of the device in NVML; None if it is unknown."""
    pci_bus_id: str = ""
    devices: int = 0
    """Number of devices of the container."""

    @property
    def message(self) -> str:
        """One line, which `reconcilers/failure/meaning.py` recognises as a hardware fault."""
        where = f"GPU {self.device}" if self.device is not None else "a GPU"
        where += f" ({self.pci_bus_id})" if self.pci_bus_id else ""
        if self.xid is None:
            return f"the GPU is lost: the driver does not reach {where} any more"
        what = xids.of(self.xid).words
        return f"Xid {self.xid} on {where}" + (f": {what}" if what else "") + f"; see {CATALOGUE}"

    def local_rank(self, local_world_size: int) -> int | None:
        """Return the local rank of the process on the device; None unless each process has one device."""
        return self.device if self.devices == local_world_size else None


class DeviceWatch(threading.Thread):
    """Waits for faults of the GPUs that this container sees. Without a GPU the thread ends at once."""

    def __init__(self) -> None:
        super().__init__(name="dlr-xid", daemon=True)
        self._faults: deque[DeviceFault] = deque()
        self._faulty_at: dict[int | None, float] = {}
        """Time of each device's last fault (CLOCK_MONOTONIC)."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stop_event = threading.Event()

    def fileno(self) -> int:
        """Return a descriptor that is readable while there is a fault to take."""
        return self._reader

    def take(self) -> DeviceFault | None:
        """Return the first fault since the last call, and drop the others; None if there is none."""
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
        except ProbeUnavailable as error:
            logger.warning("faults of GPUs are not watched: %s", error)
        except Exception:  # training goes on with a broken NVML
            logger.exception("faults of GPUs are no longer watched")

    def _watch(self, nvml: Any) -> None:
        handles = _handles(nvml)
        events = nvml.nvmlEventSetCreate()
        try:
            watched = [index for index, handle in handles.items() if _register(nvml, handle, events)]
            if not watched:
                logger.info("the driver reports no Xids here devices=%d", len(handles))
                return
            while not self._stop_event.is_set():
                try:
                    event = nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
                except nvml.NVMLError as error:
                    if error.value == nvml.NVML_ERROR_TIMEOUT:
                        continue
                    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                        self._report(DeviceFault(None, devices=len(handles)))
                        return  # NVML would report it again at once
                    logger.warning("faults of GPUs are no longer watched: %s", error)
                    return
                self._handle(nvml, event, len(handles))
        finally:
            nvml.nvmlEventSetFree(events)

    def _handle(self, nvml: Any, event: Any, devices: int) -> None:
        if event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return
        index, bus_id = _where(nvml, event.device)
        fault = DeviceFault(int(event.eventData), index, bus_id, devices)
        if xids.ends_training(int(event.eventData)):
            self._report(fault)
        else:
            logger.info("left to the processes: %s", fault.message)

    def _report(self, fault: DeviceFault) -> None:
        now = time.monotonic()
        last, self._faulty_at[fault.device] = self._faulty_at.get(fault.device), now
        if last is not None and now - last < INCIDENT_SECONDS:
            logger.info("again: %s", fault.message)
            return
        logger.error("%s", fault.message)
        self._faults.append(fault)
        os.write(self._writer, b"!")


def _handles(nvml: Any) -> dict[int, Any]:
    """Return NVML's handles of the devices that answer, by index."""
    handles = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            logger.warning("GPU %d cannot be watched: %s", index, error)
    return handles


def _register(nvml: Any, handle: Any, events: Any) -> bool:
    """Subscribe to a device's Xids; return whether that was possible."""
    try:
        if not nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError:
            return False
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError as error:
        logger.warning("the Xids of a GPU are not reported: %s", error)
        return False
    return True


def _where(nvml: Any, handle: Any) -> tuple[int | None, str]:
    """Return index and PCI address of a device, as far as a lost device still has them."""
    index, bus_id = None, ""
    try:
        index = int(nvml.nvmlDeviceGetIndex(handle))
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        pass
    return index, bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
