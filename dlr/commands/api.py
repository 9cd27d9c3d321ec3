"""The API server as the commands see it: plain objects in and out, and every failure as a sentence.

pykube carries the requests (never its watch, which just ends). A command that can say something better about
a failure catches `ApiFailure` by its status and reason; everything else is already fit to be shown.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import DEFAULT_POOLSIZE
from urllib3.util import create_urllib3_context

from crds import names
from dlr.commands.connection import Connection
from dlr.commands.errors import CommandError

JSON = dict[str, Any]

REQUEST_TIMEOUT_SECONDS = 10.0
PAGE_SIZE = 500


@dataclass(frozen=True)
class Kind:
    version: str
    plural: str
    title: str
    namespaced: bool = True


ELASTICJOBS = Kind(names.API_VERSION, "elasticjobs", "ElasticJob")
ELASTICWORKERS = Kind(names.API_VERSION, "elasticworkers", "ElasticWorker")
NODECHECKS = Kind(names.API_VERSION, "nodechecks", "NodeCheck")
PODS = Kind("v1", "pods", "Pod")
EVENTS = Kind("v1", "events", "Event")
NAMESPACES = Kind("v1", "namespaces", "namespace", namespaced=False)


@dataclass(frozen=True)
class Cause:
    """One thing wrong with an object that was refused."""

    path: str
    message: str

    def __str__(self) -> str:
        # What is wrong with the object as a whole has no path, which some API servers spell out.
        return self.message if self.path in ("", "<nil>") else f"{self.path}: {self.message}"


@dataclass(eq=False)
class ApiFailure(CommandError):
    """The API server's refusal."""

    sentence: str
    status: int
    reason: str = ""
    causes: tuple[Cause, ...] = ()
    names_object: bool = False
    """It speaks of one object; a 404 that does not means that the server has no such kind."""

    def __str__(self) -> str:
        return self.sentence


class Unreachable(CommandError):
    """No answer from the API server; it may have one later."""


