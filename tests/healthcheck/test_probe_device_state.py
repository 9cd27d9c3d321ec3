"""What NVML and the kernel log say, and what is made of it; the fake stands where pynvml does."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from crds.agent_report import ProbeEnding
from healthcheck.probes import device_faults, kernel_log, nvml
from healthcheck.probes.device_state import judge
from healthcheck.probes.kernel_log import KernelLogLine, XidError
from healthcheck.probes.nvml import DeviceState, NvLinks

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class FakeNvml:
    """pynvml with one function answering for each name; all else is not supported."""

    def __init__(self, devices: int = 1, **answers: Any) -> None:
        self._answers = {"GetCount": devices, "GetHandleByIndex": "handle", **answers}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)
        answer = self._answers.get(name.removeprefix("nvmlDevice"), NOT_SUPPORTED)

        def function(*arguments: Any) -> Any:
            value = answer(*arguments) if callable(answer) else answer
            if isinstance(value, Exception):
                raise value
            return value

        return function


def healthy(**answers: Any) -> FakeNvml:
    usual = {
        "GetName": "NVIDIA H100 80GB HBM3",
        "GetPciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
        "GetTotalEccErrors": 0,
        "GetRemappedRows": (1, 0, 0, 0),
        "GetNvLinkState": lambda handle, link: 1 if link < 18 else pynvml.NVMLError(2),
        "GetNvLinkErrorCounter": 0,
        "GetCurrentClocksEventReasons": pynvml.nvmlClocksEventReasonGpuIdle,
        "GetMemoryInfo": SimpleNamespace(used=2**30, total=80 * 2**30),
        "GetComputeRunningProcesses": [],
    }
    return FakeNvml(**{**usual, **answers})


def judged(fake: FakeNvml, *xids: XidError) -> Any:
    return judge(nvml.read_devices(fake), list(xids))


def test_a_healthy_device_passes_without_a_word() -> None:
    report = judged(healthy())
    assert (report.ending, report.faults, report.notes) == (ProbeEnding.PASSED, (), ())
    assert report.figures == {"gpu_count": 1}


def test_a_device_that_tells_nothing_passes() -> None:
    assert judged(FakeNvml()).ending is ProbeEnding.PASSED


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        (
            {
                "GetTotalEccErrors": lambda handle, kind, counter: (
                    3 if counter == pynvml.NVML_VOLATILE_ECC else 7
                )
            },
            "3 uncorrectable ECC errors since its last reset",
        ),
        ({"GetRemappedRows": (0, 1, 1, 0)}, "memory rows wait for a reset"),
        ({"GetRemappedRows": (0, 1, 0, 1)}, "must be replaced"),
        ({"GetRetiredPagesPendingStatus": 1}, "pages wait for a reset"),
        ({"GetMemoryInfo": SimpleNamespace(used=40, total=80)}, "50% of its memory is in use"),
        (
            {"GetHandleByIndex": pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)},
            "it is not usable: GPU is lost",
        ),
        ({"GetName": pynvml.NVMLError(pynvml.NVML_ERROR_RESET_REQUIRED)}, "it is not usable: "),
    ],
)
def test_what_is_certainly_wrong_is_a_fault(answers: dict[str, Any], fault: str) -> None:
    report = judged(healthy(**answers))
    assert report.ending is ProbeEnding.FAILED
    assert len(report.faults) == 1
    assert fault in report.faults[0]


def test_what_slows_a_device_or_is_long_past_is_a_note() -> None:
    reasons = pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap
    report = judged(
        healthy(
            GetCurrentClocksEventReasons=reasons,
            GetTotalEccErrors=lambda handle, kind, counter: int(counter == pynvml.NVML_AGGREGATE_ECC),
            GetNvLinkErrorCounter=lambda handle, link, counter: int(
                counter == pynvml.NVML_NVLINK_ERROR_DL_RECOVERY and link == 4
            ),
        )
    )
    assert report.ending is ProbeEnding.PASSED
    assert [note.partition(": ")[2] for note in report.notes] == [
        "1 uncorrectable ECC errors in its life",
        "slowed down now: power brake",
        "NVLink 1 recoveries since the driver was loaded",
    ]


def test_memory_held_by_processes_that_can_be_seen_means_busy_not_broken() -> None:
    busy = healthy(
        GetMemoryInfo=SimpleNamespace(used=40, total=80), GetComputeRunningProcesses=[SimpleNamespace(pid=42)]
    )
    report = judged(busy)
    assert (report.ending, report.faults) == (ProbeEnding.UNAVAILABLE, ())
    assert "process 42 holds 50% of its memory" in report.reason


def test_a_missing_nvlink_shows_beside_a_sibling() -> None:
    whole, broken = NvLinks(tuple(range(18))), NvLinks(tuple(range(17)), (17,))
    alone = [DeviceState(0, nvlinks=broken)]
    both = [DeviceState(0, nvlinks=whole), DeviceState(1, nvlinks=broken)]
    assert device_faults.faults(alone) == []
    (fault,) = device_faults.faults(both)
    assert fault.sentence == "GPU 1: 17 NVLinks are up where its siblings have 18 (down: 17)"


def test_xids_of_hardware_are_faults_while_recent_and_those_of_programs_never() -> None:
    lost, old, program = (
        XidError(79, "0000:3b:00", "GPU has fallen off the bus.", 60),
        XidError(48, "0000:3b:00", "", 90_000),
        XidError(31, "0000:af:00", "MMU Fault", 60),
    )
    report = judged(healthy(), lost, old, program)
    assert report.faults == ("GPU at 0000:3b:00: Xid 79 1 min ago: the GPU has fallen off the bus",)
    assert len(report.notes) == 2


def test_an_unreadable_kernel_log_is_said() -> None:
    report = judge(nvml.read_devices(healthy()), [], log_unreadable="Operation not permitted")
    assert report.ending is ProbeEnding.PASSED
    assert "are unknown" in report.notes[0]


def test_xids_are_found_in_the_kernel_log() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    found = list(kernel_log.xids([KernelLogLine(5, "usb 1-1: new device"), KernelLogLine(3, line)]))
    assert [(xid.code, xid.pci_bus_id, xid.seconds_ago) for xid in found] == [(79, "0000:3b:00", 3)]


@pytest.mark.real
def test_kmsg_records_are_parsed(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    fifo.write_text("4,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE\n SUBSYSTEM=pci\n")
    (line,) = kernel_log.read_lines(fifo)
    assert line.text == "NVRM: Xid (PCI:0000:3b:00): 48, DBE"
    assert line.seconds_ago > 0


def test_a_kernel_log_that_may_not_be_read_is_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def klogctl(*_: Any) -> int:
        kernel_log.ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(kernel_log.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(klogctl=klogctl))
    with pytest.raises(PermissionError):
        kernel_log.read_lines(tmp_path / "missing")


def test_load_is_the_mean_of_busy_shares_and_the_fullest_memory_of_the_devices_that_answer() -> None:
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    fake = FakeNvml(
        3,
        GetHandleByIndex=lambda index: lost if index == 2 else index,
        GetUtilizationRates=lambda handle: SimpleNamespace(gpu=(100, 80)[handle]),
        GetMemoryInfo=lambda handle: SimpleNamespace(used=(2**30, 2**33)[handle]),
    )
    assert nvml.read_load(fake) == nvml.GpuLoad(0.9, 2**33)
    assert nvml.read_load(FakeNvml()) == nvml.GpuLoad(None, None), "as MIG has no utilization"
