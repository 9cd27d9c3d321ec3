"""Pods of a Deployment on the embedded cluster, which itself stores Deployments and looks at no image.

Plays the Deployment controller, with a rolling update, and a container runtime: the image's files are
unpacked on this machine, and a container runs the entry point that its image names.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from release.images import Layout
from tests.deploy.api_server import Server

JSON = dict[str, Any]

LOOK_SECONDS = 0.2
HASH = "pod-template-hash"
PYTHON = f"{sys.base_prefix}/bin/python3"
"""The Python of this machine without the packages of the tests, in place of the base's."""


@dataclass(frozen=True)
class UnpackedImage:
    """What `make release` adds to a base: the base itself is this machine."""

    root: Path
    config: JSON

    @classmethod
    def of(cls, archive: Path, folder: Path) -> UnpackedImage:
        """Unpack the last layer of an OCI archive."""
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "layout", filter="data")
        layout = Layout(folder / "layout")
        _, manifest = layout.manifest("amd64")
        root = folder / "root"
        with tarfile.open(layout.blob(manifest["layers"][-1]["digest"])) as layer:
            layer.extractall(root, filter="data")
        config: JSON = json.loads(layout.blob(manifest["config"]["digest"]).read_bytes())["config"]
        return cls(root, config)

    def container(self, container: JSON, options: list[str]) -> JSON:
        """Return a container as a runtime starts it from this image.

        Args:
            container: the container of the template.
            options: arguments that this machine needs beside the container's.
        """
        program, *words = self.config["Entrypoint"]
        variables = dict(each.split("=", 1) for each in self.config["Env"])
        path = f"{self.root}{variables['PYTHONPATH']}"
        address = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
        env = [{"name": "PYTHONPATH", "value": path}, {"name": "POD_IP", "valueFrom": address}]
        return {
            **container,
            "command": [PYTHON, "-S", str(self.root / "usr/local/bin" / program), *words],
            # Pods here share this machine's network, so that each has to keep to its own address.
            "args": [*container["args"], "--listen-address=$(POD_IP)", *options],
            "env": [*env, *container["env"]],
        }


class DeploymentController:
    """Keeps the Pods of one Deployment, in a thread, until it is stopped.

    Args:
        images: unpacked images by the names that a Deployment may give them.
        options: arguments that the containers get beside their own.
    """

    def __init__(
        self,
        server: Server,
        namespace: str,
        name: str,
        images: Mapping[str, UnpackedImage],
        options: list[str],
    ) -> None:
        self._server = server
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        self._name = name
        self._images, self._options = images, options
        self._made = 0
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Raises the error by which it has ended before, if one has."""
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ending.wait(LOOK_SECONDS):
                self._look()
        except Exception as error:
            self._error = error

    def _look(self) -> None:
        answer = self._server.call("GET", self._deployment, token=self._server.admin)
        deployment: JSON = answer.json() if answer.ok else {}
        selector = f"labelSelector=app.kubernetes.io%2Fname%3D{self._name}"
        pods = [
            pod
            for pod in self._server.as_admin("GET", f"{self._pods}?{selector}").get("items", ())
            if "deletionTimestamp" not in pod["metadata"]
        ]
        if not deployment:
            for pod in pods:
                self._delete(pod)
            return
        wanted, template = deployment["spec"]["replicas"], deployment["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        new = [pod for pod in pods if pod["metadata"]["labels"].get(HASH) == revision]
        old = [pod for pod in pods if pod not in new]
        ready = [pod for pod in pods if _is_ready(pod)]
        if len(new) < wanted and len(pods) <= wanted:
            self._create(deployment, revision)
        elif len(pods) > wanted and (len(ready) > wanted or not all(_is_ready(pod) for pod in old)):
            self._delete(([pod for pod in old if not _is_ready(pod)] or old or new)[0])
        self._report(deployment, pods=len(pods), new=len(new), ready=len(ready))

    def _create(self, deployment: JSON, revision: str) -> None:
        template = deployment["spec"]["template"]
        spec = {
            **template["spec"],
            "containers": [
                self._images[container["image"]].container(container, self._options)
                for container in template["spec"]["containers"]
            ],
        }
        self._made += 1
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
        metadata = {
            "name": f"{self._name}-{revision}-{self._made}",
            "labels": template["metadata"]["labels"] | {HASH: revision},
            "ownerReferences": [owner | {key: deployment["metadata"][key] for key in ("name", "uid")}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        answer = self._server.call("POST", self._pods, pod, token=self._server.admin)
        # Refused while the ServiceAccount goes before the Deployment, or comes after it: the next look tries again.
        assert answer.ok or answer.status_code == 403, answer.text

    def _delete(self, pod: JSON) -> None:
        path = f"{self._pods}/{pod['metadata']['name']}"
        answer = self._server.call("DELETE", path, token=self._server.admin)
        assert answer.ok or answer.status_code == 404, answer.text

    def _report(self, deployment: JSON, *, pods: int, new: int, ready: int) -> None:
        wanted = deployment["spec"]["replicas"]
        is_available = "True" if ready >= wanted else "False"
        is_whole = new == wanted and ready >= wanted
        reason = "NewReplicaSetAvailable" if is_whole else "ReplicaSetUpdated"
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": pods,
            "updatedReplicas": new,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, pods - ready),
            "conditions": [
                {"type": "Available", "status": is_available},
                {"type": "Progressing", "status": "True", "reason": reason},
            ],
        }
        if deployment.get("status") != status:
            path = f"{self._deployment}/status"
            answer = self._server.call("PATCH", path, {"status": status}, token=self._server.admin)
            assert answer.ok or answer.status_code == 404, answer.text


def _is_ready(pod: JSON) -> bool:
    """Whether a Pod runs and its readiness probes succeed, of which the embedded kubelet asks none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    runs = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return runs and all(_answers(pod, container) for container in pod["spec"]["containers"])


def _answers(pod: JSON, container: JSON) -> bool:
    probe = container["readinessProbe"]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    url = f"http://{pod['status']['podIP']}:{ports[probe['port']]}{probe['path']}"
    try:
        return bool(urllib3.request("GET", url, timeout=3.0, retries=False).status == 200)
    except urllib3.exceptions.HTTPError:
        return False
