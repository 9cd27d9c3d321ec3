"""API client of the commands: kinds, namespaces and selectors on top of the agent's client.

The message of every error is a sentence for the user. A command with a better one catches `ApiError`.
"""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3

from agent.kube.api import APPLY_PATCH, MERGE_PATCH, ApiClient, ResponseStream, TooDeep
from controller.connection import Connection
from controller.errors import Gone, NotFound
from controller.resources import CONFIGMAPS, EVENTS, NAMESPACES, NODES, PODS, Resource
from controller.wording import printable
from crds import names
from dlr.kube.waiting import waiting_for
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SHARDSETS

__all__ = [
    "CONFIGMAPS",
    "ELASTICJOBS",
    "ELASTICWORKERS",
    "EVENTS",
    "NAMESPACES",
    "NAME_LENGTH_MAX",
    "NODECHECKS",
    "NODES",
    "OBJECT_NAME",
    "PODS",
    "SHARDSETS",
    "Api",
    "Resource",
    "is_embedded",
]

JSON = dict[str, Any]

REQUEST_TIMEOUT_SECONDS = 10.0
PAGE_SIZE = 500
EMBEDDED_VERSION = "+dlr"
"""Suffix of the version of the embedded cluster's API server."""


OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
NAME_LENGTH_MAX = 253


def is_embedded(version: JSON) -> bool:
    """Whether the API server of this version is the embedded cluster's."""
    return str(version.get("gitVersion", "")).endswith(EMBEDDED_VERSION)


class Api:
    """The API server of a connection, with one namespace for namespaced objects.

    Raises:
        ConfigError: the certificates cannot be used.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.namespace = connection.namespace
        self._client = ApiClient(
            connection,
            connect_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            read_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
        )

    def get(self, kind: Resource, name: str) -> JSON:
        return self._with_metadata(self._client.read(self._send("GET", kind, name)))

    def find(
        self,
        kind: Resource,
        *,
        all_namespaces: bool = False,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[JSON]:
        """Return all objects of a kind, in the order of their names."""
        items: list[JSON] = []
        chosen = {"labelSelector": label_selector, "fieldSelector": field_selector}
        selected: dict[str, str | int] = {name: selector for name, selector in chosen.items() if selector}
        parameters = selected | {"limit": PAGE_SIZE}
        while True:
            try:
                answer = self._send("GET", kind, query=parameters, all_namespaces=all_namespaces)
                page = self._with_metadata(self._page(answer))
            except Gone:
                if "limit" not in parameters:
                    raise
                # The continue token has expired: list everything at once, as client-go does.
                items, parameters = [], selected
                continue
            items += page.get("items") or []
            proceed = (page.get("metadata") or {}).get("continue")
            if not proceed:
                return items
            parameters["continue"] = proceed

    def within(self, namespace: str | None) -> Api:
        """Return a client of the same API server with another namespace; None keeps the present one."""
        other = copy.copy(self)
        other.namespace = namespace or self.namespace
        return other

    def version(self) -> tuple[JSON, datetime]:
        """Return the API server's version, and its time."""
        with waiting_for(f"the API server at {self.connection.server}"):
            answer = self._client.send("GET", "/version")
        date = answer.headers.get("Date")
        return self._client.read(answer), parsedate_to_datetime(date) if date else datetime.now(UTC)

    def create(self, kind: Resource, body: JSON) -> tuple[JSON, list[str]]:
        """Create an object without unknown or duplicate fields; return it, and the server's warnings."""
        parameters = _writing() | {"fieldValidation": "Strict"}
        answer = self._send("POST", kind, query=parameters, body=body)
        return self._client.read(answer), _warnings(answer)

    def patch(self, kind: Resource, *steps: str, patch: JSON) -> JSON:
        """Apply a JSON merge patch, and return the patched object.

        Args:
            steps: name of the object, and perhaps of a subresource.
        """
        return self._client.read(
            self._send("PATCH", kind, *steps, query=_writing(), body=patch, content_type=MERGE_PATCH)
        )

    def apply(self, kind: Resource, manifest: JSON, *, dry_run: bool = False) -> JSON:
        """Apply a manifest by server-side apply, with force, and return the object."""
        query, name = _writing(dry_run=dry_run) | {"force": "true"}, manifest["metadata"]["name"]
        return self._client.read(
            self._send("PATCH", kind, name, query=query, body=manifest, content_type=APPLY_PATCH)
        )

    def delete(self, kind: Resource, name: str) -> None:
        self._send("DELETE", kind, name, query={"propagationPolicy": "Background"})

    def log(self, pod: str, parameters: dict[str, str | int], *, follow: bool) -> ResponseStream[str]:
        """Stream the lines of a container's log; with `follow` there is no read timeout."""
        parameters = parameters | ({"follow": "true"} if follow else {})
        seconds = None if follow else REQUEST_TIMEOUT_SECONDS
        return self._client.stream(self._path(PODS, pod, "log"), parameters, _text, seconds, seconds)

    def _send(
        self, method: str, kind: Resource, *steps: str, all_namespaces: bool = False, **details: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; `steps` are the object's name and its subresource."""
        path = self._path(kind, *steps, all_namespaces=all_namespaces)
        try:
            with waiting_for(f"the API server at {self.connection.server}"):
                return self._client.send(method, path, **details)
        except NotFound as error:
            if not error.names_object:
                hint = " Install dlr there: dlr install" if kind.group == names.GROUP else ""
                error.args = (f"The API server at {self.connection.server} knows no {kind.plural}.{hint}",)
            raise

    def _page(self, answer: urllib3.BaseHTTPResponse) -> JSON:
        """Parse a page of a list, without objects that are nested too deeply."""
        try:
            return self._client.read(answer)
        except TooDeep:
            from controller import salvage  # its imports may be missing in a training image

            page: JSON = salvage.parsed(salvage.shallow(answer.data))
            return {**page, "items": [each for each in page["items"] if not salvage.is_cut(each)]}

    def _with_metadata(self, found: JSON) -> JSON:
        if isinstance(found.get("metadata"), dict):
            return found
        raise self.connection.no_object()

    def _path(self, kind: Resource, *steps: str, all_namespaces: bool = False) -> str:
        return kind.path(None if all_namespaces or not kind.namespaced else self.namespace, *steps)


def _writing(*, dry_run: bool = False) -> dict[str, str | int]:
    """Return the parameters of a write: the field manager, and perhaps `dryRun`."""
    parameters: dict[str, str | int] = {"fieldManager": names.MANAGER}
    return parameters | {"dryRun": "All"} if dry_run else parameters


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def _warnings(answer: urllib3.BaseHTTPResponse) -> list[str]:
    """Return the texts of `Warning: 299 - "text"` headers."""
    header = answer.headers.get("Warning") or ""
    return [
        printable(text.replace('\\"', '"')) for text in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header)
    ]
