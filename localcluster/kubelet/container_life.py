"""The life of one container: run after run, until its policy or its Pod says that it is enough."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localcluster.client.clock import utc_now
from localcluster.kubelet.container import ContainerProcess, ContainerSpec, Exit, StartRefused
from localcluster.kubelet.environment import Surroundings, command_line, container_environment
from localcluster.kubelet.errors import ConfigError
from localcluster.kubelet.grace import Grace
from localcluster.kubelet.logs import log_tail, termination_message
from localcluster.kubelet.services import NodeServices
from localcluster.kubelet.states import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    backoff_seconds,
    ended,
    init_containers,
    main_containers,
    restarts,
)
from localcluster.kubelet.volumes import (
    HOSTS_FILE,
    TERMINATION_LOG,
    TERMINATION_LOG_VARIABLE,
    container_mounts,
    hostname,
)
from localcluster.quantities import memory_limit
from localcluster.resource import JSON

START_ERROR_EXIT_CODE = 128
FIRST_CONFIG_RETRY_SECONDS = 1.0
LONGEST_CONFIG_RETRY_SECONDS = 10.0
IGNORED = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
"""Fields of a container that mean nothing here: it is ready while it runs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodWorld:
    """Surroundings that a Pod's containers share."""

    services: NodeServices
    pod: JSON
    folder: Path
    base_environment: dict[str, str]
    volume_paths: dict[str, Path]
    surroundings: Surroundings


