from __future__ import annotations

from agent.monitor.usage import UsageMeter
from crds.agent_report import Usage

GIB = 2**30


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
        return UsageMeter(self, self, now=lambda: self.now)


def test_cores_are_the_cpu_seconds_between_two_looks_over_the_time_between_them() -> None:
    counters = Counters()
    meter = counters.meter()
    meter.look()
    assert meter.latest() is None
    counters.now, counters.seconds, counters.bytes = 104.0, 60.0, 2 * GIB
    meter.look()
    assert meter.latest() == Usage(2.5, 2 * GIB)
    counters.now, counters.seconds, counters.bytes = 108.0, 60.0, GIB
    meter.look()
    assert meter.latest() == Usage(0.0, 2 * GIB), "the peak"
