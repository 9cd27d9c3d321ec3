"""The synchronous client of the API server, for the agent, the commands, the SDK and the dashboard.

It needs only urllib3, so that it works beside any packages of an image. Every call has a time-out and raises
a typed error; the caller decides whether to retry (agent/kube/retry.py). It takes paths and returns objects;
dlr/kube/api.py adds kinds, namespaces and pages.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlencode

import urllib3

from agent.environment import InvalidEnvironmentError
from controller.connection import RENEW_SECONDS, SOCKET_OPTIONS, Connection, in_cluster
from controller.errors import (
    ApiError,
    ConfigError,
    Gone,
    SilentWatch,
    Unauthorized,
    Unavailable,
    error_of_status,
)
from crds.names import API_VERSION

GROUP_PATH = f"/apis/{API_VERSION}"
LEASES_PATH = "/apis/coordination.k8s.io/v1"

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

CONNECT_TIMEOUT_SECONDS = 3.0
READ_TIMEOUT_SECONDS = 5.0
"""Time limit for an answer: a status patch takes milliseconds, and the caller retries."""
POOL_SIZE = 16
"""Number of connections that are kept open; more threads may call at once."""
CHUNK_BYTES = 64 << 10

JSON = dict[str, Any]
Query = Mapping[str, str | int]
Item = TypeVar("Item")


class TooDeep(ApiError):
    """An object is nested more deeply than Python can read; Kubernetes stores 10,000 levels."""


class AgentApi(Protocol):
    """An agent's interface to the API server. Threads may share it.

    Implemented by `ApiClient`, and by `agent.standalone.cluster.LocalCluster` without a cluster.
    """

    def silent_seconds(self) -> float:
        """Return the time since the last answer."""
        ...

    def get(self, path: str, query: Mapping[str, str] | None = None) -> JSON:
        """Return an object or a list; raise ApiError."""
        ...

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> JSON:
        """Apply an RFC 7386 patch, and return the object; raise ApiError."""
        ...

    def watch(self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float) -> Iterable[JSON]:
        """Open a watch; see `ApiClient.watch`."""
        ...

    def reconnect(self) -> None:
        """Make later calls open new connections."""
        ...


class ResponseStream(Generic[Item]):
    """An answer that arrives line by line. It is read once; the end of a `with` block closes it.

    Iteration raises SilentWatch if no data arrives for too long, Unavailable if the answer breaks off.

    Args:
        response: the answer, whose head has been read.
        read: parses a line.
        note_contact: called for each line.
    """

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        read: Callable[[bytes], Item],
        note_contact: Callable[[], None],
    ) -> None:
        self._response = response
        self._read = read
        self._note_contact = note_contact

    def __iter__(self) -> Iterator[Item]:
        try:
            for line in _lines(iter(lambda: self._response.read1(CHUNK_BYTES), b"")):
                self._note_contact()
                yield self._read(line)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise SilentWatch(f"The API server has sent nothing for too long: {error}.") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"The API server's answer broke off: {error}.") from error
        finally:
            self._response.close()

    def __enter__(self) -> ResponseStream[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()


class ApiClient:
    """Client of the API server. Threads may share it.

    Args:
        connection: the API server and our credentials.
        connect_timeout_seconds: time limit of each connection attempt.
        read_timeout_seconds: time limit of each answer, unless the call has another.

    Raises:
        ConfigError: the certificates cannot be used.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self.connection = connection
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._contact_at = time.monotonic()
        self._pool = _pool(connection)
        self._renewing = threading.Lock()
        self._renew_at = 0.0

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str]) -> ApiClient:
        """Return the client of a Pod, with its service account's token.

        Raises:
            InvalidEnvironmentError: this is no Pod, or it has no token.
        """
        try:
            return cls(in_cluster(environ))
        except ConfigError as error:
            raise InvalidEnvironmentError(str(error)) from error

    def silent_seconds(self) -> float:
        """Return the time since the API server's last answer."""
        return time.monotonic() - self._contact_at

    def get(self, path: str, query: Query | None = None) -> JSON:
        """Return an object or a list; raise ApiError."""
        return self.read(self.send("GET", path, query))

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> JSON:
        """Apply an RFC 7386 patch, and return the object; raise ApiError."""
        return self.read(self.send("PATCH", path, body=patch, content_type=MERGE_PATCH))

    def watch(
        self,
        path: str,
        query: Query,
        *,
        idle_timeout_seconds: float,
        open_timeout_seconds: float | None = None,
    ) -> ResponseStream[JSON]:
        """Open a watch.

        Args:
            path: path of the collection.
            query: parameters besides `watch` and `allowWatchBookmarks`.
            idle_timeout_seconds: time limit without data.
            open_timeout_seconds: time limit for the beginning of the answer; None for the same.

        Returns:
            The watch's events, until the server ends it: ADDED, MODIFIED, DELETED, BOOKMARK. Iteration raises
            SilentWatch after the idle time, Unavailable when the watch breaks, the typed error of an ERROR,
            and Gone when the version to watch from is too old or an event is malformed.

        Raises:
            ApiError: the server does not answer, or refuses.
        """
        query = {**query, "watch": "true", "allowWatchBookmarks": "true"}
        return self.stream(
            path, query, _event, idle_timeout_seconds, open_timeout_seconds or idle_timeout_seconds
        )

    def stream(
        self,
        path: str,
        query: Query,
        read: Callable[[bytes], Item],
        idle_timeout_seconds: float | None,
        open_timeout_seconds: float | None,
    ) -> ResponseStream[Item]:
        """Open an answer that arrives line by line, such as a log.

        Args:
            path: path of the object.
            query: its parameters.
            read: parses a line.
            idle_timeout_seconds: time limit without data; None for none.
            open_timeout_seconds: time limit for the beginning of the answer; None for none.
        """
        response = self._send("GET", _url(path, query), open_timeout_seconds, preload_content=False)
        opened = getattr(response.connection, "sock", None)
        if opened is not None and idle_timeout_seconds != open_timeout_seconds:
            opened.settimeout(idle_timeout_seconds)
        return ResponseStream(response, read, self._note_contact)

    def reconnect(self) -> None:
        """Close the idle connections, so that later calls open new ones."""
        self._pool.clear()

    def send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request, and return its answer; raise ApiError."""
        sent, encoded = dict(headers or {}), None
        if body is not None:
            # Servers refuse a lone surrogate, which the text of an exception may have, as it is not UTF-8.
            text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
            encoded, sent["Content-Type"] = text.encode(errors="replace"), content_type
        return self._send(method, _url(path, query), self._read_timeout_seconds, sent, body=encoded)

    def read(self, response: urllib3.BaseHTTPResponse) -> JSON:
        """Return the object in an answer.

        Raises:
            TooDeep: it is nested too deeply.
            Unavailable: the answer is not an object.
        """
        try:
            answer = json.loads(response.data)
        except RecursionError as error:
            raise TooDeep(
                "The object is nested too deeply to be read. Correct or delete it with kubectl."
            ) from error
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self.connection.no_object()
        return answer

    def _send(
        self,
        method: str,
        url: str,
        timeout_seconds: float | None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> urllib3.BaseHTTPResponse:
        asked = self.connection
        try:
            response = self._pool.request(
                method,
                asked.server + url,
                headers={**self._pool.headers, **(headers or {}), **asked.authorization()},
                timeout=urllib3.Timeout(connect=self._connect_timeout_seconds, read=timeout_seconds),
                **options,
            )
            if response.status < 500:
                self._note_contact()
            if response.status < 400:
                return response
            refusal = asked.refusal(response.status, response.data, response.headers.get("Retry-After"))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._no_answer(error, timeout_seconds) from error
        if not isinstance(refusal, Unauthorized) or not self._renewed(asked):
            raise refusal
        return self._send(method, url, timeout_seconds, headers, **options)

    def _renewed(self, refused: Connection) -> bool:
        """Renew the credentials, unless another thread has; return whether they have changed."""
        with self._renewing:
            now = time.monotonic()
            if self.connection is refused and refused.renew is not None and now >= self._renew_at:
                self._renew_at = now + RENEW_SECONDS
                self.connection = refused.renew()
                self._pool = _pool(self.connection)
            return self.connection is not refused

    def _note_contact(self) -> None:
        self._contact_at = time.monotonic()

    def _no_answer(self, error: Exception, timeout_seconds: float | None) -> ApiError:
        root = _root_of(error)
        if isinstance(root, TimeoutError):
            is_new = isinstance(error, urllib3.exceptions.ConnectTimeoutError)
            return self.connection.late(self._connect_timeout_seconds if is_new else timeout_seconds or 0.0)
        if isinstance(root, ssl.SSLError) and not isinstance(root, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return self.connection.untrusted(_reason(root))
        return self.connection.unreachable(_reason(root))


def _url(path: str, query: Query | None) -> str:
    return path + (f"?{urlencode(query)}" if query else "")


def _event(line: bytes) -> JSON:
    """Parse an event of a watch; raise the error of an ERROR event, or Gone if it is malformed."""
    try:
        event = json.loads(line)
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            raise error_of_status(thing, int(thing.get("code") or 500))
        thing["metadata"].get("resourceVersion")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Gone(410, "", f"An event of the watch is malformed: {error!r}.") from error
    answer: JSON = event
    return answer


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream of chunks."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _pool(connection: Connection) -> urllib3.PoolManager:
    options: dict[str, Any] = {
        "maxsize": POOL_SIZE,
        "retries": False,
        "headers": {"User-Agent": "dlr", "Accept": "application/json"},
        "socket_options": SOCKET_OPTIONS,
    }
    if (context := connection.ssl_context()) is not None:
        options |= {"ssl_context": context, "server_hostname": connection.server_name}
    if connection.trusts_any_certificate:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    if connection.proxy is None:
        return urllib3.PoolManager(**options)
    login = urllib3.util.parse_url(connection.proxy).auth
    proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else {}
    return urllib3.ProxyManager(connection.proxy, proxy_headers=proxy_headers, **options)


def _root_of(error: BaseException) -> BaseException:
    """Return the error that caused those of urllib3."""
    inner = next((each for each in reversed(error.args) if isinstance(each, BaseException)), error.__cause__)
    return error if inner is None else _root_of(inner)


def _reason(error: BaseException) -> str:
    """Return the operating system's message, or OpenSSL's."""
    words = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return (words or type(error).__name__).rstrip(".")
