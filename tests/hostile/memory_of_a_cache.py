"""A process of its own that fills the controller's cache from a server, and prints what memory that took.

python -m tests.hostile.memory_of_a_cache URL
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import orjson

from controller.cache import Cache
from controller.client import Client
from controller.garbage import keep_pauses_short
from crds.elasticjob import ElasticJob
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.setup import add_indexes
from reconcilers.shapes import SHAPES
from tests.controller.fake_api import connection_to
from tests.counting import cpu_seconds


def hostile_job(number: int) -> bytes:
    """JSON of 1.1 MB, of as many small objects as fit: what takes most memory when it is parsed."""
    return _PARTS[0] + b"%06d" % number + _PARTS[1] + b"%06d" % number + _PARTS[2]


def _parts() -> list[bytes]:
    junk = {f"k{j}": {"a": 1, "b": []} for j in range(46_000)}
    template = {"spec": {"containers": [{"name": "m", "image": "x"}], "x": junk}}
    metadata = {"name": "e@", "namespace": "evil", "uid": "u@", "resourceVersion": "1"}
    spec = {"suspend": True, "replicaSpecs": {"worker": {"template": template}}}
    return orjson.dumps({"metadata": metadata, "spec": spec}).split(b"@")


_PARTS = _parts()


class Server:
    """Lists so many jobs in pages, each written when it is asked for; its watches bring nothing."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.limits: list[int] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            while (await reader.readline()).strip():
                pass
            query = {k: v[0] for k, v in parse_qs(urlparse(line.split()[1].decode()).query).items()}
            if "watch" in query:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
                )
                await writer.drain()
                await reader.read()
                writer.close()
                return
            start, limit = int(query.get("continue", 0)), int(query["limit"])
            self.limits.append(limit)
            end = min(start + limit, self.jobs)
            metadata = {"resourceVersion": "9"} | ({"continue": str(end)} if end < self.jobs else {})
            head, tail = b'{"items":[', b'],"metadata":' + orjson.dumps(metadata) + b"}"
            length = len(head) + len(tail) + (end - start) * (len(hostile_job(0)) + 1) - 1
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
            )
            for part in self._parts(head, start, end, tail):
                writer.write(part)
                await writer.drain()

    def _parts(self, head: bytes, start: int, end: int, tail: bytes) -> Iterator[bytes]:
        yield head
        for number in range(start, end):
            yield hostile_job(number) + (b"," if number < end - 1 else b"")
        yield tail


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmRSS"].split()[0]) << 10


async def fill(url: str) -> dict[str, Any]:
    """Lists all there is; and what was seen of it."""
    keep_pauses_short()
    gc.collect()
    before, longest = resident_bytes(), 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            at = time.thread_time()  # others may have the processor meanwhile
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - at)

    async with Client(connection_to(url), call_timeout_seconds=300.0) as client:
        cache = Cache(client)
        cache.keep_only(SHAPES)
        add_indexes(cache)
        store, models = cache.store(ELASTICJOBS), cache.models(ELASTICJOBS, ElasticJob)
        cache._informers = {ELASTICJOBS: cache._informers[ELASTICJOBS]}
        began = cache._informers[ELASTICJOBS].progressed_at
        tasks = [asyncio.create_task(cache.run())]
        while cache._informers[ELASTICJOBS].progressed_at == began:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        tasks.append(asyncio.create_task(beat()))
        await cache.wait_synced(300)
        held_up, one = longest, hostile_job(0)
        parsed = cpu_seconds(lambda: orjson.loads(one))
        jobs = [models.parse(raw) for raw in store.list()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        grown = resident_bytes() - before
    return {"jobs": len(jobs), "grownBytes": grown, "heldUpSeconds": held_up, "parsedSeconds": parsed}


def main() -> None:
    print(json.dumps(asyncio.run(fill(sys.argv[1]))))


if __name__ == "__main__":
    main()
