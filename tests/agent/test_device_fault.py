"""A GPU's fault while real processes train: pynvml alone is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.conftest import Agents, training_processes
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

DRIVER = """
import os, time
from types import SimpleNamespace
NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9
NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 10, 15
NVML_ERROR_RESET_REQUIRED, NVML_ERROR_INSUFFICIENT_POWER, NVML_ERROR_IRQ_ISSUE = 16, 8, 11
nvmlEventTypeXidCriticalError = 8
class NVMLError(Exception):
    def __init__(self, value): self.value = value
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetIndex(handle): return handle
def nvmlDeviceGetName(handle): return "Imaginary"
def nvmlDeviceGetPciInfo(handle): return SimpleNamespace(busId=b"0000:3B:00.0")
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=90)
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=2**33)
def nvmlDeviceGetSupportedEventTypes(handle): return nvmlEventTypeXidCriticalError
def nvmlDeviceRegisterEvents(handle, types, events): pass
def nvmlEventSetCreate(): return object()
def nvmlEventSetFree(events): pass
def nvmlEventSetWait_v2(events, milliseconds):
    deadline = time.monotonic() + milliseconds / 1000
    while time.monotonic() < deadline:
        try:
            with open(os.environ["OUT"] + "/xid") as file:
                number = int(file.read())
            os.unlink(os.environ["OUT"] + "/xid")
            return SimpleNamespace(device=1, eventType=nvmlEventTypeXidCriticalError, eventData=number)
        except (OSError, ValueError):
            time.sleep(0.02)
    raise NVMLError(NVML_ERROR_TIMEOUT)
"""
TRAIN = """
import os, sys, time, dlr
print("one more line", file=sys.stderr)
last = int(os.environ["LOCAL_RANK"]) + 1 == int(os.environ["LOCAL_WORLD_SIZE"])
for step in range(100000):
    if last:
        dlr.report(step)
    time.sleep(0.02)
"""


class Driver:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "pynvml.py").write_text(DRIVER)

    def report(self, xid: int) -> None:
        fresh = self._directory / "xid.new"
        fresh.write_text(str(xid))
        fresh.rename(self._directory / "xid")


@pytest.fixture
def driver(agents: Agents, tmp_path: Path) -> Driver:
    return Driver(tmp_path / "work")


def test_fault_of_a_device_ends_processes_that_would_go_on(
    cluster: FakeCluster, agents: Agents, driver: Driver
) -> None:
    agent = agents.start(0, "--nproc-per-node=2", agents.script(TRAIN))
    cluster.wait_state({0: "Ready"}, 0)
    assert cluster.agent(0)["accelerators"]["kind"] == "nvidia"
    cluster.form([0])
    cluster.wait_step(0, 1)
    cluster.wait(lambda: (cluster.agent(0).get("usage") or {}).get("gpuShare") == 0.9, "the load of GPUs")
    first = training_processes(agent.pid)
    driver.report(79)
    cluster.wait_state({0: "Failed"}, 1)
    failure = cluster.agent(0)["failure"]
    assert failure["cause"] == "Device"
    assert failure["message"].startswith("Xid 79 on GPU 1 (0000:3B:00.0): the GPU has fallen off the bus")
    assert (failure["rank"], failure["localRank"], failure.get("exitCode")) == (1, 1, None)
    assert failure["step"] >= 1
    assert "one more line" in failure["logTail"]
    cluster.form([0])
    cluster.wait_state({0: "Running"}, 2)
    assert not set(training_processes(agent.pid)) & set(first)
    assert cluster.agent(0)["failure"]["sequence"] == 1, "that its processes were ended is no second failure"
