from __future__ import annotations

import os
import select
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from agent.monitor import xid
from agent.monitor.xid import DeviceFault, DeviceWatch
from crds import xids
from crds.elasticworker import ExitClass
from reconcilers.failure.meaning import smells_of_hardware
from tests.cli.scripted import Clock


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Nvml:
    """What stands where pynvml does. `events` is what the driver tells, in order: Xids or errors."""

    NVMLError = NvmlError
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9
    NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_SUPPORTED = 10, 15, 3
    nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError = 8, 2

    def __init__(self, gpus: int = 2, supported: int = 8) -> None:
        self.events: list[Any] = []
        self.gpus = gpus
        self.supported = supported
        self.lost: set[int] = set()
        self.freed = False

    def tell(self, number: int, gpu: int = 0, event_type: int = 8) -> None:
        self.events.append(SimpleNamespace(device=gpu, eventType=event_type, eventData=number))

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:
        return self.supported

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: object) -> None:
        assert types == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> Any:
        event = self.events.pop(0) if self.events else KeyboardInterrupt()
        if isinstance(event, BaseException):
            raise event
        return event

    def nvmlEventSetFree(self, events: object) -> None:
        self.freed = True

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        if handle in self.lost:
            raise NvmlError(self.NVML_ERROR_GPU_IS_LOST)
        return handle

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=b"00000000:3B:00.0")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(xid, "time", found)
    return found


@pytest.fixture
def watch(nvml: Nvml, clock: Clock) -> DeviceWatch:
    return DeviceWatch()


def goes_on(watch: DeviceWatch) -> bool:
    """What its thread does with all that the driver has told, and whether it waits for more."""
    try:
        watch.run()
    except KeyboardInterrupt:
        return True
    return False


def is_readable(watch: DeviceWatch) -> bool:
    return bool(select.select([watch.fileno()], [], [], 0)[0])


def test_fault_wakes_who_polls_and_says_where_it_is(nvml: Nvml, watch: DeviceWatch) -> None:
    nvml.tell(79, gpu=1)
    assert goes_on(watch) and nvml.freed and is_readable(watch)
    fault = watch.take()
    assert fault == DeviceFault(79, 1, "00000000:3B:00.0", 2)
    assert fault.message.startswith(
        "Xid 79 on GPU 1 (00000000:3B:00.0): the GPU has fallen off the bus; see "
    )
    assert watch.take() is None
    assert not is_readable(watch)


def test_what_is_not_the_devices_doing_is_left_to_the_processes(nvml: Nvml, watch: DeviceWatch) -> None:
    for number in (13, 31, 39, 43, 45, 68, 63, 92):
        nvml.tell(number)
    nvml.tell(1, event_type=nvml.nvmlEventTypeDoubleBitEccError)
    nvml.tell(48)
    assert goes_on(watch)
    fault = watch.take()
    assert fault is not None
    assert fault.xid == 48


def test_what_follows_of_one_fault_is_not_another(nvml: Nvml, watch: DeviceWatch, clock: Clock) -> None:
    for number in (48, 74, 95):
        nvml.tell(number, gpu=0)
    nvml.tell(79, gpu=1)
    assert goes_on(watch)
    first = watch.take()
    assert first is not None
    assert (first.xid, first.device) == (48, 0)
    assert watch.take() is None, "the other GPU's, of the same moment, was taken with it"
    clock.now += xid.INCIDENT_SECONDS
    nvml.tell(95, gpu=0)
    assert goes_on(watch) and is_readable(watch), "later it is news"


def test_lost_gpu_is_a_fault_with_an_xid_or_without(nvml: Nvml, watch: DeviceWatch, clock: Clock) -> None:
    nvml.lost.add(0)
    nvml.tell(79, gpu=0)
    assert goes_on(watch)
    fault = watch.take()
    assert fault is not None
    assert (fault.xid, fault.device) == (79, None), "it cannot say which"
    clock.now += xid.INCIDENT_SECONDS
    nvml.events.append(NvmlError(nvml.NVML_ERROR_GPU_IS_LOST))
    assert not goes_on(watch), "NVML would say so again and again"
    fault = watch.take()
    assert fault is not None
    assert fault.message == "the GPU is lost: the driver does not reach a GPU any more"


def test_driver_that_tells_no_xids_ends_the_watch(nvml: Nvml, watch: DeviceWatch) -> None:
    nvml.supported = nvml.nvmlEventTypeDoubleBitEccError
    assert not goes_on(watch) and nvml.freed


def test_without_a_driver_or_with_a_broken_one_there_is_nothing_to_watch(
    nvml: Nvml, watch: DeviceWatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_driver() -> None:
        raise NvmlError(Nvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with monkeypatch.context() as without:
        without.setattr(nvml, "nvmlInit", no_driver)
        assert not goes_on(watch) and not caplog.records
    nvml.events.append(ZeroDivisionError())
    assert not goes_on(watch)


def test_local_rank_is_known_where_each_process_has_one_device() -> None:
    assert DeviceFault(79, 3, "", 8).local_rank(8) == 3
    assert DeviceFault(79, 3, "", 8).local_rank(1) is None
    assert DeviceFault(79, None, "", 8).local_rank(8) is None


def test_unknown_xid_is_a_fault() -> None:
    assert xids.ends_training(999)
    assert "Xid 999 on GPU 0;" in DeviceFault(999, 0).message


@pytest.mark.parametrize("fault", [DeviceFault(79, 0), DeviceFault(None), DeviceFault(109, 3, "0:3B", 8)])
def test_message_smells_of_hardware_to_the_controller(fault: DeviceFault) -> None:
    assert smells_of_hardware(ExitClass.UNKNOWN, fault.message)


def test_the_watchs_descriptor_is_not_inherited() -> None:
    assert not os.get_inheritable(DeviceWatch().fileno())
