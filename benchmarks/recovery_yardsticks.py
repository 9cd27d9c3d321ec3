"""Reference values for a recovery's seconds, measured in the same run, since machines differ by a factor of
two."""

from __future__ import annotations

import subprocess
import sys
import time

from e2e.api import Kind, Object
from e2e.embedded import EmbeddedCluster
from localcluster.kubelet.latencies import ENV_LATENCIES, REAL

POD = "bare"


class SlowKubelets(EmbeddedCluster):
    """Embedded cluster whose nodes have the Pod latencies of real ones."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {ENV_LATENCIES: REAL}


def import_torch_seconds() -> float:
    """Return the seconds of `import torch` in its own process, from its start to its end."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def bare_pod_seconds(cluster: EmbeddedCluster) -> float:
    """Return the seconds from creating a Pod until its container runs, after an init container that does
    nothing."""
    with cluster.namespace("bare") as observation:
        api = cluster.api()
        began = time.monotonic()
        pod = api.create(Kind.POD, _bare_pod(cluster.image), observation.namespace)
        for event in api.watch(Kind.POD, observation.namespace, pod["metadata"]["resourceVersion"]):
            if _runs(event["object"]):
                break
        seconds = time.monotonic() - began
        api.delete(Kind.POD, POD, observation.namespace, gracePeriodSeconds=0)
        api.close()
    return seconds


def _bare_pod(image: str) -> Object:
    containers = [
        {"name": name, "image": image, "command": command}
        for name, command in (("init", ["true"]), ("main", ["sleep", "600"]))
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "initContainers": containers[:1],
            "containers": containers[1:],
        },
    }


def _runs(pod: Object) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any("running" in status.get("state", {}) for status in statuses)
