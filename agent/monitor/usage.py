"""Measures what this worker's Pod uses: CPU, memory, and its GPUs.

The reporter sends the newest figures along with every report, so they cost no writes of their own. A thread
reads them, because a call to a driver that is stuck may take for ever.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from agent.monitor.accounting import CpuGroup, MemoryGroup, ProcessTree, cpu_source, memory_source
from crds.agent_report import Usage
from healthcheck.probes.nvml import NoDriver, opened
from healthcheck.probes.report import Unavailable

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
READ_SECONDS = 5.0
"""The interval between two readings: after the first one, so that there are figures soon, and later."""

STALE_SECONDS = 60.0
"""Figures older than this are no longer reported, because the thread that reads them is stuck."""


class UsageMeter(threading.Thread):
    """Reads the figures now and then. `latest` returns the newest ones."""

    def __init__(
        self,
        cpu: CpuGroup | ProcessTree,
        memory: MemoryGroup | ProcessTree,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="dlr-usage", daemon=True)
        self._cpu = cpu
        self._memory = memory
        self._now = now
        self._stop_event = threading.Event()
        self._last: tuple[float, float] | None = None
        """When the figures were last read, and the CPU seconds used until then."""
        self._latest: tuple[float, Usage] | None = None
        self._first: tuple[float, float] | None = None
        """The first reading."""
        self._memory_peak_bytes = 0
        self._utilization_sum, self._utilization_count = 0.0, 0

    def latest(self) -> Usage | None:
        """Return the newest figures; None before the second reading, and if the last one is too long ago."""
        latest = self._latest
        return latest[1] if latest is not None and self._now() - latest[0] < STALE_SECONDS else None

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            nvml = _nvml(stack)
            self._try_to_look(nvml)
            wait_seconds = FIRST_SECONDS
            while not self._stop_event.wait(wait_seconds):
                self._try_to_look(nvml)
                wait_seconds = READ_SECONDS

    def look(self, nvml: Any = None) -> None:
        """Read the figures; raise OSError, ValueError or KeyError if something cannot be read."""
        at, used_seconds = self._now(), self._cpu.cpu_seconds()
        last, self._last = self._last, (at, used_seconds)
        self._first = first = self._first or self._last
        if last is None or at <= last[0]:
            return
        cores = max(0.0, used_seconds - last[1]) / (at - last[0])
        utilization, gpu_memory_bytes = read_gpus(nvml) if nvml is not None else (None, None)
        memory_bytes = self._memory.memory_bytes()
        self._memory_peak_bytes = max(self._memory_peak_bytes, memory_bytes)
        if utilization is not None:
            self._utilization_sum += utilization
            self._utilization_count += 1
        self._latest = (
            at,
            Usage(
                cores,
                memory_bytes,
                utilization,
                gpu_memory_bytes,
                self._memory_peak_bytes,
                max(0.0, used_seconds - first[1]) / (at - first[0]),
                self._utilization_sum / self._utilization_count if self._utilization_count else None,
            ),
        )

    def _try_to_look(self, nvml: Any) -> None:
        try:
            self.look(nvml)
        except (OSError, ValueError, KeyError) as error:
            logger.debug("usage cannot be read: %s", error)


def meter_of_pod(pod_uid: str) -> UsageMeter:
    """Return a meter, not started yet, of the Pod that this process is in."""
    return UsageMeter(cpu_source(pod_uid), memory_source(pod_uid))


def read_gpus(nvml: Any) -> tuple[float | None, int | None]:
    """Return mean utilization (0 to 1) and memory in use (bytes), over those GPUs that say it.

    Args:
        nvml: the pynvml module, initialised.
    """

    def ask(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None  # lost, or a slice of a GPU, which has no utilization of its own

    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = [
        handle for i in range(count) if (handle := ask(nvml.nvmlDeviceGetHandleByIndex, i)) is not None
    ]
    rates = [rates.gpu for h in handles if (rates := ask(nvml.nvmlDeviceGetUtilizationRates, h)) is not None]
    used = [memory.used for h in handles if (memory := ask(nvml.nvmlDeviceGetMemoryInfo, h)) is not None]
    return sum(rates) / len(rates) / 100 if rates else None, sum(used) if used else None


def _nvml(stack: contextlib.ExitStack) -> Any:
    """Return pynvml, initialised until the stack is closed; None where there is no driver."""
    try:
        return stack.enter_context(opened())
    except (NoDriver, Unavailable):
        return None
