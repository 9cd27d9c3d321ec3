"""`up` and `down`: the whole cluster in the background, and what kills of its parts leave."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from controller.kubeconfig import load_connection
from controller.resources import CONFIGMAPS
from localcluster.client.api import ApiClient
from localcluster.paths import Home, write_private
from localcluster.supervisor import Addon, ClusterError, down, up
from tests.agent.patience import wait_for
from tests.localcluster.running import living, observing, read, shell, until_living, until_none_living
from tests.ports import free_port

pytestmark = pytest.mark.real

PARTS = ("supervisor", "apiserver", "nodes", "addon")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    down(home)
    wait_for(lambda: not living(str(home.root)), lambda: f"the end of {living(str(home.root))}")


def start(home: Home, **settings: Any) -> None:
    options = {
        "nodes": 1,
        "cpus_per_node": "4",
        "memory_per_node": "4Gi",
        "gpus_per_node": 0,
        "port": 0,
        "manifests": [manifest("installed")],
        "addons": [Addon("addon", [sys.executable, "-c", "import time; time.sleep(1000)"])],
    }
    up(home, **(options | settings))


def manifest(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}}


def pid(home: Home, part: str) -> int:
    return int(read(home.pidfile(part)))


def has_new_pid(home: Home, part: str, before: int) -> bool:
    return read(home.pidfile(part)) not in ("", str(before))


def is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def get_config_map(home: Home, name: str) -> dict[str, Any]:
    async def get() -> dict[str, Any]:
        async with ApiClient(load_connection(home.kubeconfig)) as client:
            return await client.get(CONFIGMAPS.path("default", name))

    return asyncio.run(get())


def test_up_is_idempotent_and_down_leaves_nothing_but_files(home: Home) -> None:
    start(home)
    first = {part: pid(home, part) for part in PARTS}
    assert all(is_alive(number) for number in first.values())
    assert get_config_map(home, "installed")["data"] == {"key": "value"}
    start(home, manifests=[manifest("later")])
    assert {part: pid(home, part) for part in PARTS} == first
    assert get_config_map(home, "later")
    down(home)
    assert not any(is_alive(number) for number in first.values())
    assert home.database.exists()
    down(home)


def test_other_settings_are_refused_while_it_runs(home: Home) -> None:
    start(home)
    with pytest.raises(ClusterError, match=r"already running in .* with nodes 1, not 2; end it first"):
        start(home, nodes=2)


def test_a_killed_part_is_started_again(home: Home) -> None:
    start(home)
    before = {name: pid(home, name) for name in PARTS}
    os.kill(before["nodes"], signal.SIGKILL)
    wait_for(lambda: has_new_pid(home, "nodes", before["nodes"]))
    for other in set(PARTS) - {"nodes"}:
        assert pid(home, other) == before[other]
        assert is_alive(before[other])
    wait_for(lambda: not is_alive(before["nodes"]))


async def test_nothing_survives_a_killed_supervisor_and_no_object_is_lost(home: Home) -> None:
    await asyncio.to_thread(start, home)
    async with observing(home) as seen:
        marker = f"M={home.root}"
        family = shell("setsid sleep 1000 & sleep 1000", env=[{"name": "M", "value": str(home.root)}])
        await seen.create("pod", family, restartPolicy="Always")
        await seen.until_phase("pod", "Running")
        await until_living(marker, 3)
        os.kill(pid(home, "supervisor"), signal.SIGKILL)
        assert await until_none_living(str(home.root)) == []
    await asyncio.to_thread(start, home)
    async with observing(home) as seen:
        await seen.until(lambda: seen.pod("pod")["status"]["containerStatuses"][0]["restartCount"] == 1)
        await seen.until_phase("pod", "Running")
    assert (await asyncio.to_thread(get_config_map, home, "installed"))["data"] == {"key": "value"}


def test_a_pid_that_now_belongs_to_another_process_does_not_mislead(home: Home) -> None:
    start(home)
    os.kill(pid(home, "supervisor"), signal.SIGKILL)
    wait_for(lambda: not living(str(home.root)))
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        for part in PARTS:
            home.pidfile(part).write_text(str(bystander.pid))
        start(home)
        assert pid(home, "supervisor") != bystander.pid
        down(home)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_down_ends_parts_that_do_not_answer(home: Home) -> None:
    start(home)
    for part in ("apiserver", "addon"):
        os.kill(pid(home, part), signal.SIGSTOP)
    down(home)


def test_the_port_stays_the_same_across_restarts(home: Home) -> None:
    port = free_port()
    start(home, port=port)
    down(home)
    start(home)
    assert urlsplit(load_connection(home.kubeconfig).server).port == port


def test_a_file_that_cannot_be_written_leaves_no_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "kubeconfig", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_manifest_is_said_and_nothing_is_left(home: Home) -> None:
    broken = manifest("x") | {"data": {"key": 5}}
    with pytest.raises(ClusterError, match="ConfigMap x is refused by the API server"):
        start(home, manifests=[broken])
    wait_for(lambda: not living(str(home.root)))
