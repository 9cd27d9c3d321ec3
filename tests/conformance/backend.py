"""The API server under test: the embedded one, started here, or whatever a kubeconfig names."""

from __future__ import annotations

import signal
import ssl
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import kubernetes.client
import kubernetes.config

from localcluster.paths import Home
from tests.localcluster.running import Part
from tests.ports import free_port


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

    def __init__(self, folder: Path, *, with_nodes: bool) -> None:
        home = Home(folder)
        home.create()
        self.kubeconfig = home.kubeconfig
        self._server = Part(home, "apiserver", "--port", str(free_port()))
        self._nodes = Part(home, "nodes", "--nodes", "1") if with_nodes else None

    def start(self) -> None:
        self._server.start()
        if self._nodes is not None:
            self._nodes.start()

    def kill(self) -> None:
        """End the API server as a power cut would."""
        self._server.end(signal.SIGKILL)

    def stop(self) -> None:
        for part in (self._nodes, self._server):
            if part is not None and part.process is not None:
                part.end()


@dataclass(frozen=True)
class Backend:
    """The server under test, and what may be asked of it."""

    kubeconfig: Path
    embedded: EmbeddedCluster | None

    @cached_property
    def access(self) -> Access:
        return Access.from_kubeconfig(self.kubeconfig)
