"""An embedded API server that enforces rights, and a controller that has those of its account."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

import deploy
from localcluster.paths import Home
from tests.localcluster.running import Part

JSON = dict[str, Any]

DEADLINE_SECONDS = 300.0
"""When something will never come. Beside a dozen busy processes a controller alone takes 20 s to start."""
GROUP = "/apis/elastic.iml.github.io/v1alpha1"
TOKEN_REQUEST = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}


class Server:
    """The embedded API server, spoken to as anybody."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.config = yaml.safe_load(kubeconfig.read_text())
        cluster = self.config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        self._authority = folder / "ca.crt"
        self._authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        self.admin = self.config["users"][0]["user"]["token"]

    def call(self, method: str, path: str, body: JSON | None = None, *, token: str) -> requests.Response:
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(
                method,
                f"{self.url}{path}",
                json=body,
                headers={"Authorization": f"Bearer {token}"} | patch,
                verify=str(self._authority),
                timeout=300,
            )

    def as_admin(self, method: str, path: str, body: JSON | None = None) -> JSON:
        answer = self.call(method, path, body, token=self.admin)
        assert answer.ok, answer.text
        found: JSON = answer.json()
        return found

    def token(self, namespace: str, account: str, pod: JSON | None = None) -> str:
        spec: JSON = {"audiences": [], "expirationSeconds": 3600}
        if pod:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.as_admin("POST", path, TOKEN_REQUEST | {"spec": spec})["status"]["token"])

    def kubeconfig_of(self, token: str, path: Path) -> Path:
        config = {**self.config, "users": [{**self.config["users"][0], "user": {"token": token}}]}
        path.write_text(yaml.safe_dump(config))
        return path


def eventually(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {DEADLINE_SECONDS:.0f} s still not: {what}"
        time.sleep(0.1)
    return found


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    home = Home(folder / "home")
    home.create()
    server = Part(home, "apiserver", "--port", "0")
    server.start()
    try:
        yield Server(home.kubeconfig, folder)
    finally:
        server.end()


def a_job(name: str) -> JSON:
    """One of two workers."""
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["true"]}]}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}},
    }


def install(server: Server, documents: Sequence[JSON]) -> None:
    for document in documents:
        server.as_admin("POST", collection_of(document), document)
    eventually("the CRDs are served", lambda: server.call("GET", GROUP, token=server.admin).ok)


AGAIN_AND_AGAIN = 'trap "kill \\$!; wait; exit" TERM; while :; do "$@" & wait $!; done'
"""As a Deployment has it: a controller that could not renew its Lease for 10 s ends, and is started again."""


@contextmanager
def running_controller(server: Server, folder: Path, *options: str) -> Iterator[Path]:
    """The controller with the rights of its service account; yields its log."""
    token = server.token(deploy.DEFAULT_NAMESPACE, "dlr-controller")
    kubeconfig = server.kubeconfig_of(token, folder / "kubeconfig")
    log = folder / "log"
    command = [
        *("sh", "-c", AGAIN_AND_AGAIN, "sh"),
        *(sys.executable, "-m", "dlr.cli", "controller", "--leader-elect", "--listen-address=127.0.0.1"),
        *("--kubeconfig", str(kubeconfig), f"--lease-namespace={deploy.DEFAULT_NAMESPACE}"),
        *("--metrics-port=0", "--health-port=0", *options),
    ]
    with log.open("w") as output, subprocess.Popen(command, stderr=output, env=dict(os.environ)) as process:
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=300)


def collection_of(document: JSON) -> str:
    """The path under which objects like this one are created."""
    plural = document["kind"].lower()
    plural = f"{plural[:-1]}ies" if plural.endswith("cy") else f"{plural}s"
    version = document["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = document["metadata"].get("namespace")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
