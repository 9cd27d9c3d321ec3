"""CPU time and memory that this worker's Pod uses, and the load of its GPUs.

The reporter adds the newest figures to every report, so they cost no writes of their own. A thread reads
them, since the memory of a process tree takes milliseconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.monitor.accounting import CpuGroup, MemoryGroup, ProcessTree, cpu_source, memory_source
from agent.monitor.gpu_load import GpuMeter
from crds.agent_report import Usage

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
READ_SECONDS = 5.0
"""Intervals of the readings: after the first one, so that there are figures soon, and later."""

STALE_SECONDS = 60.0
"""Age from which figures are no longer reported, since the thread that reads them is stuck."""


class UsageMeter(threading.Thread):
    """Reads the figures at intervals."""

    def __init__(
        self,
        cpu: CpuGroup | ProcessTree,
        memory: MemoryGroup | ProcessTree,
        gpus: GpuMeter,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="dlr-usage", daemon=True)
        self._gpus = gpus
        self._cpu = cpu
        self._memory = memory
        self._now = now
        self._stop_event = threading.Event()
        self._last: tuple[float, float] | None = None
        """Time of the last reading, and the CPU seconds used until then."""
        self._latest: tuple[float, Usage] | None = None
        self._memory_peak_bytes = 0

    def latest(self) -> Usage | None:
        """Return the newest figures; None before the second reading, or if the last one is too old."""
        latest = self._latest
        return latest[1] if latest is not None and self._now() - latest[0] < STALE_SECONDS else None

    def stop(self) -> None:
        self._stop_event.set()
        self._gpus.stop()

    def run(self) -> None:
        self._gpus.start()
        self._try_to_look()
        wait_seconds = FIRST_SECONDS
        while not self._stop_event.wait(wait_seconds):
            self._try_to_look()
            wait_seconds = READ_SECONDS

    def look(self) -> None:
        """Read the figures; raise OSError, ValueError or KeyError if one cannot be read."""
        at, used_seconds = self._now(), self._cpu.cpu_seconds()
        last, self._last = self._last, (at, used_seconds)
        if last is None or at <= last[0]:
            return
        cores = max(0.0, used_seconds - last[1]) / (at - last[0])
        memory_bytes, gpus = self._memory.memory_bytes(), self._gpus.latest()
        self._memory_peak_bytes = max(self._memory_peak_bytes, memory_bytes)
        self._latest = (
            at,
            Usage(cores, self._memory_peak_bytes, memory_bytes, gpus.share, gpus.memory_bytes),
        )

    def _try_to_look(self) -> None:
        try:
            self.look()
        except (OSError, ValueError, KeyError) as error:
            logger.debug("usage cannot be read: %s", error)


def meter_of_pod(pod_uid: str) -> UsageMeter:
    """Return a meter, not started yet, of the Pod that this process is in."""
    return UsageMeter(cpu_source(pod_uid), memory_source(pod_uid), GpuMeter())
