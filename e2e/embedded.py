"""The embedded cluster as a backend: `dlr up` in a folder of its own, and its processes at our mercy."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from dlr.commands.cluster import controller_command
from e2e import links, processes
from e2e.api import Kind, Object
from e2e.cluster import REPOSITORY, Capability, Cluster, ControlPlaneProcess, Storage
from e2e.processes import TrainingProcess
from localcluster.kubelet.cgroups import open_groups
from localcluster.paths import Home

UP_SECONDS = 600.0
DOWN_SECONDS = 600.0
LOG_LINES = 40
DEFAULT_NODES = 4
POWER_ANNOTATION = "localcluster.dlr.dev/power"
SUPERVISOR, API_SERVER, NODES, CONTROLLER = "supervisor", "apiserver", "nodes", "controller"


class LocalProcess(ControlPlaneProcess):
    """A process of the embedded cluster, known by its pid file."""

    def __init__(self, pidfile: Path) -> None:
        self._pidfile = pidfile

    def pid(self) -> int | None:
        try:
            pid = int(self._pidfile.read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    def signal(self, number: int) -> None:
        pid = self.pid()
        if pid is None:
            raise ProcessLookupError(f"no process for {self._pidfile.name}")
        os.kill(pid, number)


class ChildProcess(ControlPlaneProcess):
    """A process that the harness itself started."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def pid(self) -> int | None:
        return self._child.pid if self._child.poll() is None else None

    def signal(self, number: int) -> None:
        self._child.send_signal(number)


@cache
def capabilities() -> frozenset[Capability]:
    """Return the abilities of the embedded cluster on this machine."""
    lacking = set() if links.can_be_had() else {Capability.NETWORK_NAMESPACES}
    with tempfile.TemporaryDirectory() as folder:
        if (groups := open_groups(Path(folder))) is None:
            lacking.add(Capability.MEMORY_LIMITS)
        else:
            groups.close()
    return frozenset(Capability) - lacking


class EmbeddedCluster(Cluster):
    name = "embedded"
    examples = str(REPOSITORY / "examples")

    def __init__(self, nodes: int = DEFAULT_NODES) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dlr-e2e-"))
        self.home = Home(self._folder / "home")
        self.kubeconfig = self.home.kubeconfig
        self._nodes = nodes
        self.capabilities = capabilities()

    def start(self) -> None:
        self.dlr("up", "--nodes", str(self._nodes), timeout_seconds=UP_SECONDS)

    def stop(self) -> None:
        self.dlr("down", timeout_seconds=DOWN_SECONDS)
        left = self.processes_left()
        shutil.rmtree(self._folder, ignore_errors=True)
        if left:
            raise AssertionError(f"`dlr down` left processes running: {left}")

    def environment(self) -> dict[str, str]:
        return super().environment() | {"DLR_HOME": str(self.home.root)}

    def storage(self, namespace: str) -> Storage:
        path = self._folder / "storage" / namespace
        path.mkdir(parents=True, exist_ok=True)
        return Storage(str(path), volumes=[], mounts=[])  # Pods are processes: they see the disk as it is

    def logs(self) -> dict[str, str]:
        files = [*self.home.logs.glob("*.log"), *self._folder.glob("*.log")]
        return {file.name: "\n".join(file.read_text().splitlines()[-LOG_LINES:]) for file in files}

    def control_plane(self, name: str) -> LocalProcess:
        return LocalProcess(self.home.pidfile(name))

    @contextmanager
    def standby_controller(self, variables: Mapping[str, str] | None = None) -> Iterator[ControlPlaneProcess]:
        environment = self.environment() | dict(variables or {})
        with (self._folder / "standby.log").open("wb") as log:
            command = controller_command(self.home)
            child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield ChildProcess(child)
        finally:
            child.kill()
            child.wait()

    def crash(self) -> None:
        killed = {self.control_plane(name).pid() for name in (SUPERVISOR, CONTROLLER, NODES, API_SERVER)}
        for name in (SUPERVISOR, CONTROLLER, NODES, API_SERVER):
            self.control_plane(name).signal(signal.SIGKILL)
        while any(processes.command(pid) for pid in killed if pid is not None):
            time.sleep(0.05)  # one that has not ended yet would be taken for a cluster that runs
        self.start()

    def power_off(self, node: str) -> None:
        self._set_power(node, "off")

    def power_on(self, node: str) -> None:
        self._set_power(node, None)

    def _set_power(self, node: str, power: str | None) -> None:
        api = self.api()
        api.patch(Kind.NODE, node, {"metadata": {"annotations": {POWER_ANNOTATION: power}}})
        api.close()

    def training_processes(self, namespace: str, pod: Object) -> list[TrainingProcess]:
        return processes.training_processes(pod["metadata"]["uid"])

    def kill_process(
        self, namespace: str, pod: Object, local_rank: int = 0, number: int = signal.SIGKILL
    ) -> TrainingProcess:
        victim = self.training_processes(namespace, pod)[local_rank]
        os.kill(victim.pid, number)
        return victim

    def processes_left(self, within_seconds: float = 300.0) -> dict[int, str]:
        """Processes that still belong to this cluster, once those that are just ending had their time."""
        deadline = time.monotonic() + within_seconds
        while (found := processes.mentioning(str(self._folder))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found
