"""Sockets of one node: events to NVSentinel whenever the verdict changes, answers to NVRx."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import orjson
from google.protobuf.empty_pb2 import Empty

from controller.backoff import Backoff
from controller.client import AsyncClient
from controller.errors import ApiError
from controller.resources import NODES, Object
from healthcheck.nvsentinel.messages import (
    HEALTH_CHECK_SERVICE,
    HEALTH_EVENT_OCCURRED,
    RUN_HEALTH_CHECK,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthEvents,
    ProcessingStrategy,
)
from healthcheck.nvsentinel.verdict import NodeVerdict, answer_of, event_of, verdict_on

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0
WATCH_SECONDS = 300
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
"""Retry limits; NVSentinel or the API server may be away for any time, since the verdict stays on the
Node."""


class Bridge:
    """Newest verdict on a node, and its transmission to NVSentinel and NVRx."""

    def __init__(self, strategy: ProcessingStrategy) -> None:
        self._strategy = strategy
        self._verdict: NodeVerdict | None = None
        self._is_read = False
        self._changed = asyncio.Event()

    def take(self, node: Object) -> None:
        """Process a version of the raw Node."""
        verdict = verdict_on(node)
        self._is_read = True
        if verdict != self._verdict:
            self._verdict = verdict
            self._changed.set()

    async def send(self, socket: str) -> None:
        """Send each new verdict to NVSentinel until it is accepted, or replaced by a newer one."""
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            call = channel.unary_unary(
                HEALTH_EVENT_OCCURRED,
                request_serializer=HealthEvents.SerializeToString,
                response_deserializer=Empty.FromString,
            )
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._verdict is None:
                    continue
                try:
                    await call(HealthEvents(**event_of(self._verdict, self._strategy)), timeout=CALL_SECONDS)
                except grpc.aio.AioRpcError as error:
                    log.warning("event not taken socket=%s error=%s", socket, error.details())
                    self._changed.set()
                    await asyncio.sleep(backoff.next_seconds())
                    continue
                backoff.reset()
                log.info("event taken node=%s healthy=%s", self._verdict.node, self._verdict.healthy)

    async def serve(self, socket: str) -> None:
        """Answer NVRx's launcher at a socket."""
        handler = grpc.unary_unary_rpc_method_handler(
            self._run_health_check,
            request_deserializer=HealthCheckRequest.FromString,
            response_serializer=HealthCheckResponse.SerializeToString,
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(HEALTH_CHECK_SERVICE, {RUN_HEALTH_CHECK: handler}),)
        )
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(None)

    async def _run_health_check(self, _: Any, context: Any) -> Any:
        if not self._is_read:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the Node has not been read yet")
        return HealthCheckResponse(**answer_of(self._verdict))


async def watch_node(client: AsyncClient, name: str, take: Callable[[Object], None]) -> None:
    """Pass each version of a Node to `take`, forever."""
    backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    while True:
        try:
            async for node in _versions(client, name):
                take(node)
                backoff.reset()
        except ApiError as error:
            log.warning("node not read node=%s error=%s", name, error)
        await asyncio.sleep(backoff.next_seconds())


async def _versions(client: AsyncClient, name: str) -> AsyncIterator[Object]:
    """Yield the current version, and each change until the watch ends."""
    selector = f"metadata.name={name}"
    page = await client.list(NODES, field_selector=selector)
    for node in page["items"]:
        yield node
    version = page["metadata"]["resourceVersion"]
    async with client.watch(
        NODES, resource_version=version, timeout_seconds=WATCH_SECONDS, field_selector=selector
    ) as stream:
        while (lines := await stream.lines(2.0 * WATCH_SECONDS)) is not None:
            for line in filter(None, lines):
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] in ("ADDED", "MODIFIED"):
                    yield event["object"]
