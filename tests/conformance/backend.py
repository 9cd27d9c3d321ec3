"""The API server under test: the embedded one, started here, or whatever a kubeconfig names."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import kubernetes.client
import kubernetes.config

from tests.ports import free_port

START_TIMEOUT_SECONDS = 300.0
STOP_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Access:
    """What a client needs to reach the server as somebody."""

    server: str
    tls: ssl.SSLContext
    anonymous_tls: ssl.SSLContext
    """Trusts the server and shows no client certificate."""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Path) -> Access:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        anonymous = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        settings = configuration.auth_settings()
        headers = {setting["key"]: setting["value"] for setting in settings.values() if setting.get("value")}
        return cls(configuration.host.rstrip("/"), tls, anonymous, headers)

    def with_token(self, token: str | None) -> Access:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return replace(self, tls=self.anonymous_tls, headers=headers)


class EmbeddedCluster:
    """The embedded API server (and, when asked for, its nodes) as real processes on a folder of their own."""

    def __init__(self, home: Path, *, with_nodes: bool) -> None:
        self.home = home
        self.port = free_port()
        self.with_nodes = with_nodes
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    @property
    def apiserver(self) -> subprocess.Popen[bytes]:
        return self.processes[0]

    def start(self) -> None:
        self.processes = [self._spawn("apiserver", "--port", str(self.port))]
        self._await_ready()
        if self.with_nodes:
            self.processes.append(self._spawn("nodes", "--nodes", "1"))

    def kill(self) -> None:
        """End the API server as a power cut would."""
        self.apiserver.send_signal(signal.SIGKILL)
        self.apiserver.wait(STOP_TIMEOUT_SECONDS)

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(STOP_TIMEOUT_SECONDS)
        self.processes = []

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self.home.mkdir(mode=0o700, exist_ok=True)
        with (self.home / f"{name}.output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", f"localcluster.{name}", *arguments],
                env={**os.environ, "DLR_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self.apiserver.poll() is not None:
                break
            if self.kubeconfig.exists() and self._ready():
                return
            time.sleep(0.05)
        output = (self.home / "apiserver.output").read_text(errors="replace")
        raise RuntimeError(f"the embedded API server did not come up; it said:\n{output[-4000:]}")

    def _ready(self) -> bool:
        access = Access.from_kubeconfig(self.kubeconfig)
        request = urllib.request.Request(access.server + "/readyz", headers=access.headers)
        try:
            with urllib.request.urlopen(request, timeout=2, context=access.tls) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@dataclass(frozen=True)
class Backend:
    """The server under test, and what may be asked of it."""

    kubeconfig: Path
    embedded: EmbeddedCluster | None

    @cached_property
    def access(self) -> Access:
        return Access.from_kubeconfig(self.kubeconfig)

    patience_seconds: float = 300.0
    """Time limit for a controller; a real one finds new kinds only every half minute."""
