from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.monitor import accelerators
from agent.monitor.accelerators import detect
from crds.agent_report import Accelerators
from tests.agent.test_xid import Nvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml(gpus=8)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    return fake


class Thread:
    """One that has done what it was given when it is started."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self.start = target

    def join(self, timeout: float) -> None: ...

    def is_alive(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(accelerators, "DEVICES", tmp_path)
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setattr(accelerators, "threading", SimpleNamespace(Thread=Thread))
    return tmp_path


def add(devices: Path, *names: str) -> None:
    for name in names:
        (devices / name).parent.mkdir(parents=True, exist_ok=True)
        (devices / name).touch()


@pytest.fixture
def wedged(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver that does not answer, as in an ioctl that never returns."""
    released = threading.Event()
    monkeypatch.setattr(Nvml, "nvmlInit", lambda _: released.wait(300), raising=True)
    monkeypatch.setattr(accelerators, "NVML_SECONDS", 0.2)
    yield
    released.set()


def no_driver(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Nvml) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(Nvml, "nvmlInit", refuse)


def test_nvidia_devices_are_those_of_nvml(nvml: Nvml) -> None:
    assert detect() == Accelerators("nvidia", 8, "NVIDIA H100")


@pytest.mark.parametrize("none", ["void", "none"])
def test_a_container_without_a_gpu_does_not_see_the_hosts(
    none: str, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a workstation, where the embedded cluster's Pods are processes of the host."""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", none)
    assert detect().kind == "cpu"


@pytest.mark.real
def test_a_wedged_driver_does_not_hold_the_agent_up(wedged: None, devices: Path) -> None:
    add(devices, "nvidia0", "nvidia1", "nvidiactl")
    assert detect() == Accelerators("nvidia", 2, ""), "which is not what the driver would say"


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("amd", ["kfd", "dri/renderD128", "dri/renderD129"]),
        ("ascend", ["davinci0", "davinci5", "davinci_manager"]),
        ("gaudi", ["accel/accel0", "accel/accel1", "accel/accel_controlD0"]),
        ("neuron", ["neuron0", "neuron1"]),
        ("tpu", ["accel0", "accel1"]),
    ],
)
def test_other_makers_devices_are_counted_by_their_files(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, devices: Path, kind: str, files: list[str]
) -> None:
    no_driver(nvml, monkeypatch)
    add(devices, *files)
    assert detect() == Accelerators(kind, 2, "")


def test_without_devices_there_are_cpus(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, devices: Path) -> None:
    no_driver(nvml, monkeypatch)
    add(devices, "dri/renderD128")  # a display adapter
    found = detect()
    assert found.kind == "cpu"
    assert found.count > 0
    assert found.model
