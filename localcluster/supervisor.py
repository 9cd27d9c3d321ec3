"""`up` and `down` of the embedded cluster, and the background process in between.

`python -m localcluster.supervisor` is that process; only `up` starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from controller.errors import ApiError
from controller.kubeconfig import load_connection
from localcluster import manifests as manifest_files
from localcluster.client.api import ApiClient
from localcluster.manifests import ManifestRefused
from localcluster.paths import Home, write_private
from localcluster.resource import JSON
from localcluster.settings import (
    Addon,
    ClusterError,
    RunningSupervisor,
    Settings,
    SupervisorLock,
    forget_running,
    is_supervisor,
    read_running,
)
from localcluster.supervision import (
    MANIFESTS_FILE,
    READY_CHECK_SECONDS,
    READY_SECONDS,
    silence,
    supervise,
    until,
)

__all__ = ["Addon", "ClusterError", "down", "up"]

HOST = "127.0.0.1"
DOWN_SECONDS = 60.0
KILLED_SECONDS = 60.0


def up(
    home: Home,
    *,
    nodes: int,
    cpus_per_node: str,
    memory_per_node: str,
    gpus_per_node: int,
    port: int,
    manifests: list[JSON],
    addons: list[Addon],
) -> None:
    """Have the cluster running and ready. ClusterError says in one sentence why it cannot be."""
    settings = Settings(nodes, cpus_per_node, memory_per_node, gpus_per_node, port, addons)
    try:
        home.create()
        held = _lock_or_running(home)
    except OSError as error:
        raise ClusterError(
            f"the folder {home.root} cannot be used for the cluster: {error.strerror}; "
            "choose another with DLR_HOME"
        ) from error
    if isinstance(held, RunningSupervisor):
        _join(home, held, settings, manifests)
        return
    try:
        _start(home, settings, manifests, held)
    finally:
        held.release()


def is_up(home: Home) -> bool:
    """Whether a supervisor holds the home; it may not be ready yet."""
    running = read_running(home)
    return running is not None and is_supervisor(running.pid)


def down(home: Home) -> None:
    """End the cluster and all its processes; what it stores stays."""
    if not home.run.is_dir():
        return
    held = _lock_or_running(home)
    if isinstance(held, SupervisorLock):
        forget_running(home)
        held.release()
        return
    try:
        process = os.pidfd_open(held.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _ended(process, DOWN_SECONDS):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not _ended(process, KILLED_SECONDS):
                raise ClusterError(f"the supervisor of {home.root}, process {held.pid}, does not end")
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _ended(process: int, timeout_seconds: float) -> bool:
    return _is_readable(process, timeout_seconds)


def _is_readable(descriptor: int, within_seconds: float) -> bool:
    poll = select.poll()  # not select(2), which knows no descriptors above 1,023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


def _lock_or_running(home: Home) -> SupervisorLock | RunningSupervisor:
    """The lock, now held by us, or who holds it: a supervisor says so within moments of taking it."""
    deadline = time.monotonic() + KILLED_SECONDS
    lock = SupervisorLock(home)
    while not lock.acquire():
        if (running := read_running(home)) is not None and is_supervisor(running.pid):
            return running
        if time.monotonic() > deadline:
            raise ClusterError(
                f"another process is starting or stopping the cluster in {home.root}; try again"
            )
        time.sleep(READY_CHECK_SECONDS)
    return lock


def _join(home: Home, running: RunningSupervisor, settings: Settings, manifests: list[JSON]) -> None:
    """The cluster runs already: the same one is fine."""
    if different := settings.differences(running.settings):
        raise ClusterError(
            f"a cluster is already running in {home.root} with {', '.join(different)}; "
            f"end it first with `dlr down --home {home.root}`"
        )

    async def join() -> None:
        async with asyncio.timeout(READY_SECONDS):
            await until(home.kubeconfig.exists)
            async with ApiClient(load_connection(home.kubeconfig)) as client:
                await manifest_files.apply(client, manifests)
            await until(home.pidfile("nodes").exists)

    try:
        asyncio.run(join())
    except TimeoutError as error:
        raise ClusterError(
            f"the cluster in {home.root} runs but is not ready after {READY_SECONDS:g}s; see {home.logs}"
        ) from error
    except (ManifestRefused, ApiError) as error:
        raise ClusterError(f"the cluster in {home.root}: {error}") from error


def _start(home: Home, settings: Settings, manifests: list[JSON], lock: SupervisorLock) -> None:
    forget_running(home)
    write_private(home.run / MANIFESTS_FILE, orjson.dumps(manifests))
    with _reserved_port(home, settings.port) as port:
        _start_at(home, replace(settings, port=port), lock)


def _start_at(home: Home, settings: Settings, lock: SupervisorLock) -> None:
    readable, writable = os.pipe()
    task = {"home": str(home.root), "lock": lock.descriptor, "report": writable, "settings": settings}
    with home.process_log("supervisor").open("ab") as output:
        starter = subprocess.Popen(
            [sys.executable, "-m", "localcluster.supervisor"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(lock.descriptor, writable),
            start_new_session=True,
        )
    os.close(writable)
    starter.communicate(orjson.dumps(task))
    with open(readable, "rb") as report:  # noqa: PTH123 - a descriptor
        said = report.read() if _is_readable(readable, READY_SECONDS) else b""
    if said == b"ready":
        return
    why = said.decode(errors="replace") or silence(
        home, f"it did not become ready in time; see {home.process_log('supervisor')}"
    )
    raise ClusterError(f"the cluster in {home.root} cannot be started: {why}")


@contextlib.contextmanager
def _reserved_port(home: Home, asked: int) -> Iterator[int]:
    """Keeps a port for the API server, which can listen on it; others are not given it meanwhile.

    For 0, it is the port that earlier kubeconfigs name, so that copies of them stay good; else any.
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if asked:
            _bind(reserving, asked)
        else:
            try:
                _bind(reserving, urlsplit(load_connection(home.kubeconfig).server).port or 443)
            except (OSError, ValueError, ApiError, ClusterError):
                _bind(reserving, 0)
        port: int = reserving.getsockname()[1]
        yield port


def _bind(reserving: socket.socket, port: int) -> None:
    try:
        reserving.bind((HOST, port))
    except PermissionError as error:
        raise ClusterError(
            f"port {port} on {HOST} may not be used by you; choose one above 1023 with --port"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ClusterError(
                f"port {port} on {HOST} is in use by another process; choose another with --port"
            ) from error
        raise


def main() -> int:
    """Started by `up`: reads its task from stdin and goes into the background."""
    task = orjson.loads(sys.stdin.buffer.read())
    for descriptor in (task["lock"], task["report"]):
        os.set_inheritable(descriptor, False)
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(supervise(Home(Path(task["home"])), Settings.of(task["settings"]), task["report"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