class Api:
    def __init__(self, connection: Connection) -> None:
        # Imported here: `dlr manifests` and `dlr controller` work where pykube is not installed.
        import pykube

        self.connection = connection
        self.namespace = connection.namespace
        config = pykube.KubeConfig(
            {
                "clusters": [{"name": "it", "cluster": connection.cluster}],
                "users": [{"name": "it", "user": connection.user}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "current-context": "it",
            }
        )
        self._login_errors = (NotImplementedError, ImportError, pykube.exceptions.PyKubeError)
        self._http = pykube.HTTPClient(config, timeout=REQUEST_TIMEOUT_SECONDS)
        self._http.session.get_adapter("https://").init_poolmanager(
            DEFAULT_POOLSIZE, DEFAULT_POOLSIZE, ssl_context=_ssl_context(connection)
        )
        # A proxy for the outside world has no business between us and a cluster on this machine.
        self._http.session.trust_env = not _is_loopback(connection.server)

    def get(self, kind: Kind, name: str) -> JSON:
        with self._request("GET", kind, name) as response:
            return _object(response)

    def find(self, kind: Kind, *, all_namespaces: bool = False, label_selector: str = "") -> list[JSON]:
        items: list[JSON] = []
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE}
        if label_selector:
            parameters["labelSelector"] = label_selector
        while True:
            with self._request("GET", kind, parameters=parameters, all_namespaces=all_namespaces) as response:
                page = _object(response)
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue")
            if not token:
                return items
            parameters["continue"] = token

    def within(self, namespace: str | None) -> Api:
        """The same API server, with another namespace for what is in one; None: as it is."""
        other = copy.copy(self)
        other.namespace = namespace or self.namespace
        return other

    def version(self) -> tuple[JSON, datetime]:
        """What the API server says of its version, and its time."""
        with self._answered(None, "GET", version="/version", timeout=REQUEST_TIMEOUT_SECONDS) as response:
            date = response.headers.get("Date")
            return _object(response), parsedate_to_datetime(date) if date else datetime.now(UTC)

    def create(
        self, kind: Kind, body: JSON, *, dry_run: bool = False, as_user: str | None = None
    ) -> tuple[JSON, list[str]]:
        """The created object, and the server's warnings. Unknown and doubled fields are refused."""
        parameters = _writing(dry_run) | {"fieldValidation": "Strict"}
        headers = {"Impersonate-User": as_user} if as_user else {}
        with self._request("POST", kind, parameters=parameters, body=body, headers=headers) as response:
            return _object(response), _warnings(response)

    def patch(self, kind: Kind, name: str, patch: JSON, *, dry_run: bool = False) -> JSON:
        """The object, or its subresource (`name/scale`), after a JSON merge patch."""
        with self._request("PATCH", kind, name, parameters=_writing(dry_run), body=patch) as response:
            return _object(response)

    def delete(self, kind: Kind, name: str, *, dry_run: bool = False) -> None:
        parameters: dict[str, str | int] = {"propagationPolicy": "Background"}
        if dry_run:
            parameters["dryRun"] = "All"
        with self._request("DELETE", kind, name, parameters=parameters):
            pass

    @contextmanager
    def log(self, pod: str, parameters: dict[str, str | int], *, follow: bool) -> Iterator[Iterator[str]]:
        """The lines of a container's log. Followed, it may be silent for as long as the container is."""
        timeout = (REQUEST_TIMEOUT_SECONDS, None if follow else REQUEST_TIMEOUT_SECONDS)
        parameters = parameters | ({"follow": "true"} if follow else {})
        with self._request(
            "GET", PODS, f"{quote(pod)}/log", parameters=parameters, stream=True, timeout=timeout
        ) as response:
            yield (line.decode(errors="replace") for line in response.iter_lines())

    @contextmanager
    def _request(
        self,
        method: str,
        kind: Kind,
        name: str = "",
        *,
        parameters: dict[str, str | int] | None = None,
        body: JSON | None = None,
        headers: dict[str, str] | None = None,
        all_namespaces: bool = False,
        stream: bool = False,
        timeout: float | tuple[float, float | None] = REQUEST_TIMEOUT_SECONDS,
    ) -> Iterator[requests.Response]:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with self._answered(
            kind,
            method,
            version=kind.version,
            namespace=self.namespace if kind.namespaced and not all_namespaces else None,
            url=f"{kind.plural}/{name}" if name else kind.plural,
            params=parameters,
            data=None if body is None else json.dumps(body),
            headers=({"Content-Type": content} if body is not None else {}) | (headers or {}),
            stream=stream,
            timeout=timeout,
        ) as response:
            yield response

    @contextmanager
    def _answered(self, kind: Kind | None, method: str, **details: Any) -> Iterator[requests.Response]:
        try:
            with self._send(method, **details) as response:
                if not response.ok:
                    raise self._failure(response, kind)
                yield response
        except requests.RequestException as error:
            raise self._unreachable(error) from error

    def _send(self, method: str, **details: Any) -> requests.Response:
        try:
            response: requests.Response = self._http.request(method, **details)
            return response
        except requests.RequestException:
            raise
        except OSError as error:
            raise CommandError(
                f"The certificates of {self.connection.source} cannot be used: {_innermost(error)}."
            ) from error
        except self._login_errors as error:
            raise CommandError(
                f"{self.connection.source} asks for a login that dlr cannot do: {error}"
            ) from error

    def _unreachable(self, error: Exception) -> CommandError:
        server, source = self.connection.server, self.connection.source
        if isinstance(error, requests.exceptions.SSLError):
            return CommandError(
                f"The certificate of the API server at {server} does not fit {source}: {_innermost(error)}."
            )
        if isinstance(error, requests.Timeout):
            return Unreachable(
                f"The API server at {server} did not answer within {REQUEST_TIMEOUT_SECONDS:.0f} s."
            )
        return Unreachable(
            f"No API server answers at {server}, which {source} names ({_innermost(error)}); "
            "is the cluster up? (`dlr up` starts a local one.)"
        )

    def _failure(self, response: requests.Response, kind: Kind | None) -> ApiFailure:
        status = _status(response)
        message = status.get("message") or response.text.strip()[:500] or response.reason
        details = status.get("details") or {}
        server = self.connection.server
        if response.status_code == requests.codes.unauthorized:
            message = (
                f"The API server at {server} does not accept the credentials of {self.connection.source}."
            )
        elif kind and response.status_code == requests.codes.not_found and not details.get("name"):
            message = f"The API server at {server} knows no {kind.plural}."
            if kind.version == names.API_VERSION:
                message += " Install dlr there: dlr install"
        causes = tuple(
            Cause(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes") or []
        )
        return ApiFailure(
            message,
            response.status_code,
            status.get("reason", ""),
            causes,
            names_object=bool(details.get("name")),
        )


def _writing(dry_run: bool) -> dict[str, str | int]:
    """Who writes, for the object's managedFields; `dryRun` has the server do all but store it."""
    parameters: dict[str, str | int] = {"fieldManager": names.MANAGER}
    return parameters | {"dryRun": "All"} if dry_run else parameters


def _ssl_context(connection: Connection) -> ssl.SSLContext:
    """One that takes certificates without an Authority Key Identifier, which some clusters' CAs issue.

    Python 3.13 refuses them by default (VERIFY_X509_STRICT); kubectl does not.
    """
    insecure = connection.cluster.get("insecure-skip-tls-verify")
    context = create_urllib3_context(cert_reqs=ssl.CERT_NONE if insecure else ssl.CERT_REQUIRED)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _object(response: requests.Response) -> JSON:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise CommandError(f"{response.url} answered with something that is not a Kubernetes object.")
    return body


def _status(response: requests.Response) -> JSON:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}


def _warnings(response: requests.Response) -> list[str]:
    """The texts of `Warning: 299 - "text"` headers, which requests joins with commas."""
    header = response.headers.get("Warning", "")
    return [text.replace('\\"', '"') for text in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header)]


def _innermost(error: BaseException) -> str:
    """The operating system's own words out of the several wrappings that requests and urllib3 add."""
    while True:
        inner = (
            error.__cause__
            or error.__context__
            or next(
                (part for part in error.args if isinstance(part, BaseException)),
                getattr(error, "reason", None),
            )
        )
        if not isinstance(inner, BaseException):
            return (getattr(error, "strerror", None) or str(error)).rstrip(".")
        error = inner
