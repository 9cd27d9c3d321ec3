"""The way to one API server: its address, and the credentials for it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.environment import InvalidEnvironmentError

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_DIR_ENV = "DLR_SERVICEACCOUNT_DIR"


@dataclass(frozen=True)
class Connection:
    """One API server, one user and one namespace."""

    server: str
    """The server's URL."""
    source: str
    """What names the server and the user, for messages."""
    namespace: str = "default"
    """The namespace for objects that are in one."""
    advice: str = ""
    """What to do where no API server answers; the end of a sentence."""
    ca_file: str | None = None
    """The certificates to trust; None for the system's."""
    trusts_any_certificate: bool = False
    server_name: str | None = None
    """The name in the server's certificate; None for its host."""
    client_certificate: tuple[str, str | None] | None = None
    """The files of the user's certificate and key."""
    token: str | None = None
    token_file: Path | None = None
    """The file with the token. It is read for each call, because the kubelet rotates the token in place."""
    password: str | None = None
    """`name:password` for basic authentication."""
    proxy: str | None = None
    """The URL of a proxy before the server."""
    private_files: object = None
    """The folder with the files above that are ours; it is removed with the connection."""

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that takes certificates without Authority Key Identifier, as some clusters' are.

        Python 3.13 refuses them by default (VERIFY_X509_STRICT); client-go does not.

        Raises:
            OSError: the certificates cannot be read.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.trusts_any_certificate:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate:
            context.load_cert_chain(*self.client_certificate)
        return context


def service_account_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the Pod's service account."""
    return Path(environ.get(SERVICE_ACCOUNT_DIR_ENV) or SERVICE_ACCOUNT_DIR)


def in_cluster(environ: Mapping[str, str]) -> Connection:
    """Return the connection of a Pod, with its service account's token.

    Raises:
        InvalidEnvironmentError: this is no Pod, or it has no token.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    folder = service_account_folder(environ)
    if not host:
        raise InvalidEnvironmentError(
            "KUBERNETES_SERVICE_HOST is not set, so there is no API server: run this in a Pod"
        )
    if not (folder / "token").is_file():
        raise InvalidEnvironmentError(
            f"{folder}/token does not exist: the agent reports with the service account's token, so "
            "the Pod template must not set automountServiceAccountToken to false"
        )
    namespace = folder / "namespace"
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source="the Pod's service account",
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        ca_file=str(folder / "ca.crt"),
        token_file=folder / "token",
    )
