"""Requests to the API server, as data: built here, sent by transport.py, answers read by responses.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from controller.resources import Object, Resource

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"


@dataclass(frozen=True)
class Call:
    """One HTTP request, less host and credentials."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = JSON
    most_bytes: int | None = None
    """The greatest size of the answer; None for any size."""

    @property
    def is_read(self) -> bool:
        """Asking twice does no harm."""
        return self.method == "GET"

    @property
    def may_wait_for_webhooks(self) -> bool:
        """Whether the cluster's admission webhooks usually see it, so that its answer is as late as theirs.

        They see no reads; status they may see, but rarely ask for.
        """
        return not self.is_read and not self.path.endswith("/status")


def get(resource: Resource, name: str, namespace: str | None) -> Call:
    return Call("GET", resource.path(namespace, name))


def list_page(
    resource: Resource,
    namespace: str | None,
    *,
    label_selector: str | None = None,
    field_selector: str | None = None,
    page_size: int | None = None,
    continue_token: str | None = None,
    most_bytes: int | None = None,
) -> Call:
    query = _selectors(label_selector, field_selector)
    if page_size is not None:
        query.append(("limit", str(page_size)))
    if continue_token:
        query.append(("continue", continue_token))
    return Call("GET", resource.path(namespace), tuple(query), most_bytes=most_bytes)


def watch(
    resource: Resource,
    namespace: str | None,
    *,
    resource_version: str,
    timeout_seconds: int,
    label_selector: str | None = None,
    field_selector: str | None = None,
) -> Call:
    query = [
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", resource_version),
        ("timeoutSeconds", str(timeout_seconds)),
        *_selectors(label_selector, field_selector),
    ]
    return Call("GET", resource.path(namespace), tuple(query))


def create(resource: Resource, obj: Object, *, dry_run: bool = False) -> Call:
    """A dry run is refused for unknown fields too, which a real request loses without a word."""
    query = (("dryRun", "All"), ("fieldValidation", "Strict")) if dry_run else ()
    return Call("POST", resource.path(_namespace_of(resource, obj)), query, body=orjson.dumps(obj))


def replace(resource: Resource, obj: Object, subresource: str | None = None) -> Call:
    path = resource.path(_namespace_of(resource, obj), obj["metadata"]["name"], subresource)
    return Call("PUT", path, body=orjson.dumps(obj))


def patch(
    resource: Resource, name: str, patch: Object, namespace: str | None, subresource: str | None = None
) -> Call:
    path = resource.path(namespace, name, subresource)
    return Call("PATCH", path, body=orjson.dumps(patch), content_type=MERGE_PATCH)


def delete(
    resource: Resource,
    name: str,
    namespace: str | None,
    *,
    uid: str | None = None,
    grace_period_seconds: int | None = None,
    propagation: str = "Background",
) -> Call:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    if grace_period_seconds is not None:
        options["gracePeriodSeconds"] = grace_period_seconds
    return Call("DELETE", resource.path(namespace, name), body=orjson.dumps(options))


def version() -> Call:
    return Call("GET", "/version")


def _selectors(label_selector: str | None, field_selector: str | None) -> list[tuple[str, str]]:
    query = []
    if label_selector:
        query.append(("labelSelector", label_selector))
    if field_selector:
        query.append(("fieldSelector", field_selector))
    return query


def _namespace_of(resource: Resource, obj: Object) -> str | None:
    if not resource.namespaced:
        return None
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    if not namespace:
        name = metadata.get("name") or metadata.get("generateName")
        raise ValueError(f"{resource.kind} {name!r} has no metadata.namespace")
    return str(namespace)
