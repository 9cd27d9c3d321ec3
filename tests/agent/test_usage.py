from __future__ import annotations

from agent.monitor.gpu_load import GpuMeter
from agent.monitor.usage import UsageMeter
from crds.agent_report import Usage
from healthcheck.probes.nvml import GpuLoad

GIB = 2**30


class Gpus(GpuMeter):
    def latest(self) -> GpuLoad:
        return GpuLoad(0.9, 5 * GIB)


class Counters:
    def __init__(self) -> None:
        self.now = 100.0
        self.seconds = 50.0
        self.bytes = GIB

    def cpu_seconds(self) -> float:
        return self.seconds

    def memory_bytes(self) -> int:
        if self.bytes < 0:
            raise OSError("gone")
        return self.bytes

    def meter(self) -> UsageMeter:
        return UsageMeter(self, self, Gpus(), now=lambda: self.now)


def test_cores_are_the_cpu_seconds_between_two_looks_over_the_time_between_them() -> None:
    counters = Counters()
    meter = counters.meter()
    meter.look()
    assert meter.latest() is None
    counters.now, counters.seconds, counters.bytes = 104.0, 60.0, 2 * GIB
    meter.look()
    assert meter.latest() == Usage(2.5, 2 * GIB, 2 * GIB, 0.9, 5 * GIB)
    counters.now, counters.seconds, counters.bytes = 108.0, 60.0, GIB
    meter.look()
    assert meter.latest() == Usage(0.0, 2 * GIB, GIB, 0.9, 5 * GIB), "with the peak"
