"""State of NVIDIA devices by NVML; None for values that a device, driver or container does not provide.

Only this module calls NVML. Names are from NVIDIA's reference (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from healthcheck.probes.report import ProbeUnavailable

CONTROL_DEVICE = Path("/dev/nvidiactl")
"""Device file that exists if the driver is loaded, also in containers with a GPU."""
VISIBLE_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = ("void", "none")
"""Values for a container without a GPU (nvidia-container-toolkit), even if it reaches the driver."""


class NoDriver(Exception):
    """There is no NVIDIA driver here, and so no usable NVIDIA device."""


@dataclass(frozen=True)
class NvLinks:
    """Links of a device, by number, and their total errors since the driver was loaded."""

    active: tuple[int, ...] = ()
    inactive: tuple[int, ...] = ()
    replays: int = 0
    recoveries: int = 0
    crc_errors: int = 0


@dataclass(frozen=True)
class DeviceState:
    """State of one device."""

    index: int
    model: str = ""
    pci_bus_id: str = ""
    """PCI address domain:bus:device.function, in hexadecimal."""
    unusable: str = ""
    """Why the device does not answer: lost from the bus, in need of a reset, without power."""
    uncorrectable_ecc_volatile: int | None = None
    """Uncorrectable ECC errors since the driver was loaded, or the device reset."""
    uncorrectable_ecc_aggregate: int | None = None
    """Uncorrectable ECC errors in the life of the device."""
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    nvlinks: NvLinks = field(default_factory=NvLinks)
    clocks_event_reasons: int | None = None
    """Bit mask of the reasons."""
    memory_used_share: float | None = None
    """Share of memory in use, 0 to 1, including the driver's own."""
    processes: tuple[int, ...] | None = None
    """Ids of processes that compute on it. Inside a container, others' may be missing."""


@dataclass(frozen=True)
class GpuLoad:
    """Current load of the GPUs."""

    share: float | None
    """Mean of their utilization, 0 to 1."""
    memory_bytes: int | None
    """Memory in use on the fullest GPU."""


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """Yield pynvml, initialised. Raises NoDriver without a driver, ProbeUnavailable if NVML does not
    answer."""
    if os.environ.get(VISIBLE_VARIABLE) in NO_DEVICES:
        raise NoDriver(f"this container gets no GPU: {VISIBLE_VARIABLE}={os.environ[VISIBLE_VARIABLE]}")
    try:
        import pynvml
    except ModuleNotFoundError as error:
        if not CONTROL_DEVICE.exists():
            raise NoDriver(f"there is no {CONTROL_DEVICE}") from error
        raise ProbeUnavailable("the Python package nvidia-ml-py is not installed here") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise NoDriver(f"NVML: {error}") from error
        raise ProbeUnavailable(f"NVML does not start: {error}") from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def read_devices(nvml: Any) -> tuple[DeviceState, ...]:
    """Return all devices from pynvml, or a substitute, in NVML's order (by PCI bus)."""
    return tuple(_read_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))


def read_load(nvml: Any) -> GpuLoad:
    """Return the load of all devices from pynvml, as far as it is readable."""
    shares, memories = list[float](), list[int]()
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
            memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        except nvml.NVMLError:
            continue
        shares += [] if rates is None else [rates.gpu / 100]
        memories += [] if memory is None else [memory.used]
    return GpuLoad(fmean(shares) if shares else None, max(memories, default=None))


def _read_device(nvml: Any, index: int) -> DeviceState:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        remapped = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        pages_pending = _ask(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        processes = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return DeviceState(
            index,
            model=_ask(nvml, nvml.nvmlDeviceGetName, handle) or "",
            pci_bus_id=_text(pci.busId) if pci else "",
            uncorrectable_ecc_volatile=_ecc(nvml, handle, nvml.NVML_VOLATILE_ECC),
            uncorrectable_ecc_aggregate=_ecc(nvml, handle, nvml.NVML_AGGREGATE_ECC),
            row_remap_pending=bool(remapped[2]) if remapped else None,
            row_remap_failed=bool(remapped[3]) if remapped else None,
            retired_pages_pending=None if pages_pending is None else bool(pages_pending),
            nvlinks=_nvlinks(nvml, handle),
            clocks_event_reasons=_ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
            memory_used_share=memory.used / memory.total if memory and memory.total else None,
            processes=None if processes is None else tuple(process.pid for process in processes),
        )
    except nvml.NVMLError as error:
        return DeviceState(index, unusable=str(error))


def _ecc(nvml: Any, handle: Any, counter: int) -> int | None:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    count: int | None = _ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)
    return count


def _nvlinks(nvml: Any, handle: Any) -> NvLinks:
    states: dict[int, int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is not None:
            states[link] = state

    def errors(*counters: int) -> int:
        read = nvml.nvmlDeviceGetNvLinkErrorCounter
        return sum(_ask(nvml, read, handle, link, counter) or 0 for link in states for counter in counters)

    return NvLinks(
        tuple(link for link, active in states.items() if active),
        tuple(link for link, active in states.items() if not active),
        errors(nvml.NVML_NVLINK_ERROR_DL_REPLAY),
        errors(nvml.NVML_NVLINK_ERROR_DL_RECOVERY),
        errors(nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT, nvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    )


def _ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the answer, or None if it is not available. Raises NVMLError if the device itself is
    unusable."""
    unusable = (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_INSUFFICIENT_POWER,
        nvml.NVML_ERROR_IRQ_ISSUE,
    )
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value in unusable:
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
