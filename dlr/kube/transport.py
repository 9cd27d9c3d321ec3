"""Requests to one API server, with the standard library's HTTP client.

A command asks once or twice, and ends: what it imports takes longer than what it asks. This takes 10 ms to
import, requests and pykube take 200.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

JSON = dict[str, Any]

CONNECT_TIMEOUT_SECONDS = 10.0
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A server that vanished without a word shows after 10 + 3·5 s, where a watch or a log is silent; by default
after two hours. The second is macOS's name of the first."""
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    headers: HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Stream:
    """An answer from its beginning."""

    response: HTTPResponse
    socket: socket.socket

    def hang_up(self) -> None:
        """End the answer from a thread other than the reader's."""
        with suppress(OSError):  # it has ended by itself
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # TLS's own would change what is being read


class UnknownLogin(Exception):
    """A kubeconfig asks for a login that only its maker's tools can do."""


class Transport:
    """Connections to the API server of a kubeconfig's cluster, as its user. May be used by several threads.

    Raises:
        OSError: the certificates cannot be read.
        UnknownLogin: the user logs in by an `auth-provider`.
    """

    def __init__(self, cluster: JSON, user: JSON) -> None:
        if "auth-provider" in user:
            raise UnknownLogin("auth-provider, which Kubernetes has removed; an exec plugin does the same")
        self._server = urlsplit(cluster["server"])
        self._context = _ssl_context(cluster, user) if self._server.scheme == "https" else None
        self._server_name = cluster.get("tls-server-name") or self._server.hostname
        self._headers = {"Accept": "application/json"} | _login(user)
        self._proxy = _proxy(cluster.get("proxy-url"), self._server)
        self._idle: list[HTTPConnection] = []

    def ask(self, method: str, path: str, **details: Any) -> Answer:
        """The whole answer, whatever its status; `details` are those of `stream`.

        Raises:
            OSError: there is no answer, or it ends; TimeoutError among them.
            http.client.HTTPException: what answers does not speak HTTP.
        """
        connection = self._connection()
        try:
            response = self._response(connection, method, path, **details)
            answer = Answer(response.status, response.reason, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    @contextmanager
    def stream(self, method: str, path: str, **details: Any) -> Iterator[Stream]:
        """The answer from its beginning; what of it is not read is dropped. Raises as `ask`.

        Args:
            parameters: of the query.
            body: JSON as text.
            headers: besides those that every request has.
            read_timeout_seconds: how long the server may be silent; None for as long as it likes.
        """
        connection = self._connection()
        opened = connection.sock
        try:
            yield Stream(self._response(connection, method, path, **details), opened)
        finally:
            connection.close()

    def _response(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str | int] | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_seconds: float | None,
    ) -> HTTPResponse:
        url = self._server.path.rstrip("/") + path + (f"?{urlencode(parameters)}" if parameters else "")
        connection.sock.settimeout(read_timeout_seconds)
        connection.request(method, url, body and body.encode(), {**self._headers, **(headers or {})})
        return connection.getresponse()

    def _kept(self) -> HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # also where another thread has just taken the last one
            return None

    def _connection(self) -> HTTPConnection:
        """One that is open: the last one if the server has kept it."""
        while (connection := self._kept()) is not None:
            ended = select.poll()  # and not `select`, which takes no descriptor beyond 1,023
            ended.register(connection.sock, select.POLLIN)
            if not ended.poll(0):
                return connection
            connection.close()
        nearest = self._proxy or self._server
        connection = HTTPConnection(nearest.hostname or "", _port(nearest), timeout=CONNECT_TIMEOUT_SECONDS)
        if self._proxy:
            login = _login({"username": self._proxy.username, "password": self._proxy.password})
            headers = {f"Proxy-{name}": value for name, value in login.items()}
            connection.set_tunnel(self._server.hostname or "", _port(self._server), headers)
        connection.connect()
        _keep_alive(connection.sock)
        if self._context is not None:
            connection.sock = self._context.wrap_socket(connection.sock, server_hostname=self._server_name)
        return connection


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _port(url: SplitResult) -> int:
    return url.port or DEFAULT_PORTS.get(url.scheme, 443)


def _login(user: JSON) -> dict[str, str]:
    if user.get("token"):
        return {"Authorization": f"Bearer {user['token']}"}
    if user.get("username"):
        pair = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode())
        return {"Authorization": f"Basic {pair.decode()}"}
    return {}


def _ssl_context(cluster: JSON, user: JSON) -> ssl.SSLContext:
    """One that takes certificates without an Authority Key Identifier, which some clusters' CAs issue.

    Python 3.13 refuses them by default (VERIFY_X509_STRICT); kubectl does not.
    """
    context = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if user.get("client-certificate"):
        context.load_cert_chain(user["client-certificate"], user.get("client-key"))
    return context


def _proxy(named: str | None, server: SplitResult) -> SplitResult | None:
    """The kubeconfig's, or the environment's; none between us and a cluster on this machine."""
    if named:
        return urlsplit(named)
    if is_loopback(server.hostname or "") or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies().get(server.scheme)
    return urlsplit(found) if found and not proxy_bypass(server.hostname or "") else None


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
