"""The API server as the commands see it: plain objects in and out, and every failure as a sentence.

A command that can say something better about a failure catches `ApiFailure` by its status and reason;
everything else is already fit to be shown.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote

from crds import names
from dlr.kube.connection import Connection
from dlr.kube.errors import ApiError
from dlr.kube.transport import Answer, Transport, UnknownLogin
from dlr.kube.waiting import waiting_for

JSON = dict[str, Any]

REQUEST_TIMEOUT_SECONDS = 10.0
PAGE_SIZE = 500
EMBEDDED_VERSION = "+dlr"
"""What the version of the embedded cluster's API server ends with."""
MOST_RETRY_AFTER_SECONDS = 30.0
"""A person waits; a proxy may ask for an hour."""
NOT_NOW_STATUSES = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""What a server that is overloaded or restarted answers, or the proxy before it."""


@dataclass(frozen=True)
class Kind:
    version: str
    plural: str
    title: str
    namespaced: bool = True


ELASTICJOBS = Kind(names.API_VERSION, "elasticjobs", "ElasticJob")
ELASTICWORKERS = Kind(names.API_VERSION, "elasticworkers", "ElasticWorker")
CONFIGMAPS = Kind("v1", "configmaps", "ConfigMap")
NODECHECKS = Kind(names.API_VERSION, "nodechecks", "NodeCheck")
PODS = Kind("v1", "pods", "Pod")
EVENTS = Kind("v1", "events", "Event")
NODES = Kind("v1", "nodes", "node", namespaced=False)
NAMESPACES = Kind("v1", "namespaces", "namespace", namespaced=False)


@dataclass(frozen=True)
class Collection:
    """What is listed or watched: objects of a kind in one namespace or in all, as selectors choose them."""

    kind: Kind
    all_namespaces: bool = False
    label_selector: str = ""
    field_selector: str = ""

    @property
    def parameters(self) -> dict[str, str | int]:
        chosen = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: selector for name, selector in chosen.items() if selector}


@dataclass(frozen=True)
class Cause:
    """One thing wrong with an object that was refused."""

    path: str
    message: str

    def __str__(self) -> str:
        # What is wrong with the object as a whole has no path, which some API servers spell out.
        return self.message if self.path in ("", "<nil>") else f"{self.path}: {self.message}"


@dataclass(eq=False)
class ApiFailure(ApiError):
    """The API server's refusal."""

    sentence: str
    status: int
    reason: str = ""
    causes: tuple[Cause, ...] = ()
    names_object: bool = False
    """It speaks of one object; a 404 that does not means that the server has no such kind."""

    def __str__(self) -> str:
        return self.sentence


class Unreachable(ApiError):
    """No answer from the API server; it may have one later.

    Attributes:
        retry_after_seconds: how long the server asks not to be asked again (Retry-After); 0 without that.
    """

    retry_after_seconds = 0.0


class NotNow(ApiFailure, Unreachable):
    """The server, or the proxy before it, refuses for the time being; another question may have an answer."""


class Lines(Iterator[str]):
    """The lines of an answer as they come.

    Attributes:
        hang_up: ends them, for another thread than the one that waits for them.
    """

    def __init__(self, lines: Iterator[str], hang_up: Callable[[], None]) -> None:
        self._lines = lines
        self.hang_up = hang_up

    def __next__(self) -> str:
        return next(self._lines)


def is_embedded(version: JSON) -> bool:
    """Whether the API server of this version is the embedded cluster's."""
    return str(version.get("gitVersion", "")).endswith(EMBEDDED_VERSION)


