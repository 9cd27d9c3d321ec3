"""Load of this container's GPUs by NVML, for `status.agent.usage`."""

from __future__ import annotations

import logging
import threading
import time

from healthcheck.probes.nvml import GpuLoad, NoDriver, opened, read_load
from healthcheck.probes.report import ProbeUnavailable

logger = logging.getLogger(__name__)

READ_SECONDS = 5.0
"""Interval of the readings."""
STALE_SECONDS = 60.0
"""Age from which a reading is no longer reported: NVML waits for a wedged driver."""
NO_LOAD = GpuLoad(None, None)


class GpuMeter(threading.Thread):
    """Keeps the newest reading. The thread ends at once without a GPU or without NVML, which `xid` logs."""

    def __init__(self) -> None:
        super().__init__(name="dlr-gpu-load", daemon=True)
        self._stop_event = threading.Event()
        self._latest = 0.0, NO_LOAD

    def latest(self) -> GpuLoad:
        """Return the newest reading; one without figures if there is none or it is too old."""
        at, load = self._latest
        return load if time.monotonic() - at < STALE_SECONDS else NO_LOAD

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        try:
            with opened() as nvml:
                while not self._stop_event.is_set():
                    self._latest = time.monotonic(), read_load(nvml)
                    self._stop_event.wait(READ_SECONDS)
        except (NoDriver, ProbeUnavailable):
            pass
        except Exception:  # training goes on with a broken NVML
            logger.exception("the load of GPUs is no longer read")
