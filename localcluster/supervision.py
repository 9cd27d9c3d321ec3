"""The background process of the embedded cluster.

It starts the API server, the nodes and the add-ons, and starts again whatever ends. All of them end with it,
and containers end with the nodes process: nothing is ever left behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from controller.kubeconfig import load_connection
from localcluster import manifests as manifest_files
from localcluster.children import Child, ChildSpec, last_line
from localcluster.client.api import ApiClient
from localcluster.paths import Home
from localcluster.settings import RunningSupervisor, Settings, forget_running, write_running

READY_SECONDS = 300.0
"""Far more than a busy machine takes; a process that ends before that is reported at once."""
READY_CHECK_SECONDS = 0.02
LEAST_FREE_BYTES = 64 * 1024
"""With less, neither a database nor a log can grow."""
MANIFESTS_FILE = "manifests.json"

log = logging.getLogger(__name__)


async def until(check: Callable[[], bool]) -> None:
    """Poll for a condition of another process, which cannot be awaited. Callers bound the time."""
    while not check():  # noqa: ASYNC110
        await asyncio.sleep(READY_CHECK_SECONDS)


class CannotStart(Exception):
    """One of the cluster's own processes ended before the cluster was ready."""


class Supervisor:
    """Starts the parts in order, keeps them running, and stops them in reverse."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        self._settings = settings
        environment = {**os.environ, "KUBECONFIG": str(home.kubeconfig)}
        python = [sys.executable, "-m"]
        place = ["--home", str(home.root)]
        self._api_server = self._child(
            "apiserver",
            [*python, "localcluster.apiserver", *place, "--port", str(settings.port)],
            environment,
        )
        self._nodes = self._child(
            "nodes",
            [
                *(*python, "localcluster.nodes", *place),
                *("--nodes", str(settings.nodes)),
                *("--cpus-per-node", settings.cpus_per_node),
                *("--memory-per-node", settings.memory_per_node),
                *("--gpus-per-node", str(settings.gpus_per_node)),
            ],
            environment,
        )
        self._addons = [
            self._child(addon.name, addon.command, environment, home.pidfile(addon.name))
            for addon in settings.addons
        ]
        self._running: list[tuple[Child, asyncio.Task[None]]] = []

    def _child(
        self, name: str, command: list[str], environment: dict[str, str], pidfile: Path | None = None
    ) -> Child:
        return Child(ChildSpec(name, command, self._home.process_log(name), environment, pidfile))

    async def start(self) -> None:
        """Until ready. CannotStart, ManifestRefused, ApiError or TimeoutError otherwise."""
        async with asyncio.timeout(READY_SECONDS):
            self._launch(self._api_server)
            await self._while_alive(self._api_server, self._until_ready(self._api_server))
            async with ApiClient(load_connection(self._home.kubeconfig)) as client:
                manifests = orjson.loads((self._home.run / MANIFESTS_FILE).read_bytes())
                await manifest_files.apply(client, manifests)
            self._launch(self._nodes)
            await self._while_alive(self._nodes, self._until_ready(self._nodes))
            for addon in self._addons:
                self._launch(addon)
                await self._while_alive(addon, addon.launched())

    async def stop(self) -> None:
        for child, task in reversed(self._running):
            await child.stop()
            await task

    def _launch(self, child: Child) -> None:
        self._running.append((child, asyncio.create_task(child.run())))

    async def _until_ready(self, child: Child) -> None:
        """The API server and the nodes write their pid files once they are."""
        pidfile = self._home.pidfile(child.spec.name)
        await until(lambda: (pid := read_pid(pidfile)) is not None and pid == child.pid)

    async def _while_alive(self, child: Child, work: Coroutine[Any, Any, None]) -> None:
        working = asyncio.create_task(work)
        died = asyncio.create_task(child.exited.wait())
        try:
            await asyncio.wait({working, died}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                said = last_line(child.spec.log).removeprefix("error: ")
                said = said or silence(self._home, f"see {child.spec.log}")
                raise CannotStart(f"its {child.spec.name} process ended: {said}")
            await working
        finally:
            working.cancel()
            died.cancel()


def silence(home: Home, otherwise: str) -> str:
    """Why one of the cluster's processes says nothing: a full disk has no room for its last words either."""
    is_full = shutil.disk_usage(home.root).free < LEAST_FREE_BYTES
    return f"no space is left on the disk of {home.root}" if is_full else otherwise


def read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


async def supervise(home: Home, settings: Settings, report: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(stop_signal, stop.set)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a watch or a container each
    write_running(home, RunningSupervisor(os.getpid(), settings))
    supervisor = Supervisor(home, settings)
    starting = asyncio.create_task(supervisor.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    answer = b"ready"
    if not starting.done():
        starting.cancel()
        answer = b"it was stopped meanwhile"
    elif (fault := starting.exception()) is not None:
        log.error("cannot start", exc_info=fault)
        answer = (str(fault) or f"it is not ready after {READY_SECONDS:g}s; see {home.logs}").encode()
        stop.set()
    if answer == b"ready":
        _say(report, answer)
        await stop.wait()
    await supervisor.stop()
    forget_running(home)
    if answer != b"ready":
        _say(report, answer)


def _say(report: int, answer: bytes) -> None:
    """Write a line to `up`, which may have ended meanwhile."""
    with suppress(BrokenPipeError):
        os.write(report, answer)
    os.close(report)
