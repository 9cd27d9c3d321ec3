"""The keeper of a container, with real processes: what it reports, what it logs, and that nothing survives."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from localcluster.kubelet import shim
from localcluster.kubelet.container import (
    ContainerProcess,
    ContainerRuntime,
    ContainerSpec,
    Isolation,
    StartRefused,
    detect_isolation,
)
from tests.localcluster.running import best_isolation, living, until_living, until_none_living

pytestmark = pytest.mark.real

WAIT_SECONDS = 300.0


def available() -> list[Isolation]:
    """What this host can do: all of them as root, at least NONE otherwise."""
    order = [Isolation.ROOT, Isolation.USER, Isolation.NONE]
    return order[order.index(best_isolation()) :]


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> ContainerRuntime:
    """One with the best isolation, or with that of the test's parameter."""
    return ContainerRuntime(getattr(request, "param", best_isolation()))


AVAILABLE = available()
EACH = pytest.mark.parametrize("runtime", AVAILABLE, ids=lambda isolation: isolation.value, indirect=True)
NAMESPACES = [isolation for isolation in AVAILABLE if isolation is not Isolation.NONE]
"""Without them the nodes process ends what a killed shim leaves: see test_kubelet.py."""


@pytest.fixture
def marker() -> str:
    return f"DLR_TEST_{uuid.uuid4().hex}"


def described(tmp_path: Path, marker: str, script: str) -> ContainerSpec:
    return ContainerSpec(
        title="test/pod/main",
        argv=["sh", "-c", script],
        env={"PATH": os.environ["PATH"], "MARKER": marker},
        cwd="/",
        log=str(tmp_path / "logs" / "0.log"),
        hostname="pod-0",
    )


async def finish(process: ContainerProcess) -> int:
    async with asyncio.timeout(WAIT_SECONDS):
        exit_ = await process.exited
        await process.gone
    return exit_.code


def texts(tmp_path: Path, stream: str) -> list[str]:
    lines = (tmp_path / "logs" / "0.log").read_text().splitlines()
    return [line.split(" ", 3)[3] for line in lines if line.split(" ", 3)[1] == stream]


# A child, a grandchild in a session of its own, and a daemon that nobody waits for.
FAMILY = "sleep 1000 & (setsid sleep 1000 &) ; (setsid sh -c 'setsid sleep 1000 & exit' &) ; sleep 0.1; "


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
async def test_exit_codes_are_reported(
    runtime: ContainerRuntime, tmp_path: Path, marker: str, script: str, code: int
) -> None:
    process = runtime.create()
    await process.start(described(tmp_path, marker, script))
    assert await finish(process) == code


async def test_output_is_logged_whole(runtime: ContainerRuntime, tmp_path: Path, marker: str) -> None:
    process = runtime.create()
    long_line = "x" * 40_000
    script = f"echo out; echo err >&2; printf unfinished; echo; printf '%s' {long_line}; seq 5000"
    await process.start(described(tmp_path, marker, script))
    assert await finish(process) == 0
    lines = (tmp_path / "logs" / "0.log").read_text().splitlines()
    joined = ""
    for line in lines:
        _time, stream, flag, text = line.split(" ", 3)
        if stream == "stdout":
            joined += text + ("\n" if flag == "F" else "")
    assert joined == f"out\nunfinished\n{long_line}" + "".join(f"{n}\n" for n in range(1, 5001))
    assert texts(tmp_path, "stderr") == ["err"]


def test_the_end_of_a_log_is_written_by_a_keeper_that_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "DRAIN_SECONDS", 1e-9)
    monkeypatch.setattr(shim, "tell", lambda *_: None)
    readable, writable = os.pipe()
    os.write(writable, b"last words\n")
    keeper = shim.Keeper.__new__(shim.Keeper)
    keeper.log, keeper.streams = shim.Log(str(tmp_path / "logs" / "0.log")), {readable: "stdout"}
    keeper.confinement, keeper.last_word = None, {}
    keeper.finish()
    assert texts(tmp_path, "stdout") == ["last words"]


async def test_a_missing_command_is_refused_in_kubernetes_words(
    runtime: ContainerRuntime, tmp_path: Path, marker: str
) -> None:
    process = runtime.create()
    spec = described(tmp_path, marker, "")
    spec = ContainerSpec(spec.title, ["nosuch"], spec.env, spec.cwd, spec.log)
    with pytest.raises(StartRefused, match=r'exec: "nosuch": executable file not found in \$PATH') as refused:
        await process.start(spec)
    assert refused.value.reason == "StartError"
    await process.gone


@EACH
async def test_daemons_end_with_the_main_process(
    runtime: ContainerRuntime, tmp_path: Path, marker: str
) -> None:
    process = runtime.create()
    await process.start(described(tmp_path, marker, FAMILY + "exit 5"))
    assert await finish(process) == 5
    assert living(marker) == []


@pytest.mark.parametrize("runtime", NAMESPACES, ids=lambda isolation: isolation.value, indirect=True)
async def test_nothing_survives_a_killed_shim(runtime: ContainerRuntime, tmp_path: Path, marker: str) -> None:
    process = runtime.create()
    await process.start(described(tmp_path, marker, FAMILY + "sleep 1000"))
    await until_living(marker, 4)
    os.kill(process.shim_pid, signal.SIGKILL)
    assert await finish(process) == 137
    assert await until_none_living(marker) == []


async def test_a_mount_without_privileges_is_refused_clearly(tmp_path: Path, marker: str) -> None:
    spec = described(tmp_path, marker, "exit 0")
    spec.mounts.append({"source": str(tmp_path), "target": "/data", "readOnly": False})
    process = ContainerProcess(Isolation.NONE, lambda: None)
    with pytest.raises(
        StartRefused, match="volume cannot be mounted at /data: this host lets its user"
    ) as refused:
        await process.start(spec)
    assert refused.value.reason == "CreateContainerConfigError"
    await process.gone


def test_the_probe_of_what_this_host_lets_us_have_leaves_nothing(tmp_path: Path) -> None:
    detect_isolation(tmp_path / "home")
    assert not list((tmp_path / "home").iterdir())


@EACH
async def test_a_kill_that_comes_with_the_description_counts(
    runtime: ContainerRuntime, tmp_path: Path, marker: str
) -> None:
    process = runtime.create()
    starting = asyncio.create_task(process.start(described(tmp_path, marker, "sleep 1000")))
    await asyncio.sleep(0)
    process.kill()
    assert await finish(process) == 137
    await asyncio.wait({starting})
    assert starting.exception() is None or isinstance(starting.exception(), StartRefused)
    assert living(marker) == []


async def test_a_command_to_a_shim_that_has_ended_is_lost_and_its_end_is_reported(
    runtime: ContainerRuntime, tmp_path: Path, marker: str
) -> None:
    process = runtime.create()
    os.mkfifo(gate := tmp_path / "gate")
    await process.start(described(tmp_path, marker, f"read _ < {gate}; exit 3"))
    gate.write_text("\n")
    # Blocking, so that the loop cannot read the shim's report.
    os.waitid(os.P_PID, process.shim_pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    process.terminate()
    process.kill()
    assert await finish(process) == 3
    process.terminate()
    process.kill()
