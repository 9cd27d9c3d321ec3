"""Horovod's own HostDiscoveryScript, HostManager and ElasticDriver over `dlr hosts`, from its sources."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation

DRIVER = Path(__file__).parent.parent / "fixtures" / "horovod_driver.py"
HOROVOD, ITS_NEEDS = "horovod==0.28.1", ("psutil", "cloudpickle", "pyyaml", "packaging")
NAME = "hosts"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horovod's Python code with what it imports; nothing of it is built."""
    folder = tmp_path_factory.mktemp("horovod")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    fetch = [*pip, "download", HOROVOD, "--no-deps", "--no-binary=:all:", "--dest", str(folder)]
    fetched = subprocess.run(fetch, capture_output=True, text=True, check=False, timeout=600)
    if fetched.returncode != 0:
        pytest.skip(f"no {HOROVOD} here: {fetched.stderr.strip()[-200:]}")
    (archive,) = folder.glob("horovod-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    subprocess.run([*pip, "install", "--target", str(unpacked), *ITS_NEEDS], check=True, timeout=600)
    return unpacked


class Driver:
    """The driver's process, and what it tells."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._states: queue.Queue[dict[str, Any]] = queue.Queue()
        self._seen: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def wait_for(self, what: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The state that is so, which may be the one seen last."""
        deadline = time.monotonic() + 60
        while not (self._seen and condition(self._seen[-1])):
            try:
                self._seen.append(self._states.get(timeout=max(deadline - time.monotonic(), 0)))
            except queue.Empty:
                raise AssertionError(f"{what} did not come: {self._seen}") from None
        return self._seen[-1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._states.put(json.loads(line))


@pytest.fixture
def driver(cluster: Cluster, observation: Observation, sources: Path) -> Iterator[Driver]:
    cluster.apply(waiting_workers(cluster), observation.namespace)  # Horovod's first look has to succeed
    dlr = Path(sys.executable).with_name("dlr")
    script = f"{dlr} hosts {NAME} -n {observation.namespace} --slots 2"
    environment = cluster.environment()
    path = os.pathsep.join(filter(None, [str(sources), environment.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, str(DRIVER), script, "4"],
        env=environment | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Driver(process)
        process.kill()


def waiting_workers(cluster: Cluster) -> Object:
    """Two Pods with an agent each, in which somebody else is to start processes."""
    command = ["dlr", "exec", "--", "sleep", "3600"]
    return jobs.scripted(cluster, NAME, 2, command, grace_seconds=1, distributionStrategy="CustomStrategy")


def hosts(state: dict[str, Any]) -> dict[str, int]:
    return dict(state["hosts"])


def test_worker_that_is_lost_comes_back_as_another_host_and_ranks_are_kept(
    cluster: Cluster, observation: Observation, driver: Driver
) -> None:
    first = driver.wait_for("four slots", lambda state: len(state["ranks"]) == 4)
    assert sorted(hosts(first).values()) == [2, 2]

    def address_of(worker: Object) -> str:
        return str(worker["status"]["agent"]["address"])

    kept, lost = (address_of(worker) for worker in observation.workers(NAME))
    pod = observation.workers(NAME)[1]["status"]["podName"]
    killed_at = time.monotonic()
    api = cluster.api()
    api.delete(Kind.POD, pod, observation.namespace)
    api.close()
    gone = driver.wait_for("the loss", lambda state: lost not in hosts(state))
    print(f"Horovod noticed the loss after {time.monotonic() - killed_at:.2f} s")
    driver.order(f"fail {lost}")
    settled = driver.wait_for(
        "the next round", lambda state: lost not in str(state["ranks"]) and state["ranks"]
    )
    back = driver.wait_for("another host", lambda state: len(hosts(state)) == 2)
    (new,) = hosts(back).keys() - {kept}
    print(f"and the new host after {time.monotonic() - killed_at:.2f} s")
    assert new != lost and gone
    if len(settled["ranks"]) < 4:  # it had come by then, or it has to be taken in
        driver.order("reset")
    last = driver.wait_for("four ranks", lambda state: len(state["ranks"]) == 4 and new in hosts(state))
    survivors = {rank: slot for rank, slot in last["ranks"].items() if slot.startswith(f"{kept}[")}
    assert sorted(last["usable"]) == sorted([kept, new]), "no host is lost for ever"
    assert list(survivors) == ["0", "1"], "who stayed has the lowest ranks"
    assert {slot.partition("[")[0] for slot in last["ranks"].values()} == {kept, new}
