"""API client: plain dicts in and out, a time limit on every call, and a typed error for every failure.

A call is retried here only where that is safe: reads, and requests that the server certainly did not
process. Other failures are left to the caller, whose next reconcile starts from the current state.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

import orjson

from controller.api.api_wait import current_wait
from controller.api.calls import (
    JSON,
    MERGE_PATCH,
    METADATA,
    METADATA_LIST,
    Answer,
    Call,
    query_of,
    read_items,
    read_object,
    read_page,
    read_shaped,
    split_page,
)
from controller.api.limiter import RequestLimiter
from controller.api.pages import (
    LIST_PAGE_SIZE,
    MOST_LISTED_UNITS,
    MOST_PAGE_BYTES,
    MOST_WHOLE_BYTES,
    PageSize,
)
from controller.api.transport import Transport, WatchStream
from controller.backoff import Backoff
from controller.connection import Connection
from controller.contact import Contact
from controller.errors import (
    ApiError,
    Gone,
    Invalid,
    InvalidStatus,
    NotFound,
    TooLarge,
    Unavailable,
    is_denial,
)
from controller.resources import Object, Resource
from controller.shape import NAMES, Shape, named_in

CALL_TIMEOUT_SECONDS = 10.0
ATTEMPTS = 3
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 1.0
_LONGEST_RETRY_AFTER_SECONDS = 5.0
_NO_NAMES = ("", ".", "..")
"""Names that no object has: a path with one of them would address the collection, or what is above it."""

Observer = Callable[[str, int | None], None]
"""Callback with the method and the status (None: no answer) of every call."""


class AsyncClient:
    """Client of one API server, shared by the whole process.

    `guarded` makes a view of it for conditional writes.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        contact: Contact | None = None,
        call_timeout_seconds: float = CALL_TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
        transport: Transport | None = None,
    ) -> None:
        self.connection = connection
        self.contact = contact or Contact()
        self.call_timeout_seconds = call_timeout_seconds
        self._attempts = attempts
        self.observers: list[Observer] = []
        self._transport = transport or Transport(connection)
        self._guard: Callable[[], None] | None = None
        self._note_write: Callable[[Resource, Object], None] | None = None
        self._limiter: RequestLimiter | None = None
        self._shapes: Mapping[Resource, Shape] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def guarded(
        self,
        guard: Callable[[], None] | None,
        note_write: Callable[[Resource, Object], None] | None = None,
        limiter: RequestLimiter | None = None,
        shapes: Mapping[Resource, Shape] | None = None,
    ) -> AsyncClient:
        """Return a view of this client, with the same connections, for conditional writes.

        `guard` runs right before a write is sent, and may raise to prevent it; `note_write` gets the
        object that the server returns for a write; `limiter` limits concurrent requests other than
        watches. Objects of a kind in `shapes` are read as the cache would keep them.
        """
        view = AsyncClient.__new__(AsyncClient)
        view.__dict__.update(self.__dict__)
        view._guard = guard
        view._note_write = note_write
        view._limiter = limiter
        view._shapes = shapes or {}
        return view

    def apart(self, *, call_timeout_seconds: float, attempts: int) -> AsyncClient:
        """Return another client of the same server, with its own connections and contact."""
        return AsyncClient(
            self.connection,
            call_timeout_seconds=call_timeout_seconds,
            attempts=attempts,
            transport=self._transport.apart(),
        )

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        metadata_only: bool = False,
    ) -> Object:
        """Read an object. A name that would turn the path into the collection's raises NotFound without a
        request.

        Raises:
            TooLarge: the object exceeds the limit for reading.
        """
        if name in _NO_NAMES:
            message = f'{resource.group_resource} "{name}" not found'
            raise NotFound(404, "NotFound", message, {"name": repr(name)})
        accept = METADATA if metadata_only else JSON
        call = Call("GET", resource.path(namespace, name), accept=accept)
        shape = NAMES if metadata_only else self._shapes.get(resource)
        return read_shaped(await self._send_retrying(call), resource, shape)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        metadata_only: bool = False,
    ) -> Object:
        """Read a whole list: page by page, or in one piece if a continue token expires.

        Raises:
            TooLarge: the list exceeds the limit for reading outside the cache.
        """
        items, pages, is_paged = list[Object](), PageSize(), True
        token: str | None = None
        size_bytes = counted = 0
        while True:
            try:
                page = await self.list_page(
                    resource,
                    namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    metadata_only=metadata_only,
                    page_size=pages.limit if is_paged else None,
                    continue_token=token,
                    most_bytes=pages.most_bytes if is_paged else MOST_WHOLE_BYTES,
                )
            except Gone:
                if not is_paged:
                    raise
                items, token, is_paged, size_bytes, counted = [], None, False, 0, 0
                continue
            except TooLarge as error:
                if not is_paged or pages.limit == 1:
                    raise
                pages.too_large(error)
                continue
            items.extend(page["items"])
            pages.arrived(len(page["items"]), page["bytes"])
            size_bytes, counted = size_bytes + page["bytes"], counted + page["units"]
            if size_bytes > MOST_WHOLE_BYTES or counted > MOST_LISTED_UNITS:
                raise TooLarge(f"the list of {resource.group_resource} is larger than what is read at once")
            token = page.get("metadata", {}).get("continue")
            if not token:
                return {**page, "items": items}

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        metadata_only: bool = False,
        shape: Shape | None = None,
        is_split: bool = False,
        page_size: int | None = LIST_PAGE_SIZE,
        continue_token: str | None = None,
        most_bytes: int = MOST_PAGE_BYTES,
    ) -> Object:
        """Read one page: `items`, `metadata`, and its size in `bytes`.

        Args:
            shape: shape to read the objects by; unreadable ones are left out.
            is_split: whether objects are only split by the shape, and not read.

        Raises:
            PageTooLarge: the page has more than `most_bytes`.
            TooLarge: the page has too many values.
        """
        query = query_of(
            labelSelector=label_selector,
            fieldSelector=field_selector,
            limit=page_size,
            continue_=continue_token,
        )
        accept = METADATA_LIST if metadata_only else JSON
        call = Call("GET", resource.path(namespace), query, accept=accept, most_bytes=most_bytes)
        answer = await self._send_retrying(call)
        shape = shape or (NAMES if metadata_only else self._shapes.get(resource))
        if shape is None:
            return await read_page(answer, resource)
        page = await split_page(answer, shape)
        return page if is_split else await read_items(page, resource, shape)

    async def create(self, resource: Resource, obj: Object, *, strict: bool = False) -> Object:
        """Create an object.

        Args:
            strict: raise Invalid for fields unknown to the server, which otherwise drops them.
        """
        query = {"fieldValidation": "Strict"} if strict else {}
        call = Call("POST", resource.path(_namespace_of(resource, obj)), query, body=orjson.dumps(obj))
        return await self._write(resource, call)

    async def replace(self, resource: Resource, obj: Object, *, subresource: str | None = None) -> Object:
        """Replace an object. Raises Conflict unless `obj` has the current resourceVersion."""
        path = resource.path(_namespace_of(resource, obj), obj["metadata"]["name"], subresource)
        return await self._write(resource, Call("PUT", path, body=orjson.dumps(obj)), subresource)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Object:
        """Apply a JSON merge patch; with `metadata.resourceVersion` in it, Conflict is raised if the object
        changed."""
        path = resource.path(namespace, name, subresource)
        call = Call("PATCH", path, body=orjson.dumps(patch), content_type=MERGE_PATCH)
        return await self._write(resource, call, subresource)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        """Delete an object.

        Raises:
            NotFound: it is already gone.
            Conflict: `uid` is another object's, or the object is not at `resource_version` any more.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {name: value for name, value in wanted.items() if value is not None}:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._object(Call("DELETE", resource.path(namespace, name), body=orjson.dumps(options)))

    async def version(self) -> Object:
        """Return the server's version, `{"gitVersion": …}`: the cheapest check that it answers."""
        return await self.ask("GET", "/version")

    async def ask(
        self, method: str, path: str, body: Object | None = None, content_type: str = JSON
    ) -> Object:
        """Send any other request, for example one for a subresource."""
        encoded = None if body is None else orjson.dumps(body)
        return await self._object(Call(method, path, body=encoded, content_type=content_type))

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        timeout_seconds: int,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchStream]:
        """Open one raw watch request; most callers want an informer (cache.py)."""
        query = query_of(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=timeout_seconds,
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        call = Call("GET", resource.path(namespace), query)
        async with self._transport.stream(call, self.call_timeout_seconds) as stream:
            self._observe("WATCH", 200)
            yield stream

    async def _write(self, resource: Resource, call: Call, subresource: str | None = None) -> Object:
        answer = await self._send_retrying(call)
        try:
            written = read_shaped(answer, resource, self._shapes.get(resource))
        except TooLarge:
            return named_in(answer.body)
        except Invalid as error:
            if subresource == "status" and not is_denial(error):
                raise InvalidStatus(error.status, error.reason, str(error), error.details) from error
            raise
        if self._note_write is not None:
            self._note_write(resource, written)
        return written

    async def _object(self, call: Call) -> Object:
        return read_object(await self._send_retrying(call))

    def _turn(self, call: Call) -> AbstractAsyncContextManager[None]:
        """Return the limiter's slot for one attempt; no call holds a slot while it waits to retry."""
        if self._limiter is None:
            return nullcontext()
        return self._limiter.slot(may_be_late=call.may_wait_for_webhooks)

    async def _send_retrying(self, call: Call) -> Answer:
        """Send a call, and retry it after failures, within its time limit, which starts with the first turn.

        The wait of the first attempt for its turn is not included.
        """
        clock, deadline = asyncio.get_running_loop().time, math.inf
        backoff: Backoff | None = None
        attempts = 0
        with current_wait.get():
            while True:
                try:
                    async with self._turn(call):
                        deadline = min(deadline, clock() + self.call_timeout_seconds)
                        return await self._send(call, deadline - clock())
                except Unavailable as error:
                    asked_for = min(error.retry_after_seconds, _LONGEST_RETRY_AFTER_SECONDS)
                    backoff = backoff or Backoff(_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
                    wait_seconds = asked_for or backoff.next_seconds()
                    attempts += 1
                    is_over = attempts >= self._attempts or clock() + wait_seconds >= deadline
                    if is_over or not (call.is_read or not error.processed):
                        raise
                await asyncio.sleep(wait_seconds)

    async def _send(self, call: Call, timeout_seconds: float) -> Answer:
        if self._guard is not None and not call.is_read:
            self._guard()
        try:
            answer = await self._transport.send(call, timeout_seconds)
        except ApiError:
            self._observe(call.method, None)
            raise
        self._observe(call.method, answer.status)
        if answer.took_storage:
            self.contact.answered()
        if answer.status == 429 or answer.status >= 500:
            with suppress(Invalid):  # it is raised where the answer is read
                answer.raise_for_status()
        return answer

    def _observe(self, method: str, status: int | None) -> None:
        for observer in self.observers:
            observer(method, status)


def _namespace_of(resource: Resource, obj: Object) -> str | None:
    if not resource.namespaced:
        return None
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    if not namespace:
        name = metadata.get("name") or metadata.get("generateName")
        raise ValueError(f"{resource.kind} {name!r} has no metadata.namespace")
    return str(namespace)
