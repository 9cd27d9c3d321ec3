"""Connection to one API server: its address and credentials.

Controller, agent, commands and embedded cluster share this module, so it imports only the standard
library; `kubeconfig.py` reads a connection from a file.
"""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from controller.errors import (
    ApiError,
    ConfigError,
    TimedOut,
    Unauthorized,
    Unavailable,
    error_of,
    speaks_as_api_server,
)

POD_SOURCE = "the Pod's service account"
"""Source of a Pod's connection, whose server is that of its own cluster."""
RENEW_SECONDS = 60.0
"""Minimum seconds between two requests for new credentials."""
_TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPALIVE": 10,  # TCP_KEEPIDLE on macOS
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
}
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _TCP_OPTIONS.items()
        if hasattr(socket, name)
    ),
]
"""Options of each connection. If a peer vanishes silently (its node lost power, a load balancer was
replaced), an idle watch notices it only through keep-alives: after 10 + 3·3 s here, and two hours by
default."""
SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_DIR_ENV = "DLR_SERVICEACCOUNT_DIR"


@dataclass(frozen=True)
class Connection:
    """One API server, one user and one namespace.

    Raises:
        ConfigError: the address is not valid.
    """

    server: str
    """URL of the server."""
    source: str
    """Place of the configuration of server and user, for messages."""
    namespace: str = "default"
    """Default namespace of namespaced objects."""
    advice: str = "."
    """Advice if no API server answers; the end of a sentence."""
    ca_file: str | None = None
    """Certificates to trust; None for the system's."""
    trusts_any_certificate: bool = False
    server_name: str | None = None
    """Name in the server's certificate; None for its host."""
    client_certificate: tuple[str, str | None] | None = None
    """Files of the user's certificate and key."""
    token: str | None = None
    token_file: Path | None = None
    """File with the token, read for each call, because the kubelet rotates the token in place."""
    password: str | None = None
    """`name:password` for basic authentication."""
    proxy: str | None = None
    """URL of a proxy in front of the server."""
    private_files: object = None
    """Temporary folder with our copies of the files above, removed with the connection."""
    renew: Callable[[], Connection] | None = None
    """Function that returns the connection with new credentials, for use when the server refuses these; None
    if there are no others. It blocks."""

    def __post_init__(self) -> None:
        if not _is_address(self.server):
            raise ConfigError(
                f"{self.source} names the server {self.server!r}, which is not a valid address: "
                "it must begin with https:// and a host."
            )
        if self.proxy is not None and not _is_address(self.proxy):
            raise ConfigError(
                f"The proxy {_without_login(self.proxy)!r} before the server of {self.source} cannot be "
                "used: it must begin with http:// or https:// and a host."
            )
        object.__setattr__(self, "server", self.server.rstrip("/"))

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context that accepts certificates without Authority Key Identifier, as some clusters have.

        Python 3.13 refuses them by default (VERIFY_X509_STRICT); client-go does not.

        Returns:
            None if the server uses plain HTTP.

        Raises:
            ConfigError: the certificates cannot be used.
        """
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.trusts_any_certificate:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.client_certificate:
                context.load_cert_chain(*self.client_certificate)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"The certificates of {self.source} cannot be used: {reason}.") from error
        return context

    def authorization(self) -> dict[str, str]:
        """Return the header with the credentials.

        Raises:
            Unauthorized: the token's file cannot be read, or does not contain a token.
        """
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(errors="replace").strip()
            except OSError as error:
                why = f"The token file {self.token_file} of {self.source} cannot be read: {error.strerror}."
                raise Unauthorized(401, "", why) from error
        if token:
            if not (token.isascii() and token.isprintable()):
                why = (
                    f"The token of {self.source} cannot be sent: it has a line break or another character "
                    "that is not printable ASCII."
                )
                raise Unauthorized(401, "", why)
            return {"Authorization": f"Bearer {token}"}
        if self.password:
            return {"Authorization": f"Basic {base64.b64encode(self.password.encode()).decode()}"}
        return {}

    def late(self, seconds: float, request: str = "") -> TimedOut:
        """Return the error for an answer that did not arrive in time."""
        what = f" {request}" if request else ""
        return TimedOut(f"The API server at {self.server} did not answer{what} within {seconds:g} s.")

    def unreachable(self, reason: str, *, processed: bool = True) -> Unavailable:
        """Return the error for an answer that did not arrive at all."""
        through = f" through the proxy {_without_login(self.proxy)}" if self.proxy else ""
        why = (
            f"No API server answers at {self.server}{through}, "
            f"which {self.source} names ({reason}){self.advice}"
        )
        return Unavailable(why, processed=processed)

    def untrusted(self, reason: str) -> ApiError:
        """Return the error for a certificate that is not the server's."""
        return ApiError(
            f"The certificate of the API server at {self.server} does not fit {self.source}: {reason}."
        )

    def refusal(self, status: int, body: bytes, retry_after: str | None) -> ApiError:
        """Return the typed error of an answer ≥ 400, with a full sentence where the server's own is too
        short."""
        error, server = error_of(status, body, retry_after), "The API server"
        if self.source != POD_SOURCE:  # readers of a status cannot use a Pod's address
            server += f" at {self.server}"
        if isinstance(error, Unavailable):
            error.args = (f"{server} cannot answer now ({status}: {error}).",)
        elif isinstance(error, Unauthorized):
            error.args = (f"{server} does not accept the credentials of {self.source} ({error}).",)
        elif not error.reason and not speaks_as_api_server(body):  # a proxy, or another server
            error.args = (f"{server} has refused a request ({status}: {error}).",)
        return error

    def no_object(self) -> Unavailable:
        """Return the error for an answer that is not Kubernetes'."""
        return Unavailable(
            f"The server at {self.server}, which {self.source} names, answered with something that is "
            "not a Kubernetes object: is it an API server, or a login page before one?"
        )


def _is_address(url: str) -> bool:
    try:
        address = urlsplit(url)
        is_valid = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        return False
    return is_valid and not any(map(str.isspace, url))


def _without_login(url: str) -> str:
    """Return the URL without user name and password."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def service_account_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the Pod's service account."""
    return Path(environ.get(SERVICE_ACCOUNT_DIR_ENV) or SERVICE_ACCOUNT_DIR)


def in_cluster(environ: Mapping[str, str]) -> Connection:
    """Return the connection of a Pod, with its service account's token.

    Raises:
        ConfigError: this is not a Pod, or it has no token.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    folder = service_account_folder(environ)
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set, so there is no API server: run this in a Pod")
    if not (folder / "token").is_file():
        raise ConfigError(
            f"{folder}/token does not exist: requests to the API server need the service account's token, so "
            "the Pod template must not set automountServiceAccountToken to false"
        )
    namespace = folder / "namespace"
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=POD_SOURCE,
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        ca_file=str(folder / "ca.crt"),
        token_file=folder / "token",
    )
