"""Any cluster as a backend: dlr is installed on it already, and its nodes share one directory."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster import Cluster, Storage, Unavailable

SHARED_PATH = "/tmp/dlr-e2e"
CRD = "elasticjobs.elastic.iml.github.io"


class KubeconfigCluster(Cluster):
    """Checkpoints go to a hostPath, so its nodes must be one machine or share $DLR_E2E_SHARED_PATH."""

    name = "kubeconfig"
    examples = "examples"

    def __init__(self, kubeconfig: Path | None) -> None:
        chosen = kubeconfig or Path(os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config")))
        self.kubeconfig = chosen.expanduser()
        self._shared_path = os.environ.get("DLR_E2E_SHARED_PATH", SHARED_PATH)
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
        path = f"{self._shared_path}/{namespace}"
        volume = {"name": "shared", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        return Storage(path, [volume], [{"name": "shared", "mountPath": path}])
