"""Answers requests for resources: one function a verb."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from localcluster.apiserver import pod_actions
from localcluster.apiserver.admission import check
from localcluster.apiserver.applying import apply
from localcluster.apiserver.bodies import read_body
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.decoding import APPLY_PATCH, decode_body, media_type_of
from localcluster.apiserver.deletion import DeleteOptions, delete, deletion_answer, read_options
from localcluster.apiserver.encoders import AnyEncoder, encoder_for
from localcluster.apiserver.errors import ApiError, method_not_allowed, no_such_path
from localcluster.apiserver.lists import Lists
from localcluster.apiserver.logs import read_log_request
from localcluster.apiserver.patching import read_patch, refuse_force
from localcluster.apiserver.policies import Operation
from localcluster.apiserver.representations import negotiate
from localcluster.apiserver.requests import Context
from localcluster.apiserver.reviews import review
from localcluster.apiserver.scale import read_scale, write_scale
from localcluster.apiserver.scale_object import SCALE_TYPE
from localcluster.apiserver.selection import read_selection
from localcluster.apiserver.store import Stored
from localcluster.apiserver.token_requests import request_token
from localcluster.apiserver.watch import Watch, begin, timeout_of
from localcluster.apiserver.writes import Written, create, current_object, patch, replace
from localcluster.builtin import DELETE_OPTIONS
from localcluster.client.clock import utc_now
from localcluster.json_text import dumps
from localcluster.resource import JSON

REFUSED_SUBRESOURCES = frozenset({"exec", "attach", "portforward", "proxy"})
_ALLOWED_OF_ONE = ("GET", "PUT", "PATCH", "DELETE")
_ALLOWED_OF_MANY = ("GET", "POST", "DELETE")
_POSTED = {"binding": pod_actions.bind, "eviction": pod_actions.evict, "token": request_token}


@dataclass(frozen=True)
class Call:
    """A request for a resource, with the means to read its body and to stream an answer."""

    context: Context
    method: str
    accept: str
    content_type: str
    body: bytes
    stream: Callable[[str], Awaitable[web.StreamResponse]] = field(hash=False)
    """Starts an answer of unknown length, of a media type."""

    def json(self) -> Any:
        return decode_body(self.body, self.content_type)


class Handlers:
    """Answers what is asked of the cluster's resources."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lists = Lists(cluster.store)

    async def answer(self, call: Call) -> web.StreamResponse:
        context = call.context
        if context.subresource:
            return await self._subresource(call)
        if not context.type.stored:
            if call.method == "POST" and not context.name:
                return _json(review(self._cluster, context, call.json()), 201)
            raise method_not_allowed()
        if context.name:
            return self._one(call)
        if call.method == "GET" and context.flag("watch"):
            return await self._watch(call)
        return self._many(call)

    def _one(self, call: Call) -> web.Response:
        context = call.context
        match call.method:
            case "GET":
                return self._object(call, current_object(self._cluster, context))
            case "PUT":
                return self._written(call, replace(self._cluster, context, call.json(), utc_now()))
            case "PATCH" if media_type_of(call.content_type) == APPLY_PATCH:
                return self._written(call, apply(self._cluster, context, call.json(), utc_now()))
            case "PATCH":
                refuse_force(context)
                change = read_patch(context.type, call.body, call.content_type)
                return self._written(call, patch(self._cluster, context, change, utc_now()))
            case "DELETE":
                return self._delete(call)
        raise method_not_allowed(allowed=_ALLOWED_OF_ONE)

    def _many(self, call: Call) -> web.Response:
        context = call.context
        match call.method:
            case "GET":
                encoder = encoder_for(context, negotiate(call.accept))
                page = self._lists.page(
                    context, context.type.group_resource, read_selection(context), time.monotonic()
                )
                return _raw(encoder.list(page.items, page.metadata))
            case "POST":
                return self._create(call)
            case "DELETE":
                return self._delete_many(call)
        raise method_not_allowed(allowed=_ALLOWED_OF_MANY)

    def _create(self, call: Call) -> web.Response:
        return self._written(call, create(self._cluster, call.context, call.json(), utc_now()))

    def _object(self, call: Call, stored: Stored, code: int = 200) -> web.Response:
        encoder = encoder_for(call.context, negotiate(call.accept))
        return _raw(encoder.one(stored), code)

    def _written(self, call: Call, written: Written) -> web.Response:
        return self._object(call, written.stored, 201 if written.created else 200)

    def _delete_options(self, call: Call) -> DeleteOptions:
        body = read_body(DELETE_OPTIONS, call.json())
        return read_options(
            body,
            call.context.integer("gracePeriodSeconds"),
            call.context.query.get("propagationPolicy"),
            dry_run=call.context.dry_run(body),
        )

    def _delete(self, call: Call) -> web.Response:
        options = self._delete_options(call)
        stored = current_object(self._cluster, call.context)
        check(self._cluster, call.context, Operation.DELETE, None, stored.obj)
        deleted = delete(self._cluster, call.context.type, stored, options, utc_now())
        return _json(deletion_answer(call.context, deleted))

    def _delete_many(self, call: Call) -> web.Response:
        context = call.context
        options = self._delete_options(call)
        page = self._lists.page(
            context, context.type.group_resource, read_selection(context), time.monotonic()
        )
        for stored in page.items:
            check(self._cluster, context, Operation.DELETE, None, stored.obj)
            delete(self._cluster, context.type, stored, options, utc_now())
        return _raw(encoder_for(context, negotiate(call.accept)).list(page.items, page.metadata))

    async def _subresource(self, call: Call) -> web.StreamResponse:
        context = call.context
        name = context.subresource
        if name in REFUSED_SUBRESOURCES and context.type.kind == "Pod":
            raise method_not_allowed(
                f"this local cluster has no pods/{name}: a Pod's processes run on this machine, look there"
            )
        if name not in context.type.subresources:
            raise no_such_path()
        if name == "status" and call.method in ("GET", "PUT", "PATCH"):
            return self._one(call)
        if name == "scale" and call.method in ("GET", "PUT", "PATCH"):
            return self._scale(call)
        if name == "log" and call.method == "GET":
            return await self._log(call)
        if name in _POSTED and call.method == "POST":
            return _json(_POSTED[name](self._cluster, context, call.json(), utc_now()), 201)
        raise method_not_allowed()

    def _scale(self, call: Call) -> web.Response:
        if call.method == "GET":
            return _json(read_scale(self._cluster, call.context))
        change: Callable[[JSON], Any]
        if call.method == "PUT":
            body = call.json()
            change = lambda _: body  # noqa: E731
        else:
            change = read_patch(SCALE_TYPE, call.body, call.content_type)
        return _json(write_scale(self._cluster, call.context, change, utc_now()))

    async def _log(self, call: Call) -> web.StreamResponse:
        request = read_log_request(self._cluster, call.context, utc_now())
        if request is None:
            return web.Response(status=204)
        response = await call.stream("text/plain")
        await request.run(response.write)
        await response.write_eof()
        return response

    async def _watch(self, call: Call) -> web.StreamResponse:
        context = call.context
        encoder: AnyEncoder = encoder_for(context, negotiate(call.accept))
        watch = Watch(read_selection(context), encoder)
        collection = self._cluster.collection(context.type)
        timeout_seconds = timeout_of(context)
        try:
            begin(watch, context, collection, self._cluster.store)
        except ApiError as error:
            if error.code != 410:
                raise
            watch.send(encoder.error(error))
            timeout_seconds = 0.0
        collection.subscribe(watch)
        try:
            response = await call.stream("application/json")
            bookmarks = context.flag("allowWatchBookmarks") and timeout_seconds > 0
            await watch.run(
                self._cluster.store, response.write, timeout_seconds=timeout_seconds, bookmarks=bookmarks
            )
            await response.write_eof()
        finally:
            collection.unsubscribe(watch)
        return response


def _json(value: JSON, code: int = 200) -> web.Response:
    return _raw(dumps(value), code)


def _raw(body: bytes, code: int = 200) -> web.Response:
    return web.Response(body=body, status=code, content_type="application/json")
