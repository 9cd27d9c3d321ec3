"""A small Kubernetes client: get, patch and watch, from inside a Pod.

Only what an agent needs, on urllib3, so that it works beside any packages of the training image. Every call
is time-limited and raises a typed error; who calls decides whether and how to retry (`retrying`).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import tenacity
import urllib3

from agent.environment import InvalidEnvironmentError

GROUP_PATH = "/apis/elastic.iml.github.io/v1alpha1"
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
    """The API server refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GoneError(ApiError):
    """410: the resourceVersion is too old to watch from; list again."""


class UnavailableError(ApiError):
    """No answer, or one that says to try again later."""


_TRY_LATER = {401, 408, 425, 429}  # 401: the token may have been rotated just now


def error_of(status: int, body: bytes) -> ApiError:
    """The typed error for an HTTP answer ≥ 400, with the server's own message."""
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace") or f"HTTP {status}"
    if status in _TRY_LATER or status >= 500:
        return UnavailableError(status, message)
    return GoneError(status, message) if status == 410 else ApiError(status, message)


class ApiClient:
    """Thread-safe."""

    def __init__(self, server: str, *, ca_file: Path | None, token_file: Path | None) -> None:
        self._server = server
        self._token_file = token_file
        self._contact_at = time.monotonic()
        self._pool = urllib3.PoolManager(
            maxsize=4,
            retries=False,
            ca_certs=str(ca_file) if ca_file else None,
            socket_options=_SOCKET_OPTIONS,
            headers={"User-Agent": "dlr-agent", "Accept": "application/json"},
        )

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str]) -> ApiClient:
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
        return self._call("GET", path, query=query)

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(patch, separators=(",", ":")).encode()
        return self._call("PATCH", path, body=body, content_type="application/merge-patch+json")

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float
    ) -> Iterator[dict[str, Any]]:
        """The watch's events, until the server ends it; UnavailableError when it breaks or goes silent."""
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=idle_timeout_seconds)
        response = self._send("GET", path, {**query, "watch": "true"}, timeout=timeout, preload_content=False)
        try:
            if response.status >= 400:
                raise error_of(response.status, response.read())
            for line in _lines(response.stream()):
                self._contact_at = time.monotonic()
                yield json.loads(line)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
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
            raise error_of(response.status, response.data)
        try:
            answer: dict[str, Any] = json.loads(response.data)
        except ValueError as error:
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
        """Read anew for each call: the kubelet rotates the token in place."""
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}


def retrying(
    stop: threading.Event,
    *,
    max_wait_seconds: float,
    before_sleep: Callable[[tenacity.RetryCallState], None],
) -> tenacity.Retrying:
    """Retry what the API server refuses or does not answer, until `stop`: the Pod's life is the bound.

    The waits are random up to a doubling bound, so that a server which comes back is not met by all at once.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ApiError),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=max_wait_seconds),
        sleep=tenacity.sleep_using_event(stop),
        stop=tenacity.stop_when_event_set(stop),
        before_sleep=before_sleep,
        reraise=True,
    )


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The non-empty lines of a stream that may be cut anywhere."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
