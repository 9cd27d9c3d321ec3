"""A small Kubernetes client: get, patch and watch, from inside a Pod.

It has what an agent needs and no more, on urllib3, so that it works beside any packages of the image.
Every call has a time-out and raises a typed error; the caller decides whether to retry (agent/kube/retry.py).
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3

from agent.environment import InvalidEnvironmentError
from crds.names import API_VERSION

GROUP_PATH = f"/apis/{API_VERSION}"
LEASES_PATH = "/apis/coordination.k8s.io/v1"

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_DIR_ENV = "DLR_SERVICEACCOUNT_DIR"

CONNECT_TIMEOUT_SECONDS = 3.0
READ_TIMEOUT_SECONDS = 5.0
"""A status patch takes milliseconds; a server that needs this long is away, and the caller tries again."""

# A peer that vanished without a word (its node lost power) shows on an idle watch only through keep-alives:
# after 10 + 3·5 s here, against two hours by default.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class ApiError(Exception):
    """The API server refused.

    Args:
        status: the HTTP status; 0 if there was no answer.
        message: the server's own.
        causes: the reasons of the answer's `details.causes`.
        fields: the fields that these name, such as `status.agent.failure.message`.
        retry_after_seconds: the answer's Retry-After; None without one.
    """

    def __init__(
        self,
        status: int,
        message: str,
        causes: Collection[str] = (),
        fields: Collection[str] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes
        self.fields = fields
        self.retry_after_seconds = retry_after_seconds


class GoneError(ApiError):
    """410: the resourceVersion is too old to watch from; list again."""


class UnavailableError(ApiError):
    """No answer, or one that says to try again later."""


class SilentWatchError(UnavailableError):
    """A watch has said nothing for so long that its connection may be dead."""


_TRY_LATER = {401, 408, 425, 429}  # 401: the token may have been rotated just now


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the typed error for an HTTP answer ≥ 400, with the server's own message.

    Args:
        retry_after: its header Retry-After.
    """
    try:
        answer = json.loads(body)
        message = str(answer["message"])
        details = (answer.get("details") or {}).get("causes") or ()
        causes = [str(cause.get("reason")) for cause in details]
        fields = [str(cause.get("field")) for cause in details]
    except (ValueError, KeyError, TypeError, AttributeError):
        message, causes, fields = body[:200].decode(errors="replace") or f"HTTP {status}", [], []
    kind = ApiError
    if status in _TRY_LATER or status >= 500:
        kind = UnavailableError
    elif status == 410:
        kind = GoneError
    return kind(status, message, causes, fields, _seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    """Read a Retry-After in seconds. The API server sends no date, as a proxy may."""
    text = (retry_after or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Api(Protocol):
    """What an agent needs of an API server. Threads may share it.

    `ApiClient` asks one; `agent.standalone.cluster.LocalCluster` stands in for it where there is none.
    """

    def silent_seconds(self) -> float:
        """How long nothing has been answered."""
        ...

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an object or a list; raise ApiError."""
        ...

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an RFC 7386 patch, and return the object; raise ApiError."""
        ...

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float
    ) -> Iterator[dict[str, Any]]:
        """Watch as `ApiClient.watch` does."""
        ...

    def reconnect(self) -> None:
        """Have later calls open new connections."""
        ...


class ApiClient:
    """The API server's client. Threads may share it.

    Args:
        server: its URL.
        ca_file: with the certificates to trust; None for the system's.
        token_file: read anew for each call, because the kubelet rotates the token in place.
    """

    def __init__(self, server: str, *, ca_file: Path | None, token_file: Path | None) -> None:
        self._server = server
        self._token_file = token_file
        self._contact_at = time.monotonic()
        self._pool = urllib3.PoolManager(
            maxsize=4,
            retries=False,
            ssl_context=_ssl_context(ca_file),
            socket_options=_SOCKET_OPTIONS,
            headers={"User-Agent": "dlr-agent", "Accept": "application/json"},
        )

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str]) -> ApiClient:
        """Return the client of a Pod, with its service account's token.

        Raises:
            InvalidEnvironmentError: this is no Pod, or it has no token.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        directory = Path(environ.get(SERVICE_ACCOUNT_DIR_ENV) or SERVICE_ACCOUNT_DIR)
        if not host:
            raise InvalidEnvironmentError(
                "KUBERNETES_SERVICE_HOST is not set, so there is no API server: run this in a Pod"
            )
        if not (directory / "token").is_file():
            raise InvalidEnvironmentError(
                f"{directory}/token does not exist: the agent reports with the service account's token, so "
                "the Pod template must not set automountServiceAccountToken to false"
            )
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", ca_file=directory / "ca.crt", token_file=directory / "token")

    def silent_seconds(self) -> float:
        """How long the API server has not answered anything."""
        return time.monotonic() - self._contact_at

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an object or a list; raise ApiError."""
        return self._call("GET", path, query=query)

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an RFC 7386 patch, and return the object; raise ApiError."""
        # A lone surrogate, as the text of an exception may have, is not UTF-8: servers refuse it.
        body = json.dumps(patch, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        return self._call("PATCH", path, body=body, content_type="application/merge-patch+json")

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float
    ) -> Iterator[dict[str, Any]]:
        """Open a watch.

        Args:
            path: of the collection.
            query: parameters besides `watch`.
            idle_timeout_seconds: how long the server may say nothing.

        Returns:
            The watch's events, until the server ends it. The iterator raises SilentWatchError after that
            time, and UnavailableError when the watch breaks.

        Raises:
            ApiError: the server does not answer, or refuses.
        """
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=idle_timeout_seconds)
        response = self._send("GET", path, {**query, "watch": "true"}, timeout=timeout, preload_content=False)
        if response.status >= 400:
            try:
                raise error_of(response.status, response.read(), response.headers.get("Retry-After"))
            finally:
                response.close()
        return self._events(response)

    def reconnect(self) -> None:
        """Close the connections that are kept for later calls, so that these open new ones."""
        self._pool.clear()

    def _events(self, response: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
        try:
            for line in _lines(response.stream()):
                self._contact_at = time.monotonic()
                yield json.loads(line)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise SilentWatchError(0, f"the watch is silent: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            raise UnavailableError(0, f"the watch broke: {error}") from error
        finally:
            response.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> dict[str, Any]:
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=READ_TIMEOUT_SECONDS)
        headers = {"Content-Type": content_type} if content_type else {}
        response = self._send(method, path, query, timeout=timeout, body=body, headers=headers)
        if response.status >= 400:
            raise error_of(response.status, response.data, response.headers.get("Retry-After"))
        try:
            answer: dict[str, Any] = json.loads(response.data)
        except (ValueError, RecursionError) as error:
            raise UnavailableError(response.status, f"the answer is not JSON: {error}") from error
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        timeout: urllib3.Timeout,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        preload_content: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        url = self._server + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers={**self._pool.headers, **(headers or {}), **self._authorization()},
                timeout=timeout,
                preload_content=preload_content,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(0, f"no answer from {self._server}: {error}") from error
        if response.status < 500:
            self._contact_at = time.monotonic()
        return response

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}


def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that takes certificates without an Authority Key Identifier, as some clusters' are.

    Python 3.13 refuses them by default (VERIFY_X509_STRICT); client-go does not.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the non-empty lines of a stream that may be cut anywhere."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
