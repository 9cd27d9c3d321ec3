"""Accelerators of this worker: NVIDIA devices by NVML, others by their device files, or CPUs.

The agent never opens a device, because no device survives the forks of warm start.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from pathlib import Path

from crds.agent_report import Accelerators
from healthcheck.probes.nvml import NoDriver, opened
from healthcheck.probes.report import ProbeUnavailable

logger = logging.getLogger(__name__)

NVML_SECONDS = 10.0
"""Time limit for NVML, which takes 0.1 to 2 s to start, and may wait for ever for a wedged driver."""

DEVICES = Path("/dev")
FILES = {
    "amd": "dri/renderD[0-9]*",
    "ascend": "davinci[0-9]*",
    "gaudi": "accel/accel[0-9]*",
    "neuron": "neuron[0-9]*",
    "tpu": "accel[0-9]*",
}
"""Device files of the devices that are allotted to a container, by kind."""
AMD_DRIVER = "kfd"
"""File of AMD's compute driver. Without it, files for rendering do not count."""


def detect() -> Accelerators:
    """Return the worker's accelerators, for `status.agent.accelerators`, in `NVML_SECONDS` at most."""
    return _nvidia() or _by_files() or Accelerators("cpu", _cpus(), _cpu_model())


def _nvidia() -> Accelerators | None:
    """Ask NVML, in a thread of its own, since training must not wait for it."""
    found: list[Accelerators] = []
    thread = threading.Thread(target=lambda: found.extend(_ask_nvml()), name="dlr-nvml", daemon=True)
    thread.start()
    thread.join(NVML_SECONDS)
    if thread.is_alive():
        count = len(list(DEVICES.glob("nvidia[0-9]*")))
        logger.warning("NVML has not answered within %.0f s: counting device files instead", NVML_SECONDS)
        return Accelerators("nvidia", count) if count else None
    return found[0] if found else None


def _ask_nvml() -> list[Accelerators]:
    try:
        with opened() as nvml:
            try:
                count = nvml.nvmlDeviceGetCount()
                model = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)) if count else ""
            except nvml.NVMLError as error:
                logger.warning("NVML cannot list the devices: %s", error)
                return []
    except NoDriver:
        return []  # a CPU worker, or another maker's devices
    except ProbeUnavailable as error:
        logger.info("%s", error)
        return []
    return [Accelerators("nvidia", count, _text(model))] if count else []


def _by_files() -> Accelerators | None:
    for kind, pattern in FILES.items():
        count = len(list(DEVICES.glob(pattern)))
        if count and (kind != "amd" or (DEVICES / AMD_DRIVER).exists()):
            return Accelerators(kind, count)
    return None


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
