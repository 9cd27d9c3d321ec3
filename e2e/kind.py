"""kind (Kubernetes in Docker) as a backend, made and removed by the scripts in kind/."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster import REPOSITORY, Capability, Unavailable
from e2e.kubeconfig import SHARED_PATH, KubeconfigCluster

UP_SECONDS = 900.0
DOCKER_SECONDS = 60.0
CAPABILITIES = frozenset({Capability.POWER, Capability.STORAGE})
"""kind/cluster.yaml mounts the shared directory of this machine into every node that Pods run on."""


class KindCluster(KubeconfigCluster):
    """A real API server and real kubelets; losing power is killing a node's container."""

    name = "kind"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dlr-kind-"))
        super().__init__(self._folder / "kubeconfig")
        self.capabilities = CAPABILITIES
        self._shared_path = SHARED_PATH

    def start(self) -> None:
        for program in ("docker", "kind"):
            if shutil.which(program) is None:
                raise Unavailable(f"{program} is not installed here")
        if _run("docker", "info", check=False).returncode != 0:
            raise Unavailable("Docker is installed but its daemon does not answer")
        Path(SHARED_PATH).mkdir(exist_ok=True)  # else Docker makes it, as root
        self._script("up")
        super().start()

    def stop(self) -> None:
        self._script("down")
        shutil.rmtree(self._folder, ignore_errors=True)

    def power_off(self, node: str) -> None:
        _run("docker", "kill", node)

    def power_on(self, node: str) -> None:
        _run("docker", "start", node)

    def _script(self, name: str) -> None:
        _run(str(REPOSITORY / "kind" / f"{name}.sh"), env=self.environment(), timeout_seconds=UP_SECONDS)


def _run(
    *command: str,
    check: bool = True,
    env: dict[str, str] | None = None,
    timeout_seconds: float = DOCKER_SECONDS,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done
