"""Any cluster as a backend: dlr is installed on it already, and its nodes share one directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster import FIXTURES, Capability, Cluster, Storage, Unavailable

ENV_SHARED_PATH = "DLR_E2E_SHARED_PATH"
SHARED_PATH = "/tmp/dlr-e2e"
CRD = "elasticjobs.elastic.iml.github.io"


def capabilities() -> frozenset[Capability]:
    """Return the abilities of any cluster; a given directory of this machine is one that its nodes share."""
    named = os.environ.get(ENV_SHARED_PATH)
    return frozenset({Capability.STORAGE} if named and Path(named).is_dir() else ())


class KubeconfigCluster(Cluster):
    """Checkpoints go to a hostPath, so its nodes must be one machine or share $DLR_E2E_SHARED_PATH."""

    name = "kubeconfig"
    examples = "examples"

    def __init__(self, kubeconfig: Path | None) -> None:
        chosen = kubeconfig or Path(os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config")))
        self.kubeconfig = chosen.expanduser()
        self.capabilities = capabilities()
        self._shared_path = os.environ.get(ENV_SHARED_PATH, SHARED_PATH)
        self.image = os.environ.get("DLR_E2E_IMAGE", self.image)

    def start(self) -> None:
        if not self.kubeconfig.is_file():
            raise Unavailable(f"there is no kubeconfig at {self.kubeconfig}: name one with --kubeconfig")
        known = self.kubectl("get", "crd", CRD, check=False)
        if known.returncode != 0:
            raise Unavailable(
                f"dlr is not installed on this cluster (kubectl apply -k deploy): {known.stderr.strip()}"
            )

    def stop(self) -> None:
        """It was here before us and stays."""

    def storage(self, namespace: str) -> Storage:
        """The namespace's folder. Where it is one of this machine, it is there, beside e2e/fixtures."""
        path = mounted = f"{self._shared_path}/{namespace}"
        if Capability.STORAGE in self.capabilities:
            Path(path).mkdir(exist_ok=True)
            Path(path).chmod(0o777)  # Pods may run as another user
            shutil.copytree(FIXTURES, self._fixtures, dirs_exist_ok=True)
            mounted = self._shared_path
        volume = {"name": "shared", "hostPath": {"path": mounted, "type": "DirectoryOrCreate"}}
        return Storage(path, [volume], [{"name": "shared", "mountPath": mounted}])

    def seen_by_pods(self, word: str) -> str:
        return word.replace(str(FIXTURES), str(self._fixtures), 1)

    @property
    def _fixtures(self) -> Path:
        return Path(self._shared_path) / "fixtures"
