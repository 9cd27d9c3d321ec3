"""The sockets of a node, with grpcio on both ends."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from healthcheck.nvsentinel.bridge import Bridge
from healthcheck.nvsentinel.messages import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthEvents,
    ProcessingStrategy,
)
from tests.healthcheck.nvsentinel.test_verdict import node

pytestmark = pytest.mark.real

WAIT_SECONDS = 20.0


class Connector:
    """NVSentinel's end: takes events, and refuses the first ones."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.taken: asyncio.Queue[Any] = asyncio.Queue()

    async def occurred(self, events: Any, context: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the datastore is away")
        await self.taken.put(events)
        return Empty()

    @asynccontextmanager
    async def listening(self, socket: str) -> AsyncIterator[None]:
        method = grpc.unary_unary_rpc_method_handler(
            self.occurred,
            request_deserializer=HealthEvents.FromString,
            response_serializer=Empty.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler(
            "datamodels.PlatformConnector", {"HealthEventOccurredV1": method}
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def next(self) -> tuple[bool, str]:
        (event,) = (await asyncio.wait_for(self.taken.get(), WAIT_SECONDS)).events
        return event.isHealthy, event.nodeName


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def socket() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dlr-") as folder:
        yield str(Path(folder, "s"))


async def test_each_change_of_the_verdict_reaches_nvsentinel_once_it_is_there(socket: str) -> None:
    bridge, connector = Bridge(ProcessingStrategy.EXECUTE_REMEDIATION), Connector(refusals=1)
    async with running(bridge.send(socket)):
        bridge.take(node(None))
        bridge.take(node("True"))
        async with connector.listening(socket):
            assert await connector.next() == (False, "n1")
            bridge.take(node("True"))
            bridge.take(node("False"))
            assert await connector.next() == (True, "n1")
    assert connector.taken.empty()


async def test_nvrx_is_answered_by_the_verdict_and_not_before_the_node_was_read(socket: str) -> None:
    bridge = Bridge(ProcessingStrategy.STORE_ONLY)
    async with running(bridge.serve(socket)), grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/nvhcd.HealthCheckService/RunHealthCheck",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )

        async def ask() -> Any:
            request = HealthCheckRequest(args=["--no-slurm"])
            return await call(request, timeout=WAIT_SECONDS, wait_for_ready=True)

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        for status, failed in (("True", 1), ("False", 0)):
            bridge.take(node(status))
            answer = await ask()
            assert (answer.success, json.loads(answer.output)["fail_count"]) == (not failed, failed)