class ContainerLife:
    """Changes its record and says so. `world` is asked for before every run: ConfigMaps may have come."""

    def __init__(
        self,
        container: JSON,
        record: ContainerRecord,
        policy: str,
        world: Callable[[], Awaitable[PodWorld]],
        changed: Callable[[str, ContainerRecord], None],
    ) -> None:
        self.name: str = container["name"]
        self.record = record
        self.up = asyncio.Event()
        """Set once a run has started, for those who wait for a sidecar."""
        self._container = container
        self._policy = policy
        self._world_now = world
        self._changed = changed
        self._world: PodWorld | None = None
        self._process: ContainerProcess | None = None
        self._spec: ContainerSpec | None = None
        """Description of the process, once it runs."""
        self._stopping = asyncio.Event()
        self._recorded = asyncio.Event()
        """The end of the last run is in the record."""

    async def run(self) -> int | None:
        """Until nothing more will run. The last exit code; None if stopped before the first run."""
        previous_backoff: float | None = None
        if isinstance(self.record.state, Terminated):
            self._set(self.record.restarted())
        while not self._stopping.is_set():
            terminated = await self._run_once()
            if terminated is None:
                return None
            if self._stopping.is_set() or not restarts(self._policy, terminated.exit_code):
                return terminated.exit_code
            previous_backoff = backoff_seconds(previous_backoff, terminated)
            if previous_backoff:
                await self._back_off(previous_backoff, terminated)
            if not self._stopping.is_set():
                self._set(self.record.restarted())
        return None

    async def stop(self, grace: Grace) -> None:
        """End it for good: SIGTERM, and SIGKILL when the grace is over."""
        self._stopping.set()
        await self._end_run(grace)

    async def kill(self) -> None:
        """At once, and without a word to anyone."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()
            await self._process.gone

    # --- one run ---

    async def _run_once(self) -> Terminated | None:
        started = await self._start()
        if started is None:
            return None
        if isinstance(started, Terminated):
            self._set(replace(self.record, state=started, ready=False, started=False))
            return started
        process, spec = started
        try:
            return await self._end_of(process, spec)
        finally:
            self._recorded.set()

    async def _end_of(self, process: ContainerProcess, spec: ContainerSpec) -> Terminated:
        assert self._world is not None
        exit_: Exit = await asyncio.shield(process.exited)
        await self._unless_stopped(self._world.services.latencies.until_relist(time.monotonic()))
        running = self.record.state
        began = running.started_at if isinstance(running, Running) else exit_.at
        terminated = ended(exit_.code, began, exit_.at, out_of_memory=exit_.out_of_memory)
        message = termination_message(self._message_file(self._world))
        falls_back = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if exit_.code and falls_back and not message:
            message = log_tail(Path(spec.log))
        terminated = replace(terminated, message=message)
        self._process = self._spec = None
        self._set(replace(self.record, state=terminated, ready=False, started=False))
        return terminated

    async def _start(self) -> tuple[ContainerProcess, ContainerSpec] | Terminated | None:
        """A running container, or how it ended before it ran, or nothing when it is no longer wanted."""
        retry_seconds = FIRST_CONFIG_RETRY_SECONDS
        while not self._stopping.is_set():
            self._world = world = await self._world_now()
            await self._unless_stopped(world.services.latencies.container_seconds)
            if self._stopping.is_set():
                break
            try:
                spec = self._describe(world)
                process = self._process = world.services.runtime.create()
                started_at = await process.start(spec)
            except (ConfigError, StartRefused) as refusal:
                self._process = None
                world.services.warning(world.pod, "Failed", f"Error: {refusal}", self.name)
                if refusal.reason != ConfigError.reason:
                    return Terminated(START_ERROR_EXIT_CODE, refusal.reason, utc_now(), message=str(refusal))
                self._set(replace(self.record, state=Waiting(refusal.reason, str(refusal))))
                await self._unless_stopped(retry_seconds)
                retry_seconds = min(2 * retry_seconds, LONGEST_CONFIG_RETRY_SECONDS)
                continue
            self._spec = spec
            self._recorded.clear()
            self._set(replace(self.record, state=Running(started_at), started=True, ready=True))
            world.services.normal(world.pod, "Started", f"Started container {self.name}", self.name)
            if ignored := [field for field in IGNORED if self._container.get(field)]:
                why = f"The embedded cluster ignores {', '.join(ignored)} of containers"
                world.services.warning(world.pod, "Ignored", why, self.name)
            self.up.set()
            return process, spec
        return None

    def _describe(self, world: PodWorld) -> ContainerSpec:
        pod = world.pod
        container = next(c for c in init_containers(pod) + main_containers(pod) if c["name"] == self.name)
        metadata = pod["metadata"]
        variables = container_environment(container, world.surroundings)
        argv = command_line(container, variables)
        host_network = bool(pod["spec"].get("hostNetwork"))
        devices = world.services.devices.take(f"{metadata['uid']}/{self.name}", container)
        named = {} if host_network else {"HOSTNAME": hostname(pod)}
        mounts = container_mounts(container, world.volume_paths, variables)
        if not host_network:
            hosts = str(world.folder / "hosts")
            mounts.append({"source": hosts, "target": HOSTS_FILE, "readOnly": False, "optional": True})
        message_file = self._message_file(world)
        message_file.touch()
        message_file.chmod(0o666)
        place = self._container.get("terminationMessagePath") or TERMINATION_LOG
        message = {"source": str(message_file), "target": place, "readOnly": False}
        mounts.append(message | {"elseEnv": TERMINATION_LOG_VARIABLE})
        path = world.services.home.container_log(metadata["uid"], self.name, self.record.restart_count)
        return ContainerSpec(
            title=f"{metadata['namespace']}/{metadata['name']}/{self.name}",
            argv=argv,
            env={**world.base_environment, **named, **devices, **variables},
            # An image would name a directory; without images it is the one where the cluster was started.
            cwd=container.get("workingDir") or str(Path.cwd()),
            log=str(path),
            hostname="" if host_network else hostname(pod),
            mounts=mounts,
            memory_limit_bytes=memory_limit(container),
        )

    def _message_file(self, world: PodWorld) -> Path:
        """The file of this run's termination message."""
        return world.folder / f"termination-{self.name}-{self.record.restart_count}"

    # --- its end ---

    async def _end_run(self, grace: Grace) -> None:
        process, world = self._process, self._world
        if process is None or world is None:
            return
        if self._spec is None:  # not yet running: nothing that could want a grace
            process.kill()
            await asyncio.shield(process.gone)
            return
        world.services.normal(world.pod, "Killing", f"Stopping container {self.name}", self.name)
        process.terminate()
        if not await grace.allows(asyncio.shield(process.exited)):
            process.kill()
        await self._recorded.wait()

    # --- between runs ---

    async def _back_off(self, seconds: float, terminated: Terminated) -> None:
        assert self._world is not None
        metadata = self._world.pod["metadata"]
        pod_name = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
        message = f"back-off {seconds:g}s restarting failed container={self.name} pod={pod_name}"
        self._set(replace(self.record, state=Waiting("CrashLoopBackOff", message), last=terminated))
        why = f"Back-off restarting failed container {self.name} in pod {pod_name}"
        self._world.services.warning(self._world.pod, "BackOff", why, self.name)
        await self._unless_stopped(seconds)

    async def _unless_stopped(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _set(self, record: ContainerRecord) -> None:
        self.record = record
        self._changed(self.name, record)
