"""How the verdict on a node is read: all that there is, then each change, for as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from controller.errors import Unavailable
from healthcheck.nvsentinel.bridge import watch_node

pytestmark = pytest.mark.played


def event(type_: str, version: str) -> bytes:
    return orjson.dumps({"type": type_, "object": {"metadata": {"name": "n1", "resourceVersion": version}}})


class Server:
    """Answers lists and watches in their order; then the test is over."""

    def __init__(self, *watches: list[list[bytes]] | Exception) -> None:
        self.watches = list(watches)
        self.asked = list[tuple[str, str]]()

    async def list(self, _: Any, *, field_selector: str) -> dict[str, Any]:
        self.asked.append(("list", field_selector))
        version = f"{len(self.asked)}0"
        node = {"metadata": {"name": "n1", "resourceVersion": version}}
        return {"items": [node], "metadata": {"resourceVersion": version}}

    @asynccontextmanager
    async def watch(self, _: Any, *, resource_version: str, **more: Any) -> AsyncIterator[Any]:
        self.asked.append(("watch", resource_version))
        if not self.watches:
            raise asyncio.CancelledError
        found = self.watches.pop(0)
        if isinstance(found, Exception):
            raise found
        yield Stream(found)


class Stream:
    def __init__(self, batches: list[list[bytes]]) -> None:
        self.batches = batches

    async def lines(self, _: float) -> list[bytes] | None:
        return self.batches.pop(0) if self.batches else None


async def test_each_version_is_taken_in_through_ends_and_outages_of_the_watch() -> None:
    server = Server(
        [[event("MODIFIED", "11"), b"", event("BOOKMARK", "12")], [event("MODIFIED", "13")]],
        Unavailable("the API server is away"),
        [[event("ERROR", "410")]],
    )
    taken = list[str]()
    with pytest.raises(asyncio.CancelledError):
        await watch_node(server, "n1", lambda node: taken.append(node["metadata"]["resourceVersion"]))  # type: ignore[arg-type]
    assert taken == ["10", "11", "13", "30", "50", "70"]
    assert server.asked[:2] == [("list", "metadata.name=n1"), ("watch", "10")]
