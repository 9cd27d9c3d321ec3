"""Requests to the API server and their answers, as data; `transport.py` does the I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import orjson

from controller import salvage
from controller.connection import Connection
from controller.errors import TooLarge, Unavailable
from controller.resources import Object, Resource
from controller.shape import CannotBeRead, Shape, units
from controller.slices import Slices

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type for only the metadata of an object."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MOST_BYTES = 32 << 20
"""Maximum size of an answer: no object in etcd has more JSON."""
MOST_UNITS = 100_000
"""Maximum units (`controller/shape.py`) of an answer that is parsed in one piece."""
SMALL_BYTES = 1 << 16
"""Size of a text that cannot have that many units."""


@dataclass(frozen=True)
class Call:
    """One HTTP request, without host and credentials."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    most_bytes: int = MOST_BYTES
    """Maximum size of the answer."""

    @property
    def is_read(self) -> bool:
        """Whether repeating the request is harmless."""
        return self.method == "GET"

    @property
    def may_wait_for_webhooks(self) -> bool:
        """Whether admission webhooks usually handle the request, so that they may delay its answer.

        They do not handle reads, and rarely register for status.
        """
        return not self.is_read and not self.path.endswith("/status")


def query_of(**parameters: object) -> dict[str, str]:
    """Return the parameters that have a value, as text. `continue_` stands for Python's keyword."""
    return {name.rstrip("_"): str(value) for name, value in parameters.items() if value}


@dataclass(frozen=True)
class Answer:
    """Complete answer."""

    connection: Connection = field(repr=False)
    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def took_storage(self) -> bool:
        """Whether the server must have used its storage for this answer.

        401 and 403 precede the storage, 429 replaces it, 5xx means it is missing.
        """
        return self.status < 500 and self.status not in (401, 403, 429)

    def raise_for_status(self) -> None:
        if self.status >= 400:
            raise self.connection.refusal(self.status, self.body, self.retry_after)


def read_shaped(answer: Answer, resource: Resource, shape: Shape | None) -> Object:
    """Return what a shape keeps of the object in a successful answer. Raises as `read_object` does."""
    if shape is None:
        return read_object(answer)
    answer.raise_for_status()
    try:
        return resource.named(shape.read(shape.object(answer.body)))
    except CannotBeRead as error:
        raise TooLarge(f"the API server's answer cannot be read: {error}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise answer.connection.no_object() from error


def read_object(answer: Answer) -> Object:
    """Return the parsed body of a successful answer; raise the typed error of any other.

    Raises:
        TooLarge: the body has more values than are parsed at once.
    """
    answer.raise_for_status()
    if len(answer.body) > SMALL_BYTES and (counted := units(answer.body)) > MOST_UNITS:
        raise TooLarge(f"the API server's answer has {counted} values, and at most {MOST_UNITS} are read")
    try:
        parsed = salvage.parsed(answer.body)
    except orjson.JSONDecodeError as error:
        raise answer.connection.no_object() from error
    if not isinstance(parsed, dict):
        raise answer.connection.no_object()
    return parsed


async def read_page(answer: Answer, resource: Resource) -> Object:
    """Return the parsed page of a list, with apiVersion and kind, which the server omits, in each object.

    Objects that are nested too deeply are left out.
    """
    try:
        page = read_object(answer)
    except Unavailable:
        if answer.status >= 400:
            raise
        try:
            page = await salvage.parsed_shallow(answer.body)
            page["items"] = [item for item in page["items"] if not salvage.is_cut(item)]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            page = {}
        if not page:
            raise
    items = [resource.named(item) for item in page.get("items") or []]
    return {**page, "items": items, "bytes": len(answer.body), "units": units(answer.body)}


async def split_page(answer: Answer, shape: Shape) -> Object:
    """Return the page of a list with its objects unparsed."""
    answer.raise_for_status()
    try:
        try:
            page = shape.page(answer.body)
        except RecursionError:
            page = shape.page(await asyncio.to_thread(salvage.shallow, answer.body))
    except msgspec.MsgspecError as error:
        raise answer.connection.no_object() from error
    return {
        "metadata": page.metadata,
        "items": page.items,
        "bytes": len(answer.body),
        "units": units(answer.body),
    }


async def read_items(page: Object, resource: Resource, shape: Shape) -> Object:
    """Return the page with what the shape keeps of its objects, without unreadable ones."""
    found, slices = list[Object](), Slices()
    for item in page["items"]:
        with suppress(CannotBeRead):
            found.append(resource.named(shape.read(item)))
        await slices.pause()
    return page | {"items": found}
