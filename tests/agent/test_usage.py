from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from agent.monitor import usage
from agent.monitor.usage import UsageMeter, meter_of_pod, read_gpus
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


class NvmlError(Exception):
    pass


class Nvml:
    """Each GPU's utilization in percent and memory in use; None for what it does not tell."""

    NVMLError = NvmlError

    def __init__(self, *gpus: tuple[int | None, int | None]) -> None:
        self._gpus = gpus

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._told(self._gpus[handle][0]))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=self._told(self._gpus[handle][1]))

    def _told(self, figure: int | None) -> int:
        if figure is None:
            raise NvmlError("not supported")
        return figure


def test_cores_are_the_cpu_seconds_between_two_looks_over_the_time_between_them() -> None:
    counters = Counters()
    meter = counters.meter()
    meter.look()
    assert meter.latest() is None
    counters.now, counters.seconds, counters.bytes = 104.0, 60.0, 2 * GIB
    meter.look(Nvml((50, GIB), (100, 3 * GIB)))
    assert meter.latest() == Usage(2.5, 2 * GIB, 0.75, 4 * GIB, 2 * GIB, 2.5, 0.75)
    counters.now, counters.seconds, counters.bytes = 108.0, 60.0, GIB
    meter.look(Nvml((0, GIB), (50, 3 * GIB)))
    assert meter.latest() == Usage(0.0, GIB, 0.25, 4 * GIB, 2 * GIB, 1.25, 0.5), "the peak, and means"


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([], (None, None)),
        ([(40, GIB)], (0.4, GIB)),
        ([(40, GIB), (None, None)], (0.4, GIB)),  # one has fallen off the bus
        ([(None, GIB), (None, GIB)], (None, 2 * GIB)),  # slices of a GPU
    ],
)
def test_gpus_that_tell_nothing_are_left_out(
    gpus: list[tuple[int | None, int | None]], expected: tuple[float | None, int | None]
) -> None:
    assert read_gpus(Nvml(*gpus)) == expected


@pytest.mark.real
def test_meter_of_this_machine_tells_figures_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "FIRST_SECONDS", 0.05)
    meter = meter_of_pod("uid")
    meter.start()
    deadline = time.monotonic() + 300
    while (latest := meter.latest()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    meter.stop()
    assert 0 <= latest.cpu_cores < 64
    assert latest.memory_bytes > 10 * 2**20
    meter.join(300)
    assert not meter.is_alive()
