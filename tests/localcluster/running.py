"""A real API server and real nodes for the tests that need them, and what it takes to watch them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from controller.errors import Refused
from controller.kubeconfig import load_connection
from controller.resources import NODES, PODS
from localcluster.client.api import ApiClient
from localcluster.client.informer import Change, Informer
from localcluster.kubelet.container import Isolation, detect_isolation
from localcluster.paths import Home

JSON = dict[str, Any]
START_SECONDS = 300.0
WAIT_SECONDS = 300.0
LOG_TAIL = 8000


@cache
def best_isolation() -> Isolation:
    """The best that this host lets us have."""
    with tempfile.TemporaryDirectory() as scratch:
        return detect_isolation(Path(scratch))


class Part:
    """One process of the cluster, which writes its pid file when it is ready."""

    def __init__(self, home: Home, name: str, *arguments: str) -> None:
        self._home = home
        self._name = name
        self._command = [sys.executable, "-m", f"localcluster.{name}", "--home", str(home.root), *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._home.process_log(self._name).open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, "PYTHONFAULTHANDLER": "1"}
            )
        deadline = time.monotonic() + START_SECONDS
        while read(self._home.pidfile(self._name)) != str(self.process.pid):
            log_text = read(self._home.process_log(self._name))
            assert time.monotonic() < deadline and self.process.poll() is None, log_text
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes its stacks to the log
            self.process.wait(START_SECONDS)
            log_text = read(self._home.process_log(self._name))[-LOG_TAIL:]
            raise AssertionError(f"{self._name} did not end; its log: {log_text}") from None


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextmanager
def running_cluster(root: Path, *node_arguments: str) -> Iterator[tuple[Home, Part]]:
    home = Home(root)
    home.create()
    server = Part(home, "apiserver", "--port", "0")
    server.start()
    nodes = Part(home, "nodes", *node_arguments)
    try:
        nodes.start()
        yield home, nodes
    finally:
        if nodes.process is not None:
            nodes.end()
        server.end()


class Observer:
    """The cluster as one test sees it."""

    def __init__(self, client: ApiClient, home: Home) -> None:
        self.client = client
        self.home = home
        self.pods = Informer(client, PODS)
        self.nodes = Informer(client, NODES)
        self._changed = asyncio.Event()
        for informer in (self.pods, self.nodes):
            informer.add_handler(self._notice)

    def _notice(self, _change: Change, _obj: JSON) -> None:
        self._changed.set()

    async def until(self, check: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Wait for changes of Pods and nodes until the check gives something true."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := check()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            phases = {p["metadata"]["name"]: p.get("status", {}).get("phase") for p in self.pods.list()}
            raise AssertionError(f"not reached; Pods: {phases}") from None
        return found

    def pod(self, name: str) -> JSON:
        return self.pods.get("default", name) or {}

    def phase(self, name: str) -> str:
        return str(self.pod(name).get("status", {}).get("phase", ""))

    async def until_phase(self, name: str, phase: str, seconds: float = WAIT_SECONDS) -> JSON:
        await self.until(lambda: self.phase(name) == phase, seconds)
        return self.pod(name)

    async def until_gone(self, name: str, seconds: float = WAIT_SECONDS) -> None:
        await self.until(lambda: not self.pod(name), seconds)

    async def create(self, name: str, *containers: JSON, **spec: Any) -> JSON:
        body = pod(name, *containers, **spec)
        return await self.client.create(PODS.path("default"), body)

    async def delete(self, name: str, grace_period_seconds: int | None = None) -> None:
        live = await self.client.get(PODS.path("default", name))
        with contextlib.suppress(Refused):
            await self.client.delete(
                PODS.path("default", name),
                uid=live["metadata"]["uid"],
                grace_period_seconds=grace_period_seconds,
            )

    def log(self, name: str, container: str = "main", run: int = 0) -> list[str]:
        path = self.home.container_log(self.pod(name)["metadata"]["uid"], container, run)
        return [line.split(" ", 3)[3] for line in read(path).splitlines()]


@asynccontextmanager
async def observing(home: Home) -> AsyncIterator[Observer]:
    async with ApiClient(load_connection(home.kubeconfig)) as client:
        observer = Observer(client, home)
        tasks = [asyncio.create_task(each.run()) for each in (observer.pods, observer.nodes)]
        await asyncio.gather(observer.pods.synced.wait(), observer.nodes.synced.wait())
        try:
            yield observer
        finally:
            for task in tasks:
                task.cancel()


def shell(script: str, name: str = "main", **fields: Any) -> JSON:
    return {"name": name, "image": "none", "command": ["sh", "-c", script], **fields}


def pod(name: str, *containers: JSON, **spec: Any) -> JSON:
    described = {"restartPolicy": "Never", "containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": described}


def living(text: str) -> list[int]:
    """Processes with a text in their environment or command line; not ourselves."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z" and text.encode() in told:
            found.append(int(entry.name))
    return found


async def until_none_living(text: str, seconds: float = 300.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := living(text)) and time.monotonic() < deadline:  # noqa: ASYNC110 - /proc sends no events
        await asyncio.sleep(0.02)
    return left


async def until_living(text: str, count: int, seconds: float = 300.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while len(found := living(text)) < count:
        assert time.monotonic() < deadline, f"{found} instead of {count} processes"
        await asyncio.sleep(0.02)
    return found