class Api:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.namespace = connection.namespace
        try:
            self._transport = Transport(connection.cluster, connection.user)
        except UnknownLogin as error:
            raise ApiError(f"{connection.source} uses a login that dlr does not support: {error}.") from error
        except OSError as error:
            raise ApiError(
                f"The certificates of {connection.source} cannot be used: {_reason(error)}."
            ) from error
        except ValueError as error:
            raise ApiError(
                f"{connection.source} names the server {connection.server!r}, "
                f"which is not a valid address: {error}."
            ) from error

    def get(self, kind: Kind, name: str) -> JSON:
        return _object(self._ask("GET", kind, name))

    def find(
        self, kind: Kind, *, all_namespaces: bool = False, label_selector: str = "", field_selector: str = ""
    ) -> list[JSON]:
        return self.listing(Collection(kind, all_namespaces, label_selector, field_selector))[0]

    def listing(self, collection: Collection) -> tuple[list[JSON], str]:
        """All objects in the order of their names, and the version from which a watch goes on."""
        items: list[JSON] = []
        parameters = collection.parameters | {"limit": PAGE_SIZE}
        while True:
            try:
                page = self._page(collection, parameters)
            except ApiFailure as failure:
                if failure.status != HTTPStatus.GONE or "limit" not in parameters:
                    raise
                # The list changed too much while it was read in pages: all of it at once, as client-go does.
                for name in ("limit", "continue"):
                    parameters.pop(name, None)
                items = []
                continue
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "0")
            parameters["continue"] = metadata["continue"]

    def _page(self, collection: Collection, parameters: dict[str, str | int]) -> JSON:
        of_all = collection.all_namespaces
        return _page(self._ask("GET", collection.kind, parameters=parameters, all_namespaces=of_all))

    def watch(
        self, collection: Collection, version: str, *, seconds: int, silent_seconds: float
    ) -> AbstractContextManager[Lines]:
        """What happens to its objects after that version, an event a line, and now and then a bookmark.

        Args:
            seconds: the server ends it after so long.
            silent_seconds: with nothing for so long, it is taken for dead. Its answer begins at once: where
                it does not, a proxy keeps it back, and the watch fails like any request.
        """
        parameters = collection.parameters | {"watch": "true", "allowWatchBookmarks": "true"}
        parameters |= {"resourceVersion": version, "timeoutSeconds": seconds}
        path = self._path(collection.kind, all_namespaces=collection.all_namespaces)
        return self._streamed(collection.kind, path, parameters, REQUEST_TIMEOUT_SECONDS, silent_seconds)

    def within(self, namespace: str | None) -> Api:
        """The same API server, with another namespace for what is in one; None: as it is."""
        other = copy.copy(self)
        other.namespace = namespace or self.namespace
        return other

    def version(self) -> tuple[JSON, datetime]:
        """What the API server says of its version, and its time."""
        answer = self._answer(None, "GET", "/version")
        date = answer.headers.get("Date")
        return _object(answer), parsedate_to_datetime(date) if date else datetime.now(UTC)

    def create(
        self, kind: Kind, body: JSON, *, dry_run: bool = False, as_user: str | None = None
    ) -> tuple[JSON, list[str]]:
        """The created object, and the server's warnings. Unknown and doubled fields are refused."""
        parameters = _writing(dry_run) | {"fieldValidation": "Strict"}
        headers = {"Impersonate-User": as_user} if as_user else {}
        answer = self._ask("POST", kind, parameters=parameters, body=body, headers=headers)
        return _object(answer), _warnings(answer)

    def patch(self, kind: Kind, *steps: str, patch: JSON, dry_run: bool = False) -> JSON:
        """The object of that name, or its subresource of the name that follows, after a JSON merge patch."""
        return _object(self._ask("PATCH", kind, *steps, parameters=_writing(dry_run), body=patch))

    def delete(self, kind: Kind, name: str, *, dry_run: bool = False) -> None:
        parameters: dict[str, str | int] = {"propagationPolicy": "Background"}
        if dry_run:
            parameters["dryRun"] = "All"
        self._ask("DELETE", kind, name, parameters=parameters)

    def log(
        self, pod: str, parameters: dict[str, str | int], *, follow: bool
    ) -> AbstractContextManager[Lines]:
        """The lines of a container's log. Followed, it may be silent for as long as the container is."""
        parameters = parameters | ({"follow": "true"} if follow else {})
        silent_seconds = None if follow else REQUEST_TIMEOUT_SECONDS
        path = self._path(PODS, pod, "log")
        return self._streamed(PODS, path, parameters, silent_seconds, silent_seconds)

    @contextmanager
    def _streamed(
        self,
        kind: Kind,
        path: str,
        parameters: dict[str, str | int],
        first_seconds: float | None,
        silent_seconds: float | None,
    ) -> Iterator[Lines]:
        """The lines of an answer as they come.

        Args:
            first_seconds: until it begins; None for as long as it likes.
            silent_seconds: between its parts.
        """
        with ExitStack() as stack:
            with self._outages_told():
                stream = stack.enter_context(
                    self._transport.stream(
                        "GET", path, parameters=parameters, read_timeout_seconds=first_seconds
                    )
                )
                response = stream.response
                if response.status >= HTTPStatus.BAD_REQUEST:
                    answer = Answer(response.status, response.reason, response.headers, response.read())
                    raise self._failure(answer, kind)
            stream.socket.settimeout(silent_seconds)
            yield Lines(self._lines(response), stream.hang_up)

    def _lines(self, response: HTTPResponse) -> Iterator[str]:
        with self._outages_told():
            for line in response:
                yield line.rstrip(b"\r\n").decode(errors="replace")

    def _ask(
        self,
        method: str,
        kind: Kind,
        *steps: str,
        parameters: dict[str, str | int] | None = None,
        body: JSON | None = None,
        headers: dict[str, str] | None = None,
        all_namespaces: bool = False,
    ) -> Answer:
        """`steps` are the object's name and its subresource."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._answer(
            kind,
            method,
            self._path(kind, *steps, all_namespaces=all_namespaces),
            parameters=parameters,
            body=None if body is None else json.dumps(body),
            headers=({"Content-Type": content} if body is not None else {}) | (headers or {}),
        )

    def _answer(self, kind: Kind | None, method: str, path: str, **details: Any) -> Answer:
        with self._outages_told(), waiting_for(f"the API server at {self.connection.server}"):
            answer = self._transport.ask(
                method, path, read_timeout_seconds=REQUEST_TIMEOUT_SECONDS, **details
            )
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise self._failure(answer, kind)
        return answer

    def _path(self, kind: Kind, *steps: str, all_namespaces: bool = False) -> str:
        root = f"/apis/{kind.version}" if "/" in kind.version else f"/api/{kind.version}"
        within = kind.namespaced and not all_namespaces
        scope = f"/namespaces/{quote(self.namespace, safe='')}" if within else ""
        return "/".join([f"{root}{scope}/{kind.plural}", *(quote(step, safe="") for step in steps)])

    @contextmanager
    def _outages_told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ApiError:
        server, source = self.connection.server, self.connection.source
        if isinstance(error, ssl.SSLError):
            return ApiError(
                f"The certificate of the API server at {server} does not fit {source}: {_reason(error)}."
            )
        if isinstance(error, TimeoutError):
            return Unreachable(
                f"The API server at {server} did not answer within {REQUEST_TIMEOUT_SECONDS:.0f} s."
            )
        return Unreachable(
            f"No API server answers at {server}, which {source} names ({_reason(error)}); "
            "is the cluster up? (`dlr up` starts a local one.)"
        )

    def _failure(self, answer: Answer, kind: Kind | None) -> ApiFailure:
        text = answer.body.decode(errors="replace")
        status = _status(text)
        server = self.connection.server
        if answer.status in NOT_NOW_STATUSES:
            why = status.get("message") or answer.reason  # and not a proxy's page
            sentence = f"The API server at {server} cannot answer now ({answer.status}: {why})."
            failure = NotNow(sentence, answer.status, status.get("reason", ""))
            failure.retry_after_seconds = _retry_after_seconds(answer)
            return failure
        message = status.get("message") or text.strip()[:500] or answer.reason
        details = status.get("details") or {}
        if answer.status == HTTPStatus.UNAUTHORIZED:
            message = (
                f"The API server at {server} does not accept the credentials of {self.connection.source}."
            )
        elif kind and answer.status == HTTPStatus.NOT_FOUND and not details.get("name"):
            message = f"The API server at {server} knows no {kind.plural}."
            if kind.version == names.API_VERSION:
                message += " Install dlr there: dlr install"
        causes = tuple(
            Cause(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes") or []
        )
        return ApiFailure(
            message,
            answer.status,
            status.get("reason", ""),
            causes,
            names_object=bool(details.get("name")),
        )


def _writing(dry_run: bool) -> dict[str, str | int]:
    """Return the parameters of a write: the field manager, and `dryRun`, with which nothing is stored."""
    parameters: dict[str, str | int] = {"fieldManager": names.MANAGER}
    return parameters | {"dryRun": "All"} if dry_run else parameters


def _page(answer: Answer) -> JSON:
    """A page of a list. Objects that are nested too deeply are left out: they hide no others."""
    try:
        return _object(answer)
    except NestedTooDeeply:
        from controller import salvage  # a training image need not have what it imports

        page: JSON = salvage.parsed(salvage.shallow(answer.body))
        return page | {"items": [each for each in page["items"] if not salvage.is_cut(each)]}


class NestedTooDeeply(ApiError):
    """An object is nested more deeply than Python reads; Kubernetes stores 10,000 levels."""

    def __init__(self) -> None:
        super().__init__("The object is nested too deeply to be read. Correct or delete it with kubectl.")


def _object(answer: Answer) -> JSON:
    try:
        body = json.loads(answer.body)
    except RecursionError:
        raise NestedTooDeeply from None
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ApiError("The API server has answered with something that is not a Kubernetes object.")
    return body


def _status(text: str) -> JSON:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}


def _retry_after_seconds(answer: Answer) -> float:
    text = (answer.headers.get("Retry-After") or "").strip()
    asked_for = float(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0.0
    return min(asked_for, MOST_RETRY_AFTER_SECONDS)


def _warnings(answer: Answer) -> list[str]:
    """The texts of `Warning: 299 - "text"` headers."""
    header = ", ".join(answer.headers.get_all("Warning") or ())
    return [text.replace('\\"', '"') for text in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header)]


def _reason(error: Exception) -> str:
    """The operating system's own words, or OpenSSL's."""
    said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return (said or type(error).__name__).rstrip(".")
