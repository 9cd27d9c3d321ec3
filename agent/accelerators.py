"""What this worker computes with: the NVIDIA devices that NVML shows, or the CPUs it may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def detect() -> dict[str, Any]:
    """`status.agent.accelerators`."""
    return _nvidia() or {"kind": "cpu", "count": len(os.sched_getaffinity(0)), "model": _cpu_model()}


def _nvidia() -> dict[str, Any] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver: a CPU worker
    try:
        count = pynvml.nvmlDeviceGetCount()
        model = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) if count else ""
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return {"kind": "nvidia", "count": count, "model": str(model)} if count else None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
